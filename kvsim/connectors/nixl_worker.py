"""NixlConnector, worker side: handshakes, reads over the network, notifications and leases. One stands for all ranks.

Rules: vLLM 0.33.0 kv_connector/v1/nixl/base_worker.py and pull_worker.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from kvsim.connectors.alarm import Alarm
from kvsim.connectors.base import Awaited, Copier, CopyJob, WorkerOutput
from kvsim.connectors.exchange import Exchange, Peer, Port
from kvsim.connectors.handshakes import Handshakes
from kvsim.connectors.nixl import NixlMeta, Receive
from kvsim.request import Request


@dataclass(slots=True)
class _Copying:
    """A copy that the host waits for."""

    copier: Copier
    job: CopyJob

    @property
    def is_done(self) -> bool:
        """Whether it is complete."""
        return self.copier.is_done(self.job)


class NixlWorker:
    """See `ConnectorWorker` and `LayerHooks`; the latter is used for the host's buffer alone.

    Args:
        wake: the engine should look around.
        alarm: rings at the end of a lease.
        lease_ns: see `NixlConnector`.
        host: copies between GPU and the host's buffer; None = the network reads and writes the GPU's memory.
    """

    num_layers = 1

    def __init__(
        self,
        port: Port,
        exchange: Exchange,
        handshakes: Handshakes,
        *,
        wake: Callable[[], None],
        alarm: Alarm,
        lease_ns: int,
        host: Copier | None = None,
    ) -> None:
        self.port, self._exchange, self._handshakes, self._host = port, exchange, handshakes, host
        self._wake, self._alarm = wake, alarm
        # base_worker.py: a heartbeat extends a lease to two thirds of its duration from now.
        self._extension_ns = lease_ns * 2 // 3
        # What is received here.
        self._ready: list[Receive] = []  # their handshake is over
        self._receiving: dict[Request, Receive] = {}  # until they are reported
        self._arrived: list[Request] = []
        self._failed: list[Request] = []
        self._syncing: dict[Request, CopyJob] = {}  # from the host's buffer to the GPU
        # What is sent from here.
        self._to_process: dict[str, Request] = {}  # by id: were part of a step, and nobody has read them so far
        self._leases: dict[str, int] = {}  # of ended ones
        self._read: list[Request] = []  # to be reported
        self._saves: list[list[int]] = []
        self._num_jobs = 0
        self._is_closed = False

    def close(self) -> None:
        """The engine has died: nothing is read or reported any more."""
        self._is_closed = True
        self._alarm.set(None)

    # -- one step
    def handle_preemptions(self, meta: NixlMeta) -> list[CopyJob]:
        """Nothing that is on its way touches blocks of preempted requests."""
        return []

    def is_done(self, job: CopyJob) -> bool:
        """Never asked."""
        raise NotImplementedError

    def start_load_kv(self, meta: NixlMeta) -> None:
        """Start reads, and take note of what others may read (pull_worker.py: start_load_kv)."""
        for receive in meta.receives:
            if receive.is_awaited or receive.blocks:
                self._receiving[receive.request] = receive
            self._start(receive)
        ready, self._ready = self._ready, []
        for receive in ready:
            self._start(receive)
        self._to_process.update((request.request_id, request) for request in meta.in_batch)
        for request in meta.not_processed:
            self._to_process.pop(request.request_id, None)
        for request, until_ns in meta.leases.items():
            if request.request_id in self._to_process:  # else somebody has read it already
                self._leases[request.request_id] = until_ns
        self._arm()
        for engine_id, request_ids in meta.heartbeats.items():
            if self._handshakes.is_done(engine_id):
                self._exchange.tell(engine_id, _beat(request_ids))
            else:
                self._handshakes.begin(engine_id, lambda _ok: None)
        self._saves = meta.saves

    def has_finished(self) -> bool:
        """Whether `get_finished` has something to report; copies from the host's buffer may be still to be started."""
        waiting = [request for request in self._arrived if request not in self._syncing]
        synced = any(self._host is not None and self._host.is_done(job) for job in self._syncing.values())
        now = self._exchange.clock.now
        expired = any(at <= now and self._may_expire(each) for each, at in self._leases.items())
        return bool(waiting or synced or self._failed or self._read) or expired

    def get_finished(self) -> WorkerOutput:
        """Reads that are over, and requests that others have read or will not read any more."""
        output = WorkerOutput(sent=self._read)
        self._read = []
        for request in self._arrived[:]:
            if self._host is not None and not self._is_synced(request):
                continue
            self._arrived.remove(request)
            del self._receiving[request]
            output.received.append(request)
        for request in self._failed:
            # base_worker.py (get_transfer_results): such a load is reported as over, its blocks as invalid.
            receive = self._receiving.pop(request)
            output.received.append(request)
            output.failed_recving.append(request)
            output.invalid_blocks.update(receive.blocks)
        self._failed = []
        self._expire(output)
        return output

    # -- the host's buffer (kv_buffer_device: cpu)
    def has_layer_work(self) -> bool:
        """Whether the host waits for copies in this step."""
        return self._host is not None and bool(self._saves or self._arrived)

    def before_forward(self) -> Iterator[Awaited]:
        """Nothing."""
        return iter(())

    def wait_for_layer_load(self, layer: int) -> Iterator[Awaited]:
        """Nothing."""
        return iter(())

    def save_kv_layer(self, layer: int) -> Iterator[Awaited]:
        """Nothing."""
        return iter(())

    def wait_for_save(self) -> Iterator[Awaited]:
        """Copy what was computed to the host's buffer, then what has arrived there to the GPU; both block.

        base_worker.py (save_kv_to_host, sync_recved_kv_to_device).
        """
        assert self._host is not None
        for blocks in self._saves:
            yield _Copying(self._host, self._copy("store", blocks))
        self._saves = []
        for request in self._arrived:
            yield _Copying(self._host, self._sync(request))

    def _copy(self, direction: str, blocks: list[int]) -> CopyJob:
        assert self._host is not None
        self._num_jobs += 1
        job = CopyJob(self._num_jobs, "load" if direction == "load" else "store", blocks, blocks)
        self._host.submit(job)
        return job

    def _sync(self, request: Request) -> CopyJob:
        if request not in self._syncing:
            self._syncing[request] = self._copy("load", self._receiving[request].blocks)
        return self._syncing[request]

    def _is_synced(self, request: Request) -> bool:
        assert self._host is not None
        job = self._sync(request)
        if self._host.is_done(job):
            self._host.forget(self._syncing.pop(request))
            return True
        return False

    # -- reading
    def _start(self, receive: Receive) -> None:
        engine_id, request_id = receive.remote.engine_id, receive.remote.request_id
        if not self._handshakes.is_done(engine_id):
            self._handshakes.begin(engine_id, partial(self._shook_hands, receive))
        elif not receive.blocks:
            self._exchange.tell(engine_id, lambda peer: peer.on_read(request_id))
        else:
            self._transfer(receive)

    def _shook_hands(self, receive: Receive, ok: bool) -> None:
        if self._is_closed:
            return
        if ok:
            self._ready.append(receive)
        elif receive.request in self._receiving:
            self._failed.append(receive.request)
        self._wake()

    def _transfer(self, receive: Receive) -> None:
        remote, shape = receive.remote, self.port.shape
        # base_worker.py (_map_block_ids_for_block_size_ratio, _apply_prefix_caching): with larger blocks here, each is
        # that many remote ones; what the remote side does not have of the last one is not read.
        ratio = shape.block_tokens // remote.block_tokens
        pieces = min(len(receive.blocks) * ratio, len(remote.block_ids))
        peer, done = self._exchange.find(remote.engine_id), partial(self._transferred, receive)
        if peer is None:
            self._exchange.miss(self.port, len(receive.blocks), done)
            return
        self._exchange.move(
            peer.port,
            self.port,
            remote.request_id,
            len(receive.blocks),
            -(-pieces * shape.block_bytes // ratio),
            done,
        )

    def _transferred(self, receive: Receive, ok: bool) -> None:
        if self._is_closed:
            return
        remote = receive.remote
        if ok:
            self._arrived.append(receive.request)
            self._exchange.tell(remote.engine_id, lambda peer: peer.on_read(remote.request_id))
        else:
            self._failed.append(receive.request)
            self._handshakes.forget(remote.engine_id)
        self._wake()

    # -- being read
    def on_read(self, request_id: str) -> None:
        """See `Peer` (pull_worker.py: _get_new_notifs)."""
        if request_id not in self._to_process:
            self.port.totals.late_notifications += 1
            return
        self._read.append(self._to_process.pop(request_id))
        self._leases.pop(request_id, None)
        self._arm()
        self._wake()

    def on_heartbeat(self, request_ids: Sequence[str]) -> None:
        """See `Peer` (base_worker.py: _handle_heartbeat)."""
        until_ns = self._exchange.clock.now + self._extension_ns
        for request_id in request_ids:
            if request_id in self._leases:
                self._leases[request_id] = max(self._leases[request_id], until_ns)
        self._arm()

    def _expire(self, output: WorkerOutput) -> None:
        """Blocks that nobody has read in time are freed, whether or not somebody is reading them (vLLM does)."""
        now, totals = self._exchange.clock.now, self.port.totals
        over = [each for each, until_ns in self._leases.items() if until_ns <= now and self._may_expire(each)]
        for request_id in over:
            del self._leases[request_id]
            output.sent.append(self._to_process.pop(request_id))
            totals.expired_requests += 1
            totals.blocks_freed_early += self._exchange.readers(self.port.engine_id, request_id)
        self._arm()

    def _may_expire(self, request_id: str) -> bool:
        return True

    def _arm(self) -> None:
        self._alarm.set(min((at for each, at in self._leases.items() if self._may_expire(each)), default=None))


def _beat(request_ids: Sequence[str]) -> Callable[[Peer], None]:
    return lambda peer: peer.on_heartbeat(request_ids)
