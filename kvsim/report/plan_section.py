"""The part of a page that a plan's answer is: the recommended point, its neighbours, and what everything costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure

from kvsim.report.format import duration
from kvsim.report.sections import Drawn, Section
from kvsim.report.sortable import Entry, Heading, SortableTable, text_entry

_SHARES = ("goodput", "finished")


def plan_section(answer: Mapping[str, Any], plot: Figure) -> Section:
    """Of what ``plan.json`` says.

    Args:
        answer: its content.
        plot: costs against the SLO's first limit.
    """
    limits = [key for key in answer["slo"] if key != "request"]
    best = answer.get("recommended") or answer.get("closest")
    rows = [] if best is None else [_row(best, None, limits, str(best["name"]))]
    for each in answer["neighbours"]:
        name = f"{each['axis']} {each['point'][each['axis']]}"
        rejected = each.get("rejected")
        if rejected is not None and best is not None and rejected != best.get("rejected"):
            name += f" ({rejected:,} requests rejected)"
        rows.append(_row(each, best, limits, name))
    headings = [
        Heading("Point", "text"),
        *(Heading(_title(key)) for key in limits),
        Heading("SLO", "text"),
        Heading("USD per 1M output tokens"),
        Heading("Change"),
        Heading("USD per hour"),
    ]
    table = SortableTable(
        tuple(headings),
        tuple(rows),
        " ".join(answer["reasons"]),
        " ".join([f"{answer['cost_formula']}.", *(f"{line[:1].upper()}{line[1:]}." for line in answer["prices"])]),
    )
    text = "Joined: no other point is as cheap and as good. The SLO's limit is dashed."
    return Section("plan", "The answer, and what is next to it", (table,), (Drawn("plan_pareto", plot, text),))


def _title(key: str) -> str:
    name, _, end = key.partition("_")
    return f"{name.upper()} {end.upper()}" if end else name.capitalize()


def _row(
    point: Mapping[str, Any], best: Mapping[str, Any] | None, limits: Sequence[str], name: str
) -> tuple[Entry, ...]:
    if "slo" not in point:
        why = point.get("reason") or "not simulated"
        return (text_entry(name), *([Entry("", "")] * len(limits)), text_entry(str(why), "bad"), *([Entry("", "")] * 3))
    usd = point["usd_per_1m_output_tokens"]
    theirs = None if best is None else best.get("usd_per_1m_output_tokens")
    change = Entry("", "")
    if usd is not None and theirs:
        share = 100 * (usd / theirs - 1)
        change = Entry(f"{share:+.1f} %", f"{share:.12g}")
    met = bool(point["meets_slo"])
    return (
        text_entry(name, "" if best is not None else "good" if met else "bad"),
        *(_figure(key, point["slo"].get(key, {}).get("measured")) for key in limits),
        text_entry("met" if met else "missed", "good" if met else "bad"),
        Entry("", "") if usd is None else Entry(f"{usd:,.2f}", f"{usd:.12g}"),
        change,
        Entry(f"{point['usd_per_hour']:,.2f}", f"{point['usd_per_hour']:.12g}"),
    )


def _figure(key: str, measured: float | None) -> Entry:
    if measured is None:
        return Entry("", "")
    text = f"{100 * measured:.1f} %" if key in _SHARES else duration(measured / 1e6)
    return Entry(text, f"{measured:.12g}")
