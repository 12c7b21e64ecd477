"""KVCacheManager: what is found, what an allocation needs and takes, and when blocks get their hash."""

from __future__ import annotations

import pytest
from engine_builder import BLOCK, hashes, make_request

from kvsim.cache.block_pool import BlockPool, BlockPool023
from kvsim.cache.kv_cache_manager import KVCacheManager
from kvsim.request import Request


def _manager(
    num_blocks: int,
    *,
    release: type[BlockPool] = BlockPool,
    max_model_len: int = 1000,
    enable_caching: bool = True,
) -> KVCacheManager:
    pool = release(num_blocks)
    return KVCacheManager(pool, block_size=BLOCK, max_model_len=max_model_len, enable_caching=enable_caching)


def _run(kv: KVCacheManager, request: Request, tokens: int) -> None:
    """Allocate for ``tokens`` new tokens and compute them."""
    assert kv.allocate_slots(request, tokens) is not None
    request.num_computed_tokens += tokens


def _state(kv: KVCacheManager) -> tuple[list[int], list[int], dict[int, int], dict[str, list[int]], int]:
    pool = kv.pool
    tables = {request.request_id: list(table) for request, table in kv.tables.items()}
    return pool.free_list(), list(pool.ref_counts), dict(pool.cached), tables, pool.release_epoch


def test_last_token_is_left_to_compute() -> None:
    """A prompt that is cached to its last token hits one block less; one token more and it hits all."""
    kv = _manager(20)
    _run(kv, make_request("a", "xyz"), 12)
    assert kv.get_computed_blocks(make_request("b", "xyz")) == [1, 2]
    assert kv.get_computed_blocks(make_request("c", "xyz", prompt=13)) == [1, 2, 3]


def test_nothing_is_found_without_prefix_caching() -> None:
    """With prefix caching off no block is hashed and none is hit."""
    kv = _manager(20, enable_caching=False)
    _run(kv, make_request("a", "xyz"), 12)
    assert kv.get_computed_blocks(make_request("b", "xyz", prompt=13)) == []
    assert kv.pool.cached == {}


def test_need_counts_new_blocks_and_free_hits() -> None:
    """An allocation takes new blocks out of the free list, and the hits that nobody holds."""
    kv = _manager(20)
    first = make_request("a", "vwx", prompt=12)
    _run(kv, first, 12)
    second = make_request("b", "vwx", prompt=20)
    hits = kv.get_computed_blocks(second)
    assert hits == [1, 2, 3]
    assert kv.num_blocks_to_allocate(second, 20, hits) == 2
    kv.free(first)
    assert kv.num_blocks_to_allocate(second, 20, hits) == 5
    kv.allocate_slots(second, 3, hits)
    second.num_computed_tokens = 15
    assert kv.num_blocks_to_allocate(second, 20) == 1
    assert kv.num_remaining_blocks(second) == 1
    assert kv.num_blocks_to_allocate(second, 16) == 0
    assert kv.num_blocks_to_allocate(second, 4) == 0


def test_remaining_blocks_are_capped_at_the_model_length() -> None:
    """A request never needs more blocks than max_model_len has."""
    kv = _manager(20, max_model_len=10)
    request = make_request("a", prompt=40)
    assert kv.num_remaining_blocks(request) == 3


def test_full_sequence_check_counts_all_tokens() -> None:
    """A request fits as a whole if its new blocks and its free hits are no more than the free blocks."""
    kv = _manager(6)
    first = make_request("a", "xy")
    _run(kv, first, 8)
    second = make_request("b", "xy", prompt=20)
    hits = kv.get_computed_blocks(second)
    assert kv.full_sequence_fits(second, hits)
    assert kv.full_sequence_fits(make_request("c", prompt=12), [])
    assert not kv.full_sequence_fits(make_request("d", prompt=13), [])
    kv.free(first)  # two free blocks more, and two hits more that must leave the free list
    assert kv.full_sequence_fits(second, hits)
    assert not kv.full_sequence_fits(make_request("e", "xy", prompt=21), hits)


