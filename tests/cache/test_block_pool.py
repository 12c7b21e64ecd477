"""BlockPool: reference counts, the free list of both releases, duplicates, eviction."""

from __future__ import annotations

from typing import Any

import pytest
from engine_builder import hashes
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.cache.block_pool import NO_HASH, BlockPool, BlockPool023

A, B, C, D = hashes("abcd")


def _cached(pool: BlockPool, *contents: int) -> list[int]:
    """Held blocks with these contents (NO_HASH = none)."""
    blocks = pool.get_new_blocks(len(contents))
    for block, content in zip(blocks, contents, strict=True):
        if content != NO_HASH:
            pool.cache_full_blocks([block], [content], 0, 1)
    return blocks


@pytest.mark.parametrize("release", [BlockPool, BlockPool023])
def test_initial_free_order(release: type[BlockPool]) -> None:
    """Blocks are handed out in ascending order from 1; the null block 0 never is."""
    pool = release(5)
    assert pool.free_list() == [1, 2, 3, 4]
    assert pool.num_free == 4
    assert pool.get_new_blocks(3) == [1, 2, 3]
    assert pool.get_new_blocks(0) == []
    assert pool.get_new_blocks(1) == [4]
    assert (pool.free_list(), pool.num_free) == ([], 0)


def test_a_pool_of_the_null_block_alone_is_empty() -> None:
    """One block in all means that none is usable."""
    pool = BlockPool(1)
    assert (pool.free_list(), pool.num_free) == ([], 0)
    with pytest.raises(ValueError, match="1 blocks wanted, 0 free"):
        pool.get_new_blocks(1)


def test_too_many_blocks_are_refused_without_a_trace() -> None:
    """Asking for more than is free raises and takes nothing."""
    pool = BlockPool(4)
    pool.get_new_blocks(1)
    with pytest.raises(ValueError, match="3 blocks wanted, 2 free"):
        pool.get_new_blocks(3)
    assert pool.free_list() == [2, 3]
    pool.check([[1]])


def test_blocks_without_content_go_to_the_front() -> None:
    """Since 0.24, freed blocks without a hash are used next and those with one last, in the order given."""
    pool = BlockPool(8)
    _cached(pool, A, NO_HASH, B, NO_HASH, C)
    pool.free_blocks([5, 4, 3, 2, 1])
    assert pool.free_list() == [4, 2, 6, 7, 5, 3, 1]


def test_023_everything_goes_to_the_end() -> None:
    """0.23.0: freed blocks are appended in the order given, hash or not."""
    pool = BlockPool023(8)
    _cached(pool, A, NO_HASH, B, NO_HASH, C)
    pool.free_blocks([5, 4, 3, 2, 1])
    assert pool.free_list() == [6, 7, 5, 4, 3, 2, 1]


def test_reuse_is_last_in_first_out_without_contents() -> None:
    """Since 0.24, without prefix caching the blocks freed last are used first."""
    pool = BlockPool(8)
    pool.get_new_blocks(4)
    pool.free_blocks([2, 1])
    pool.free_blocks([4, 3])
    assert pool.free_list() == [4, 3, 2, 1, 5, 6, 7]


def test_a_shared_block_is_free_when_its_last_holder_lets_go() -> None:
    """Reference counts: only the last free puts a block into the free list."""
    pool = BlockPool(4)
    _cached(pool, A)
    pool.touch([1])
    pool.free_blocks([1])
    assert pool.free_list() == [2, 3]
    pool.free_blocks([1])
    assert pool.free_list() == [2, 3, 1]


def test_blocks_that_others_hold_are_skipped_in_the_order_of_frees() -> None:
    """Freeing a list files those that reached zero in the given order, as if the others were not in it."""
    pool = BlockPool023(5)
    pool.get_new_blocks(4)
    pool.touch([3])
    pool.free_blocks([4, 3, 2, 1])
    assert pool.free_list() == [4, 2, 1]
    assert pool.num_free == 3


def test_a_block_may_be_freed_twice_in_one_call() -> None:
    """All counts go down before anything is filed, so a block held twice is filed once."""
    pool = BlockPool(4)
    pool.get_new_blocks(2)
    pool.touch([1])
    pool.free_blocks([1, 2, 1])
    assert sorted(pool.free_list()) == [1, 2, 3]
    pool.check([])


def test_freeing_more_often_than_held_raises() -> None:
    """A block that nobody holds can't be freed."""
    pool = BlockPool(4)
    with pytest.raises(ValueError, match="block 2 freed more often"):
        pool.free_blocks([2])


