"""NixlConnector, scheduler side: a decode instance pulls the KV of a prompt from the prefill instance that has it.

Rules: vLLM 0.33.0 kv_connector/v1/nixl/base_scheduler.py and pull_scheduler.py; 0.23.0 nixl/scheduler.py has the same.
Not modelled: bidirectional_kv_xfer, KV cache groups, drafts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvsim.clock import Clock
from kvsim.connectors.alarm import Alarm
from kvsim.connectors.base import BlockTable, ConnectorWorker, KVConnector, SchedulerOutput, WorkerOutput
from kvsim.connectors.exchange import Port
from kvsim.handoff import RemoteBlocks
from kvsim.request import Request, RequestStatus

HEARTBEATS_PER_LEASE = 6  # vLLM 0.33.0 nixl/base_scheduler.py: _heartbeat_interval = _kv_lease_duration // 6


@dataclass(eq=False, slots=True)
class Receive:
    """Remote KV that a request wants.

    ``blocks``: where it goes; none = only tell the other side that it may free its blocks. ``is_awaited``: the request
    is parked until it is there.
    """

    request: Request
    remote: RemoteBlocks
    blocks: list[int]
    is_awaited: bool


@dataclass(slots=True)
class NixlMeta:
    """A step's message to the worker side (NixlConnectorMetadata)."""

    receives: list[Receive] = field(default_factory=list)
    saves: list[list[int]] = field(default_factory=list)  # blocks to be copied to the host's buffer
    leases: dict[Request, int] = field(default_factory=dict)  # ended requests, and until when their blocks are kept
    in_batch: list[Request] = field(default_factory=list)
    not_processed: list[Request] = field(default_factory=list)
    heartbeats: dict[str, list[str]] = field(default_factory=dict)  # engine -> its requests that are still wanted


class Heartbeats:
    """Which requests wait for other engines' KV, and when those have to hear of it again.

    vLLM 0.33.0 nixl/base_scheduler.py (on_new_request, build_connector_meta): from a request's arrival until its KV is
    there or it is over, its engine of origin hears of it, at most every ``interval_ns``.
    """

    def __init__(self, clock: Clock, interval_ns: int, alarm: Alarm) -> None:
        self._clock, self._interval_ns, self._alarm = clock, interval_ns, alarm
        self._wanted: dict[Request, RemoteBlocks] = {}
        self._next_ns = 0

    def begin(self, request: Request, remote: RemoteBlocks) -> None:
        """It has arrived."""
        self._wanted[request] = remote
        self._arm()

    def end(self, request: Request) -> None:
        """Its KV is there, or it is over."""
        self._wanted.pop(request, None)
        self._arm()

    def due(self) -> dict[str, list[str]]:
        """What has to be sent now."""
        if not self._wanted or self._clock.now < self._next_ns:
            return {}
        self._next_ns = self._clock.now + self._interval_ns
        found: dict[str, list[str]] = {}
        for remote in self._wanted.values():
            found.setdefault(remote.engine_id, []).append(remote.request_id)
        self._arm()
        return found

    def _arm(self) -> None:
        self._alarm.set(max(self._next_ns, self._clock.now) if self._wanted else None)

    def __len__(self) -> int:
        return len(self._wanted)


