"""One vLLM instance as a SimPy process: the step loop."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, Protocol

import simpy

from kvsim.clock import SCHEDULE_PRIORITY, STEP_END_PRIORITY, Clock
from kvsim.compute import ComputeStream
from kvsim.connectors.base import ConnectorWorker, LayerHooks, SchedulerOutput, WorkerDiedError, WorkerOutput
from kvsim.errors import UserError
from kvsim.forward import forward_by_layer
from kvsim.lockstep import Lockstep
from kvsim.observer import Both, EngineObserver
from kvsim.request import Request, RequestStatus
from kvsim.scheduler import Scheduler

# Far more than any chain of decisions at one instant; beyond it time has stopped.
MAX_STEPS_AT_AN_INSTANT = 10_000
# So many steps without a token, an end, an arrival or a finished copy: nothing will ever move again. Only traffic
# between tiers goes on (requests that evict each other's promoted prefixes), or a restless connector's copies.
GIVE_UP_AFTER = 500
# Steps in which loads failed and nothing was computed, in a row: kv_load_failure_policy recompute asks for the same KV
# again, and finds it as long as its keeper promises what cannot be read (a store whose leases are shorter than loads,
# for ever; one that has lost a node, for its client_ttl: 10 s of it are 100,000 such steps).
MAX_FAILED_LOADS_IN_A_ROW = 200_000
# So many preemptions without a token, an end or an arrival: requests take each other's blocks before any of them has
# computed its prompt, for ever. (A token that was sampled is kept through preemptions, so that each is a step ahead.)
MAX_PREEMPTIONS_IN_VAIN = 50_000


class NoProgressError(UserError):
    """The engine goes round in circles: steps follow each other, but time does not pass and nothing changes."""


class StepTime(Protocol):
    """How long a forward pass takes (see `kvsim.steptime`)."""

    def step_ns(self, prefill: Sequence[tuple[int, int]], decode: Sequence[int]) -> int:
        """``prefill``: (new tokens, tokens before them); ``decode``: context of each request with one new token."""
        ...


class Engine:
    """Schedule, move KV, compute, report; again.

    With nothing to compute, the engine waits for an event (an arrival, the end of a copy): the real one spins on
    empty steps at host speed, which is not time here. Under a step clock (``empty_step``) an empty step lasts as
    long as any other.

    Args:
        lockstep: the other ranks of this engine, if all of them compute their steps together.
        encoder_token_ns: time of the encoder for each image or audio token; it comes before the forward pass.
        empty_step: duration of a step without tokens; None = wait for the next event.
        give_up_after: raise NoProgressError after so many steps in which nothing moved, and leave a restless connector
            alone after so many steps without a request; None = never.
        check_every_step: raise AssertionError at the first step after which blocks leak or books disagree.
        compute: where forward passes run, if others look at it too.
        turn: who comes first of several instances that decide at one instant (see `kvsim.clock`).
    """

    def __init__(
        self,
        env: Clock,
        scheduler: Scheduler,
        step_time: StepTime,
        worker: ConnectorWorker | None = None,
        *,
        lockstep: Lockstep | None = None,
        observer: EngineObserver | None = None,
        encoder_token_ns: int = 0,
        empty_step: int | None = None,
        give_up_after: int | None = GIVE_UP_AFTER,
        check_every_step: bool = False,
        compute: ComputeStream | None = None,
        turn: int = 0,
    ) -> None:
        self.env, self.scheduler, self.worker = env, scheduler, worker
        self.compute = compute or ComputeStream(env)
        self._decides, self._ends = SCHEDULE_PRIORITY + turn, STEP_END_PRIORITY + turn
        perhaps: object = worker  # mypy holds that no worker can have both sets of methods
        self._hooks = perhaps if isinstance(perhaps, LayerHooks) else None
        self._step_time, self._encoder_token_ns, self._lockstep = step_time, encoder_token_ns, lockstep
        self._observer = observer or EngineObserver()
        self._empty_step = empty_step
        self._check_every_step = check_every_step
        self._ended: dict[Request, simpy.Event] = {}
        self._aborts: list[Request] = []
        self._over: list[Request] = []  # streaming sessions
        self._wake: simpy.Event | None = None
        self._blocked_ns = 0  # time that the scheduler was held up in this step's decisions
        self._news = False  # something has happened since the last decision
        self._empty_steps = 0  # in a row
        self._give_up_after = give_up_after
        self._fruitless_steps = 0  # in a row
        self._next_look = MAX_PREEMPTIONS_IN_VAIN  # preemptions at which it is looked whether they are in vain
        self._seen: tuple[list[Request], int] | None = None  # requests then, and their tokens
        self._failed_loads = 0  # steps in a row that had no more than that
        self._idle_steps = 0  # in a row without any request
        self.ready_at = 0  # when the server has started; requests that arrive before wait for it
        self.is_dead = False
        self.on_death: Callable[[], None] = lambda: None
        self.process = env.process(self._run())

    def observe(self, observer: EngineObserver) -> None:
        """Tell this observer too, behind those that are there."""
        self._observer = Both(self._observer, observer)

    def submit(self, request: Request) -> simpy.Event:
        """A request arrives now. The event fires when it has ended."""
        self.scheduler.add_request(request)
        self._fruitless_steps = 0
        ended = self._ended[request] = self.env.event()
        self.notify()
        return ended

    def abort(self, request: Request) -> None:
        """The client of a request has gone; takes effect before the next decision."""
        self._aborts.append(request)
        self.notify()

    def continue_session(self, request: Request) -> simpy.Event:
        """A streaming session has got more input. The event fires when it has produced its output."""
        del self.scheduler.parked[request]
        self._fruitless_steps = 0
        ended = self._ended[request] = self.env.event()
        self.notify()
        return ended

    def end_session(self, request: Request) -> None:
        """A streaming session that waits for input gets no more; takes effect before the next decision."""
        self._over.append(request)
        self.notify()

    def kill(self) -> None:
        """The engine process dies now: whatever it had to do is lost, and all its requests fail (EngineDeadError)."""
        if not self.is_dead:
            self.process.interrupt()

    def notify(self) -> None:
        """Something has happened that a waiting engine should look at."""
        self._news = True
        if self._wake is not None:
            self._wake.succeed()
            self._wake = None

    def on_written(self) -> None:
        """Something has been written to a tier."""
        self.notify()

    def hold_up(self, duration_ns: int) -> None:
        """The scheduler waits so long for somebody before it can go on with this step."""
        self._blocked_ns += duration_ns

    def _run(self) -> Generator[simpy.Event, Any, None]:
        try:
            yield from self._loop()
        except (simpy.Interrupt, WorkerDiedError):
            self.is_dead = True
            self.scheduler.settle()
            orphans = list(self._ended)
            for request in orphans:
                request.status = RequestStatus.FAILED
            self._observer.on_death(orphans)
            self.on_death()
            for request in orphans:
                self._ended.pop(request).succeed(request)

    def _loop(self) -> Generator[simpy.Event, Any, None]:
        steps, instant = 0, -1
        if self.ready_at > self.env.now:
            yield self.env.at(self.ready_at - self.env.now)
        while True:
            if self._lets_others_go_first():
                yield self.env.at(0, self._decides)
            if self._lockstep is not None:
                yield from self._lockstep.turn()
            now = self.env.now
            steps, instant = steps + 1 if now == instant else 0, now
            if steps > MAX_STEPS_AT_AN_INSTANT:
                raise NoProgressError(_no_progress(self.scheduler, instant))
            if self._aborts or self._over:
                self._take_aborts()
            has_unfinished = self.scheduler.has_unfinished()
            if has_unfinished:
                self._idle_steps = 0
            if has_unfinished or self._has_work():
                self._idle_steps += 1
                yield from self._step()
            else:
                yield from self._wait()

    def _lets_others_go_first(self) -> bool:
        """Whether there could be others to act at this instant before the next decision."""
        return True

    def _has_work(self) -> bool:
        return self.scheduler.has_requests() and not self._is_only_restless()

    def _is_only_restless(self) -> bool:
        """Nobody is served, and the connector's copies will not end, in the real one either: we stop watching."""
        connector, limit = self.scheduler.connector, self._give_up_after
        return connector is not None and connector.restless and limit is not None and self._idle_steps > limit

    def _moved(self, output: SchedulerOutput, worker: WorkerOutput | None, ended: list[Request]) -> bool:
        if output.computes or ended:
            return True
        connector = self.scheduler.connector
        if worker is None or connector is None:
            return False
        return bool(worker.received or worker.sent or (worker.jobs and not connector.restless))

    def _take_aborts(self) -> None:
        for request in self._aborts:
            ended = self._ended.pop(request, None)
            if ended is not None:
                self.scheduler.abort_request(request)
                self._observer.on_abort(request)
                ended.succeed(request)
        for request in self._over:
            self.scheduler.abort_request(request)
        self._aborts, self._over = [], []

    def _wait(self) -> Generator[simpy.Event, Any, None]:
        self._wake = self.env.event()
        yield self._wake

    def _step(self) -> Generator[simpy.Event, Any, None]:
        worker = self.worker
        if self._lockstep is not None:
            self._lockstep.enter()
        self._observer.on_step_start()
        output = yield from self._decide()
        if worker is not None:
            flushed = worker.handle_preemptions(output.connector_meta)
            if flushed:
                yield from self._wait_for(worker, flushed)
            worker.start_load_kv(output.connector_meta)
        took_part = False
        if output.computes:
            self._empty_steps = 0
            yield from self._forward(output)
        else:
            took_part = self._lockstep is not None and bool((yield from self._lockstep.stand_by()))
            if not took_part:
                yield from self._empty(output)
        self._update(output, None if worker is None else worker.get_finished(), took_part=took_part)

    def _forward(self, output: SchedulerOutput) -> Generator[simpy.Event, Any, None]:
        if self._lockstep is not None:
            encoder_ns = output.encoder_tokens * self._encoder_token_ns
            self.compute.occupy()
            yield from self._lockstep.compute(batch_of(output), encoder_ns, self._observer.on_forward)
            self.compute.vacate()
            return
        forward_ns = self._forward_ns(output)
        self._observer.on_forward(forward_ns)
        started, lost_before = self.env.now, self.compute.lost_ns
        if self._hooks is not None and self._hooks.has_layer_work():
            yield from forward_by_layer(self.env, self.compute, self._hooks, forward_ns, self._wait)
            lost_ns = self.compute.lost_ns - lost_before
            self._observer.on_sync_stall(self.env.now - started - forward_ns - lost_ns)
        else:
            yield self.compute.forward(forward_ns)
            lost_ns = self.compute.lost_ns - lost_before
        if lost_ns:
            self._observer.on_slowdown(lost_ns)

    def _forward_ns(self, output: SchedulerOutput) -> int:
        return self._step_time.step_ns(*batch_of(output)) + output.encoder_tokens * self._encoder_token_ns

    def _decide(self) -> Generator[simpy.Event, Any, SchedulerOutput]:
        """The scheduler's part of a step, which takes time only where it is held up."""
        self._news = False
        output = self.scheduler.schedule()
        self._observer.on_step_scheduled(output)
        if self._blocked_ns:
            blocked_ns, self._blocked_ns = self._blocked_ns, 0
            yield self.env.at(blocked_ns, self._ends)
        return output

    def _update(self, output: SchedulerOutput, worker_output: WorkerOutput | None, *, took_part: bool = False) -> None:
        """The step is over: its tokens and the worker's report change the scheduler's state.

        ``took_part``: others computed meanwhile, so that time has passed.
        """
        scheduler = self.scheduler
        ended = scheduler.update_from_output(output, worker_output)
        self._observer.on_step_done(output, worker_output, ended)
        if self._check_every_step:
            scheduler.check()
        for request in ended:
            self._ended.pop(request).succeed(request)
        moved = took_part or self._moved(output, worker_output, ended)
        self._fruitless_steps = 0 if moved else self._fruitless_steps + 1
        if (
            self._give_up_after is not None
            and self._fruitless_steps > self._give_up_after
            and scheduler.has_unfinished()
        ):
            raise NoProgressError(_no_progress(scheduler, self.env.now))
        if scheduler.num_preemptions >= self._next_look:
            self._look_at_preemptions()
        if output.computes or ended:
            self._failed_loads = 0
        elif worker_output is not None and (worker_output.failed_recving or worker_output.invalid_blocks):
            self._failed_loads += 1
            if self._failed_loads > MAX_FAILED_LOADS_IN_A_ROW:
                why = f"loads have failed {MAX_FAILED_LOADS_IN_A_ROW:,} times in a row, and nothing was computed"
                raise NoProgressError(
                    f"{_no_progress(scheduler, self.env.now)}; {why}: kv_load_failure_policy fail ends that"
                )

    def _look_at_preemptions(self) -> None:
        scheduler, before = self.scheduler, self._seen
        self._seen = list(scheduler.requests), scheduler.num_open_output_tokens()
        self._next_look = scheduler.num_preemptions + MAX_PREEMPTIONS_IN_VAIN
        if self._seen == before:
            why = f"requests have preempted each other {MAX_PREEMPTIONS_IN_VAIN:,} times, and none got a token"
            raise NoProgressError(f"{_no_progress(scheduler, self.env.now)}; {why}: more GPU blocks would end that")

    def _wait_for(
        self, worker: ConnectorWorker, jobs: Sequence[Any], gpu_busy_until: int = 0
    ) -> Generator[simpy.Event, Any, None]:
        started = max(self.env.now, gpu_busy_until)
        while not all(map(worker.is_done, jobs)):
            yield from self._wait()
        self._observer.on_flush_stall(max(self.env.now - started, 0))

    def _empty(self, output: SchedulerOutput) -> Generator[simpy.Event, Any, None]:
        """A step without tokens. The second in a row changes nothing any more: wait for the world to move."""
        self._empty_steps += 1
        if self._empty_step is not None:
            yield self.env.at(self._empty_step)
        elif (
            self._empty_steps > 1
            and not output.preempted
            and self.scheduler.has_requests()
            and not self._news
            and not (self.worker is not None and self.worker.has_finished())
        ):
            yield from self._stall()

    def _stall(self) -> Generator[simpy.Event, Any, None]:
        started, waiting = self.env.now, self.scheduler.has_unfinished()
        yield from self._wait()
        yield self.env.at(0, self._ends)
        if waiting:
            self._observer.on_load_stall(self.env.now - started)


