"""HybridKVCacheManager: the block tables of requests in several KV cache groups over one pool."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import lcm
from typing import NamedTuple

from kvsim.cache.block_pool import NULL_BLOCK, BlockPool
from kvsim.cache.group_manager import GroupManager
from kvsim.cache.groups import ChunkedLocal, FullAttention, GroupSpec, Mamba, SharedPool, SlidingWindow, hash_block_size
from kvsim.cache.kv_cache_manager import KVCacheManager
from kvsim.cache.mamba_group import BoundaryState, MambaManager
from kvsim.cache.window_groups import ChunkedLocalManager, SlidingWindowManager
from kvsim.request import Request

GroupBlocks = Sequence[Sequence[int]]  # block ids per group


class GroupHits(NamedTuple):
    """A local prefix hit: blocks per group (null where a group needs none), and how many tokens it covers."""

    blocks: GroupBlocks
    num_tokens: int


NO_HITS = GroupHits((), 0)


class HybridKVCacheManager:
    """As `KVCacheManager`, but blocks come per group, and every request has a table in each.

    A hit has one length for all groups: the longest that each of them can serve, found by letting each cut it down
    until none does. Rules: vLLM 0.33.0 v1/core/kv_cache_coordinator.py (HybridKVCacheCoordinator) and
    kv_cache_manager.py.

    Args:
        pool: one for all groups.
        specs: the groups, in vLLM's order.
        max_model_len: the longest request.
        max_in_flight_tokens: tokens that may be scheduled and not yet settled (the budget of one step).
        enable_caching: without it nothing is hashed or hit.
        retention_tokens: see `SharedPool`.

    Attributes:
        block_size: tokens per block hash of a request (vLLM: hash_block_size).
        tables: block tables per group, the lists that the groups themselves work on.
    """

    no_hits = NO_HITS
    hits_are_prefixes = False
    hash_lookahead_tokens = 0  # drafters with groups are not simulated

    def __init__(
        self,
        pool: BlockPool,
        specs: Sequence[GroupSpec],
        *,
        max_model_len: int,
        max_in_flight_tokens: int,
        enable_caching: bool = True,
        retention_tokens: int | None = 0,
    ) -> None:
        self.pool, self.specs, self.max_model_len, self.enable_caching = (
            pool,
            tuple(specs),
            max_model_len,
            enable_caching,
        )
        self.block_size = hash_block_size(specs)
        self.retention_tokens = retention_tokens
        self.alignment = lcm(*(spec.block_size for spec in specs))
        shared = SharedPool(
            pool,
            len(specs),
            self.block_size,
            self.alignment,
            max_in_flight_tokens,
            max_model_len,
            retention_tokens,
        )
        self.groups = tuple(_manager(spec, group, shared) for group, spec in enumerate(specs))
        self.tables: dict[Request, list[list[int]]] = {}
        self._states = [group for group in self.groups if isinstance(group, MambaManager)]
        self._by_spec = _same_specs(self.groups)

    @property
    def num_groups(self) -> int:
        """KV cache groups over the pool."""
        return len(self.groups)

    @property
    def aligned_states(self) -> Mamba | None:
        """The spec of the states whose block boundaries prefill must stop at, if any."""
        return next((g.spec for g in self._states if isinstance(g.spec, Mamba) and g.aligned), None)

    # -- looking
    def get_computed_blocks(self, request: Request) -> GroupHits:
        """Longest prefix that all groups hold; the last token is always left to compute.

        Notes on the request how far the best group would have got: others may want to keep their state there.
        """
        request.shared_prefix_boundary = 0
        if not self.enable_caching:
            return NO_HITS
        hits, longest = self._find_longest_cache_hit(request.block_hashes, request.num_tokens - 1)
        if longest > hits.num_tokens:
            request.shared_prefix_boundary = longest
        return hits

    def _find_longest_cache_hit(self, hashes: Sequence[int], max_length: int) -> tuple[GroupHits, int]:
        """The common hit, and the longest that any kind of group has had on the way to it."""
        length, longest = max_length, 0
        columns: list[list[int]] = [[] for _ in self.groups]
        full_length = -1  # of the full-attention groups; looked up only once, since their hits can be cut anywhere
        once = len(self._by_spec) == 1 or (
            len(self._by_spec) == 2 and isinstance(self._by_spec[0][0].spec, FullAttention)
        )
        while True:
            current = length
            for peers in self._by_spec:
                is_full = isinstance(peers[0].spec, FullAttention)
                if is_full and full_length >= 0:
                    current = min(current, full_length)
                    continue
                found, current = peers[0].find_longest_cache_hit(peers, hashes, current)
                for peer, column in zip(peers, found, strict=True):
                    columns[peer.group] = column
                if is_full:
                    full_length = current
                longest = max(longest, current)
            if current >= length:
                break
            length = current
            if once:
                break
        for group in self.groups:
            if isinstance(group.spec, FullAttention):
                del columns[group.group][-(-length // group.block_size) :]
        return GroupHits(columns, length), longest

    def num_hit_tokens(self, hits: GroupHits) -> int:
        """Tokens that a local hit covers."""
        return hits.num_tokens

    # -- how much is needed
    def num_blocks_to_allocate(
        self,
        request: Request,
        num_tokens: int,
        hits: GroupHits = NO_HITS,
        total_computed_tokens: int = 0,
        *,
        capped: bool,
    ) -> int:
        """Blocks that would leave the free list, over all groups; see `GroupManager.num_blocks_to_allocate`."""
        columns = hits.blocks or [()] * len(self.groups)
        return sum(
            group.num_blocks_to_allocate(
                request, num_tokens, columns[group.group], total_computed_tokens, capped=capped
            )
            for group in self.groups
        )

    def num_remaining_blocks(self, request: Request, extra_tokens: int = 0) -> int:
        """Blocks the request still needs for the tokens it has now, and some more."""
        tokens = min(request.num_tokens, self.max_model_len) + extra_tokens
        return self.num_blocks_to_allocate(
            request, tokens, total_computed_tokens=request.num_computed_tokens, capped=True
        )

    def full_sequence_fits(self, request: Request, hits: GroupHits, num_external_tokens: int = 0) -> bool:
        """Whether all of the request's tokens would find blocks, what a window lets go counted out."""
        computed = min(request.num_computed_tokens + hits.num_tokens + num_external_tokens, self.max_model_len)
        tokens = min(request.num_tokens, self.max_model_len)
        return self.num_blocks_to_allocate(request, tokens, hits, computed, capped=True) <= self.pool.num_free

    def max_blocks(self, num_tokens: int) -> int:
        """Blocks that a request of so many tokens holds at most."""
        return sum(group.max_blocks(num_tokens) for group in self.groups)

    def num_held_blocks(self, request: Request) -> int:
        """Blocks that the request holds now."""
        return sum(block != NULL_BLOCK for table in self.tables.get(request, ()) for block in table)

    # -- taking and giving back
    def allocate_slots(
        self,
        request: Request,
        num_new_tokens: int,
        hits: GroupHits = NO_HITS,
        num_external_tokens: int = 0,
        *,
        delay_cache_blocks: bool = False,
        reserved_blocks: int = 0,
    ) -> GroupBlocks | None:
        """As `KVCacheManager.allocate_slots`. A refusal, too, frees the blocks that the request no longer needs.

        Returns:
            Per group what its table gained for the new tokens (null blocks included); empty if none gained any.
        """
        local = request.num_computed_tokens + hits.num_tokens
        computed = min(local + num_external_tokens, self.max_model_len)
        need_tokens = min(computed + num_new_tokens, self.max_model_len)
        self.remove_skipped_blocks(request, computed)
        need = self.num_blocks_to_allocate(request, need_tokens, hits, local + num_external_tokens, capped=False)
        if need > self.pool.num_free - reserved_blocks:
            return None
        if request not in self.tables:
            self.tables[request] = [group.tables.setdefault(request, []) for group in self.groups]
        if any(hits.blocks) or num_external_tokens:
            self._allocate_computed(request, hits, local + num_external_tokens, num_external_tokens)
        new = [group.allocate_new_blocks(request, need_tokens) for group in self.groups]
        if not delay_cache_blocks:
            self.cache_blocks(request, min(computed + num_new_tokens, request.num_tokens))
        return new if any(new) else ()

    def _allocate_computed(self, request: Request, hits: GroupHits, computed: int, num_external_tokens: int) -> None:
        """All groups touch their hits before any takes a block: none can evict another's hit."""
        columns = hits.blocks or [()] * len(self.groups)
        for group in self.groups:
            group.add_local_computed_blocks(request, columns[group.group], computed)
        if num_external_tokens:
            for group in self.groups:
                group.allocate_external_computed_blocks(request, computed, num_external_tokens)

    def cache_blocks(self, request: Request, num_tokens: int) -> None:
        """Hash the full blocks among the first ``num_tokens``, as far as a hit could end: to an aligned length."""
        if self.enable_caching:
            for group in self.groups:
                group.cache_blocks(request, num_tokens // self.alignment * self.alignment)

    def remove_skipped_blocks(self, request: Request, num_computed_tokens: int) -> None:
        """Free the blocks that windows have left behind, and states that have a successor."""
        for group in self.groups:
            group.remove_skipped_blocks(request, num_computed_tokens)

    def pop_table(self, request: Request) -> list[int]:
        """Forget the request; its blocks are still referenced, and whoever calls frees them, tail first."""
        self.tables.pop(request, None)
        return [block for group in self.groups for block in group.pop_table(request)]

    def free(self, request: Request) -> None:
        """Give the request's blocks back, group by group, each tail first."""
        self.tables.pop(request, None)
        for group in self.groups:
            group.free(request)

    def new_step_starts(self) -> None:
        """A step's decisions begin."""
        for group in self._states:
            group.new_step_starts()

    def take_boundary_states(self) -> list[BoundaryState]:
        """Recurrent states that were hashed in this step, of requests that still hold them."""
        return [state for group in self._states for state in group.take_boundary_states()]

    def holders(self) -> Iterator[list[int]]:
        """The blocks of every request and group. For invariants."""
        for tables in self.tables.values():
            for table in tables:
                yield [block for block in table if block != NULL_BLOCK]


AnyKVCacheManager = KVCacheManager | HybridKVCacheManager


def _manager(spec: GroupSpec, group: int, shared: SharedPool) -> GroupManager:
    match spec:
        case SlidingWindow():
            return SlidingWindowManager(spec, group, shared)
        case ChunkedLocal():
            return ChunkedLocalManager(spec, group, shared)
        case Mamba():
            return MambaManager(spec, group, shared)
        case FullAttention():
            return GroupManager(spec, group, shared)


def _same_specs(groups: Sequence[GroupManager]) -> list[list[GroupManager]]:
    """Groups that are alike are looked up together; full attention first, because its scan is cheap and tight."""
    by_spec: dict[GroupSpec, list[GroupManager]] = {}
    for group in groups:
        by_spec.setdefault(group.spec, []).append(group)
    return sorted(by_spec.values(), key=lambda peers: not isinstance(peers[0].spec, FullAttention))
