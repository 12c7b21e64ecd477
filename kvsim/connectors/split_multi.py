"""A MultiConnector that loads one prefix over two paths at once: from the prefill instance and from the shared store.

No release of vLLM does that: its MultiConnector takes the first connector that has tokens. It is here to see what it
would bring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from kvsim.connectors.base import BlockTable, ConnectorWorker, SchedulerOutput, WorkerOutput
from kvsim.connectors.mooncake_store import MooncakeStoreConnector
from kvsim.connectors.multi import MultiConnector, MultiMeta, MultiWorker
from kvsim.connectors.nixl import NixlConnector
from kvsim.connectors.path_split import Path, best_split
from kvsim.request import Request

PeerPath = Callable[[str], Path | None]
"""The way from an engine; None = it is not there."""


@dataclass(slots=True)
class SplitMeta(MultiMeta):
    """And which requests come over both paths in this step, into which blocks."""

    splits: dict[Request, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Load:
    """Bytes of one request that are on their way."""

    by_store: int
    by_peer: int


class SplitMultiConnector(MultiConnector):
    """As `MultiConnector`; but where both the prefill instance and the store have KV of a request, both bring some.

    The store brings the first blocks, the prefill instance the others, at the point where both are expected to end
    together; expected from the line rates, from message sizes and from what this engine has asked for and not got. It
    does not know on which nodes the store's blocks lie, nor what others load.

    Args:
        store_path: the way from the store, as it is now.
        peer_path: the way from an engine.
        own_bytes_per_s: line rate of this instance's NICs.
        block_size: tokens.
    """

    def __init__(
        self,
        parts: Sequence[NixlConnector | MooncakeStoreConnector],
        num_tiers: Sequence[int],
        *,
        store_path: Callable[[], Path],
        peer_path: PeerPath,
        own_bytes_per_s: int,
        block_size: int,
    ) -> None:
        super().__init__(parts, num_tiers)
        self._store_at = next(n for n, part in enumerate(parts) if isinstance(part, MooncakeStoreConnector))
        self._peer_at = next(n for n, part in enumerate(parts) if isinstance(part, NixlConnector))
        store = parts[self._store_at]
        assert isinstance(store, MooncakeStoreConnector)
        self._store = store
        self._store_path, self._peer_path = store_path, peer_path
        self._own_bytes_per_s, self._block_size = own_bytes_per_s, block_size
        self._found: dict[Request, tuple[int, int]] = {}  # tokens: in the store, at the peer
        self._by_store: dict[Request, int] = {}  # tokens of split loads
        self._loads: dict[Request, _Load] = {}
        self._splits: dict[Request, list[int]] = {}  # of this step
        self.num_splits = self.num_split_blocks = 0  # loads over both paths, and blocks of them that the store brings

    def get_num_new_matched_tokens(self, request: Request, num_local_tokens: int) -> tuple[int | None, bool]:
        self._found.pop(request, None)
        answers = [part.get_num_new_matched_tokens(request, num_local_tokens) for part in self.parts]
        if any(tokens is None for tokens, _ in answers):
            return None, False
        (in_store, _), (at_peer, _) = answers[self._store_at], answers[self._peer_at]
        if in_store and at_peer:
            self._chosen[request] = self._peer_at
            self._found[request] = in_store, at_peer
            return at_peer, True
        found = next((number for number, (tokens, _) in enumerate(answers) if tokens), None)
        if found is None:
            return 0, False
        self._chosen[request] = found
        return answers[found]

    def update_state_after_alloc(self, request: Request, table: BlockTable, num_external_tokens: int) -> None:
        in_store, at_peer = self._found.pop(request, (0, 0))
        if not num_external_tokens or num_external_tokens != at_peer:
            if num_external_tokens:
                self._by_store.pop(request, None)  # of a load before this one
            super().update_state_after_alloc(request, table, num_external_tokens)
            return
        blocks = -(-at_peer // self._block_size)
        count = self._split(request, blocks, in_store // self._block_size)
        tokens = count * self._block_size
        if count:
            self._store.shorten_load(request, tokens)
            self._by_store[request] = tokens
            self._splits[request] = list(table[len(table) - blocks :])
            self.num_splits, self.num_split_blocks = self.num_splits + 1, self.num_split_blocks + count
        for number, part in enumerate(self.parts):
            own = {self._store_at: tokens, self._peer_at: at_peer - tokens}.get(number, 0)
            part.update_state_after_alloc(request, table, own)

    def _split(self, request: Request, blocks: int, in_store: int) -> int:
        """How many blocks the store is to bring."""
        remote = None if request.handoff is None else request.handoff.remote
        peer = None if remote is None else self._peer_path(remote.engine_id)
        if peer is None:
            return 0  # the load will fail, and say so
        store, loads = self._store_path(), self._loads.values()
        outstanding = sum(load.by_store for load in loads), sum(load.by_peer for load in loads)
        count = best_split(store, peer, blocks, in_store, self._own_bytes_per_s, outstanding)
        self._loads[request] = _Load(count * store.block_bytes, (blocks - count) * peer.block_bytes)
        return count

    def build_connector_meta(self, output: SchedulerOutput) -> SplitMeta:
        meta = super().build_connector_meta(output)
        splits, self._splits = self._splits, {}
        return SplitMeta(meta.parts, meta.extra_sends, splits)

    def update_connector_output(self, output: WorkerOutput) -> None:
        super().update_connector_output(output)
        for request in output.received:
            self._loads.pop(request, None)

    def request_finished(self, request: Request, table: BlockTable) -> bool:
        self._found.pop(request, None)
        self._by_store.pop(request, None)
        return super().request_finished(request, table)

    def hit_tokens_by_tier(self, request: Request) -> dict[int, int]:
        if request in self._by_store:
            return {self._first_tier[self._store_at]: self._by_store[request]}
        return super().hit_tokens_by_tier(request)

    def check(self, *, at_end: bool) -> None:
        super().check(at_end=at_end)
        assert not at_end or not (self._loads or self._found or self._by_store), "a split load was not forgotten"


@dataclass(slots=True)
class _Open:
    """A load over both paths: whose report is still to come, and what is known to be lost."""

    blocks: frozenset[int]
    waiting: set[int]
    invalid: set[int] = field(default_factory=set)


class SplitMultiWorker(MultiWorker):
    """As `MultiWorker`; a load over both paths is over when both are, and only then its failures are reported.

    If the prefill instance's part fails, what the store has brought stays: only the blocks behind it are invalid.

    Args:
        loading: the numbers of the two parts.
    """

    def __init__(self, parts: Sequence[ConnectorWorker], loading: Sequence[int]) -> None:
        super().__init__(parts)
        self._loading = loading
        self._open: dict[Request, _Open] = {}

    def start_load_kv(self, meta: MultiMeta) -> None:
        """Of all of them."""
        assert isinstance(meta, SplitMeta)
        for request, blocks in meta.splits.items():
            self._open[request] = _Open(frozenset(blocks), set(self._loading))
        super().start_load_kv(meta)

    def get_finished(self) -> WorkerOutput:
        """All reports as one, those of split loads once."""
        output = super().get_finished()
        if not self._open:
            return output
        done: dict[Request, None] = {}
        for number, report in enumerate(output.meta):
            for request in report.received:
                split = self._open.get(request)
                if split is not None:
                    split.waiting.discard(number)
                    if not split.waiting:
                        done[request] = None
        for split in self._open.values():
            split.invalid |= output.invalid_blocks & split.blocks
            output.invalid_blocks = output.invalid_blocks - split.blocks
        output.failed_recving = [each for each in output.failed_recving if each not in self._open]
        output.received = [each for each in output.received if each not in self._open] + list(done)
        for request in done:
            output.invalid_blocks |= self._open.pop(request).invalid
        return output
