"""Tenants, a row each, for the terminal and for HTML alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsim.report.format import memory, value
from kvsim.results.compare import TENANT_COLUMNS

HEADER: tuple[str, ...] = ("Tenant", *(column.label for column in TENANT_COLUMNS))
STORED: tuple[str, ...] = ("Store, peak", "Quota")


def tenant_header(summary: Mapping[str, Any]) -> tuple[str, ...]:
    """What the columns of `tenant_rows` are."""
    return (*HEADER, *STORED) if _has_quotas(summary) else HEADER


def tenant_rows(summary: Mapping[str, Any]) -> list[tuple[str, ...]]:
    """A row per tenant under `tenant_header`; none if there are not several."""
    rows = []
    for each in summary.get("tenants", ()):
        cells = [value(column.of(each), column.unit) for column in TENANT_COLUMNS]
        if _has_quotas(summary):
            store = each.get("store")
            cells += [memory(store["used_peak_bytes"]), memory(store["quota_bytes"])] if store else ["", "none"]
        rows.append((each["name"], *cells))
    return rows


def _has_quotas(summary: Mapping[str, Any]) -> bool:
    return any("store" in each for each in summary.get("tenants", ()))
