"""Several KV cache groups over one pool, with literal block ids."""

from __future__ import annotations

from kvsim.cache.block_pool import BlockPool
from kvsim.cache.groups import ChunkedLocal, FullAttention, GroupSpec, Mamba, SlidingWindow
from kvsim.cache.hybrid_kv_cache_manager import HybridKVCacheManager
from kvsim.request import Request


class Tokens:
    """Content whose block hashes are 100, 101, ... (or from another number on)."""

    def __init__(self, first: int = 100) -> None:
        self._first = first

    def block_hashes(self, first: int, last: int) -> list[int]:
        """See `kvsim.request.Content`."""
        return list(range(self._first + first, self._first + last))


def manager(
    *specs: GroupSpec, blocks: int = 40, caching: bool = True, budget: int = 64, retention: int | None = None
) -> HybridKVCacheManager:
    """Over a pool of its own; requests of at most 256 tokens; everything stays to be hit, unless told otherwise."""
    return HybridKVCacheManager(
        BlockPool(blocks),
        specs,
        max_model_len=256,
        max_in_flight_tokens=budget,
        enable_caching=caching,
        retention_tokens=retention,
    )


def request(name: str, tokens: int, *, size: int = 4, first: int = 100) -> Request:
    """A prompt of so many tokens."""
    return Request(name, Tokens(first), block_size=size, num_prompt_tokens=tokens, max_tokens=100, arrival=0)


def compute(kv: HybridKVCacheManager, req: Request, tokens: int) -> object:
    """Allocate for the next tokens and count them as computed."""
    blocks = kv.allocate_slots(req, tokens)
    if blocks is not None:
        req.num_computed_tokens += tokens
    return blocks


def check(kv: HybridKVCacheManager) -> None:
    """No block leaks."""
    kv.pool.check(kv.holders())


def test_groups_take_blocks_in_turn_and_share_hashes_not_contents() -> None:
    """Each group has its own table and its own content number: hash * groups + group."""
    kv = manager(FullAttention(4), SlidingWindow(4, 8))
    req = request("a", 10)
    assert compute(kv, req, 10) == [[1, 2, 3], [4, 5, 6]]
    assert kv.tables[req] == [[1, 2, 3], [4, 5, 6]]
    assert kv.pool.cached == {200: 1, 202: 2, 201: 4, 203: 5}
    check(kv)


def test_a_window_frees_what_it_has_left_behind() -> None:
    """Window 8: token 16 sees tokens 9 to 16, so the blocks of tokens 0 to 7 go, the youngest first."""
    kv = manager(SlidingWindow(4, 8))
    req = request("a", 40)
    compute(kv, req, 16)
    assert compute(kv, req, 4) == [[5]]
    assert kv.tables[req] == [[0, 0, 3, 4, 5]]
    assert kv.pool.free_list()[-2:] == [2, 1]
    assert kv.num_held_blocks(req) == 3
    check(kv)
    kv.free(req)
    assert kv.pool.num_free == 39


def test_a_refusal_frees_what_the_window_has_left_behind_too() -> None:
    """Five usable blocks: the third chunk does not fit, but two blocks have become free."""
    kv = manager(SlidingWindow(4, 8), blocks=6)
    req = request("a", 60)
    compute(kv, req, 16)
    assert compute(kv, req, 20) is None
    assert kv.tables[req] == [[0, 0, 3, 4]]
    assert kv.pool.num_free == 3


def test_a_hit_of_a_window_needs_its_last_blocks_only() -> None:
    """Window 8 needs two blocks: 3 and 4 of the first request serve 16 tokens, the first two places are null."""
    kv = manager(SlidingWindow(4, 8))
    first = request("a", 17)
    compute(kv, first, 17)
    kv.free(first)
    taken = kv.pool.get_new_blocks(37)  # everything but what was freed last: blocks 2 and 1
    assert not {1, 2} & set(taken)
    assert 3 in taken
    kv.pool.free_blocks(taken)
    hits = kv.get_computed_blocks(request("b", 30))
    assert hits == ([[1, 2]], 8)


def test_all_groups_must_hold_the_prefix() -> None:
    """Full attention has 16 tokens, the window only 8: 8 it is, and the request remembers the 16."""
    kv = manager(FullAttention(4), SlidingWindow(4, 5))
    req = request("a", 17)
    compute(kv, req, 17)
    for block in (8, 9):  # the window's third and fourth
        kv.pool._evict(block)
    again = request("b", 20)
    assert kv.get_computed_blocks(again) == ([[1, 2], [0, 7]], 8)
    assert again.shared_prefix_boundary == 16