def test_full_sequence_check_is_capped_at_the_model_length() -> None:
    """Tokens after max_model_len need no room."""
    kv = _manager(4, max_model_len=12)
    assert kv.full_sequence_fits(make_request("a", prompt=40), [])


def test_allocation_order() -> None:
    """Hits first, then blocks for external tokens, then blocks for new tokens; only the last are returned."""
    kv = _manager(20)
    first = make_request("a", "xy")
    _run(kv, first, 8)
    kv.free(first)
    second = make_request("b", "xyz", prompt=22)
    hits = kv.get_computed_blocks(second)
    new = kv.allocate_slots(second, 6, hits, num_external_tokens=8)
    assert new == [5, 6]
    assert kv.tables[second] == [1, 2, 3, 4, 5, 6]
    assert kv.pool.ref_counts[:8] == [0, 1, 1, 1, 1, 1, 1, 0]


def test_hits_are_touched_before_blocks_are_popped() -> None:
    """A free hit at the head of the free list is not handed out as a new block of the same request."""
    kv = _manager(4, release=BlockPool023)
    first = make_request("a", "x")
    _run(kv, first, 4)
    blocker = make_request("c", prompt=8)
    _run(kv, blocker, 8)
    kv.free(first)
    kv.free(blocker)
    assert kv.pool.free_list() == [1, 3, 2]
    second = make_request("b", "x", prompt=12)
    hits = kv.get_computed_blocks(second)
    assert kv.allocate_slots(second, 8, hits) == [3, 2]
    assert kv.tables[second] == [1, 3, 2]


def test_a_running_request_gets_what_it_lacks() -> None:
    """Decoding takes a block only when the last one is full; the return value is what the table gained."""
    kv = _manager(20)
    request = make_request("a", prompt=7, out=9)
    _run(kv, request, 7)
    request.append_output_token()
    assert kv.allocate_slots(request, 1) == []
    request.num_computed_tokens += 1
    request.append_output_token()
    assert kv.allocate_slots(request, 1) == [3]
    assert kv.tables[request] == [1, 2, 3]


@pytest.mark.parametrize("case", ["running", "hits", "external", "reserved", "reserved running"])
def test_a_refusal_changes_nothing(case: str) -> None:
    """If the blocks don't fit, no block, count, hash or table has changed."""
    kv = _manager(7)
    done = make_request("done", "xy")
    _run(kv, done, 8)
    kv.free(done)  # free: four without content, two with
    running = make_request("running", prompt=40)
    _run(kv, running, 8)
    newcomer = make_request("new", "xy", prompt=40)
    hits = kv.get_computed_blocks(newcomer)
    before = _state(kv)
    match case:
        case "running":
            answer = kv.allocate_slots(running, 17)
        case "hits":  # two hits that are free, and three new blocks of the two that are left
            answer = kv.allocate_slots(newcomer, 12, hits)
        case "external":
            answer = kv.allocate_slots(newcomer, 0, hits, num_external_tokens=12)
        case "reserved":
            answer = kv.allocate_slots(newcomer, 8, hits, reserved_blocks=1)
        case _:
            answer = kv.allocate_slots(running, 16, reserved_blocks=1)
    assert answer is None
    assert _state(kv) == before
    assert "new" not in {request.request_id for request in kv.tables}


def test_reserved_blocks_are_not_available() -> None:
    """An allocation fits exactly if it leaves the reserved blocks free."""
    kv = _manager(7)
    assert kv.allocate_slots(make_request("a", prompt=16), 0, (), 16, reserved_blocks=3) is None
    assert kv.allocate_slots(make_request("b", prompt=16), 0, (), 16, reserved_blocks=2) == []
    assert kv.pool.num_free == 2


def test_slots_are_capped_at_the_model_length() -> None:
    """No block is taken for tokens after max_model_len, computed ones or new ones."""
    kv = _manager(20, max_model_len=10)
    assert kv.allocate_slots(make_request("a", prompt=10), 14) == [1, 2, 3]
    assert kv.allocate_slots(make_request("b", prompt=10), 0, (), 14, delay_cache_blocks=True) == []
    assert kv.pool.free_list()[0] == 7


