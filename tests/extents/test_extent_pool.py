"""The GPU pool by the run decides as the one block by block."""

from __future__ import annotations

import pytest
from pool_worlds import Worlds

from kvsim.extents.extent_pool import ExtentPool, ExtentPool023
from kvsim.extents.path import Key, Path, Run
from kvsim.extents.pool_pieces import Table

LONG = Path([1], [6])
FORK = Path([1, 2], [3, 5])


def _filled(pool: ExtentPool, path: Path, count: int, plain: int = 0) -> Table:
    """A new table: what can be hit of a path's first blocks, the others new, and some without content."""
    table = Table()
    hits = pool.longest_prefix(path, count)
    if len(hits):
        pool.touch(path, len(hits), table)
    pool.take(count - len(hits) + plain)
    table.gain(count - len(hits) + plain)
    pool.cache_full_blocks(table, path, count)
    return table


def _words(pool: ExtentPool) -> str:
    """The free queue: segment and position of each block, ``--`` without content."""
    return " ".join("--" if key is None else f"{key.segment}{key.position}" for key in pool.free_list())


def _number_of_pieces(pool: ExtentPool) -> int:
    return sum(1 for _ in pool._queue)


@pytest.mark.parametrize("seed", range(0, 240, 24))
def test_random_worlds(seed: int) -> None:
    """Hits, counts, epochs, jobs to flush, and the whole free list, block by block, after every operation."""
    for world in range(seed, seed + 24):
        worlds = Worlds(world)
        worlds.run(worlds.rng.randint(5, 50))


def test_the_worlds_are_eventful() -> None:
    """Random worlds that do not get into the corners prove nothing."""
    seen = dict.fromkeys(Worlds(0).seen, 0)
    for world in range(20):
        worlds = Worlds(world)
        worlds.run(30)
        seen = {name: count + worlds.seen[name] for name, count in seen.items()}
    assert min(seen.values()) > 100, seen


def test_a_pool_of_the_null_block_alone_is_empty() -> None:
    """One block in all means that none is usable."""
    pool = ExtentPool(1)
    assert (pool.free_list(), pool.num_free, len(pool.cached)) == ([], 0, 0)
    with pytest.raises(ValueError, match="1 blocks wanted, 0 free"):
        pool.take(1)


def test_a_chain_is_evicted_from_its_tail_and_is_one_piece() -> None:
    """Freed together, evicted one after another from the high end; what is left can still be hit."""
    pool = ExtentPool(9)
    pool.free_table(_filled(pool, LONG, 6))
    assert _words(pool) == "-- -- 15 14 13 12 11 10"
    assert _number_of_pieces(pool) == 2
    pool.take(4)
    assert (pool.evicted_blocks, len(pool.cached), pool.num_free) == (2, 4, 4)
    assert pool.longest_prefix(LONG, 6).num_unreferenced == 4
    assert Key(1, 3) in pool.cached
    assert Key(1, 4) not in pool.cached
    assert -1 not in pool.cached


@pytest.mark.parametrize(
    ("release", "order"), [(ExtentPool, "-- -- -- -- 11 10"), (ExtentPool023, "-- -- -- -- 11 10")]
)
def test_free_order_of_blocks_without_content_first(release: type[ExtentPool], order: str) -> None:
    """A table's blocks without content come before those with: its tail is freed first."""
    pool = release(7)
    pool.free_table(_filled(pool, LONG, 2, plain=1))
    assert _words(pool) == order


@pytest.mark.parametrize(
    ("release", "order"), [(ExtentPool, "-- -- -- -- 21 20 10"), (ExtentPool023, "-- -- 21 20 -- -- 10")]
)
def test_free_order_of_blocks_without_content(release: type[ExtentPool], order: str) -> None:
    """Since 0.24, blocks without a hash are used next; before, they waited their turn."""
    pool = release(8)
    first, second = _filled(pool, Path([2], [2]), 2), _filled(pool, LONG, 1, plain=2)
    pool.free_table(first)
    pool.free_table(second)
    assert _words(pool) == order


def test_a_shared_prefix_is_cut_where_the_paths_part() -> None:
    """Blocks that somebody else holds stay; when everybody has gone each stretch is where its last holder left it."""
    pool = ExtentPool(12)
    long, fork = _filled(pool, LONG, 6), _filled(pool, FORK, 5)
    assert (len(long), len(fork), len(pool.cached), pool.num_free) == (6, 5, 8, 3)
    pool.free_table(long)
    assert _words(pool) == "-- -- -- 15 14 13"
    assert pool.longest_prefix(LONG, 6).num_unreferenced == 3
    pool.check([fork])
    pool.free_table(fork)
    assert _words(pool) == "-- -- -- 15 14 13 24 23 12 11 10"
    assert pool.release_epoch == 3  # a touch, two frees


