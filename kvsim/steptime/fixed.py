"""A step-time model for tests and thought experiments: so much per step, so much per token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FixedStep:
    """Time of a step = ``per_step_ns + per_token_ns * tokens computed``, whatever the model or the context.

    Attributes:
        per_step_ns: constant of every non-empty step.
        per_token_ns: per token computed in the step (prompt tokens and decoded tokens alike).
    """

    per_step_ns: int
    per_token_ns: int = 0

    @property
    def contexts_add_up(self) -> bool:
        """See :class:`~kvsim.steptime.base.StepTimeModel`."""
        return True

    def step_ns(self, prefill: Sequence[tuple[int, int]], decode: Sequence[int]) -> int:
        """See :class:`~kvsim.steptime.base.StepTimeModel`."""
        tokens = len(decode) + sum(new for new, _ in prefill)
        return self.per_step_ns + self.per_token_ns * tokens if tokens else 0

    def shared_step_ns(self, prefill: Sequence[tuple[int, int]], decode: Sequence[int], all_tokens: int) -> int:
        """See :class:`~kvsim.steptime.base.StepTimeModel`; other ranks' tokens cost nothing here."""
        return self.step_ns(prefill, decode)

    def window_ns(self, decode: Sequence[int], k: int) -> int:
        """See :class:`~kvsim.steptime.base.StepTimeModel`."""
        return k * self.step_ns((), decode)

    def steps_ns(self, decode: Sequence[int], k: int) -> list[int]:
        """See :class:`~kvsim.steptime.base.StepTimeModel`."""
        return [self.step_ns((), decode)] * k
