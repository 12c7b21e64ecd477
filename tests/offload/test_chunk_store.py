"""LMCache's storage: prefix hits over tiers, pins, eviction order, room."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.offload.chunk_store import ChunkStore, Shelf


@dataclass
class Write:
    """Done when a test says so."""

    is_done: bool = False


class Pen:
    """Starts writes and keeps them; ``at_once``: they are over immediately."""

    def __init__(self, *, at_once: bool = True) -> None:
        self.at_once, self.writes = at_once, list[Write]()

    def __call__(self) -> Write:
        self.writes.append(Write(self.at_once))
        return self.writes[-1]


def test_hits_are_prefixes() -> None:
    """A lookup counts chunks up to the first that is missing."""
    store = ChunkStore(10)
    assert store.store([1, 2, 4], skip_present=False) == 3
    assert store.lookup([1, 2, 3, 4], "a") == 2
    assert store.lookup([3, 4], "b") == 0


def test_stored_prompts_lose_their_beginning_first() -> None:
    """Chunks enter in the order of the prompt, so its first is the oldest: LMCache evicts it first."""
    store = ChunkStore(3)
    store.store([1, 2, 3], skip_present=False)
    store.store([7], skip_present=False)
    assert store.sources([2, 3]) == [(0, [2, 3])]
    assert store.sources([1]) == []
    assert store.num_evicted == 1


def test_a_lookup_turns_the_order_round() -> None:
    """After a lookup the prompt's last chunk is the first to leave."""
    store = ChunkStore(3)
    store.store([1, 2, 3], skip_present=False)
    store.lookup([1, 2, 3], "a")
    store.unpin("a")
    store.store([7], skip_present=False)
    assert store.sources([1, 2, 3]) == [(0, [1, 2])]


def test_pinned_chunks_stay() -> None:
    """What a lookup has found is not evicted; a store that finds no room stops there and is counted."""
    store = ChunkStore(3)
    store.store([1, 2, 3], skip_present=False)
    store.lookup([1, 2], "a")
    assert store.store([7, 8], skip_present=False) == 1
    assert (len(store), store.num_refused) == (3, 1)
    assert store.sources([1, 2]) == [(0, [1, 2])]
    store.unpin("a")
    assert store.store([8], skip_present=False) == 1
    store.check(at_end=True)


def test_storing_again_copies_again() -> None:
    """A store that does not look copies what is there (and may evict for it); layer-wise it skips it."""
    store = ChunkStore(3)
    store.store([1, 2], skip_present=False)
    assert store.store([1, 2], skip_present=False) == 2
    assert len(store) == 2
    assert store.store([1, 2, 3], skip_present=True) == 1
    assert len(store) == 3


def test_shelves_take_copies_and_give_them_back() -> None:
    """What CPU memory has lost is found on the shelf, behind what CPU memory holds; fetched, it is in both."""
    store = ChunkStore(2, [Shelf(Pen())])
    store.store([1, 2], skip_present=False)
    store.store([3, 4], skip_present=False)
    assert store.sources([1, 2, 3, 4]) == [(1, [1, 2, 3, 4])]  # never back to CPU memory
    assert store.sources([3, 4, 1]) == [(0, [3, 4]), (1, [1])]
    store.fetched([1])
    assert store.sources([1, 2]) == [(0, [1]), (1, [2])]


def test_an_unfinished_write_holds_its_source() -> None:
    """A chunk is on the shelf when its write is over; until then CPU memory cannot let it go."""
    pen = Pen(at_once=False)
    store = ChunkStore(2, [Shelf(pen)])
    store.store([1, 2], skip_present=False)
    assert store.store([3], skip_present=False) == 0
    pen.writes[0].is_done = True
    assert store.store([3], skip_present=False) == 1
    assert store.sources([1]) == [(1, [1])]
    assert store.sources([2]) == [(0, [2])]


def test_a_full_shelf_drops_its_oldest() -> None:
    """A shelf of two chunks keeps the two latest; what is pinned stays, and then nothing can enter."""
    shelf = Shelf(Pen(), capacity=2)
    for key in (1, 2, 3):
        shelf.put(key)
    assert [key in shelf for key in (1, 2, 3)] == [False, True, True]
    shelf.pin([2, 3], 1)
    shelf.put(4)
    assert (4 in shelf, shelf.num_refused, shelf.num_evicted) == (False, 1, 1)
    shelf.pin([2, 3], -1)
    shelf.touch([2])
    shelf.put(4)
    assert [key in shelf for key in (2, 3, 4)] == [True, False, True]