def test_the_oldest_duplicate_takes_the_place_of_what_is_evicted() -> None:
    """Three copies of two blocks: lookups find the first, then the second; contents are counted once."""
    pool = ExtentPool(7)
    tables = [Table() for _ in range(3)]
    for table in tables:
        pool.take(2)
        table.gain(2)
    for table in tables:
        pool.cache_full_blocks(table, LONG, 2)
    assert len(pool.cached) == 2
    pool.free_table(tables[0])
    pool.take(1)  # block 1 of the first copy
    hits = pool.longest_prefix(LONG, 2)
    assert (len(hits), hits.num_unreferenced, len(pool.cached)) == (2, 1, 2)
    pool.free_table(tables[2])
    pool.check([tables[1]], num_unowned=1)
    assert _words(pool) == "10 11 10"
    pool.take(3)
    hits = pool.longest_prefix(LONG, 2)
    assert (len(hits), hits.num_unreferenced, pool.evicted_blocks) == (2, 0, 4)
    pool.free_table(tables[1])
    pool.take(2)
    assert (len(pool.longest_prefix(LONG, 2)), len(pool.cached), pool.evicted_blocks) == (0, 0, 6)


def test_decoding_one_block_after_another_makes_one_piece() -> None:
    """The table's last piece grows, so that a long answer costs no more than a short one."""
    pool, table = ExtentPool(20), Table()
    for block in range(1, 7):
        pool.take(1)
        table.gain(1)
        pool.cache_full_blocks(table, LONG, block)
    assert [(piece.first, piece.last) for piece in table.pieces] == [(0, 6)]
    pool.check([table])


def test_watched_blocks_name_their_jobs() -> None:
    """Handed out once, or hit as often as it happens until the job is over; other blocks of the table do not count."""
    pool = ExtentPool(9)
    table = _filled(pool, LONG, 6)
    pool.watch(table, [Run(1, 1, 3), Run(1, 5, 6)], 7)
    pool.watch(table, [Run(1, 2, 4)], 8)
    pool.free_table(table)
    assert pool.blocks_before((), 9) == 2
    pool.take(2)
    assert not pool.touched_jobs
    pool.take(1)
    assert pool.touched_jobs == {7: [Run(1, 5, 6)]}
    pool.touched_jobs.clear()
    assert pool.blocks_before((), 9) == 1  # block 4, then block 3 is watched
    assert pool.blocks_before({1}, 9) == 0
    again = Table()
    pool.touch(LONG, 3, again)
    assert pool.touched_jobs == {7: [Run(1, 1, 2), Run(1, 2, 3)], 8: [Run(1, 2, 3)]}
    pool.touched_jobs.clear()
    pool.rewatch([Run(1, 3, 4)], 8, 9)
    pool.free_table(again)
    pool.unwatch([Run(1, 1, 3), Run(1, 5, 6)], 7)
    pool.unwatch([Run(1, 2, 4)], 8)
    assert _words(pool) == "14 13 12 11 10"
    assert _number_of_pieces(pool) == 3  # block 4, the watched block 3, and the rest in one
    pool.take(5)
    assert pool.touched_jobs == {9: [Run(1, 3, 4)]}


def test_a_job_reads_the_tables_own_copy() -> None:
    """Evicting another copy of the same content disturbs nobody."""
    pool = ExtentPool(5)
    tables = [Table(), Table()]
    for table in tables:
        pool.take(2)
        table.gain(2)
    for table in tables:
        pool.cache_full_blocks(table, LONG, 2)
    pool.watch(tables[1], [Run(1, 0, 1)], 1)
    pool.free_table(tables[0])
    pool.free_table(tables[1])
    pool.take(3)
    assert not pool.touched_jobs
    pool.take(1)
    assert pool.touched_jobs == {1: [Run(1, 0, 1)]}


def test_blocks_without_a_hash_cannot_be_watched() -> None:
    """The pool could not tell when they are handed out again."""
    pool = ExtentPool(5)
    table = _filled(pool, LONG, 1, plain=1)
    with pytest.raises(ValueError, match="block 1 of a table with 1 hashed blocks"):
        pool.watch(table, [Run(1, 0, 2)], 1)


def test_check_finds_lost_blocks() -> None:
    """A table that nobody mentions, or a block that nobody owns."""
    pool = ExtentPool(9)
    table = _filled(pool, LONG, 4)
    with pytest.raises(AssertionError, match="found and lost"):
        pool.check([])
    with pytest.raises(AssertionError, match="counts differ"):
        pool.check([table, table])
    pool.take(1)
    with pytest.raises(AssertionError, match="4 held"):
        pool.check([table])
    pool.check([table], num_unowned=1)
