"""How every plot looks, and how it becomes a file: no global state, the same bytes each time."""

from __future__ import annotations

import functools
import io
import re
from collections.abc import Callable
from typing import Any, ParamSpec

import matplotlib as mpl
from markupsafe import Markup
from matplotlib.figure import Figure

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
"""Okabe and Ito's colours, told apart under every common colour blindness (jfly.uni-koeln.de/color/, 2008).

Without their yellow, which is too faint for lines on white, and their black, which is the text.
"""
DASHES = ("-", "--", ":", "-.")
BLUE, ORANGE, GREEN, VERMILLION = PALETTE[:4]

INK, PAPER, GRID = "#1b1f24", "#fefefe", "#d8dce1"
"""Colours that a page with a dark theme replaces in the SVG; used for nothing else."""

DPI = 150
WIDTH_IN = 8.0

_RC: Any = {
    "figure.facecolor": PAPER,
    "axes.facecolor": PAPER,
    "savefig.facecolor": PAPER,
    "legend.facecolor": PAPER,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "grid.color": GRID,
    "legend.edgecolor": GRID,
    "legend.framealpha": 1.0,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "font.size": 10,
    "font.family": ["DejaVu Sans", "sans-serif"],  # comes with matplotlib: the same everywhere
    "lines.linewidth": 1.8,
    "path.simplify": True,
    "svg.fonttype": "none",  # text stays text: searchable, and a third of the size
    "svg.hashsalt": "kvsim",  # else ids are random
}

P = ParamSpec("P")


def styled(draw: Callable[P, Figure]) -> Callable[P, Figure]:
    """Decorate a function that draws a figure, so that the house style holds while it runs."""

    @functools.wraps(draw)
    def wrapper(*args: P.args, **kwargs: P.kwargs) -> Figure:
        with mpl.rc_context(_RC):
            return draw(*args, **kwargs)

    return wrapper


def figure(height_in: float = 4.2) -> Figure:
    """An empty figure of the common width; no window system and no pyplot state behind it."""
    return Figure(figsize=(WIDTH_IN, height_in), layout="constrained")


def line_style(index: int) -> dict[str, Any]:
    """Colour and dashes of the ``index``-th of several lines; dashes change when the colours begin again."""
    return {
        "color": PALETTE[index % len(PALETTE)],
        "linestyle": DASHES[index // len(PALETTE) % len(DASHES)],
    }


def say(title: str, text: str) -> Figure:
    """A low figure that says why there is nothing to draw."""
    drawn = figure(1.2)
    axes = drawn.subplots()
    axes.set_title(title)
    axes.set_axis_off()
    axes.text(0.0, 0.6, text, transform=axes.transAxes, ha="left", va="center", style="italic")
    return drawn


def as_svg(drawn: Figure) -> str:
    """The figure as SVG text, the same bytes each time."""
    with mpl.rc_context(_RC):
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        drawn.savefig(buffer, format="svg", metadata=nothing)
        return buffer.getvalue()


def as_png(drawn: Figure) -> bytes:
    """The figure as PNG, the same bytes each time."""
    with mpl.rc_context(_RC):
        buffer = io.BytesIO()
        drawn.savefig(buffer, format="png", dpi=DPI, metadata={"Software": None})
        return buffer.getvalue()


def inline_svg(svg: str, key: str, text: str) -> Markup:
    """An SVG file to stand inside a page: no namespaces, ids of its own, the theme's colours.

    Args:
        svg: what `as_svg` made.
        key: begins its ids; another one for each picture of a page.
        text: what a screen reader says.
    """
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", svg, count=1, flags=re.DOTALL)  # in the page's CSS
    head, body = svg.split(">", 1)
    view = re.search(r'viewBox="[^"]*"', head)
    box = view.group() if view else ""
    body = body.replace("xlink:href", "href")
    body = re.sub(r'\bid="([^"]*)"', rf'id="{key}-\1"', body)
    body = re.sub(r"url\(#([^)]*)\)", rf"url(#{key}-\1)", body)
    body = re.sub(r'href="#([^"]*)"', rf'href="#{key}-\1"', body)
    for color, name in ((INK, "ink"), (PAPER, "paper"), (GRID, "grid")):
        body = body.replace(color, f"var(--{name})")
    label = Markup.escape(text)
    # Safe: made by matplotlib, which escapes the texts in it.
    return Markup(f'<svg {box} role="img" aria-label="{label}">{body}')  # noqa: S704
