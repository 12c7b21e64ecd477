"""Tenants, a row each, for the terminal and for HTML alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsim.report.format import MISSING, memory, number, value
from kvsim.results.compare import TENANT_COLUMNS, Unit

HEADER: tuple[str, ...] = ("Tenant", *(column.label for column in TENANT_COLUMNS))
STORED: tuple[str, ...] = ("Store, peak", "Quota")


def tenant_header(summary: Mapping[str, Any]) -> tuple[str, ...]:
    """What the columns of `tenant_rows` are."""
    return (*HEADER, *STORED) if _has_quotas(summary) else HEADER


def tenant_rows(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row per tenant under `tenant_header`; none if there are not several."""
    rows = []
    for each in summary.get("tenants", ()):
        cells = [_short(column.of(each), column.unit) for column in TENANT_COLUMNS]
        if _has_quotas(summary):
            store = each.get("store")
            cells += [memory(store["used_peak_bytes"]), memory(store["quota_bytes"])] if store else [MISSING, "none"]
        rows.append((each["name"], *cells))
    return rows


def _short(amount: float | None, unit: Unit) -> str:
    """As `value`, but millions of tokens are not written out: ten columns have to fit a terminal."""
    if unit != "tokens" or amount is None or amount < 1e4:
        return value(amount, unit)
    return f"{number(amount / 1e6)} M" if amount >= 1e6 else f"{number(amount / 1e3)} k"


def _has_quotas(summary: Mapping[str, Any]) -> bool:
    return any("store" in each for each in summary.get("tenants", ()))
