"""The engine that jumps over quiet steps: the same decisions at the same nanoseconds, without making them all."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import simpy

from kvsim.clock import Clock
from kvsim.cohort_scheduler import CohortScheduler
from kvsim.compute import FULL_PPM
from kvsim.connectors.base import ConnectorWorker, SchedulerOutput
from kvsim.connectors.mooncake_store import StoreMeta
from kvsim.connectors.mooncake_store_runs import RunMooncakeStoreWorker, RunSaveJob
from kvsim.engine import Engine, batch_of
from kvsim.request import Request
from kvsim.window import ChunkWindow, SlowedWindow, Window, WindowTime

MIN_CHUNKS = 2  # of a prompt; a window of so few takes as long as deciding them


class FastEngine(Engine):
    """Engine whose decoding requests go in a cohort; while they are alone, one event stands for many steps.

    A stretch of quiet steps ends with the step in which anything happens: an arrival, the end of a copy, an abort.
    Whoever has news calls `notify`, as a waiting engine needs anyway.

    Args:
        step_time: knows windows.
        is_disturbed: whether a forward pass that starts now could be slowed down by copies.
        may_copies_begin: whether some may begin inside a step, or behind its pass, without having been planned in it.
    """

    scheduler: CohortScheduler

    def __init__(
        self,
        env: Clock,
        scheduler: CohortScheduler,
        step_time: WindowTime,
        worker: ConnectorWorker | None = None,
        *,
        is_disturbed: Callable[[], bool] = lambda: False,
        may_copies_begin: Callable[[], bool] = lambda: False,
        **options: Any,
    ) -> None:
        super().__init__(env, scheduler, step_time, worker, **options)
        self._window_time, self._is_disturbed, self._may_copies_begin = step_time, is_disturbed, may_copies_begin
        self._contexts_add_up, self._takes_reports = step_time.contexts_add_up, scheduler.takes_reports()
        self._store_worker = worker if isinstance(worker, RunMooncakeStoreWorker) else None
        self._window: Window | None = None
        self._under_way = 0  # number of the step in the window that is under way, as far as the scheduler knows
        self._is_between = False  # this one has ended, and at this instant nothing has been decided yet
        self.num_decisions = 0
        self._is_alone = False  # this instant's last event was this engine's own, the end of its step

    def submit(self, request: Request) -> simpy.Event:
        """See `Engine`; who queues up behind somebody that does not fit does not disturb quiet steps."""
        window, scheduler = self._window, self.scheduler
        if window is None or scheduler.arrivals_matter():
            return super().submit(request)
        self._window = None  # it is not told
        ended = super().submit(request)
        self._window = window
        return ended

    def on_saved(self, job: RunSaveJob) -> None:
        """A save into a shared store is over. Quiet steps need not hear of it unless blocks wait for it."""
        if self._window is None or job.held is not None:
            self.notify()

    def on_written(self) -> None:
        """See `Engine`; of writes that nobody waits for, quiet steps need not hear."""
        if self._window is None or self._window.writes_matter:
            self.notify()

    def on_copies_done(self) -> None:
        """Copies to or from the GPU have ended. Of stores that nobody waits for, quiet steps need not hear."""
        window, worker = self._window, self.worker
        if window is None or worker is None or worker.has_finished_load():  # type: ignore[attr-defined]
            self.notify()
        elif window.stores_matter:
            if self._takes_reports and not self._is_between and not window.is_handed_over:
                self._report_behind(window)
            else:
                self.notify()

    def _report_behind(self, window: Window) -> None:
        """Behind the step under way the worker is asked what has ended; perhaps quiet steps go on then."""
        step = window.report_at = self._step_of(window)
        self._wake_at(window, step)

    def _step_of(self, window: Window) -> int:
        """The step that is under way now; at the end of one that one, until the next would have been decided."""
        now = self.env.now
        step = window.step_at(now, self._under_way)
        if self.env.phase > self._decides and step < window.last and window.started_ns + window.span_ns(step) == now:
            step += 1  # others decide at this instant, behind this engine
        return step

    def notify(self) -> None:
        """See `Engine`; a stretch of quiet steps ends with the one that is under way."""
        super().notify()
        window = self._window
        if window is not None:
            last = self._step_of(window)
            if last < window.last and not window.is_handed_over:
                window.last = last
                if not self._is_between:
                    self._wake_at(window, last)

    def _lets_others_go_first(self) -> bool:
        """See `Engine`; nobody is there if the last event was its own and the next one lies in the future."""
        is_alone, self._is_alone = self._is_alone, False
        if not is_alone or self.env.peek() <= self.env.now:
            return True
        # Who looks from now on at this instant does so behind these decisions.
        self.env.phase = max(self.env.phase, self._decides)
        return False

    def _decode_contexts(self, output: SchedulerOutput, own: list[int]) -> list[int]:
        """Contexts of a step's decoding requests, or others with the same number and sum where that is enough.

        ``own``: of those that are not in the cohort.
        """
        if not output.num_decoding:
            return own
        if self._contexts_add_up:
            return [*own, output.decode_contexts, *[0] * (output.num_decoding - 1)]
        return self.scheduler.decode_contexts(output)

    def _forward_ns(self, output: SchedulerOutput) -> int:
        prefill, decode = batch_of(output)
        return self._window_time.step_ns(prefill, self._decode_contexts(output, decode))

    def _forward(self, output: SchedulerOutput) -> Generator[simpy.Event, Any, None]:
        self.num_decisions += 1
        window = self._find_window(output)
        store = self._store_worker
        if store is not None:
            store.launched(self._forward_ns(output) if window is None else window.work_ns(1))
        if window is None:
            # Copies begin behind the pass, or slow it down.
            if output.hits or self._is_disturbed() or self._may_copies_begin():
                yield from super()._forward(output)
                self._is_alone = not self.compute.has_followers
                return
            forward_ns = self._forward_ns(output)
            self._observer.on_forward(forward_ns)
            yield self.env.at(forward_ns, self._ends)
            self._is_alone = True
            return
        self._window, self._under_way = window, 1
        self._observer.on_forward(window.work_ns(1))
        if store is not None:
            self._begin_with_store(window, store)
        self.compute.before_change = self._hand_over
        lost_before = self.compute.lost_ns
        try:
            is_told = yield from self._pass(window)
        except simpy.Interrupt:
            # It dies at this instant, before a step that would end now has ended.
            self._die_in(window)
            raise
        finally:
            self._window = self.compute.before_change = None
            self._is_between = False
            if store is not None:
                self._end_with_store(window)
        if store is not None and window.last > 1:
            assert self.scheduler.store is not None
            self.scheduler.store.take_reports(store.reported_before(window.decided_ns(window.last)))
        lost_ns = window.lost_ns(window.last, window.last)
        if window.is_handed_over:
            lost_ns = self.compute.lost_ns - lost_before
        if lost_ns and not is_told:
            self._observer.on_slowdown(lost_ns)
        self._is_alone = not window.is_handed_over

    def _die_in(self, window: Window) -> None:
        now = self.env.now
        self._go_on(window, max(self._step_of(window), 1))
        step = self._under_way
        launched_ns = window.decided_ns(step) + window.held_up_ns if step > 1 else window.started_ns
        if now <= launched_ns and window.held_up_ns and step > 1:  # it was decided, and held up before its forward pass
            self._observer.on_quiet_steps(-1, window.work_ns(step - 1) - window.work_ns(step))
            store = self.scheduler.store
            if store is not None and store.saves_decoded:  # planned, and never begun
                store.fill(self.scheduler.cohort.filling(1), StoreMeta())
            self.env.at(launched_ns - now, self._ends)
            assert window.wake is not None
            self.env.cancel(window.wake)
        elif not window.is_handed_over and not self._is_between:
            self._wake_at(window, step)  # the GPU completes its step, for nobody

    # -- a window with a shared store
    def _begin_with_store(self, window: Window, worker: RunMooncakeStoreWorker) -> None:
        store = self.scheduler.store
        assert store is not None
        if window.held_up_ns:
            store.lookup.begin_repeating(self._catch_up, self._on_other_answer)
        if store.saves_decoded:
            self._fill_from(window, worker, 2, self.scheduler.cohort.steps)

    def _end_with_store(self, window: Window) -> None:
        store = self.scheduler.store
        assert store is not None
        store.lookup.end_repeating()
        if window.fills is not None:
            self.env.cancel(window.fills)

    def _catch_up(self) -> None:
        """Bring the scheduler to the step that is under way now, for somebody who is going to look."""
        window = self._window
        if window is not None:
            self._go_on(window, max(self._step_of(window), 1))

    def _on_other_answer(self) -> None:
        self._catch_up()
        self.notify()

    def _fill_from(self, window: Window, worker: RunMooncakeStoreWorker, step: int, steps_before: int) -> None:
        """Wait for the first step from this one on in which somebody fills a block: its save is posted then."""
        cohort, passed = self.scheduler.cohort, self.scheduler.cohort.steps - steps_before
        step = cohort.fills_next(step - passed) + passed
        window.fills = None
        if step > window.last:
            return
        held_up_ns = window.held_up_ns
        at_ns = window.decided_ns(step) + held_up_ns
        event = window.fills = self.env.at(at_ns - self.env.now, self._ends if held_up_ns else self._decides)
        assert event.callbacks is not None
        event.callbacks.append(lambda _event: self._fill(window, worker, step, steps_before))

    def _fill(self, window: Window, worker: RunMooncakeStoreWorker, step: int, steps_before: int) -> None:
        store = self.scheduler.store
        if self._window is not window or step > window.last or store is None:
            return
        meta = StoreMeta()
        store.fill(self.scheduler.cohort.filling(step - self.scheduler.cohort.steps + steps_before), meta)
        worker.post(meta)
        worker.launched(window.work_ns(step) - window.work_ns(step - 1))
        self._fill_from(window, worker, step + 1, steps_before)

    def _find_window(self, output: SchedulerOutput) -> Window | None:
        """The steps like this one that will follow it, if there will be any."""
        scheduler, scheduled, now = self.scheduler, output.num_scheduled_tokens, self.env.now
        window: Window | None = None
        if not scheduled:
            if output.num_decoding and self._is_calm() and (steps := scheduler.num_quiet_steps(output)) > 1:
                decode = self._decode_contexts(output, [])
                speed, held_up_ns = self.compute.speed_ppm, 0
                if scheduler.store is not None:
                    held_up_ns = sum(took_ns for *_, took_ns in scheduler.store.lookup.asked)
                if speed == FULL_PPM:
                    window = Window(self._window_time, decode, now, steps, held_up_ns)
                else:
                    window = SlowedWindow(self._window_time, decode, now, steps, speed)
                window.stores_matter, window.writes_matter = scheduler.stores_matter(), scheduler.writes_matter()
        elif self.worker is None and len(scheduled) == 1 and (steps := scheduler.num_alike_chunks(output)) > MIN_CHUNKS:
            ((request, tokens),) = scheduled.items()
            decode, before = self._decode_contexts(output, []), request.num_computed_tokens - tokens
            window = ChunkWindow(self._window_time, decode, now, steps, tokens, before)
        return window

    def _is_calm(self) -> bool:
        """Whether nobody has anything to do with this step or the next but to go on."""
        worker = self.worker
        if worker is None:
            return True
        if self._news:  # since the decisions, which were held up: an abort, or somebody new
            return False
        if self._may_copies_begin():
            return False
        return not worker.has_plans() and not worker.has_finished()  # type: ignore[attr-defined]

    def _hand_over(self) -> None:
        """Passes are about to get faster or slower: the compute stream times the one under way, the window's last."""
        window = self._window
        assert window is not None
        last = window.last = self._step_of(window)
        self.compute.before_change = None
        if self._is_between:  # none is under way
            return
        window.is_handed_over = True
        if window.wake is not None:
            self.env.cancel(window.wake)
        work_ns = window.work_ns(last) - window.work_ns(last - 1)
        ended = self.compute.take_over(work_ns, window.started_ns + window.span_ns(last - 1))
        assert ended.callbacks is not None
        ended.callbacks.append(lambda _event: self._on_wake(window))

    def _pass(self, window: Window) -> Generator[simpy.Event, Any, bool]:
        """Let the steps pass; behind it, the last one's end has come, and its output is still to be taken.

        Returns:
            Whether the observer has been told of the time that the last one has lost.
        """
        observer = self._observer
        while True:
            wanted_ns = observer.state_wanted_ns()
            stop = window.last
            if wanted_ns < window.started_ns + window.span_ns(stop):
                stop = window.step_at(max(wanted_ns, self.env.now), self._under_way)
            yield from self._wait_until(window, stop)
            report_at, window.report_at = window.report_at, None
            stop = min(stop, window.last) if report_at is None else min(report_at, window.last)
            self._go_on(window, stop)
            if stop == window.last:
                return False
            self._tell_lost(window, stop, stop)
            with self.scheduler.step_over():
                if report_at is not None and self.worker is not None:
                    self.scheduler.report(self.worker.get_finished())
                observer.on_quiet_state()
            if self.env.peek() <= self.env.now:  # others at this instant, who may have something for the next step
                self._is_between = True
                yield self.env.at(0, self._decides)
                self._is_between = False
                if stop == window.last:
                    return True
            if report_at is not None and not self.scheduler.hears_the_same():
                window.last = stop
                return True
            self.scheduler.go_on(1, self.env.now)
            self._under_way += 1
            observer.on_quiet_steps(1, window.work_ns(stop + 1) - window.work_ns(stop))

    def _tell_lost(self, window: Window, first: int, last: int) -> None:
        lost_ns = window.lost_ns(first, last)
        if lost_ns:
            self._observer.on_slowdown(lost_ns)

    def _go_on(self, window: Window, step: int) -> None:
        """Bring the scheduler to the step that is under way now."""
        more = step - self._under_way
        if more:
            self.scheduler.go_on(more, window.decided_ns(step))
            self._observer.on_quiet_steps(more, window.work_ns(step) - window.work_ns(self._under_way))
            self._tell_lost(window, self._under_way, step - 1)
            self._under_way = step

    def _wait_until(self, window: Window, step: int) -> Generator[simpy.Event, Any, None]:
        """Wait for the end of a step, or of an earlier one with which the window has come to end."""
        self._passed = self.env.event()
        self._wake_at(window, step)
        yield self._passed

    def _wake_at(self, window: Window, step: int) -> None:
        if window.wake is not None:
            self.env.cancel(window.wake)
        wake = window.wake = self.env.at(window.started_ns + window.span_ns(step) - self.env.now, self._ends)
        assert wake.callbacks is not None
        wake.callbacks.append(lambda _event: self._on_wake(window))

    def _on_wake(self, window: Window) -> None:
        if self._window is window:
            self.env.fire(self._passed)
