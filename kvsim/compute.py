"""The compute stream of a GPU: forward passes, slower while something else takes SMs from them."""

from __future__ import annotations

from collections.abc import Callable

import simpy

from kvsim.clock import STEP_END_PRIORITY, Clock

FULL_PPM = 1_000_000  # speed of a pass that has the GPU to itself, in parts per million


class ComputeStream:
    """One forward pass at a time, as a fluid: whenever the slow-down changes, the rest is stretched or squeezed.

    All TP ranks compute in step, so one stream stands for all of them. The slow-down is given from outside (by a link
    whose copies run on SMs); copies are not slowed by a pass in return: nobody has published by how much.

    Args:
        turn: who comes first of several instances whose passes end at one instant (see `kvsim.clock`).

    Attributes:
        lost_ns: time by which passes that have ended took longer than alone.
        has_followers: whether something begins when the latest pass ends.
    """

    def __init__(self, env: Clock, turn: int = 0) -> None:
        self._env, self._end_priority = env, STEP_END_PRIORITY + turn
        self.lost_ns = 0
        self.has_followers = False
        self._speed_ppm = FULL_PPM
        self._slowdowns: list[int] = []  # of each link
        self._work = 0  # what is left of the pass: nanoseconds at full speed, times FULL_PPM
        self._updated_ns = self._alone_until_ns = 0
        self._plan = 0  # number of the latest wake-up; older ones are void
        self._wake: simpy.Event | None = None  # the latest wake-up
        self.ended: simpy.Event | None = None  # of the pass that runs
        self._is_fluid = True  # whether it is timed here
        self.before_change: Callable[[], None] | None = None  # called before passes get faster or slower

    def forward(self, work_ns: int) -> simpy.Event:
        """Start a pass that would take ``work_ns`` alone. The event fires when it has ended."""
        assert self.ended is None, "one forward pass at a time"
        self._work, self._updated_ns = work_ns * FULL_PPM, self._env.now
        self._alone_until_ns = self._env.now + work_ns
        self.ended, self._is_fluid, self.has_followers = self._env.event(), True, False
        self._wake_at_end()
        return self.ended

    @property
    def speed_ppm(self) -> int:
        """Speed of a pass now, in parts per million of its speed alone."""
        return self._speed_ppm

    def take_over(self, work_ns: int, started_ns: int) -> simpy.Event:
        """A pass that was started elsewhere at the speed of now is timed here; only while that speed is changing."""
        assert self.ended is None, "one forward pass at a time"
        self._work, self._updated_ns = work_ns * FULL_PPM, started_ns
        self._alone_until_ns = started_ns + work_ns
        self.ended, self._is_fluid = self._env.event(), True
        return self.ended

    def occupy(self) -> None:
        """A pass starts of which somebody else says when it ends, by `vacate`; nothing slows it down."""
        assert self.ended is None, "one forward pass at a time"
        self._plan += 1
        self.ended, self._is_fluid = self._env.event(), False

    def vacate(self) -> None:
        """That pass has ended."""
        assert self.ended is not None
        ended, self.ended = self.ended, None
        ended.succeed()

    def after_launched(self, action: Callable[[], None]) -> None:
        """Act when everything launched at this instant has ended; at this instant if nothing is.

        A CUDA stream that waits for the compute stream (`wait_stream`) waits for what has been launched on it so far.
        """
        look = self._env.timeout(0)  # after whoever runs now has launched what it is going to launch
        assert look.callbacks is not None
        look.callbacks.append(lambda _event: self._act_behind(action))

    def _act_behind(self, action: Callable[[], None]) -> None:
        if self.ended is None:
            action()
        else:
            assert self.ended.callbacks is not None
            self.ended.callbacks.append(lambda _event: action())
            self.has_followers = True

    def disturber(self) -> Callable[[int], None]:
        """For one more link whose copies may disturb: tell it the slow-down, as `slow_down`; the worst one counts."""
        number = len(self._slowdowns)
        self._slowdowns.append(FULL_PPM)

        def disturb(slowdown_ppm: int) -> None:
            self._slowdowns[number] = slowdown_ppm
            self.slow_down(max(self._slowdowns))

        return disturb

    def slow_down(self, slowdown_ppm: int) -> None:
        """From now on a pass takes so many parts per million of its time; 1,000,000 = undisturbed."""
        speed = FULL_PPM * FULL_PPM // slowdown_ppm
        if speed == self._speed_ppm:
            return
        if self.before_change is not None:
            self.before_change()
        if self.ended is not None and self._is_fluid:
            self._work -= (self._env.now - self._updated_ns) * self._speed_ppm
            self._updated_ns = self._env.now
        self._speed_ppm = speed
        if self.ended is not None and self._is_fluid:
            self._wake_at_end()

    def _wake_at_end(self) -> None:
        if self._wake is not None:  # void from now on, and no reason for the clock to run on
            self._env.cancel(self._wake)
        self._plan += 1
        plan = self._plan
        wake = self._wake = self._env.at(-(-max(self._work, 0) // self._speed_ppm), self._end_priority)
        assert wake.callbacks is not None
        wake.callbacks.append(lambda _event: self._on_wake(plan))

    def _on_wake(self, plan: int) -> None:
        if plan == self._plan and self.ended is not None:
            self.lost_ns += self._env.now - self._alone_until_ns
            ended, self.ended = self.ended, None
            self._env.fire(ended)
