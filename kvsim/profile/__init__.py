"""Link profiles: how long KV copies between GPU and host take, and where each number comes from.

Every number in a profile has a source. A number that nobody measured is written as ``value: null`` with what
is `assumed` instead, so that a report can say which of its inputs are guesses.
"""

from kvsim.profile.figures import (
    FactorFigure,
    Figure,
    Grid,
    IsoDate,
    PartFigure,
    PositivePartFigure,
    RateFigure,
    SizeFigure,
    TimeFigure,
    assumed_figures,
)
from kvsim.profile.host import HostProfile, load_host
from kvsim.profile.link import PPM, Direction, Duplex, LinkProfile, PathName, Remote, Share
from kvsim.profile.paths import CopyPath, DmaLoop, KernelCopies, Pageable, Pieces
from kvsim.profile.presets import default_link, dump_link, link_names, load_link

__all__ = [
    "PPM",
    "CopyPath",
    "Direction",
    "DmaLoop",
    "Duplex",
    "FactorFigure",
    "Figure",
    "Grid",
    "HostProfile",
    "IsoDate",
    "KernelCopies",
    "LinkProfile",
    "Pageable",
    "PartFigure",
    "PathName",
    "Pieces",
    "PositivePartFigure",
    "RateFigure",
    "Remote",
    "Share",
    "SizeFigure",
    "TimeFigure",
    "assumed_figures",
    "default_link",
    "dump_link",
    "link_names",
    "load_host",
    "load_link",
]
