"""P2pNcclConnector: a prefill instance sends layer by layer while it computes; a decode instance waits for all of it.

Rules: vLLM 0.23.0 kv_connector/v1/p2p/p2p_nccl_connector.py and p2p_nccl_engine.py (send_type PUT_ASYNC); 0.33.0 has
none. The proxy chooses both instances before the prefill, because the request's id names them. Not modelled: the decode
side's buffer for what has come, and its overflow into the host's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kvsim.connectors.base import Awaited, BlockTable, ConnectorWorker, KVConnector, SchedulerOutput, WorkerOutput
from kvsim.connectors.exchange import Exchange, Port
from kvsim.connectors.waiting_worker import WaitingWorker
from kvsim.request import Request


@dataclass(slots=True)
class P2pMeta:
    """A step's work: prompts that it completes, with the number of their blocks, and prompts that it needs."""

    sends: list[tuple[Request, int]] = field(default_factory=list)
    loads: list[Request] = field(default_factory=list)
    finished: list[Request] = field(default_factory=list)


class P2pNcclConnector(KVConnector):
    """Scheduler side; what a request's `Handoff` says decides what is done with it."""

    def __init__(self, worker: ConnectorWorker) -> None:
        self._worker = worker
        self._to_load: dict[Request, None] = {}
        self._loading: dict[Request, None] = {}

    def make_worker(self) -> ConnectorWorker:
        return self._worker

    def get_num_new_matched_tokens(self, request: Request, num_local_tokens: int) -> tuple[int | None, bool]:
        """All of the prompt but its last token, inside the step; again if it was preempted."""
        if request.handoff is None or request.handoff.role == "prefill":
            return 0, False
        return max(0, request.num_prompt_tokens - 1 - num_local_tokens), False

    def update_state_after_alloc(self, request: Request, table: BlockTable, num_external_tokens: int) -> None:
        if request.handoff is not None and request.handoff.role == "decode" and num_external_tokens > 0:
            self._to_load[request] = None

    def build_connector_meta(self, output: SchedulerOutput) -> P2pMeta:
        meta = P2pMeta(finished=list(output.finished))
        for request, tokens in output.num_scheduled_tokens.items():
            done = request.num_computed_tokens + tokens
            is_prefill = request.handoff is not None and request.handoff.role == "prefill"
            if is_prefill and request.num_computed_tokens < request.num_prompt_tokens <= done:
                meta.sends.append((request, -(-request.num_prompt_tokens // request.block_size)))
            elif request in self._to_load:
                del self._to_load[request]
                meta.loads.append(request)
        self._loading = dict.fromkeys(meta.loads)
        self.num_store_jobs += len(meta.sends)
        self.num_load_jobs += len(meta.loads)
        return meta

    def request_finished(self, request: Request, table: BlockTable) -> bool:
        """The blocks are free: what is sent was copied out of them (save_kv_layer)."""
        self._to_load.pop(request, None)
        return False

    def update_connector_output(self, output: WorkerOutput) -> None:
        self._loading = {}

    def explain_wait(self, request: Request) -> str:
        return "waits for KV that its prefill instance never sent" if request in self._loading else ""


@dataclass(slots=True)
class _Arrival:
    """All layers of a prompt."""

    layers: dict[str, int]
    request_id: str
    wanted: int

    @property
    def is_done(self) -> bool:
        """Whether they are there."""
        return self.layers.get(self.request_id, 0) >= self.wanted


@dataclass(slots=True)
class _Sent:
    """Layers that are still on their way out."""

    count: int = 0

    @property
    def is_done(self) -> bool:
        """Whether none is."""
        return self.count == 0


class P2pNcclWorker(WaitingWorker[P2pMeta]):
    """Worker side: one thread sends, in order; here what is sent at a time shares the NICs.

    Args:
        wake: the engine should look around.
    """

    def __init__(self, port: Port, exchange: Exchange, num_layers: int, wake: Callable[[], None]) -> None:
        super().__init__(num_layers, P2pMeta)
        self.port, self._exchange, self._wake = port, exchange, wake
        self._layers: dict[str, int] = {}  # received, by request
        self._sent = _Sent()
        self._is_closed = False

    def close(self) -> None:
        """The engine has died."""
        self._is_closed = True

    def start_load_kv(self, meta: P2pMeta) -> None:
        """What came for requests that have ended is dropped (get_finished)."""
        super().start_load_kv(meta)
        for request in meta.finished:
            self._layers.pop(request.request_id, None)

    def has_layer_work(self) -> bool:
        """Whether this step sends or needs anything."""
        return bool(self._meta.sends or self._meta.loads)

    def before_forward(self) -> Iterator[Awaited]:
        """The host waits for each prompt's layers (recv_tensor blocks, for ever if they never come)."""
        for request in self._meta.loads:
            yield _Arrival(self._layers, request.request_id, self.num_layers)

    def wait_for_layer_load(self, layer: int) -> Iterator[Awaited]:
        """Nothing."""
        return iter(())

    def save_kv_layer(self, layer: int) -> Iterator[Awaited]:
        """A layer of each prompt that is complete goes out."""
        for request, blocks in self._meta.sends:
            assert request.handoff is not None
            peer = self._exchange.find(request.handoff.target)
            if not isinstance(peer, P2pNcclWorker):
                continue  # it has died: nobody will ask
            # Counted as blocks once, with the last layer.
            counted = blocks if layer == self.num_layers - 1 else 0
            total, before = ((blocks * self.port.shape.block_bytes * n) // self.num_layers for n in (layer + 1, layer))
            self._sent.count += 1
            done = self._sender(peer, request.request_id)
            self._exchange.move(
                self.port, peer.port, request.request_id, counted, total - before, done, blocks_per_message=blocks
            )
        return iter(())

    def wait_for_save(self) -> Iterator[Awaited]:
        """The step ends when all is sent (wait_for_sent)."""
        yield self._sent

    def _sender(self, peer: P2pNcclWorker, request_id: str) -> Callable[[bool], None]:
        def done(ok: bool) -> None:
            self._sent.count -= 1
            if not self._is_closed:
                self._wake()
            if ok:
                peer.on_layer(request_id)

        return done

    def on_layer(self, request_id: str) -> None:
        """A layer has come."""
        if not self._is_closed:
            self._layers[request_id] = self._layers.get(request_id, 0) + 1
            self._wake()

    def on_read(self, request_id: str) -> None:
        """See `Peer`: nobody reads here."""

    def on_heartbeat(self, request_ids: object) -> None:
        """See `Peer`: nobody waits here."""
