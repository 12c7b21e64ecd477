"""A step-time model of a user's own that minds which context stands where."""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.steptime.base import Deployment


class MindsTheOrder:
    """No two batches take the same time."""

    def __init__(self, deployment: Deployment) -> None:
        """All deployments are equal."""

    def step_ns(self, prefill: Sequence[tuple[int, int]], decode: Sequence[int]) -> int:
        """See `kvsim.steptime.base.StepTimeModel`."""
        places = sum((place + 1) * context for place, context in enumerate(decode))
        return 500_000 + sum(7 * new + before for new, before in prefill) + places if prefill or decode else 0