def test_a_free_block_keeps_its_content_until_it_is_popped() -> None:
    """Free blocks can be hit; content is lost only when the block is handed out again."""
    lost: list[tuple[int, int]] = []
    pool = BlockPool(4, lambda block, content: lost.append((block, content)))
    pool.free_blocks(_cached(pool, A, B))
    assert pool.free_list() == [3, 1, 2]
    assert pool.longest_prefix([A, B], 9) == [1, 2]
    assert pool.get_new_blocks(1) == [3]
    assert (lost, pool.evicted_blocks) == ([], 0)
    assert pool.get_new_blocks(1) == [1]
    assert (lost, pool.evicted_blocks) == ([(1, A)], 1)
    assert pool.longest_prefix([A, B], 9) == []
    assert pool.longest_prefix([B], 9) == [2]


def test_evictions_happen_in_the_order_of_the_pops() -> None:
    """Popping several blocks evicts them head first."""
    lost: list[tuple[int, int]] = []
    pool = BlockPool(4, lambda block, content: lost.append((block, content)))
    pool.free_blocks(reversed(_cached(pool, A, B, C)))
    pool.get_new_blocks(3)
    assert lost == [(3, C), (2, B), (1, A)]


def test_a_hit_leaves_the_middle_of_the_free_list() -> None:
    """Touching a free block takes it out wherever it stands, keeps its content and counts it as held."""
    pool = BlockPool(5)
    pool.free_blocks(_cached(pool, A, B, C, D))
    pool.touch([2, 3])
    assert (pool.free_list(), pool.num_free) == ([1, 4], 2)
    assert pool.longest_prefix([A, B, C, D], 4) == [1, 2, 3, 4]
    assert pool.evicted_blocks == 0
    pool.touch([1, 4])
    assert pool.free_list() == []
    pool.check([[1, 2, 3, 4]])


def test_longest_prefix_ends_at_the_first_gap_and_at_the_limit() -> None:
    """A missing block hides everything behind it; the limit counts blocks."""
    pool = BlockPool(5)
    _cached(pool, A, B, D)
    assert pool.longest_prefix([A, B, C, D], 4) == [1, 2]
    assert pool.longest_prefix([A, B, C, D], 1) == [1]
    assert pool.longest_prefix([A, B, C, D], 0) == []
    assert pool.longest_prefix([C, A], 2) == []


def test_num_unreferenced() -> None:
    """Counts the given blocks that lie in the free list."""
    pool = BlockPool(5)
    pool.get_new_blocks(3)
    pool.free_blocks([2])
    assert pool.num_unreferenced([1, 2, 3, 4]) == 2
    assert pool.num_unreferenced([]) == 0


def test_the_oldest_duplicate_is_found() -> None:
    """Of several blocks with one content a lookup answers the one that got it first."""
    pool = BlockPool(6)
    _cached(pool, A, A, A)
    assert pool.longest_prefix([A], 1) == [1]


def test_the_second_duplicate_becomes_visible_when_the_oldest_is_evicted() -> None:
    """Eviction removes one holder; the next oldest takes over, and content is gone with the last one."""
    pool = BlockPool(4)
    _cached(pool, A, A, A)
    found = []
    for block in (1, 2, 3):
        pool.free_blocks([block])
        assert pool.get_new_blocks(1) == [block]
        found.append(pool.longest_prefix([A], 1))
    assert found == [[2], [3], []]


def test_evicting_a_younger_duplicate_leaves_the_oldest() -> None:
    """A younger holder goes without a trace, and the third takes over from the first."""
    pool = BlockPool(4)
    _cached(pool, A, A, A)
    pool.free_blocks([2])
    pool.get_new_blocks(1)
    assert pool.longest_prefix([A], 1) == [1]
    pool.free_blocks([1])
    pool.get_new_blocks(1)
    assert pool.longest_prefix([A], 1) == [3]
    pool.check([[1, 2, 3]])


def test_cache_full_blocks_takes_a_range() -> None:
    """Only blocks from ``first`` up to ``last`` get their hash."""
    pool = BlockPool(6)
    blocks = pool.get_new_blocks(4)
    pool.cache_full_blocks(blocks, [A, B, C, D], 1, 3)
    assert pool.hashes == [NO_HASH, NO_HASH, B, C, NO_HASH, NO_HASH]