class NixlConnector(KVConnector):
    """Of an engine of either kind: what a request's `Handoff` says decides what is done with it.

    Args:
        port: the engine's place in the network.
        worker: the worker side, which `make_worker` gives away.
        lease_ns: how long a prompt's KV is kept for somebody to read it, unless heartbeats come.
        uses_host_buffer: KV goes through the host's memory on its way.
        beats: decode instances send heartbeats.
        answers_at_once: whoever sends a prefill need not wait for its end, because its KV can be asked for before.
        alarm: wakes the engine.
    """

    def __init__(
        self,
        clock: Clock,
        port: Port,
        worker: ConnectorWorker,
        *,
        block_size: int,
        lease_ns: int,
        uses_host_buffer: bool,
        alarm: Alarm,
        beats: bool = True,
        answers_at_once: bool = False,
    ) -> None:
        self._clock, self._port, self._worker, self._size = clock, port, worker, block_size
        self._lease_ns, self._uses_host_buffer = lease_ns, uses_host_buffer
        self._heartbeats = Heartbeats(clock, lease_ns // HEARTBEATS_PER_LEASE, alarm)
        self._beats, self._answers_at_once = beats, answers_at_once
        self._meta = NixlMeta()
        self._to_save: dict[Request, None] = {}
        self._waits: dict[Request, RemoteBlocks] = {}  # parked

    def make_worker(self) -> ConnectorWorker:
        return self._worker

    def close(self) -> None:
        """The engine has died."""
        for request in list(self._waits):
            self._heartbeats.end(request)

    def on_new_request(self, request: Request) -> None:
        handoff = request.handoff
        if handoff is None:
            return
        if handoff.role == "decode" and handoff.remote is not None and self._beats:
            self._heartbeats.begin(request, handoff.remote)
        elif handoff.role == "prefill" and self._answers_at_once:
            handoff.answer = self.answer_to(request.request_id)

    def answer_to(self, request_id: str) -> RemoteBlocks | None:
        """With Mooncake the prefill's engine and id are all that the other side needs to know."""
        return RemoteBlocks(self._port.engine_id, request_id, (), 0, self._size) if self._answers_at_once else None

    def get_num_new_matched_tokens(self, request: Request, num_local_tokens: int) -> tuple[int | None, bool]:
        """All of the prompt that is not here (pull_scheduler.py: remote prefill)."""
        handoff = request.handoff
        if handoff is not None and handoff.role == "decode" and handoff.is_open:
            count = request.num_prompt_tokens - num_local_tokens
            if count > 0:
                return count, True
        return 0, False

    def update_state_after_alloc(self, request: Request, table: BlockTable, num_external_tokens: int) -> None:
        handoff = request.handoff
        if handoff is None:
            return
        if handoff.role == "prefill":
            self._meta.in_batch.append(request)
            if self._uses_host_buffer:
                self._to_save[request] = None
        elif handoff.is_open:
            handoff.is_open = False  # one transfer per request: if it is preempted, it computes its prompt here
            assert handoff.remote is not None
            first = (request.num_prompt_tokens - num_external_tokens) // self._size
            blocks = list(table[first:]) if num_external_tokens else []
            if num_external_tokens:
                self.num_load_jobs += 1
                self._waits[request] = handoff.remote
            self._meta.receives.append(Receive(request, handoff.remote, blocks, bool(num_external_tokens)))

    def build_connector_meta(self, output: SchedulerOutput) -> NixlMeta:
        meta, self._meta = self._meta, NixlMeta()
        if self._to_save:
            self._plan_saves(meta, output)
        meta.heartbeats = self._heartbeats.due()
        return meta

    def _plan_saves(self, meta: NixlMeta, output: SchedulerOutput) -> None:
        """Blocks that this step hands out go to the host's buffer behind it (_build_save_meta)."""
        for request, tokens in output.num_scheduled_tokens.items():
            blocks = output.tables.get(request, output.new_blocks.get(request))
            if request not in self._to_save or blocks is None:
                continue
            meta.saves.append(list(blocks))
            self.num_store_jobs += 1
            if request.num_computed_tokens + tokens >= request.num_prompt_tokens:
                del self._to_save[request]

    def request_finished(self, request: Request, table: BlockTable) -> bool:
        handoff = request.handoff
        if handoff is None:
            return False
        self._heartbeats.end(request)
        self._waits.pop(request, None)
        if handoff.role == "decode":
            if handoff.is_open:  # over before it was scheduled: the other side must not wait for it
                handoff.is_open = False
                assert handoff.remote is not None
                self._meta.receives.append(Receive(request, handoff.remote, [], is_awaited=False))
            return False
        self._to_save.pop(request, None)
        if request.status is not RequestStatus.FINISHED:
            self._meta.not_processed.append(request)
            return False
        if not table:
            return False
        self._meta.leases[request] = self._clock.now + self._lease_ns
        handoff.answer = RemoteBlocks(
            self._port.engine_id, request.request_id, tuple(table), request.num_computed_tokens, self._size
        )
        return True

    def update_connector_output(self, output: WorkerOutput) -> None:
        for request in output.received:
            self._heartbeats.end(request)
            self._waits.pop(request, None)

    def explain_wait(self, request: Request) -> str:
        remote = self._waits.get(request)
        return f"waits for KV from {remote.engine_id}" if remote is not None else ""

    def cautions(self) -> list[str]:
        totals = self._port.totals
        found: list[str] = []
        if totals.blocks_freed_early:
            found.append(
                f"{totals.blocks_freed_early} blocks were freed while a decode instance was still reading them (their"
                " lease was over): the real one would go on with wrong KV. A longer kv_lease_duration would help."
            )
        if totals.late_notifications:
            found.append(
                f"KV of {totals.late_notifications} requests was read after its lease had ended (vLLM: potentially"
                " invalid KV blocks): it may be another request's. A longer kv_lease_duration would help."
            )
        return found

    def check(self, *, at_end: bool) -> None:
        if at_end:
            assert not self._waits, "remote KV is still awaited"
            assert not len(self._heartbeats), "heartbeats for requests that are over"
            assert not self._to_save, "saves of requests that are over"
