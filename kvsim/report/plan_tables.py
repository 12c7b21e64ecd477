"""A plan's answer as terminal tables, at most 100 columns wide."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.table import Table
from rich.text import Text

WIDTH = 100
_COSTS = ("USD/1M out", "change", "USD/h")


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


def plan_table(title: str, limits: Sequence[str], rows: Sequence[PlanRow], width: int = WIDTH) -> Table:
    """A row per point.

    Args:
        title: above the table.
        limits: headers of the SLO's figures; at most four are shown.
        rows: points.
        width: of the terminal; in a narrow one columns are left out, and named, so that points have room.
    """
    table = Table(title=Text(title, style="bold"), title_justify="left")
    shown = list(limits)[: max(1, min(4, (width - 36) // 12))]
    costs = _COSTS if width >= min(WIDTH, 56 + 12 * len(shown)) else _COSTS[:1]
    if len(costs) < len(_COSTS):
        left_out = ", ".join((*limits[len(shown) :], *_COSTS[len(costs) :]))
        table.caption, table.caption_justify = f"No room for {left_out}; results.csv has all figures.", "left"
    table.add_column("Point", overflow="fold", max_width=max(24, WIDTH - 46 - 12 * len(shown)))
    for limit in shown:
        table.add_column(limit, justify="right", max_width=9, overflow="fold")
    table.add_column("SLO", max_width=6)
    for cost in costs:
        table.add_column(cost, justify="right", no_wrap=True)
    for row in rows:
        verdict = {True: Text("met", style="green"), False: Text("missed", style="red"), None: Text("n/a")}[row.meets]
        table.add_row(
            Text(row.name, style="bold" if row.is_best else ""),
            *row.figures[: len(shown)],
            verdict,
            *(row.usd[0], row.change, row.usd[1])[: len(costs)],
        )
    return table