def batch_of(output: SchedulerOutput) -> tuple[list[tuple[int, int]], list[int]]:
    """The step's forward pass: (new tokens, tokens before them) of prefills, contexts of single-token requests."""
    prefill: list[tuple[int, int]] = []
    decode: list[int] = []
    for request, tokens in output.num_scheduled_tokens.items():
        if tokens == 1:
            decode.append(request.num_computed_tokens)  # schedule() has counted the new token already
        else:
            prefill.append((tokens, request.num_computed_tokens - tokens))
    return prefill, decode


def _no_progress(scheduler: Scheduler, now: int) -> str:
    stuck = stuck_requests(scheduler)
    waits = "; ".join(f"{request.request_id} {reason}" for request, reason in stuck[:3])
    more = f"; and {len(stuck) - 3} more" if len(stuck) > 3 else ""
    return f"no progress at time {now}: {waits or 'no request is left'}{more}"


def stuck_requests(scheduler: Scheduler) -> list[tuple[Request, str]]:
    """Requests that nothing will move any more, each with what it waits for and what would help."""
    kv, free = scheduler.kv, scheduler.kv.pool.num_free
    stuck: list[tuple[Request, str]] = []
    for request in scheduler.requests:
        if request.status is RequestStatus.WAITING_FOR_STREAMING_REQ:
            continue  # its client will send more, or end it
        held, need = kv.num_held_blocks(request), kv.num_remaining_blocks(request)
        reason = f"holds {held} GPU blocks, needs {need} more, {free} of {kv.pool.num_blocks - 1} are free"
        if need > free:
            reason += " (more GPU blocks or a smaller max_num_seqs would help)"
        elif not held and need <= free < need + scheduler.num_reserved_blocks():
            reason += (
                f", {scheduler.num_reserved_blocks()} are reserved for prefills that have begun; a request whose load"
                " has failed is one of them, in vLLM too (more GPU blocks would help)"
            )
        elif scheduler.connector is not None and (wait := scheduler.connector.explain_wait(request)):
            reason += f", {wait}"
        stuck.append((request, reason))
    return stuck
