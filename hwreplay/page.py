"""A comparison as one HTML file that needs nothing else: no network, no script, light or dark, fit to print."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from hwreplay.compare import Comparison
from hwreplay.plots import PLOTS
from hwreplay.sources import listed
from hwreplay.tables import Cells, error_cells, facts, rate_cells, time_cells
from hwreplay.text import percent
from kvsim.errors import UserError
from kvsim.report.style import inline_svg

ERRORS_HINT = (
    "Error = predicted over measured, minus 1. Bias is the median with its sign (above 0: predicted too long); the "
    "others are of absolute values: MAPE is their mean, MAE the median in time. With several replays: the median of "
    "the replays, and their range below it."
)
TIMES_HINT = (
    "A job's time is from when it began on its stream until its last byte had moved; a pass's is its compute. Pred. = "
    "predicted, meas. = measured."
)
RATES_HINT = "All bytes of these jobs over all of their time; GB = 1e9 bytes."


@dataclass(frozen=True, slots=True)
class Picture:
    """A plot ready to be put into a page, and the sentence under it."""

    svg: Markup
    caption: str


def write_page(compared: Comparison, path: Path, svgs: Mapping[str, str]) -> None:
    """Write the page.

    Args:
        compared: what it shows.
        path: file to write.
        svgs: the plots by name, as `hwreplay.plots.save_plots` gives them.

    Raises:
        UserError: the file cannot be written.
    """
    device = compared.device
    text = _template().render(
        title=f"Predicted and measured: {compared.run} on {device.label}",
        lead=_lead(compared),
        cautions=compared.cautions,
        facts=facts(compared),
        tables=[
            ("numbers", "Errors", ERRORS_HINT, *_unbroken(error_cells(compared))),
            ("times", "Times", TIMES_HINT, *_unbroken(time_cells(compared))),
            ("rates", "Bandwidth", RATES_HINT, *_unbroken(rate_cells(compared))),
        ],
        pictures=[Picture(inline_svg(svgs[key], key, caption), caption) for key, (_, caption) in PLOTS.items()],
        made=f"hwreplay compare of {compared.schedule} with {listed(compared.files)}. Measured on {device.label}, "
        f"{device.date}. GB = 1e9 bytes; MiB = 2**20 bytes.",
        device={
            "Device": device.label,
            "Driver": device.driver or "none",
            "CUDA": device.cuda or "none",
            "torch": device.torch or "none",
            "Python": device.python,
            "Processor": device.cpu,
            "Operating system": device.kernel,
            "Date": device.date,
        },
    )
    try:
        path.write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UserError(f"{path}: cannot write the page: {error.strerror or error}") from None


def _unbroken(cells: Cells) -> Cells:
    """No line ends between a number and its unit."""
    heads, lines = cells
    return heads, [[line[0], *(cell.replace(" ", "\N{NO-BREAK SPACE}") for cell in line[1:])] for line in lines]


def _lead(compared: Comparison) -> str:
    first = compared.rows[0]
    what = f"{first.n:,} {first.name[0].lower()}{first.name[1:]}"
    return (
        f"The median error is {percent(first.median.median)} ({what}), that of the makespan is "
        f"{percent(abs(compared.makespan_error.median))}. Predicted by {compared.predicted_by}; measured on "
        f"{compared.device.label} with backend {compared.backend}."
    )


@functools.cache
def _template() -> Template:
    environment = Environment(
        # the frame and its colours are those of kvsim's reports
        loader=ChoiceLoader([PackageLoader("hwreplay"), PackageLoader("kvsim.report")]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("compare.html.j2")
