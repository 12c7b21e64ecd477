"""What a plan is after: what is to be small, and the least that a part of the space can give of it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from kvsim.plan.prices import Prices, Resources
from kvsim.plan.rated import Rated

Kind = Literal["cost_per_1m_output_tokens", "least_dram", "max_sessions"]
KINDS: tuple[Kind, ...] = ("cost_per_1m_output_tokens", "least_dram", "max_sessions")
Score = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Objective:
    """Scores points: smaller is better, the second figure decides between equals.

    - ``cost_per_1m_output_tokens``: USD, then bytes of host memory;
    - ``least_dram``: bytes of host memory for KV, then USD;
    - ``max_sessions``: sessions at a time (negative), then USD per hour.
    """

    kind: Kind
    prices: Prices

    def score(self, point: Rated, sessions: int | None = None) -> Score:
        """Of a point that was simulated. ``sessions``: at a time, where they are an axis."""
        return self._score(point.resources, point.usd_per_1m_tokens, sessions)

    def bound(self, low: Resources, high: Rated, sessions: int | None = None) -> Score:
        """The least score of any point with these resources or more that is no faster than ``high``.

        It generates the same tokens in no less time, and an hour costs no less.

        Args:
            low: the least resources.
            high: the fastest point.
            sessions: the most sessions at a time.
        """
        usd = math.inf
        if high.output_tokens:
            per_hour = sum(self.prices.per_hour(low).values())
            usd = per_hour * high.makespan_s / 3600 / high.output_tokens * 1e6
        return self._score(low, usd, sessions)

    def floor(self, low: Resources, makespan_s: float, output_tokens: int, sessions: int | None = None) -> Score:
        """The least score of any point with these resources or more, if nothing was simulated yet.

        Args:
            low: the least resources.
            makespan_s: the least that any run takes.
            output_tokens: the most that any run generates.
            sessions: the most sessions at a time.
        """
        per_hour = sum(self.prices.per_hour(low).values())
        usd = per_hour * makespan_s / 3600 / output_tokens * 1e6 if output_tokens else 0.0
        return self._score(low, usd, sessions)

    def _score(self, resources: Resources, usd_per_1m: float, sessions: int | None) -> Score:
        if self.kind == "least_dram":
            return (float(resources.dram_bytes), usd_per_1m)
        if self.kind == "max_sessions":
            return (-float(sessions or 0), sum(self.prices.per_hour(resources).values()))
        return (usd_per_1m, float(resources.dram_bytes))