def test_release_epoch_grows_with_frees_and_touches_only() -> None:
    """What could let a refused request fit moves the epoch: a block that becomes free, or held."""
    pool = BlockPool(6)
    _cached(pool, A, B)
    start = pool.release_epoch
    pool.touch([1])
    assert pool.release_epoch == start + 1
    pool.free_blocks([1])
    assert pool.release_epoch == start + 1
    pool.free_blocks([1, 2])
    assert pool.release_epoch == start + 2
    pool.get_new_blocks(2)
    assert pool.release_epoch == start + 2


def test_check_finds_leaks() -> None:
    """The books must agree with the holders that are named."""
    pool = BlockPool(5)
    pool.get_new_blocks(2)
    pool.check([[1], [2]])
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check([[1]])
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check([[1], [2], [2]])


class NaivePool:
    """The same rules with plain lists: slow, and easy to believe."""

    def __init__(self, num_blocks: int, *, unhashed_first: bool) -> None:
        self.unhashed_first = unhashed_first
        self.free = list(range(1, num_blocks))
        self.refs = dict.fromkeys(range(num_blocks), 0)
        self.holders: list[tuple[int, int]] = []  # (hash, block), oldest first
        self.lost: list[tuple[int, int]] = []

    def find(self, content: int) -> int | None:
        return next((block for held, block in self.holders if held == content), None)

    def content(self, block: int) -> int | None:
        return next((content for content, holder in self.holders if holder == block), None)

    def longest_prefix(self, contents: list[int], limit: int) -> list[int]:
        found = []
        for content in contents[:limit]:
            block = self.find(content)
            if block is None:
                break
            found.append(block)
        return found

    def get_new_blocks(self, count: int) -> list[int]:
        taken, self.free = self.free[:count], self.free[count:]
        for block in taken:
            self.refs[block] = 1
            content = self.content(block)
            if content is not None:
                self.holders.remove((content, block))
                self.lost.append((block, content))
        return taken

    def touch(self, blocks: list[int]) -> None:
        for block in blocks:
            self.refs[block] += 1
            if block in self.free:
                self.free.remove(block)

    def free_blocks(self, blocks: list[int]) -> None:
        for block in blocks:
            self.refs[block] -= 1
        gone = [block for block in blocks if self.refs[block] == 0]
        front = [block for block in gone if self.unhashed_first and self.content(block) is None]
        self.free = front + self.free + [block for block in gone if block not in front]


@pytest.mark.parametrize("release", [BlockPool, BlockPool023])
@settings(max_examples=120, deadline=None, derandomize=True)
@given(st.data())
def test_pool_equals_plain_lists(release: type[BlockPool], data: Any) -> None:
    """Any sequence of operations gives the same blocks and evictions as an obvious implementation."""
    num_blocks = data.draw(st.integers(1, 9))
    lost: list[tuple[int, int]] = []
    pool = release(num_blocks, lambda block, content: lost.append((block, content)))
    naive = NaivePool(num_blocks, unhashed_first=release is BlockPool)
    tables: list[list[int]] = []
    contents = st.lists(st.integers(0, 4), max_size=5, unique=True)
    for _ in range(data.draw(st.integers(1, 30))):
        match data.draw(st.sampled_from(["take", "hit", "free", "hash"])):
            case "take":
                count = data.draw(st.integers(0, pool.num_free))
                tables.append(pool.get_new_blocks(count))
                assert tables[-1] == naive.get_new_blocks(count)
            case "hit":
                wanted, limit = data.draw(contents), data.draw(st.integers(0, 6))
                hits = pool.longest_prefix(wanted, limit)
                assert hits == naive.longest_prefix(wanted, limit)
                assert pool.num_unreferenced(hits) == sum(block in naive.free for block in hits)
                pool.touch(hits)
                naive.touch(hits)
                tables.append(hits)
            case "free" if tables:
                blocks = tables.pop(data.draw(st.integers(0, len(tables) - 1)))
                pool.free_blocks(reversed(blocks))
                naive.free_blocks(blocks[::-1])
            case "hash" if tables:
                table = tables[data.draw(st.integers(0, len(tables) - 1))]
                for i, block in enumerate(table):
                    if naive.content(block) is None:
                        content = data.draw(st.integers(0, 4))
                        pool.cache_full_blocks(table, [content] * len(table), i, i + 1)
                        naive.holders.append((content, block))
        assert pool.free_list() == naive.free
        assert lost == naive.lost
        assert pool.cached == {content: naive.find(content) for content, _ in naive.holders}
        pool.check(tables)
