"""Piecewise CUDA graphs: what a step that only decodes loses against one full graph."""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.steptime.base import StepTimeModel


class PiecewiseDecode:
    """A step-time model plus the launches between layers, in steps without a prompt.

    Other steps run piecewise anyway. Rules: vLLM 0.33.0 config/vllm.py turns full graphs off where
    `requires_piecewise_for_cudagraph` says so.

    Args:
        model: with full CUDA graphs for decoding, as vLLM has by default.
        extra_ns: of all layers together.
    """

    def __init__(self, model: StepTimeModel, extra_ns: int) -> None:
        self._model, self._extra_ns = model, extra_ns

    @property
    def contexts_add_up(self) -> bool:
        """See `StepTimeModel`."""
        return self._model.contexts_add_up

    def step_ns(self, prefill: Sequence[tuple[int, int]], decode: Sequence[int]) -> int:
        """See `StepTimeModel`."""
        return self._model.step_ns(prefill, decode) + (self._extra_ns if decode and not prefill else 0)

    def shared_step_ns(self, prefill: Sequence[tuple[int, int]], decode: Sequence[int], all_tokens: int) -> int:
        """See `StepTimeModel`."""
        extra_ns = self._extra_ns if decode and not prefill else 0
        return self._model.shared_step_ns(prefill, decode, all_tokens) + extra_ns

    def window_ns(self, decode: Sequence[int], k: int) -> int:
        """See `StepTimeModel`."""
        return self._model.window_ns(decode, k) + (k * self._extra_ns if decode else 0)

    def steps_ns(self, decode: Sequence[int], k: int) -> list[int]:
        """See `StepTimeModel`."""
        extra_ns = self._extra_ns if decode else 0
        return [step_ns + extra_ns for step_ns in self._model.steps_ns(decode, k)]
