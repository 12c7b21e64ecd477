"""A plan's answer as terminal tables, at most 100 columns wide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

WIDTH = 100


@dataclass(frozen=True, slots=True)
class PlanRow:
    """A point in a table.

    Attributes:
        name: what it is, or what is different about it.
        figures: of the SLO's limits, as text.
        usd: of a million output tokens, and of an hour, as text.
        change: of the cost against the recommended point, or "".
        meets: the SLO; None if it has no figures.
        is_best: whether it is the recommended one.
    """

    name: str
    figures: Sequence[str]
    usd: tuple[str, str]
    change: str = ""
    meets: bool | None = None
    is_best: bool = False


def plan_table(title: str, limits: Sequence[str], rows: Sequence[PlanRow]) -> Table:
    """A row per point.

    Args:
        title: above the table.
        limits: headers of the SLO's figures; at most four are shown.
        rows: points.
    """
    table = Table(title=Text(title, style="bold"), title_justify="left")
    shown = list(limits)[:4]
    table.add_column("Point", overflow="fold", max_width=max(24, WIDTH - 46 - 12 * len(shown)))
    for limit in shown:
        table.add_column(limit, justify="right", max_width=9, overflow="fold")
    table.add_column("SLO", max_width=6)
    table.add_column("USD/1M out", justify="right", no_wrap=True)
    table.add_column("change", justify="right", no_wrap=True)
    table.add_column("USD/h", justify="right", no_wrap=True)
    for row in rows:
        verdict = {True: Text("met", style="green"), False: Text("missed", style="red"), None: Text("n/a")}[row.meets]
        table.add_row(
            Text(row.name, style="bold" if row.is_best else ""),
            *row.figures[: len(shown)],
            verdict,
            row.usd[0],
            row.change,
            row.usd[1],
        )
    return table
