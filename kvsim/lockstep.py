"""MoE models under data parallelism: all ranks compute a step together, because their experts are everybody's."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import simpy

from kvsim.clock import SCHEDULE_PRIORITY, Clock

Batch = tuple[Sequence[tuple[int, int]], Sequence[int]]  # prefill, decode: see `StepTime`


class SharedStepTime(Protocol):
    """How long a rank's forward pass takes if all ranks' tokens go through its experts."""

    def shared_step_ns(self, prefill: Sequence[tuple[int, int]], decode: Sequence[int], all_tokens: int) -> int:
        """``all_tokens``: tokens of all ranks in this step, those of this one included."""
        ...


@dataclass(slots=True)
class _Round:
    """One step of all ranks."""

    started_ns: int
    done: simpy.Event
    entered: int = 0  # ranks that decide about this step
    batches: list[tuple[Batch, int]] = field(default_factory=list)  # with time of the encoder
    on_begin: list[Callable[[int], None]] = field(default_factory=list)
    idle: int = 0  # ranks that had decided to compute nothing
    computing: bool = False


class Lockstep:
    """Ranks enter a round at one instant, and it lasts as long as the slowest of them.

    A rank without tokens takes part with a dummy batch, which is never the slowest: whoever is late waits for the end
    of the round. Ranks that have nothing to do at all stay out; if nobody has tokens there is no round.
    Rules: vLLM 0.33.0 v1/engine/core.py (DPEngineCoreProc.run_busy_loop). There, up to 16 dummy batches follow the last
    request, and a rank that only waits for KV computes dummy batches too; here time does not pass for either.
    """

    def __init__(self, clock: Clock, step_time: SharedStepTime) -> None:
        self._clock, self._step_time = clock, step_time
        self._round: _Round | None = None

    def turn(self) -> Generator[simpy.Event, Any, None]:
        """Wait until a step may begin: no round is under way."""
        while self._round is not None and (self._round.computing or self._round.started_ns < self._clock.now):
            yield self._round.done
            yield self._clock.at(0, SCHEDULE_PRIORITY)

    def enter(self) -> None:
        """A rank decides about its step now."""
        if self._round is None:
            self._round = _Round(self._clock.now, self._clock.event())
        self._round.entered += 1

    def compute(
        self, batch: Batch, encoder_ns: int, on_begin: Callable[[int], None]
    ) -> Generator[simpy.Event, Any, None]:
        """The rank's forward pass, in a round; ``on_begin`` is told how long that takes when it begins."""
        assert self._round is not None
        self._round.batches.append((batch, encoder_ns))
        self._round.on_begin.append(on_begin)
        yield from self._until_done(self._round)

    def stand_by(self) -> Generator[simpy.Event, Any, int]:
        """The rank has no tokens in this step: a dummy batch, if others have some. Returns how long it took."""
        assert self._round is not None
        self._round.idle += 1
        return (yield from self._until_done(self._round))

    def _until_done(self, current: _Round) -> Generator[simpy.Event, Any, int]:
        # Behind the decisions of all ranks at this instant.
        event = self._clock.at(0, SCHEDULE_PRIORITY + 1)
        assert event.callbacks is not None
        event.callbacks.append(lambda _event: self._begin(current))
        duration: int = yield current.done
        return duration

    def _begin(self, current: _Round) -> None:
        if current.computing or len(current.batches) + current.idle < current.entered:
            return
        current.computing = True
        tokens = sum(len(decode) + sum(new for new, _ in prefill) for (prefill, decode), _ in current.batches)
        duration = max(
            (self._step_time.shared_step_ns(*batch, tokens) + extra for batch, extra in current.batches), default=0
        )
        for tell in current.on_begin:
            tell(duration)
        end = self._clock.at(duration)
        assert end.callbacks is not None
        end.callbacks.append(lambda _event: self._end(current, duration))

    def _end(self, current: _Round, duration: int) -> None:
        self._round = None
        current.done.succeed(duration)
