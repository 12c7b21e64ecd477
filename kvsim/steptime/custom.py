"""A step-time model of the user's own, held to whole nanoseconds."""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.errors import UserError
from kvsim.steptime.base import StepTimeModel


class CustomStep:
    """Passes every question on and refuses answers with which time would break or stand still."""

    def __init__(self, name: str, model: StepTimeModel) -> None:
        self._name, self._model = name, model

    @property
    def contexts_add_up(self) -> bool:
        """See :class:`~kvsim.steptime.base.StepTimeModel`; nobody has said so."""
        return False

    def step_ns(self, prefill: Sequence[tuple[int, int]], decode: Sequence[int]) -> int:
        """See :class:`~kvsim.steptime.base.StepTimeModel`."""
        answer: object = self._model.step_ns(prefill, decode)
        if not isinstance(answer, int) or answer < (1 if prefill or decode else 0):
            raise UserError(
                f"step_time.kind: {self._name}.step_ns({list(prefill)[:3]}, {list(decode)[:3]}) returned {answer!r},"
                " expected whole nanoseconds, at least 1"
            )
        return answer

    def shared_step_ns(self, prefill: Sequence[tuple[int, int]], decode: Sequence[int], all_tokens: int) -> int:
        """See :class:`~kvsim.steptime.base.StepTimeModel`; a model of one's own is asked for its rank alone."""
        return self.step_ns(prefill, decode)

    def window_ns(self, decode: Sequence[int], k: int) -> int:
        """See :class:`~kvsim.steptime.base.StepTimeModel`."""
        return sum(self.steps_ns(decode, k))

    def steps_ns(self, decode: Sequence[int], k: int) -> list[int]:
        """See :class:`~kvsim.steptime.base.StepTimeModel`."""
        return [self.step_ns((), [context + i for context in decode]) for i in range(k)]