def test_blocks_are_hashed_when_they_are_scheduled() -> None:
    """Full blocks can be hit by the next request of the same step, before they are computed."""
    kv = _manager(20)
    kv.allocate_slots(make_request("a", "xyz", prompt=12), 10)
    assert kv.pool.hashes[:5] == [-1, *hashes("xy"), -1, -1]
    assert kv.get_computed_blocks(make_request("b", "xyz", prompt=13)) == [1, 2]


def test_hashing_goes_on_from_the_first_block_without_a_hash() -> None:
    """Chunk by chunk every block is hashed once; hits are not hashed again."""
    kv = _manager(20)
    first = make_request("a", "wxyz")
    _run(kv, first, 6)
    assert kv.pool.cached == dict(zip(hashes("w"), [1], strict=True))
    _run(kv, first, 10)
    assert kv.pool.cached == dict(zip(hashes("wxyz"), [1, 2, 3, 4], strict=True))
    second = make_request("b", "wxyz", prompt=17)
    kv.allocate_slots(second, 1, kv.get_computed_blocks(second))
    assert kv.tables[second] == [1, 2, 3, 4, 5]
    kv.pool.check(kv.tables.values())


def test_computing_the_same_content_twice_makes_duplicates() -> None:
    """Requests that compute the same prompt keep blocks of their own; the older ones are hit."""
    kv = _manager(20)
    for name in "ab":
        kv.allocate_slots(make_request(name, "xy"), 8)
    assert kv.pool.hashes[1:5] == hashes("xyxy")
    assert kv.get_computed_blocks(make_request("c", "xy", prompt=9)) == [1, 2]


def test_only_tokens_that_exist_are_hashed() -> None:
    """Scheduling beyond the request's tokens (the slot of the next one) hashes nothing more."""
    kv = _manager(20)
    request = make_request("a", "xy", prompt=7)
    kv.allocate_slots(request, 8)
    assert kv.pool.hashes[1:3] == [*hashes("x"), -1]


def test_blocks_of_a_load_are_not_hashed_before_it_is_over() -> None:
    """With delay_cache_blocks nothing is findable until cache_blocks; hits keep the hash they have."""
    kv = _manager(20)
    first = make_request("a", "w")
    _run(kv, first, 4)
    second = make_request("b", "wxyz", prompt=17)
    kv.allocate_slots(second, 0, kv.get_computed_blocks(second), num_external_tokens=12, delay_cache_blocks=True)
    assert kv.tables[second] == [1, 2, 3, 4]
    assert kv.pool.hashes[1:5] == [*hashes("w"), -1, -1, -1]
    kv.cache_blocks(second, 15)
    assert kv.pool.hashes[1:5] == [*hashes("wxy"), -1]
    assert kv.pool.cached[ord("w")] == 1


@pytest.mark.parametrize(("release", "free_list"), [(BlockPool, [3, 4, 5, 2, 1]), (BlockPool023, [4, 5, 3, 2, 1])])
def test_a_request_is_freed_tail_first(release: type[BlockPool], free_list: list[int]) -> None:
    """The last block is evicted first; since 0.24 a tail without a hash is even the very next to be used."""
    kv = _manager(6, release=release)
    request = make_request("a", "xy", prompt=10)
    _run(kv, request, 10)
    kv.free(request)
    assert kv.pool.free_list() == free_list
    assert kv.tables == {}


def test_freeing_a_request_without_blocks_is_nothing() -> None:
    """A request that never got blocks can be freed."""
    kv = _manager(6)
    kv.free(make_request("a", "xy"))
    assert kv.pool.num_free == 5


def test_after_a_free_the_request_starts_again() -> None:
    """A preempted request hashes its new blocks from the first one on."""
    kv = _manager(20)
    request = make_request("a", "xy")
    _run(kv, request, 8)
    kv.free(request)
    request.num_computed_tokens = 0
    kv.pool.get_new_blocks(19)  # evict everything
    kv.pool.free_blocks(range(1, 20))
    assert kv.pool.cached == {}
    _run(kv, request, 8)
    assert [kv.pool.cached[content] for content in hashes("xy")] == kv.tables[request]
