"""What an engine tells while it works."""

from __future__ import annotations

from kvsim.connectors.base import SchedulerOutput, WorkerOutput
from kvsim.request import Request

NEVER_WANTED = 1 << 62


class EngineObserver:
    """Told what happens, when it happens. Does nothing; override what you need."""

    def on_step_start(self) -> None:
        """A step begins: its decisions are about to be made."""

    def on_step_scheduled(self, output: SchedulerOutput) -> None:
        """A step was decided; the clock stands at its start."""

    def on_forward(self, duration_ns: int) -> None:
        """The step's forward pass starts now and takes so long, if nothing slows it down."""

    def on_quiet_steps(self, steps: int, duration_ns: int) -> None:
        """So many steps more like the last one have begun, or are over; their forward passes take so long together."""

    def state_wanted_ns(self) -> int:
        """The state at the end of the first step that ends then or later is wanted (`on_quiet_state`)."""
        return NEVER_WANTED

    def on_quiet_state(self) -> None:
        """The clock stands at the end of a step in which nothing happened but decoding."""

    def on_slowdown(self, lost_ns: int) -> None:
        """The forward pass has ended, so much later than it would have alone: copies took SMs from it."""

    def on_step_done(self, output: SchedulerOutput, worker: WorkerOutput | None, ended: list[Request]) -> None:
        """A step is over; the clock stands at its end."""

    def on_iteration_done(self) -> None:
        """With steps in flight: the engine has decided a step, or taken a step's output, or both."""

    def on_load_stall(self, waited_ns: int) -> None:
        """Requests existed and none could be computed, for so long, because KV was on its way."""

    def on_sync_stall(self, waited_ns: int) -> None:
        """The forward pass took so much longer because it loaded or saved KV itself."""

    def on_abort(self, request: Request) -> None:
        """The client of this request has gone, and the scheduler knows."""

    def on_death(self, orphans: list[Request]) -> None:
        """The engine has died; these requests fail."""

    def on_flush_stall(self, waited_ns: int) -> None:
        """The step had to wait for copies out of blocks that it hands out again."""


class Both(EngineObserver):
    """Two observers, told one after the other."""

    def __init__(self, first: EngineObserver, second: EngineObserver) -> None:
        self._both = (first, second)

    def on_step_start(self) -> None:
        for each in self._both:
            each.on_step_start()

    def on_step_scheduled(self, output: SchedulerOutput) -> None:
        for each in self._both:
            each.on_step_scheduled(output)

    def on_forward(self, duration_ns: int) -> None:
        for each in self._both:
            each.on_forward(duration_ns)

    def on_quiet_steps(self, steps: int, duration_ns: int) -> None:
        for each in self._both:
            each.on_quiet_steps(steps, duration_ns)

    def state_wanted_ns(self) -> int:
        return min(each.state_wanted_ns() for each in self._both)

    def on_quiet_state(self) -> None:
        for each in self._both:
            each.on_quiet_state()

    def on_step_done(self, output: SchedulerOutput, worker: WorkerOutput | None, ended: list[Request]) -> None:
        for each in self._both:
            each.on_step_done(output, worker, ended)

    def on_iteration_done(self) -> None:
        for each in self._both:
            each.on_iteration_done()

    def on_slowdown(self, lost_ns: int) -> None:
        for each in self._both:
            each.on_slowdown(lost_ns)

    def on_load_stall(self, waited_ns: int) -> None:
        for each in self._both:
            each.on_load_stall(waited_ns)

    def on_sync_stall(self, waited_ns: int) -> None:
        for each in self._both:
            each.on_sync_stall(waited_ns)

    def on_abort(self, request: Request) -> None:
        for each in self._both:
            each.on_abort(request)

    def on_death(self, orphans: list[Request]) -> None:
        for each in self._both:
            each.on_death(orphans)

    def on_flush_stall(self, waited_ns: int) -> None:
        for each in self._both:
            each.on_flush_stall(waited_ns)