def test_hits_end_where_the_blocks_of_all_groups_end() -> None:
    """Blocks of 8 and 4 tokens, hashes of 4: hits are multiples of 8, and only so many tokens are hashed."""
    kv = manager(FullAttention(8), SlidingWindow(4, 5))
    assert (kv.block_size, kv.alignment) == (4, 8)
    req = request("a", 14)
    compute(kv, req, 14)
    assert kv.pool.cached == {202: 1, 203: 4}  # one full block; of the window's, only the one before token 8
    assert kv.get_computed_blocks(request("b", 14)) == ([[1], [0, 4]], 8)


def test_a_chunk_that_is_over_counts_as_hit() -> None:
    """Chunks of 8: for a request of 18 tokens the first 16 are behind its chunk and need no blocks."""
    kv = manager(ChunkedLocal(4, 8))
    assert kv.get_computed_blocks(request("a", 18)) == ([[0, 0, 0, 0]], 16)


def test_a_chunk_of_prefill_leaves_one_state() -> None:
    """16 tokens at once: three places are null, the fourth has the state, and it can be hit."""
    kv = manager(Mamba(4))
    req = request("a", 17)
    assert compute(kv, req, 16) == [[0, 0, 0, 1]]
    kv.new_step_starts()
    assert kv.get_computed_blocks(request("b", 30)) == ([[0, 0, 0, 1]], 16)
    assert compute(kv, req, 1) == [[2]]
    compute(kv, req, 1)
    assert kv.tables[req] == [[0, 0, 0, 0, 2]]
    check(kv)


def test_a_checkpoint_is_a_second_state_at_the_last_boundary() -> None:
    """18 tokens at once: the state after 16 has a block of its own, beside the one after 18."""
    kv = manager(Mamba(4, checkpoints=True))
    req = request("a", 18)
    assert compute(kv, req, 18) == [[0, 0, 0, 1, 2]]
    assert kv.take_boundary_states() == [(req, 0, 1, 16)]


def test_a_state_of_this_step_is_hit_in_the_next() -> None:
    """The request that would hit it does not fit now."""
    kv = manager(FullAttention(4), Mamba(4))
    compute(kv, request("a", 17), 16)
    other = request("b", 30)
    hits = kv.get_computed_blocks(other)
    assert hits.num_tokens == 16
    assert not kv.full_sequence_fits(other, hits)
    assert kv.allocate_slots(other, 4, hits) is None
    kv.new_step_starts()
    assert kv.full_sequence_fits(other, hits)


def test_admission_counts_what_a_window_lets_go_out() -> None:
    """A prompt of 200 tokens needs 50 full blocks, but a window of 8 holds 7 + 16 tokens in a step: 7 blocks."""
    kv = manager(FullAttention(4), SlidingWindow(4, 8), blocks=58, budget=16)
    req = request("a", 200)
    assert kv.max_blocks(200) == 50 + 7
    assert kv.full_sequence_fits(req, kv.no_hits)
    assert not manager(FullAttention(4), SlidingWindow(4, 8), blocks=57, budget=16).full_sequence_fits(req, kv.no_hits)


def test_loaded_tokens_behind_a_window_get_no_block() -> None:
    """20 external tokens, window 8: three places are null, two blocks wait for the load; full attention takes five."""
    kv = manager(FullAttention(4), SlidingWindow(4, 8))
    req = request("a", 30)
    assert kv.allocate_slots(req, 0, kv.no_hits, 20, delay_cache_blocks=True) == ()
    assert kv.tables[req] == [[1, 2, 3, 4, 5], [0, 0, 0, 6, 7]]
    check(kv)


def test_without_prefix_caching_nothing_is_hashed() -> None:
    """One state per request, whatever its length."""
    kv = manager(FullAttention(4), Mamba(256, "none"), caching=False)
    req = request("a", 30, size=256)
    assert compute(kv, req, 20) == [[1, 2, 3, 4, 5], [6]]
    assert compute(kv, req, 10) == [[7, 8, 9], []]
    assert kv.pool.cached == {}
    assert kv.get_computed_blocks(req) == kv.no_hits
    check(kv)


def test_sparse_retention_keeps_the_ends_of_prompts() -> None:
    """20 prompt tokens, window 5: of the five full blocks only the fourth, which a repeated prompt hits, gets a hash.

    With an interval of 8 tokens the windows before tokens 8 and 16 stay, and the state after them.
    """
    for retention, hashed in ((0, {4}), (8, {2, 4}), (None, {1, 2, 3, 4, 5})):
        kv = manager(SlidingWindow(4, 5), retention=retention)
        compute(kv, request("a", 20), 20)
        assert set(kv.pool.cached.values()) == hashed
    kv = manager(Mamba(4), retention=0)
    req = request("a", 20)
    for tokens in (8, 8, 4):
        compute(kv, req, tokens)
    assert kv.pool.cached == {103: 2}
