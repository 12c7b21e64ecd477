"""What a plan keeps of a simulated point: its SLO figures, its cost, and where its time went."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvsim.config import RunConfig
from kvsim.plan.prices import Prices, Resources, cost_usd, resources_of
from kvsim.plan.slo import FINISHED, GOODPUT, Check, Slo

WOULD_NOT_START = "vLLM would refuse to start"  # how `kvsim.resolve` and `kvsim.kv_groups` begin such a warning


@dataclass(frozen=True, slots=True)
class Rated:
    """A point that was simulated, or could not be.

    Attributes:
        config: what was run.
        resources: what that takes.
        reason: why there are no figures; empty if there are some.
        summary: of the run; empty if it failed.
        checks: of the SLO.
        cost: USD by part and in total, over the run.
        share: of the sessions that were played.
        key: of the stored result, if it was stored.
    """

    config: RunConfig
    resources: Resources
    reason: str = ""
    summary: Mapping[str, Any] = field(default_factory=dict)
    checks: tuple[Check, ...] = ()
    cost: Mapping[str, float] = field(default_factory=dict)
    share: float = 1.0
    key: str = ""

    @property
    def failed(self) -> bool:
        """Whether there are no figures."""
        return bool(self.reason)

    @property
    def worst(self) -> Check | None:
        """The limit that is closest to being missed, or is missed most."""
        return max(self.checks, key=lambda check: check.strain, default=None)

    @property
    def strain(self) -> float:
        """Of that limit."""
        return math.inf if self.worst is None else self.worst.strain

    @property
    def is_met(self) -> bool:
        """Whether every limit of the SLO is."""
        return not self.failed and self.strain <= 1

    @property
    def output_tokens(self) -> int:
        """Of finished requests."""
        return int(self.summary["throughput"]["output_tokens"]) if self.summary else 0

    @property
    def makespan_s(self) -> float:
        """First arrival to last finish; infinite if nothing finished."""
        found = self.summary["throughput"]["makespan_s"] if self.summary else None
        return math.inf if found is None else float(found)

    @property
    def usd_per_1m_tokens(self) -> float:
        """Cost of a million output tokens; infinite if there are none."""
        return self.cost["total"] / self.output_tokens * 1e6 if self.output_tokens else math.inf

    @property
    def rejected(self) -> tuple[int, int]:
        """Requests that were rejected, and that arrived."""
        counts = self.summary.get("requests", {})
        return counts.get("rejected", 0), counts.get("arrived", 0)

    def usd_per_hour(self, prices: Prices) -> float:
        """Of everything it takes."""
        return sum(prices.per_hour(self.resources).values())


def rate(
    config: RunConfig, summary: Mapping[str, Any], measured: Mapping[str, float | None], slo: Slo, prices: Prices,
    share: float = 1.0, too_long: int | None = None,
) -> Rated:  # fmt: skip
    """Judge a run.

    Args:
        config: what was run.
        summary: of the run.
        measured: what `Slo.of` made of its requests.
        slo: the limits.
        prices: of its resources.
        share: of the sessions that were played.
        too_long: requests that no point of the space serves; all others have to finish, and count in the goodput.
            None = those that this one refuses.
    """
    if too_long is not None:
        measured = _of_all(measured, summary["requests"], too_long)
    resources = resources_of(config)
    for warning in summary["warnings"]:
        if warning.startswith(WOULD_NOT_START):
            return Rated(config, resources, warning.partition(". ")[0], share=share)
    found = Rated(config, resources, "", summary, slo.check(measured), {}, share)
    hours = 0.0 if math.isinf(found.makespan_s) else found.makespan_s
    cost = cost_usd(prices, resources, hours, _held_without_limit(summary))
    return Rated(config, resources, "", summary, found.checks, cost, share)


def _of_all(
    measured: Mapping[str, float | None], counts: Mapping[str, Any], too_long: int
) -> Mapping[str, float | None]:
    """Shares of the requests that some point of the space serves, instead of those that this one does."""
    finished = measured.get(FINISHED)
    ours = counts["finished"] / finished if finished else 0.0  # requests that the shares are of
    served = max(ours, counts["arrived"] - too_long)  # a run that is stuck has not sent all that is too long
    if not served:
        return measured
    return dict(measured) | {
        key: min(1.0, (measured[key] or 0.0) * ours / served) for key in (FINISHED, GOODPUT) if key in measured
    }


def _held_without_limit(summary: Mapping[str, Any]) -> int:
    """The most that file system tiers without a capacity held, over all instances."""
    tiers = summary["secondary_tiers"].values()
    return sum(tier["used"]["peak_bytes"] for tier in tiers if tier["kind"] == "fs" and tier["capacity_bytes"] is None)


def servers_of(summary: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The figures of each instance, or of the one server."""
    return list(summary.get("instances") or [summary])


def enough_cpu_bytes(summary: Mapping[str, Any]) -> int | None:
    """CPU memory of each instance with which the run would have been the same; None if less would have changed it.

    A tier that never evicted anything and never refused a store has only ever been asked for free room, which any size
    above the most it held has.
    """
    return _enough([server["tiers"]["cpu"] for server in servers_of(summary)])


def _enough(tiers: list[Any]) -> int | None:
    if any(tier["evicted_blocks"] or tier["cannot_store"] or tier["used"]["peak_bytes"] is None for tier in tiers):
        return None
    return max((int(tier["used"]["peak_bytes"]) for tier in tiers), default=None)


def enough_nvme_bytes(summary: Mapping[str, Any], name: str = "fs") -> int | None:
    """The same of the file system tier: it has refused and evicted nothing."""
    tiers = [server["secondary_tiers"].get(name) for server in servers_of(summary)]
    if not tiers or any(tier is None or tier["refused_chunks"] or tier["evicted_chunks"] for tier in tiers):
        return None
    return max(int(tier["used"]["peak_bytes"]) for tier in tiers if tier is not None)
