"""BlockPool: vLLM's pool of KV blocks, block by block. The executable specification of every other pool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice

from kvsim.kv_events import KVEventLog

NO_HASH = -1  # block without reusable content
NULL_BLOCK = 0  # stands in tables for what is not needed; never free, never counted

EvictionHook = Callable[[int, int], None]  # (block id, hash) of content that is lost


class BlockPool:
    """Blocks ``0 .. num_blocks-1`` with reference counts, content hashes and a free list in eviction order.

    Block 0 is the null block: never free, never handed out, so ``num_blocks - 1`` are usable. A free block keeps
    its content and can be hit until it is popped from the head of the free list; eviction happens there and nowhere
    else. Several blocks may hold the same content (vLLM never merges them); a lookup answers the oldest.
    Rules: vLLM 0.33.0 v1/core/block_pool.py and kv_cache_utils.py (FreeKVCacheBlockQueue).
    """

    def __init__(self, num_blocks: int, on_evict: EvictionHook | None = None) -> None:
        self.num_blocks = num_blocks
        self.num_free = num_blocks - 1
        self.ref_counts = [0] * num_blocks
        self.hashes = [NO_HASH] * num_blocks
        self.cached: dict[int, int] = {}  # hash -> the oldest block that holds it
        self.evicted_blocks = 0
        # Grows with every event that could let a request fit that did not fit before: see Scheduler.
        self.release_epoch = 0
        self._duplicates: dict[int, dict[int, None]] = {}  # hash -> younger holders, in order of insertion
        self._on_evict = on_evict
        self.kv_events: KVEventLog | None = None  # if set, told of every content that is gained or lost
        # Doubly linked free list in two arrays; index num_blocks is the sentinel between tail and head.
        self._next = [*range(1, num_blocks), num_blocks, 1]
        self._prev = [*range(-1, num_blocks - 1), num_blocks - 1]
        self._prev[1] = num_blocks

    # -- looking
    def longest_prefix(self, hashes: Sequence[int], limit: int) -> list[int]:
        """Blocks that hold the first hashes (at most ``limit``), up to the first one that nobody holds."""
        cached = self.cached
        blocks: list[int] = []
        for content in islice(hashes, limit):
            block = cached.get(content)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_unreferenced(self, blocks: Iterable[int]) -> int:
        """How many of these blocks are in the free list."""
        refs = self.ref_counts
        return sum(not refs[block] for block in blocks)

    def next_free(self, block: int | None) -> int | None:
        """The free block behind this free block (None: the head of the list); None at the end."""
        following = self._next[self.num_blocks if block is None else block]
        return None if following == self.num_blocks else following

    def free_list(self) -> list[int]:
        """All free blocks, next to be evicted first. For tests and invariants."""
        blocks, block = [], self._next[self.num_blocks]
        while block != self.num_blocks:
            blocks.append(block)
            block = self._next[block]
        return blocks

    # -- taking
    def get_new_blocks(self, count: int) -> list[int]:
        """Pop ``count`` blocks from the head of the free list; what they held is evicted, in that order."""
        if count > self.num_free:
            raise ValueError(f"{count} blocks wanted, {self.num_free} free")
        if count == 0:
            return []
        following, head = self._next, self.num_blocks
        blocks: list[int] = []
        block = following[head]
        for _ in range(count):
            blocks.append(block)
            block = following[block]
        following[head], self._prev[block] = block, head
        self.num_free -= count
        refs, hashes = self.ref_counts, self.hashes
        for taken in blocks:
            refs[taken] = 1
            if hashes[taken] >= 0:
                self._evict(taken)
        return blocks

    def _evict(self, block: int) -> None:
        content = self.hashes[block]
        self.hashes[block] = NO_HASH
        younger = self._duplicates.get(content)
        if self.cached[content] == block:
            if younger:
                self.cached[content] = heir = next(iter(younger))
                del younger[heir]
            else:
                del self.cached[content]
        elif younger is not None:
            del younger[block]
        if younger is not None and not younger:
            del self._duplicates[content]
        self.evicted_blocks += 1
        if self._on_evict is not None:
            self._on_evict(block, content)
        if self.kv_events is not None:
            self.kv_events.evicted(content)

    def touch(self, blocks: Iterable[int]) -> None:
        """One reference more for each; a free one leaves the free list and keeps its content."""
        refs, following, previous = self.ref_counts, self._next, self._prev
        revived = 0
        for block in blocks:
            count = refs[block]
            if count == 0:
                before, after = previous[block], following[block]
                following[before], previous[after] = after, before
                revived += 1
            refs[block] = count + 1
        self.num_free -= revived
        self.release_epoch += 1

    def evict_blocks(self, blocks: Iterable[int]) -> None:
        """Forget what these blocks hold, used or free; nobody finds it any more (vLLM 0.33.0 evict_blocks)."""
        for block in blocks:
            if self.hashes[block] >= 0:
                self._evict(block)

    # -- giving back
    def cache_full_blocks(self, blocks: Sequence[int], hashes: Sequence[int], first: int, last: int) -> None:
        """Make ``blocks[first:last]`` findable under their hashes. Duplicates of a hash are kept."""
        cached, contents = self.cached, self.hashes
        for i in range(first, last):
            block, content = blocks[i], hashes[i]
            contents[block] = content
            if content in cached:
                self._duplicates.setdefault(content, {})[block] = None
            else:
                cached[content] = block

    def free_blocks(self, blocks: Iterable[int]) -> None:
        """One reference less for each; those that reach 0 enter the free list, in the order given."""
        refs = self.ref_counts
        released: list[int] = []
        for block in blocks:
            count = refs[block] - 1
            refs[block] = count
            if count == 0:
                released.append(block)
            elif count < 0:
                raise ValueError(f"block {block} freed more often than referenced")
        if released:
            self.num_free += len(released)
            self.release_epoch += 1
            self._file(released)

    def _file(self, released: list[int]) -> None:
        """Free order since 0.24: blocks without content go to the front, the others to the end."""
        hashes = self.hashes
        self._link_after(self.num_blocks, [b for b in released if hashes[b] < 0])
        self._link_after(self._prev[self.num_blocks], [b for b in released if hashes[b] >= 0])

    def _link_after(self, at: int, blocks: Iterable[int]) -> None:
        following, previous = self._next, self._prev
        after = following[at]
        for block in blocks:
            following[at], previous[block] = block, at
            at = block
        following[at], previous[after] = after, at

    # -- checking
    def check(self, holders: Iterable[Iterable[int]]) -> None:
        """Raise AssertionError unless free + held = total, counts match ``holders`` and every map agrees."""
        free, refs, contents = self.free_list(), self.ref_counts, self.hashes
        counts = [0] * self.num_blocks
        for blocks in holders:
            for block in blocks:
                counts[block] += 1
        # No loops below: this is done after every step of a run under --debug.
        assert counts == refs, "reference counts differ from the blocks that are held"
        assert len(free) == self.num_free == len(set(free)), "free list and free count differ"
        assert not any(map(refs.__getitem__, free)), "a held block is in the free list"
        held = self.num_blocks - counts.count(0)
        assert held + self.num_free == self.num_blocks - 1, f"{held} held + {self.num_free} free"
        findable = sum(map(len, self._duplicates.values())) + len(self.cached)
        assert min(contents) >= NO_HASH, "a block's content is no hash"
        assert findable == self.num_blocks - contents.count(NO_HASH), "a block has content nobody can find"
        assert list(map(contents.__getitem__, self.cached.values())) == list(self.cached), "hash map is stale"


class BlockPool023(BlockPool):
    """Free order up to 0.23: everything goes to the end."""

    def _file(self, released: list[int]) -> None:
        self._link_after(self._prev[self.num_blocks], released)
