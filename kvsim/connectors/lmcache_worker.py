"""LMCacheConnectorV1, worker side: whole chunks before and behind the forward pass, or layer by layer inside it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from kvsim.connectors.lmcache import LMCacheMeta
from kvsim.connectors.waiting_worker import WaitingWorker
from kvsim.hardware import Transfer
from kvsim.offload.chunk_store import CPU

ChunkOp = Callable[[int], Transfer]  # so many chunks, on all ranks -> the copy, which has been started


class LMCacheWorker(WaitingWorker[LMCacheMeta]):
    """The step waits: for each request's load before the forward pass, for each request's save behind it.

    Rules: LMCache 0.5.6 v1/cache_engine.py (`retrieve` and `store` synchronise their stream).

    Args:
        num_layers: that have KV.
        load: copy chunks to the GPU.
        store: copy chunks from the GPU.
        reads: read chunks from each shelf into CPU memory.
    """

    def __init__(self, num_layers: int, load: ChunkOp, store: ChunkOp, reads: Sequence[ChunkOp] = ()) -> None:
        super().__init__(num_layers, LMCacheMeta)
        self._load, self._store, self._reads = load, store, reads

    def has_layer_work(self) -> bool:
        """See `LayerHooks`."""
        return bool(self._meta.loads or self._meta.stores)

    def before_forward(self) -> Iterator[Transfer]:
        """Read what is on shelves, then copy all chunks of the request."""
        for load in self._meta.loads:
            for tier, chunks in load:
                if tier != CPU:
                    yield self._reads[tier - 1](chunks)
            yield self._load(sum(chunks for _, chunks in load))

    def wait_for_layer_load(self, layer: int) -> Iterator[Transfer]:
        """Everything is there."""
        yield from ()

    def save_kv_layer(self, layer: int) -> Iterator[Transfer]:
        """Later."""
        yield from ()

    def wait_for_save(self) -> Iterator[Transfer]:
        """One request after the other."""
        for chunks in self._meta.stores:
            yield self._store(chunks)


class LayerwiseLMCacheWorker(LMCacheWorker):
    """A layer waits for its own KV only; its save overlaps with the next layer, which is all that may be ahead of it.

    ``load`` and ``store`` copy one layer of the chunks. Loads follow each other without a gap; LMCache hands out the
    next layer's when the host reaches a layer, far ahead of the GPU.
    Rules: LMCache 0.5.6 v1/gpu_connector/gpu_connectors.py, VLLMPagedMemLayerwiseGPUConnector.
    """

    def __init__(self, num_layers: int, load: ChunkOp, store: ChunkOp) -> None:
        super().__init__(num_layers, load, store)
        self._loads: list[Transfer] = []  # the last request's, by layer
        self._saved: list[Transfer] = []  # the layer before, all requests

    def before_forward(self) -> Iterator[Transfer]:
        """Submit all layers, layer by layer; nobody waits."""
        self._loads = []
        for _layer in range(self.num_layers):
            copies = [self._load(sum(chunks for _, chunks in load)) for load in self._meta.loads]
            self._loads += copies[-1:]
        self._saved = []
        yield from ()

    def wait_for_layer_load(self, layer: int) -> Iterator[Transfer]:
        """This layer's, of all requests."""
        yield from self._loads[layer : layer + 1]

    def save_kv_layer(self, layer: int) -> Iterator[Transfer]:
        """The host waits for the saves of the layer before, then starts this layer's."""
        yield from self._saved
        self._saved = [self._store(chunks) for chunks in self._meta.stores]

    def wait_for_save(self) -> Iterator[Transfer]:
        """The last layer's."""
        yield from self._saved
