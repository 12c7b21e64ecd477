"""A scenario on the reference engine: sessions of turns, on a clock that counts steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from simpy import Event

from kvsim.async_engine import AsyncEngine
from kvsim.cache.hybrid_kv_cache_manager import AnyKVCacheManager, HybridKVCacheManager
from kvsim.clock import SCHEDULE_PRIORITY, STEP_END_PRIORITY, Clock
from kvsim.conform.defaults import DEFAULTS
from kvsim.conform.gates import build_gates, demands_of
from kvsim.conform.groups import build_kv_cache_manager
from kvsim.conform.order import in_set_order
from kvsim.conform.recorder import AsyncRecorder, Labels, Record, Recorder
from kvsim.conform.step_clock import (
    OneTick,
    ProbingStepTier,
    SortedReports,
    Step,
    StepCopier,
    StepExampleWorker,
    StepTier,
)
from kvsim.conform.stub import StubConnector, StubWorker
from kvsim.connectors.base import ConnectorWorker, Direction, KVConnector
from kvsim.connectors.example import ExampleConnector
from kvsim.engine import Engine
from kvsim.errors import UserError
from kvsim.limits import SchedulerLimits
from kvsim.offload.ledger import Ledger
from kvsim.releases import RELEASES
from kvsim.request import Request, RequestStatus
from kvsim.scheduler import Scheduler
from kvsim.speculation import Speculation

T = TypeVar("T")
MAX_STEPS = 30_000  # unless a scenario says otherwise, it is cut off after so many steps
STALL_STEPS = 500  # the recorder stops after so many steps without progress


class ScriptedAcceptance:
    """So many drafts hold, one verification of a request after the other; the script starts again at its end."""

    def __init__(self, script: list[int]) -> None:
        self._script = script
        self._verified: Counter[str] = Counter()

    def accepted(self, request: Request, drafts: int) -> int:
        """See `kvsim.speculation.Acceptance`."""
        number = self._verified[request.request_id]
        self._verified[request.request_id] += 1
        return min(self._script[number % len(self._script)], drafts)


@dataclass(slots=True)
class SessionContent:
    """Tokens of one scenario session: a common system prompt, then its own (or another's, if it repeats one).

    With ``lookahead_tokens`` a block's content includes so many tokens after it.
    """

    labels: Labels
    owner: str
    system_tokens: int
    block_size: int
    lookahead_tokens: int = 0
    adapter: int = 0

    def block_hashes(self, first: int, last: int) -> list[int]:
        """See `kvsim.request.Content`."""
        return [self.labels.number(self._name(i)) for i in range(first, last)]

    def _name(self, block: int) -> str:
        is_common = (block + 1) * self.block_size + self.lookahead_tokens <= self.system_tokens
        owner = "sys" if is_common else self.owner
        return f"{self.adapter}/{owner}:{block}" if self.adapter else f"{owner}:{block}"


class Conformance:
    """One scenario on the reference engine. `run` gives the records and whether it got stuck."""

    def __init__(
        self,
        scenario: dict[str, Any],
        vllm_version: str,
        order_finished: Callable[[list[Request]], list[Request]] = list,
        give_up_after: int | None = None,  # as a timed engine does; recordings go on
    ) -> None:
        self._give_up_after = give_up_after
        self.scenario = scenario
        options = {**scenario["engine"], **scenario.get("connector", {})}
        unknown = options.keys() - DEFAULTS.keys()
        if unknown:
            raise NotImplementedError(f"scenario options {sorted(unknown)}")
        self.options = DEFAULTS | {key: value for key, value in options.items() if value is not None}
        self.release = RELEASES[vllm_version]
        self.env = Clock()
        recorder = AsyncRecorder if self.options["async_scheduling"] else Recorder
        self.recorder = recorder(self.env, Step(self.env))
        self._speculation = self._drafts()
        self.engine = self._build()
        self.engine.scheduler.order_finished = order_finished
        specs = scenario["sessions"]
        self._due: dict[int, int] = {}  # session -> step of its next turn
        self._aborts: dict[int, tuple[int, Request]] = {}  # session -> (step, request)
        self._streaming: dict[int, Request] = {}  # session -> its only request
        self._turn = [0] * len(specs)
        self._tokens: list[int] = [scenario["system_tokens"]] * len(specs)
        self._left = sum(len(spec["turns"]) for spec in specs)
        self._last_step: int = scenario.get("max_steps", MAX_STEPS)
        self._deadlock = self._stopping = False
        self._stop = self.env.event()

    def _build(self) -> Engine:
        o, release, recorder = self.options, self.release, self.recorder
        pool = release.block_pool(o["num_gpu_blocks"], recorder.on_evict)
        kv = build_kv_cache_manager(o, pool, self._speculation)
        recorder.num_groups = kv.num_groups
        connector, worker = self._connector(kv)
        limits = SchedulerLimits(
            max_num_batched_tokens=o["max_num_batched_tokens"],
            max_num_seqs=o["max_num_seqs"],
            max_model_len=o["max_model_len"],
            scheduling_policy=o["policy"],
            long_prefill_token_threshold=o["long_prefill_token_threshold"],
            scheduler_reserve_full_isl=o["reserve_full_isl"],
        )
        kind: Callable[..., Scheduler] = release.scheduler
        engine: type[Engine] = Engine
        if o["async_scheduling"]:
            engine = AsyncEngine
            kind = self._simulated(release.async_scheduler, "async_scheduling")
        if self._speculation:
            both, alone = release.async_speculative_scheduler, release.speculative_scheduler
            speculative = self._simulated(both if o["async_scheduling"] else alone, "spec_method")
            kind = partial(speculative, speculation=self._speculation)
        gates, recorder.encoder = build_gates(o, release, self.env)
        policy = o["kv_load_failure_policy"]
        log = recorder.on_lookup
        recorder.scheduler = kind(limits, kv, connector, gates, on_lookup=log, kv_load_failure_policy=policy)
        recorder.scheduler.load_failures.order_failed = in_set_order
        return engine(
            self.env,
            recorder.scheduler,
            OneTick(),
            worker,
            observer=recorder,
            empty_step=1,
            give_up_after=self._give_up_after,
            check_every_step=True,
        )

    def _drafts(self) -> Speculation | None:
        o = self.options
        if o["spec_method"] is None:
            return None
        if o["spec_method"] == "eagle" and o["connector"] is not None:
            raise UserError(f"{self.scenario['name']}: spec_method: eagle is not simulated with a connector")
        acceptance = ScriptedAcceptance(o["accepted"])
        return Speculation(o["spec_method"], o["num_speculative_tokens"], o["lookahead_block_hashes"], acceptance)

    def _simulated(self, kind: type[T] | None, option: str) -> type[T]:
        if kind is None:
            raise UserError(f"{self.scenario['name']}: {option}: not simulated for this release of vLLM")
        return kind

    def _connector(self, kv: AnyKVCacheManager) -> tuple[KVConnector | None, ConnectorWorker | None]:
        o, release, recorder = self.options, self.release, self.recorder
        delays: dict[Direction, int] = {"load": o["load_delay"], "store": o["store_delay"]}
        if o["connector"] == "stub":  # its loads are over when their forward pass begins
            delays = dict.fromkeys(delays, 0)
        copier = StepCopier(
            recorder.step,
            delays,
            recorder.log["dma"],
            log_waits=o["connector"] == "offloading",
            load_failures=o["load_failures"] or (),
        )
        if o["connector"] is None:
            return None, None
        if isinstance(kv, HybridKVCacheManager):
            if o["connector"] != "offloading":
                raise NotImplementedError(f"groups with connector {o['connector']}")
            grouped = release.grouped_offloading_connector(
                self._ledger(),
                kv,
                block_size_factor=o["chunk_factor"],
                offload_prompt_only=o["offload_prompt_only"],
                enable_caching=not o["no_prefix_caching"],
            )
            return grouped, SortedReports(release.offloading_worker(copier))
        if o["connector"] == "example":
            size = o["block_size"]
            return ExampleConnector(block_size=size), StepExampleWorker(size, recorder.log["dma"])
        if o["connector"] == "stub":
            return StubConnector(o["block_size"]), StubWorker(copier)
        if o["connector"] == "offloading":
            offloading = release.offloading_connector(
                self._ledger(),
                block_size=o["block_size"],
                block_size_factor=o["chunk_factor"],
                offload_prompt_only=o["offload_prompt_only"],
                enable_caching=not o["no_prefix_caching"],
            )
            return offloading, SortedReports(release.offloading_worker(copier))
        simple = release.simple_cpu_connector(
            kv.pool,
            release.block_pool(o["cpu_blocks"]),
            block_size=o["block_size"],
            lazy=o["lazy"],
            blocks_per_step=2 * -(-o["max_num_batched_tokens"] // o["block_size"]),
            enable_caching=not o["no_prefix_caching"],
        )
        return simple, SortedReports(release.simple_cpu_worker(copier))

    def _ledger(self) -> Ledger:
        o, release = self.options, self.release
        delays: list[dict[Direction, int]] = [
            {"load": tier["load_delay"], "store": tier["store_delay"]} for tier in o["tiers"] or ()
        ]
        if o["tier"]:
            delays.append({"load": o["tier_load_delay"], "store": o["tier_store_delay"]})
        threshold = 0 if delays else o["store_threshold"]  # vLLM refuses a threshold with tiers
        policy = release.policies[o["cpu_policy"]]
        primary = release.manager(o["cpu_blocks"], policy, threshold, self.recorder.on_cpu_evict)
        if not delays:
            return primary
        kind = ProbingStepTier if o["tier"] == "fs" and release.background_lookups else StepTier
        tiers = [kind(self.recorder.step, each) for each in delays]
        for tier in tiers:
            tier.fail(o["tier_load_failures"] or (), o["tier_store_failures"] or (), partly=release.partial_promotions)
        return release.tiering_manager(primary, tiers)

    def run(self) -> tuple[list[Record], bool]:
        """Records of all executed steps, and whether the recorder would have called it a deadlock."""
        self.recorder.after_step = self._after_step
        for i, spec in enumerate(self.scenario["sessions"]):
            self._set_due(i, spec["start_step"])
        cut = self.env.at(self._last_step)  # nothing arrives any more
        assert cut.callbacks is not None
        cut.callbacks.append(lambda _event: self._stop_after_drain())
        self.env.run(until=self._stop)
        return self.recorder.records, self._deadlock

    def _set_due(self, session: int, step: int) -> None:
        if step not in self._due.values():
            # Behind the end of a step at that instant, which may add to the arrivals; before the next decision.
            first = self.env.timeout(step - self.env.now)
            assert first.callbacks is not None
            first.callbacks.append(lambda _event: self._then(self._arrivals))
        self._due[session] = step

    def _then(self, action: Callable[[], None]) -> None:
        event = self.env.at(0, STEP_END_PRIORITY)
        assert event.callbacks is not None
        event.callbacks.append(lambda _event: action())

    def _arrivals(self) -> None:
        """Everything due now arrives, in session order; nothing once the scenario is being stopped."""
        if self._stopping:
            return
        for i in sorted(i for i, step in self._due.items() if step <= self.env.now):
            del self._due[i]
            request, ended = self._next_turn(i)
            assert ended.callbacks is not None
            ended.callbacks.append(partial(self._turn_ended, i, request))
            steps = dict(self.scenario["sessions"][i].get("abort", ())).get(self._turn[i])
            if steps is not None:
                self._set_abort(i, request, self.env.now + steps)

    def _set_abort(self, session: int, request: Request, step: int) -> None:
        """The client will go in this step, behind its arrivals, before its decisions."""
        self._aborts[session] = (step, request)
        at = self.env.timeout(step - self.env.now)
        assert at.callbacks is not None
        at.callbacks.append(lambda _event: self._then(self._abort_due))

    def _abort_due(self) -> None:
        for i in sorted(i for i, (step, _) in self._aborts.items() if step <= self.env.now):
            self.engine.abort(self._aborts.pop(i)[1])

    def _next_turn(self, session: int) -> tuple[Request, Event]:
        """A new request, or the next part of a streaming session's; it goes on while it waits for input."""
        spec, size = self.scenario["sessions"][session], self.engine.scheduler.kv.block_size
        number = self._turn[session]
        user, out = spec["turns"][number]
        prompt = self._tokens[session] + user
        self._tokens[session] = prompt + out
        owner = spec.get("same_as") or spec["name"]
        ahead = self.engine.scheduler.kv.hash_lookahead_tokens
        open_one = self._streaming.get(session)
        system = self.scenario["system_tokens"]
        request_id = f"{spec['name']}t{number}" if open_one is None else open_one.request_id
        content = SessionContent(self.recorder.labels, owner, system, size, ahead, spec.get("lora", 0))
        demands = demands_of(spec, number, request_id, system)
        if open_one is not None:
            open_one.continue_with(
                content, num_prompt_tokens=prompt, max_tokens=out, arrival=self.env.now, demands=demands
            )
            return open_one, self.engine.continue_session(open_one)
        request = Request(
            request_id, content, block_size=size, num_prompt_tokens=prompt, max_tokens=out,
            priority=spec.get("priority", 0), arrival=self.env.now, hash_lookahead_tokens=ahead, demands=demands,
        )  # fmt: skip
        if demands.resumable:
            self._streaming[session] = request
        return request, self.engine.submit(request)

    def _turn_ended(self, session: int, request: Request, _event: object) -> None:
        """A turn that ends in step s is followed by the next at s + 1 + think_steps.

        The clock says s + 1 at the end of a step, and s when a request is aborted before its decisions.
        """
        after = self.env.now + (request.status is RequestStatus.ABORTED)
        self._aborts.pop(session, None)
        self.recorder.last_progress = max(self.recorder.last_progress, after)
        self._left -= 1
        self._turn[session] += 1
        goes_on = self._turn[session] < len(self.scenario["sessions"][session]["turns"])
        if goes_on:
            self._set_due(session, after + self.scenario["think_steps"])
        if session in self._streaming and (request.is_finished or not goes_on):
            self.engine.end_session(self._streaming.pop(session))
        if not self._left:
            self._stop_after_drain(after - self.env.now)

    def _after_step(self) -> None:
        stalled = self.env.now - self.recorder.last_progress > STALL_STEPS
        if self._left and not (self._due or self._aborts) and stalled and self.env.now <= self._last_step:
            self._deadlock = True
            self._stop_after_drain()

    def _stop_after_drain(self, extra: int = 0) -> None:
        """A few more steps are recorded. The stop comes after everything else of its instant."""
        if not self._stopping:
            self._stopping = True
            drained = self.env.at(self.options["drain"] + extra, SCHEDULE_PRIORITY + 1)
            assert drained.callbacks is not None
            drained.callbacks.append(self._end)

    def _end(self, _event: object) -> None:
        self._stop.succeed()
