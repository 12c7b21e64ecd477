"""A run with its tables and the summary made of them: the same object, in memory or read back from a folder."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from kvsim import __version__
from kvsim.results.findings import warnings
from kvsim.results.instances import InstanceTables, instances_frame, summarize_cluster, summarize_instances
from kvsim.results.network import summarize_network
from kvsim.results.summary import digest, summarize
from kvsim.results.tenants import summarize_fairness, summarize_tenants
from kvsim.results.tiers import TIER_COLUMNS

KIND = "kvsim-run"
SCHEMA = 1
"""Version of the run folder; raised when a reader of the old one would misread the new one."""


def no_tiers() -> pd.DataFrame:
    """The samples of no secondary tier."""
    return pd.DataFrame({name: pd.Series([], dtype=kind) for name, kind in TIER_COLUMNS.items()})


@dataclass(frozen=True)
class Run:
    """A run: what ``summary.json`` says, and the tables.

    Attributes:
        path: its folder; of a run that has none, just its name.
        name: the folder's, or what its config says.
        summary: the content of ``summary.json``.
        requests: see :data:`kvsim.results.summary.REQUEST_COLUMNS`; further columns may follow these.
        series: see :data:`kvsim.results.summary.SERIES_COLUMNS`.
        tiers: see :data:`kvsim.results.tiers.TIER_COLUMNS`; empty without secondary tiers.
        instances: see :data:`kvsim.results.instances.INSTANCE_COLUMNS`; empty without a cluster.
        config_text: the resolved configuration, YAML; "" where its file is gone.
    """

    path: Path
    name: str
    summary: dict[str, Any]
    requests: pd.DataFrame
    series: pd.DataFrame
    tiers: pd.DataFrame = field(default_factory=no_tiers)
    instances: pd.DataFrame = field(default_factory=lambda: instances_frame(()))
    config_text: str = ""


def assemble(
    *,
    requests: pd.DataFrame,
    series: pd.DataFrame,
    totals: Mapping[str, int],
    config_text: str,
    name: str = "unnamed",
    notes: Sequence[str] = (),
    cautions: Sequence[str] = (),
    tiers: Sequence[Mapping[str, Any]] = (),
    tier_series: pd.DataFrame | None = None,
    info: Mapping[str, str] | None = None,
    router: str = "",
    instances: Sequence[InstanceTables] = (),
    quotas: Sequence[Mapping[str, Any]] = (),
) -> Run:
    """Make a run of its tables: the one place where a summary is put together.

    Args:
        requests: See :data:`kvsim.results.summary.REQUEST_COLUMNS`; further columns are kept after these.
        series: See :data:`kvsim.results.summary.SERIES_COLUMNS`.
        totals: The engine's counters.
        config_text: The resolved configuration, YAML.
        name: What the run is called until it has a folder.
        notes: Assumptions and choices behind the numbers, each with its source.
        cautions: What makes the setup questionable; they come before the warnings about its results.
        tiers: Totals of the secondary tiers, if any.
        tier_series: See :data:`kvsim.results.tiers.TIER_COLUMNS`; kept only if there are secondary tiers.
        info: What was simulated, for readers (trace, model, GPU, ...), in the order in which to show it.
        router: What the cluster's router is called, if there is a cluster.
        instances: Its instances.
        quotas: What tenants had of a shared store, if they have quotas there.
    """
    if tier_series is None or not tiers:
        tier_series = no_tiers()
    measures = summarize(requests, totals, series, tiers, tier_series)
    if instances:
        each = summarize_instances(requests, instances)
        measures |= {"cluster": summarize_cluster(router, each), "instances": each}
        network = summarize_network(requests, each, measures["gpu"]["span_s"])
        measures |= {} if network is None else {"network": network}
    if tenants := summarize_tenants(requests, quotas):
        measures |= {"fairness": summarize_fairness(tenants), "tenants": tenants}
    summary = {
        "kind": KIND,
        "schema": SCHEMA,
        "digest": digest(requests),
        "info": dict(info or {}),
        "warnings": [*cautions, *warnings(measures)],
        "notes": list(notes),
        **measures,
        "versions": {
            "kvsim": __version__,
            "python": platform.python_version(),
            "platform": platform.platform(),
            "numpy": np.__version__,
            "pandas": pd.__version__,
            "pyarrow": pa.__version__,
        },
    }
    return Run(Path(name), name, summary, requests, series, tier_series, instances_frame(instances), config_text)
