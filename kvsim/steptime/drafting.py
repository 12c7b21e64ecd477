"""Steps that end with drafting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.steptime.base import StepTimeModel


@dataclass(frozen=True, slots=True)
class WithDrafting:
    """Another model's steps, each of them longer by ``draft_ns``: the drafter runs behind every forward pass."""

    model: StepTimeModel
    draft_ns: int

    @property
    def contexts_add_up(self) -> bool:
        """See :class:`~kvsim.steptime.base.StepTimeModel`."""
        return self.model.contexts_add_up

    def step_ns(self, prefill: Sequence[tuple[int, int]], decode: Sequence[int]) -> int:
        """See :class:`~kvsim.steptime.base.StepTimeModel`."""
        step_ns = self.model.step_ns(prefill, decode)
        return step_ns + self.draft_ns if step_ns else 0

    def shared_step_ns(self, prefill: Sequence[tuple[int, int]], decode: Sequence[int], all_tokens: int) -> int:
        """See :class:`~kvsim.steptime.base.StepTimeModel`."""
        step_ns = self.model.shared_step_ns(prefill, decode, all_tokens)
        return step_ns + self.draft_ns if step_ns else 0

    def window_ns(self, decode: Sequence[int], k: int) -> int:
        """See :class:`~kvsim.steptime.base.StepTimeModel`."""
        return self.model.window_ns(decode, k) + k * self.draft_ns if decode else 0

    def steps_ns(self, decode: Sequence[int], k: int) -> list[int]:
        """See :class:`~kvsim.steptime.base.StepTimeModel`."""
        draft_ns = self.draft_ns if decode else 0
        return [step_ns + draft_ns for step_ns in self.model.steps_ns(decode, k)]
