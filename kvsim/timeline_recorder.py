"""Watches an engine and its requests, and tells a timeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvsim.clock import Clock
from kvsim.connectors.base import KVConnector, SchedulerOutput, WorkerOutput
from kvsim.hardware import DuplexLink
from kvsim.observer import EngineObserver
from kvsim.request import Request, RequestStatus
from kvsim.results.records import RequestRecord, Totals
from kvsim.results.timeline import Count, Lifeline, Process, Slice, Timeline
from kvsim.scheduler import Scheduler
from kvsim.timeline_tracks import BothListeners, LinkTracks, TierTrack, WatchedTier

_GIB = 2**30


@dataclass(slots=True)
class _Batch:
    """A step that has been decided and is not over; with the quiet ones behind it that the fast engine jumps over."""

    output: SchedulerOutput
    start_ns: int
    number: int
    prefill_tokens: int
    decode_tokens: int
    args: dict[str, int]
    steps: int = 1
    gpu_ns: int = 0


class TimelineRecorder(EngineObserver):
    """Told what one engine does; it changes nothing, and asks nothing that has an effect.

    Requests that wait, run and are loaded are counted from their own states, so that both engines show the same.
    How much KV is in use is looked at where a step begins and where the engine has nothing left to do.

    Args:
        name: of the engine.
        totals: of its server, with the sizes of blocks.
    """

    def __init__(self, clock: Clock, timeline: Timeline, name: str, totals: Totals) -> None:
        self._clock, self._timeline, self._totals = clock, timeline, totals
        self.process: Process = timeline.process(name)
        self._steps = self.process.track("steps")
        self._scheduler: Scheduler | None = None
        self._connector: KVConnector | None = None
        self._batches: list[_Batch] = []  # in flight, oldest first
        self._num_steps = 0
        self._busy_until_ns = 0  # the last slice of the steps' track ends
        self._open: dict[Request, Lifeline] = {}
        self._counts = dict.fromkeys(("running", "waiting", "loading", "preempted"), 0)
        self._tiers: list[TierTrack] = []

    def attach(self, scheduler: Scheduler, connector: KVConnector | None) -> None:
        """An engine begins; perhaps it takes over from a dead one."""
        self._scheduler, self._connector = scheduler, connector

    # -- requests
    def on_open(self, request: Request, entry: RequestRecord) -> None:
        """The request arrives at the engine now; perhaps it has spent time in front of it."""
        lifeline = self._open[request] = Lifeline(entry, [])
        self._enter(request, "waiting")
        decodes = request.handoff is not None and request.handoff.role == "decode"
        if spent_ns := entry.decode_frontend_ns if decodes else entry.frontend_ns:
            lifeline.states.insert(0, (self._clock.now - spent_ns, "frontend"))
        self._count_requests()

    def _enter(self, request: Request, state: str) -> None:
        states = self._open[request].states
        if states:
            self._counts[states[-1][1]] -= 1
        self._counts[state] += 1
        states.append((self._clock.now, state))

    def _close(self, request: Request) -> None:
        lifeline = self._open.pop(request, None)
        if lifeline is None:
            return
        lifeline.end_ns = self._clock.now
        self._counts[lifeline.states[-1][1]] -= 1
        if self._timeline.shows(lifeline.states[0][0], lifeline.end_ns) and self.process.lifelines.take_next():
            self.process.lifelines.add(lifeline)

    def _is(self, request: Request, state: str) -> bool:
        lifeline = self._open.get(request)
        return lifeline is not None and lifeline.states[-1][1] == state

    # -- steps
    def on_step_scheduled(self, output: SchedulerOutput) -> None:
        now, loads = self._clock.now, 0
        for request in output.hits:
            if request.status is RequestStatus.WAITING_FOR_REMOTE_KVS:
                self._enter(request, "loading")
                loads += 1
        for request in output.preempted:
            self._enter(request, "preempted")
        for request in (*output.new, *output.resumed):
            self._enter(request, "running")
        prefill = sum(tokens for request, tokens in output.num_scheduled_tokens.items() if _prefills(request, output))
        counts = self._counts
        args = {
            "running": counts["running"],
            "waiting": counts["waiting"] + counts["preempted"],
            "loading": counts["loading"],
            "loads_begun": loads,
            "preempted": len(output.preempted),
        }
        batch = _Batch(output, now, self._num_steps, prefill, output.total_tokens - prefill, args)
        self._batches.append(batch)
        if output.computes:
            self._num_steps += 1
        self._look()

    def on_forward(self, duration_ns: int) -> None:
        self._batches[-1].gpu_ns += duration_ns

    def on_quiet_steps(self, steps: int, duration_ns: int) -> None:
        batch = self._batches[-1]
        batch.steps += steps
        batch.gpu_ns += duration_ns
        self._num_steps += steps

    def on_slowdown(self, lost_ns: int) -> None:
        self._batches[0].gpu_ns += lost_ns

    def on_step_done(self, output: SchedulerOutput, worker: WorkerOutput | None, ended: list[Request]) -> None:
        self._show_step(self._batches.pop(0))
        for request in () if worker is None else worker.received:
            if self._is(request, "loading"):
                self._enter(request, "waiting")
        for request in ended:
            self._close(request)
        if self._scheduler is not None and not self._scheduler.has_unfinished():
            self._look()
        self._count_requests()

    def _show_step(self, batch: _Batch, **more: bool) -> None:
        """A step begins when it is decided; with steps in flight, when the one before is over."""
        start_ns, end_ns = max(batch.start_ns, self._busy_until_ns), self._clock.now
        self._busy_until_ns = end_ns
        if not batch.output.computes and end_ns == start_ns:
            return
        if not self._timeline.shows(start_ns, end_ns) or not self._steps.take_next():
            return
        prefill, decode = batch.prefill_tokens * batch.steps, batch.decode_tokens * batch.steps
        name = " + ".join(kind for kind, tokens in (("prefill", prefill), ("decode", decode)) if tokens)
        args = {
            "first_step": batch.number,
            "steps": batch.steps if batch.output.computes else 0,
            "prefill_tokens": prefill,
            "decode_tokens": decode,
            "gpu_ms": batch.gpu_ns / 1e6,
            **batch.args,
            **more,
        }
        if batch.steps > 1:
            name += f", {batch.steps} steps"
        self._steps.add(Slice(start_ns, end_ns, name or "nothing to compute", args))

    def on_abort(self, request: Request) -> None:
        self._close(request)
        self._count_requests()

    def on_death(self, orphans: list[Request]) -> None:
        for batch in self._batches:
            self._show_step(batch, engine_died=True)
        self._batches = []
        for request in orphans:
            self._close(request)
        self._count_requests()

    # -- counters
    def _look(self) -> None:
        self._count_requests()
        scheduler = self._scheduler
        if scheduler is None:
            return
        pool, totals = scheduler.kv.pool, self._totals
        used = {"GPU": (pool.num_blocks - 1 - pool.num_free) * totals.gpu_block_bytes / _GIB}
        if self._connector is not None and totals.cpu_block_bytes:
            used["CPU"] = self._connector.num_offloaded_chunks * totals.cpu_block_bytes / _GIB
        self._count("KV in use (GiB)", used)
        for tier in self._tiers:
            self._count(f"{tier.name} queue (GB)", tier.queue())

    def _count_requests(self) -> None:
        counts = self._counts
        waiting = counts["waiting"] + counts["preempted"]
        self._count("requests", {"running": counts["running"], "loading": counts["loading"], "waiting": waiting})

    def _count(self, name: str, values: dict[str, float]) -> None:
        now, counter = self._clock.now, self.process.counter(name)
        if now <= self._timeline.start_ns:  # the last of these holds when the window begins
            counter.entries, counter.num_seen = [Count(now, values)], 1
        elif counter.entries and counter.entries[-1].time_ns == now:
            counter.entries[-1].values = values
        elif counter.entries and counter.entries[-1].values == values:
            return
        elif self._timeline.shows(now, now) and counter.take_next():
            counter.add(Count(now, values))

    # -- copies
    def watch_links(self, links: Sequence[tuple[str, DuplexLink]]) -> None:
        """Show the copies of these, each under its name."""
        for name, link in links:
            link.listener = LinkTracks(self._clock, self._timeline, self.process, name)

    def watch_tier(self, name: str, tier: WatchedTier) -> None:
        """Show the jobs of a storage tier."""
        track = TierTrack(self._clock, self._timeline, self.process, name, tier)
        self._tiers.append(track)
        tier.listener = track if tier.listener is None else BothListeners(tier.listener, track)

    def finish(self) -> None:
        """The simulation is over; whoever has not ended never will."""
        for request in list(self._open):
            self._close(request)


def _prefills(request: Request, output: SchedulerOutput) -> bool:
    """Whether a step computes the request's prompt, or again what it had before it was preempted."""
    tokens = output.num_scheduled_tokens[request]
    before = request.num_computed_tokens - tokens
    return before < request.num_prompt_tokens or tokens > 1 + output.drafts.get(request, 0)
