"""Quiet steps in a row: how long so many of them take, and which one is under way at an instant."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Protocol

import simpy

from kvsim.compute import FULL_PPM


class WindowTime(Protocol):
    """A step-time model that knows sums (see `kvsim.steptime.base.StepTimeModel`)."""

    @property
    def contexts_add_up(self) -> bool:
        """Whether of all decoding contexts only their number and sum matter."""
        ...

    def step_ns(self, prefill: Sequence[tuple[int, int]], decode: Sequence[int]) -> int:
        """Time of one step."""
        ...

    def window_ns(self, decode: Sequence[int], k: int) -> int:
        """Time of k decode steps."""
        ...

    def steps_ns(self, decode: Sequence[int], k: int) -> list[int]:
        """Time of each of them."""
        ...


LONGEST_SLOWED = 64  # steps; while copies slow them down they are added up one by one
_GUESSES = 6  # of the step at an instant, before its search halves what is left


class Window:
    """Quiet decode steps under way.

    Args:
        model: of the GPU alone.
        decode: contexts of the first step.
        steps: at most.
        held_up_ns: before each step but the first, for its decisions.
    """

    def __init__(
        self, model: WindowTime, decode: Sequence[int], started_ns: int, steps: int, held_up_ns: int = 0
    ) -> None:
        self.started_ns, self.held_up_ns = started_ns, held_up_ns
        self.last = steps  # number of its last step, from 1 on
        self.fills: simpy.Event | None = None  # the next step in which somebody fills a block that is to be saved
        self.stores_matter = True  # whether the end of a store ends it
        self.writes_matter = True  # whether the end of a write to a tier does
        self.report_at: int | None = None  # the step at whose end the next one is due
        self.wake: simpy.Event | None = None  # the next one
        self.is_handed_over = False  # its last step is timed by the compute stream
        self._model, self._decode = model, decode
        self._works: dict[int, int] = {0: 0}

    def work_ns(self, steps: int) -> int:
        """Time of the first so many steps on a GPU that nothing slows down."""
        work = self._works.get(steps)
        if work is None:
            work = self._works[steps] = self._model.window_ns(self._decode, steps)
        return work

    def span_ns(self, steps: int) -> int:
        """Time of the first so many steps."""
        return self.work_ns(steps) + (steps - 1) * self.held_up_ns if steps else 0

    def decided_ns(self, step: int) -> int:
        """When a step's decisions were made; not of the first."""
        return self.started_ns + self.span_ns(step - 1)

    def lost_ns(self, first: int, last: int) -> int:
        """Time by which steps ``first .. last`` take longer than alone."""
        return 0

    def step_at(self, now_ns: int, first: int) -> int:
        """The step that is under way at an instant, from ``first`` on; at the end of a step: that one."""
        elapsed, low, high = now_ns - self.started_ns, first - 1, self.last
        if high <= first or self.span_ns(first) >= elapsed:
            return first
        before, behind, tries = self.span_ns(low), self.span_ns(high), 0
        if behind <= elapsed:
            return high
        while high - low > 1:  # the one before or at ``low`` has ended, the one at ``high`` has not
            count, tries = high - low, tries + 1
            # Steps are nearly alike, so the place between two instants tells which one it is.
            ahead = -(-(elapsed - before) * count // (behind - before)) if tries <= _GUESSES else count // 2
            middle = low + min(max(ahead, 1), count - 1)
            span = self.span_ns(middle)
            if span >= elapsed:
                high, behind = middle, span
            else:
                low, before = middle, span
        return high


class SlowedWindow(Window):
    """While copies slow them down: each step's time is rounded up.

    Args:
        speed_ppm: of forward passes now; if it changes, so must the window.
    """

    def __init__(self, model: WindowTime, decode: Sequence[int], started_ns: int, steps: int, speed_ppm: int) -> None:
        super().__init__(model, decode, started_ns, min(steps, LONGEST_SLOWED))
        self._speed_ppm = speed_ppm
        self._sums, self._spans = [0], [0]

    def _look_ahead(self, steps: int) -> None:
        sums, spans, speed_ppm = self._sums, self._spans, self._speed_ppm
        passed = len(sums) - 1
        work, span = sums[-1], spans[-1]
        more = min(max(steps - passed, passed, 4), LONGEST_SLOWED)
        for step_ns in self._model.steps_ns(
            [context + passed for context in self._decode] if passed else self._decode, more
        ):
            work += step_ns
            span += -(-step_ns * FULL_PPM // speed_ppm)
            sums.append(work)
            spans.append(span)

    def work_ns(self, steps: int) -> int:
        """See `Window`."""
        if len(self._sums) <= steps:
            self._look_ahead(steps)
        return self._sums[steps]

    def span_ns(self, steps: int) -> int:
        """See `Window`."""
        if len(self._spans) <= steps:
            self._look_ahead(steps)
        return self._spans[steps]

    def lost_ns(self, first: int, last: int) -> int:
        """See `Window`."""
        return self.span_ns(last) - self.span_ns(first - 1) - self.work_ns(last) + self.work_ns(first - 1)

    def step_at(self, now_ns: int, first: int) -> int:
        """See `Window`."""
        elapsed, spans = now_ns - self.started_ns, self._spans
        while spans[-1] < elapsed and len(spans) <= self.last:
            self._look_ahead(len(spans))
        return min(max(bisect_left(spans, elapsed), first), self.last)


class ChunkWindow(Window):
    """Steps that each compute a chunk of one prompt, and a token of each decoding request.

    Args:
        tokens: of a chunk.
        before: of the prompt that are computed before the first step.
    """

    def __init__(
        self, model: WindowTime, decode: Sequence[int], started_ns: int, steps: int, tokens: int, before: int
    ) -> None:
        super().__init__(model, decode, started_ns, steps)
        self._tokens, self._before, self._sums = tokens, before, [0]

    def work_ns(self, steps: int) -> int:
        """See `Window`."""
        sums, tokens = self._sums, self._tokens
        while len(sums) <= steps:
            passed = len(sums) - 1
            decode = [context + passed for context in self._decode]
            sums.append(sums[-1] + self._model.step_ns([(tokens, self._before + passed * tokens)], decode))
        return sums[steps]
