"""What a step-time model is: two methods that agree to the nanosecond."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from kvsim.steptime.gpu import GpuSpec
from kvsim.steptime.spec import ModelSpec


@dataclass(frozen=True, slots=True)
class Deployment:
    """What a step-time model of the user's own is told: which model runs on what."""

    model: ModelSpec
    gpu: GpuSpec
    tensor_parallel_size: int
    expert_parallel_size: int


class StepTimeModel(Protocol):
    """Duration of vLLM forward steps, in integer nanoseconds.

    The fast engine jumps over k quiet decode steps with one call of :meth:`window_ns`; the reference engine
    calls :meth:`step_ns` k times. Both must end at the same nanosecond, so ``window_ns`` is *defined* as the
    sum of the rounded steps, and an implementation may only compute that sum faster.

    A model of your own is given as ``step_time: {kind: "my_module:MyModel", options: {...}}``. Its constructor gets a
    `Deployment` and its options; `step_ns` is all that the reference engine asks for.
    """

    @property
    def contexts_add_up(self) -> bool:
        """Whether of all decoding contexts only their number and sum matter, so that others may be given instead."""
        ...

    def step_ns(self, prefill: Sequence[tuple[int, int]], decode: Sequence[int]) -> int:
        """Time of one step.

        Args:
            prefill: one pair per scheduled prompt chunk: (new tokens, tokens of it already computed).
            decode: one context length per decoding request, the token being computed included.

        Returns:
            Nanoseconds; 0 for an empty batch.
        """
        ...

    def shared_step_ns(self, prefill: Sequence[tuple[int, int]], decode: Sequence[int], all_tokens: int) -> int:
        """Time of one step of a data-parallel rank whose experts serve all ranks.

        Args:
            prefill: of this rank, as in :meth:`step_ns`.
            decode: of this rank.
            all_tokens: tokens of all ranks in this step, those of this one included.
        """
        ...

    def window_ns(self, decode: Sequence[int], k: int) -> int:
        """Time of k consecutive pure-decode steps of a fixed batch.

        Args:
            decode: context lengths at the first of the k steps; each grows by one token per step.
            k: number of steps, >= 0.

        Returns:
            Exactly ``sum(step_ns([], [c + i for c in decode]) for i in range(k))``.
        """
        ...

    def steps_ns(self, decode: Sequence[int], k: int) -> list[int]:
        """Time of each of these steps; their sum is :meth:`window_ns`."""
        ...
