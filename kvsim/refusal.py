"""Not asking in vain: a request that found no room is not looked up again while nothing could have made room."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.cache.block_pool import BlockPool
from kvsim.connectors.base import KVConnector
from kvsim.request import Request


@dataclass(frozen=True, slots=True)
class _Memory:
    """The last request that did not fit as a whole, and the state of the world in which it did not."""

    request: Request
    missing_hash: int  # of the first block after its local hit; -1 = none
    release_epoch: int
    evicted_blocks: int
    connector_epoch: int


class Refusal:
    """Remembers the request at the head of the queue and why it did not fit; changes no decision.

    The request needs (all its blocks - hits that somebody holds) <= free blocks. Without a free, a touch or a longer
    hit neither side can have improved. The connector must not have become able to defer the request either (which
    would let the scan go on): nothing is in flight, or nothing at all has changed. A connector whose lookups have
    effects is always asked, and so is a request with encoder inputs: that has effects on the encoder cache.
    """

    def __init__(self, pool: BlockPool, connector: KVConnector | None, *, enabled: bool) -> None:
        self._pool, self._connector = pool, connector
        self._enabled = enabled and (connector is None or connector.lookups_are_pure)
        self._memory: _Memory | None = None

    @property
    def is_held(self) -> bool:
        """Whether a request is remembered."""
        return self._memory is not None

    def remember(self, request: Request, num_hits: int) -> None:
        """The request did not fit, with so many blocks hit locally."""
        connector, pool = self._connector, self._pool
        if self._enabled and not request.demands.encoder_inputs:
            hashes = request.block_hashes
            missing = hashes[num_hits] if num_hits < len(hashes) else -1
            epoch = 0 if connector is None else connector.epoch
            self._memory = _Memory(request, missing, pool.release_epoch, pool.evicted_blocks, epoch)

    def still_holds(self, request: Request) -> bool:
        """Whether this request was refused and would be refused again."""
        memory, pool, connector = self._memory, self._pool, self._connector
        if memory is None:
            return False
        if (
            memory.request is request
            and memory.release_epoch == pool.release_epoch
            and memory.missing_hash not in pool.cached
            and (
                connector is None
                or not connector.may_defer()
                or (memory.connector_epoch == connector.epoch and memory.evicted_blocks == pool.evicted_blocks)
            )
        ):
            return True
        self._memory = None
        return False
