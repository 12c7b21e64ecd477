"""Random requests over a random prefix tree, driven through the block by block and the run by run KV cache manager."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from itertools import count
from typing import Any

from kvsim.cache.block_pool import NO_HASH, BlockPool, BlockPool023
from kvsim.cache.kv_cache_manager import KVCacheManager
from kvsim.extents.extent_pool import ExtentPool, ExtentPool023
from kvsim.extents.kv_cache_manager import RunKVCacheManager
from kvsim.extents.path import Key, Path, PathKeys, Run
from kvsim.extents.pool_pieces import Table
from kvsim.request import Request

PER_SEGMENT = 10**6


def as_hash(segment: int, position: int) -> int:
    """The hash that stands for a key."""
    return segment * PER_SEGMENT + position


def as_key(content: int) -> Key | None:
    """The key that a hash stands for."""
    return None if content == NO_HASH else Key(*divmod(content, PER_SEGMENT))


class Numbers:
    """Content of a path as numbers."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def block_hashes(self, first: int, last: int) -> list[int]:
        """See `kvsim.request.Content`."""
        return [as_hash(self.path.segment_at(i), i) for i in range(first, last)]


class Stretches:
    """Content of a path by the run."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def block_hashes(self, first: int, last: int) -> Any:
        """See `kvsim.request.Content`."""
        return PathKeys(self.path, last) if first == 0 else self.path.keys(first, last)


class Tree:
    """Segments of random lengths; paths through it may end anywhere and go on with blocks of their own."""

    def __init__(self, rng: random.Random, num_segments: int, longest: int) -> None:
        self._rng = rng
        self._parents: list[int] = [-1]
        self._ends = [0]
        for segment in range(1, num_segments + 1):
            parent = rng.randrange(segment)
            self._parents.append(parent)
            self._ends.append(self._ends[parent] + rng.randint(1, longest))
        self._private = count(num_segments + 1)

    def path(self, shortest: int) -> Path:
        """A random path of at least so many blocks."""
        rng, segment = self._rng, self._rng.randrange(1, len(self._parents))
        chain: list[tuple[int, int]] = []
        at = segment
        while at:
            chain.append((at, self._ends[at]))
            at = self._parents[at]
        chain.reverse()
        if rng.random() < 0.4:  # it leaves the tree inside its last segment
            last, end = chain.pop()
            begin = chain[-1][1] if chain else 0
            if (end := rng.randint(begin, end)) > begin:
                chain.append((last, end))
        shared = chain[-1][1] if chain else 0
        if shared < shortest or rng.random() < 0.3:
            chain.append((next(self._private), max(shared, shortest) + rng.randint(1, 4)))
        return Path([segment for segment, _ in chain], [end for _, end in chain], shared)


@dataclass(eq=False)
class Pair:
    """One request in both worlds."""

    slow: Request
    fast: Request
    path: Path
    is_loading: bool = False
    jobs: dict[int, list[Run]] = field(default_factory=dict)  # stores that its blocks are read by

    def __post_init__(self) -> None:
        self.both = (self.slow, self.fast)


class Worlds:
    """Both managers, what happens to both, and what must be equal.

    A step first decides (admits, computes, preempts), then looks which jobs have to be flushed, then requests end and
    loads settle. Jobs whose blocks were touched are over when it ends.
    """

    def __init__(self, seed: int, *, is_023: bool | None = None) -> None:
        self.rng = rng = random.Random(seed)
        self.block_size = rng.choice((1, 2, 4))
        self.num_blocks = rng.choice((rng.randint(6, 30), rng.randint(20, 120)))
        self.max_len = self.block_size * rng.randint(4, self.num_blocks + 4)
        is_023 = rng.random() < 0.4 if is_023 is None else is_023
        caching = rng.random() < 0.95
        settings = {"block_size": self.block_size, "max_model_len": self.max_len, "enable_caching": caching}
        self.slow = KVCacheManager((BlockPool023 if is_023 else BlockPool)(self.num_blocks), **settings)
        self.fast = RunKVCacheManager((ExtentPool023 if is_023 else ExtentPool)(self.num_blocks), **settings)
        self.tree = Tree(rng, rng.randint(1, 8), rng.choice((3, 8, 30)))
        self.same_often = rng.random() < 0.5
        self.paths: list[Path] = []
        self.live: list[Pair] = []
        self.waiting: list[Pair] = []
        self._names = count()
        self._job_ids = count()
        self.handed_out: set[int] = set()
        self.watched: dict[int, set[int]] = {}  # block -> jobs
        self.offers: list[tuple[int, list[Run], list[int]]] = []  # tentative job, contents, blocks of the ended request
        self.jobs: dict[int, tuple[list[int], list[Run]]] = {}  # watching: blocks, runs
        self.seen = {"hits": 0, "refused": 0, "preempted": 0, "duplicates": 0, "touched": 0, "evicted": 0, "late": 0}

    # -- requests
    def new_pair(self) -> Pair:
        """A request arrives."""
        rng, size = self.rng, self.block_size
        if self.paths and (self.same_often or rng.random() < 0.4) and rng.random() < 0.7:
            path = rng.choice(self.paths[-4:])
        else:
            path = self.tree.path(rng.randint(2, 6))
            self.paths.append(path)
        total = min(len(path) * size + rng.randrange(size), self.max_len - 1)
        prompt = rng.randint(1, total - 1)
        if rng.random() < 0.3:
            prompt = max(prompt // size * size, 1)  # then the last block of a full hit is computed again
        requests = [
            Request(
                f"r{next(self._names)}",
                content(path),  # type: ignore[arg-type]
                block_size=size,
                num_prompt_tokens=prompt,
                max_tokens=total - prompt,
                arrival=0,
            )
            for content in (Numbers, Stretches)
        ]
        return Pair(requests[0], requests[1], path)

    def look_up(self, pair: Pair) -> tuple[Any, Any]:
        """Both answer the same."""
        slow, fast = self.slow, self.fast
        hits, fast_hits = slow.get_computed_blocks(pair.slow), fast.get_computed_blocks(pair.fast)
        assert len(hits) == len(fast_hits), f"hit {len(hits)} != {len(fast_hits)}"
        assert slow.pool.num_unreferenced(hits) == fast_hits.num_unreferenced
        assert slow.num_hit_tokens(hits) == fast.num_hit_tokens(fast_hits)
        assert slow.full_sequence_fits(pair.slow, hits) == fast.full_sequence_fits(pair.fast, fast_hits)
        tokens = self.rng.randint(0, pair.slow.num_tokens)
        need = slow.num_blocks_to_allocate(pair.slow, tokens, hits)
        assert need == fast.num_blocks_to_allocate(pair.fast, tokens, fast_hits)
        keys, at = pair.slow.block_hashes, len(hits)
        if at < len(keys):
            fast_key = pair.fast.block_hashes[at]
            assert (keys[at] in slow.pool.cached) == (fast_key in fast.pool.cached)
            assert len(keys) == len(pair.fast.block_hashes)
        self.seen["hits"] += len(hits)
        return hits, fast_hits

    def admit(self, pair: Pair) -> bool:
        """Look up and allocate, perhaps with tokens from outside; whether it fits."""
        rng, slow, fast = self.rng, self.slow, self.fast
        hits, fast_hits = self.look_up(pair)
        local = slow.num_hit_tokens(hits)
        left = pair.slow.num_tokens - local
        external = rng.randint(0, left - 1) if rng.random() < 0.4 else 0
        is_async = external > 0 and rng.random() < 0.8
        reserved = rng.randint(0, 3) if is_async else 0
        tokens = 0 if is_async else rng.randint(1, left - external)
        if rng.random() < 0.3 and not is_async:
            tokens = left - external
        arguments: Any = {"delay_cache_blocks": is_async, "reserved_blocks": reserved}
        new = slow.allocate_slots(pair.slow, tokens, hits, external, **arguments)
        gained = fast.allocate_slots(pair.fast, tokens, fast_hits, external, **arguments)
        if new is None:
            assert gained is None
            self.seen["refused"] += 1
            return False
        assert gained == len(new)
        self.handed_out.update(slow.tables[pair.slow])
        for request in pair.both:
            request.num_computed_tokens = local + external
            if not is_async:
                self.computed(request, tokens)
        pair.is_loading = is_async
        self.live.append(pair)
        return True

    def computed(self, request: Request, tokens: int) -> None:
        """A step has computed so many tokens, and sampled one if nothing is left."""
        request.num_computed_tokens += tokens
        if request.num_computed_tokens >= request.num_tokens and not self.is_over(request):
            request.append_output_token()

    def is_over(self, request: Request) -> bool:
        """Whether its last token has been sampled."""
        return request.num_output_tokens >= request.max_tokens or request.num_tokens >= self.max_len

    def grow(self, pair: Pair) -> None:
        """The next chunk or token of a request; somebody else is preempted if there is no room."""
        slow, fast, rng = self.slow, self.fast, self.rng
        left = pair.slow.num_tokens - pair.slow.num_computed_tokens
        tokens = min(left if rng.random() < 0.5 else rng.randint(1, left), self.max_len - 1)
        while (new := slow.allocate_slots(pair.slow, tokens)) is None:
            assert fast.allocate_slots(pair.fast, tokens) is None
            victim = rng.choice(self.live) if rng.random() < 0.5 else self.live[-1]
            self.preempt(victim)
            if victim is pair:
                return
        assert fast.allocate_slots(pair.fast, tokens) == len(new)
        self.handed_out.update(new)
        for request in pair.both:
            self.computed(request, tokens)

    def grow_late(self, pair: Pair) -> None:
        """Blocks for many tokens are taken first, given to the request later, and hashed last."""
        slow, fast, rng = self.slow, self.fast, self.rng
        blocks = rng.randint(0, min(4, slow.pool.num_free))
        room = min(pair.slow.max_tokens - pair.slow.num_output_tokens, self.max_len - 1 - pair.slow.num_tokens)
        tokens = min(blocks * self.block_size, room)
        if tokens <= 0 or pair.slow.num_computed_tokens + 1 != pair.slow.num_tokens:
            return
        table = slow.tables[pair.slow]
        missing = -(-(pair.slow.num_computed_tokens + tokens) // self.block_size) - len(table)
        if missing > slow.pool.num_free:
            return
        new = slow.pool.get_new_blocks(max(missing, 0))
        self.handed_out.update(new)
        fast.pool.take(len(new))
        fast.pool.check(fast.holders(), len(new))
        for request in pair.both:
            for _ in range(tokens):
                request.append_output_token()
            request.num_computed_tokens += tokens
        table += new
        fast.tables[pair.fast].gain(len(new))
        slow.cache_blocks(pair.slow, pair.slow.num_computed_tokens)
        fast.cache_blocks(pair.fast, pair.fast.num_computed_tokens)
        self.seen["late"] += len(new)

    def settle(self, pair: Pair) -> None:
        """A load is complete."""
        pair.is_loading = False
        self.slow.cache_blocks(pair.slow, pair.slow.num_computed_tokens)
        self.fast.cache_blocks(pair.fast, pair.fast.num_computed_tokens)

    def preempt(self, pair: Pair) -> None:
        """It loses its blocks and comes back."""
        self.live.remove(pair)
        self.slow.free(pair.slow)
        self.fast.free(pair.fast)
        pair.is_loading = False
        pair.slow.num_computed_tokens = pair.fast.num_computed_tokens = 0
        self.waiting.append(pair)
        self.seen["preempted"] += 1

    def end(self, pair: Pair) -> None:
        """It ends; jobs may still read its blocks, of which one may only be planned later."""
        self.live.remove(pair)
        rng = self.rng
        table, fast_table = list(self.slow.tables[pair.slow]), self.fast.tables[pair.fast]
        jobs = rng.choice((0, 0, 1, 1, 2))
        for _ in range(jobs if fast_table.num_hashed else 0):
            self.watch(pair, table, fast_table)
        offered = self.random_runs(pair.path, fast_table.num_hashed) if rng.random() < 0.3 else []
        if offered:
            tentative = -1 - len(self.offers)
            self.fast.pool.watch(fast_table, offered, tentative)
            self.offers.append((tentative, offered, table))
        if rng.random() < 0.5:
            self.slow.free(pair.slow)
            self.fast.free(pair.fast)
        else:
            self.slow.pool.free_blocks(reversed(self.slow.pop_table(pair.slow)))
            self.fast.pool.free_table(self.fast.pop_table(pair.fast))

    # -- jobs that read blocks of ended requests
    def random_runs(self, path: Path, length: int) -> list[Run]:
        """Some of the first blocks of a path, ascending."""
        rng, runs, first = self.rng, [], 0
        while first < length and len(runs) < 4:
            first = rng.randint(first, length)
            last = rng.randint(first, length)
            runs += path.runs(first, last)
            first = last + 1
        return runs

    def watch(self, pair: Pair, table: list[int], fast_table: Table) -> None:
        """A job that reads some of a table that is about to be freed."""
        runs, job_id = self.random_runs(pair.path, fast_table.num_hashed), next(self._job_ids)
        self.fast.pool.watch(fast_table, runs, job_id)
        self.open_job(job_id, runs, table)

    def open_job(self, job_id: int, runs: list[Run], table: list[int]) -> None:
        """The reference keeps the numbers of the blocks."""
        blocks = [table[i] for _, first, last in runs for i in range(first, last)]
        self.jobs[job_id] = (blocks, runs)
        for block in blocks:
            self.watched.setdefault(block, set()).add(job_id)

    def plan_late(self, tentative: int, offered: list[Run], table: list[int]) -> set[int]:
        """Others went on after the end; now some of the blocks that were offered are to be read after all.

        Returns:
            The new job, if it must be flushed at once.
        """
        rng, fast = self.rng, self.fast.pool
        planned = [Run(s, rng.randint(a, b - 1), b) for s, a, b in offered if rng.random() < 0.7]
        blocks = {table[i] for _, first, last in planned for i in range(first, last)}
        wanted = {Key(s, i) for s, a, b in planned for i in range(a, b)}
        touched = fast.touched_jobs.pop(tentative, [])
        is_touched = any(Key(s, i) in wanted for s, a, b in touched for i in range(a, b))
        assert is_touched == (not blocks.isdisjoint(self.handed_out)), "a store planned late"
        job_id = next(self._job_ids)
        fast.rewatch(planned, tentative, job_id)
        fast.unwatch(offered, tentative)
        self.open_job(job_id, planned, table)
        return {job_id} if is_touched else set()

    def close_job(self, job_id: int) -> None:
        """The job is complete."""
        blocks, runs = self.jobs.pop(job_id)
        self.fast.pool.unwatch(runs, job_id)
        for block in blocks:
            jobs = self.watched.get(block, set())
            jobs.discard(job_id)
            if not jobs:
                self.watched.pop(block, None)

    # -- running
    def decide(self) -> None:
        """One operation of a step's decisions."""
        rng = self.rng
        choice = rng.random()
        pair = rng.choice(self.live) if self.live else None
        if choice < 0.35 or pair is None:
            back = self.waiting and rng.random() < 0.6
            new = self.waiting.pop(0) if back else self.new_pair()
            if not self.admit(new) and (back or rng.random() < 0.5):
                self.waiting.insert(0, new)
            del self.waiting[6:]
        elif pair.is_loading or self.is_over(pair.slow):
            return
        elif choice < 0.4:
            self.preempt(pair)
        elif choice < 0.55:
            self.grow_late(pair)
        else:
            self.grow(pair)
        self.compare()

    def flush(self) -> None:
        """The decisions are made: the same jobs must be over before anything is computed."""
        touched: set[int] = set()
        for block in self.handed_out & self.watched.keys():
            touched |= self.watched[block]
        at_once: set[int] = set()
        for offer in self.offers:
            at_once |= self.plan_late(*offer)
        fast = self.fast.pool
        assert touched == fast.touched_jobs.keys(), f"flush {touched} != {fast.touched_jobs}"
        self.seen["touched"] += len(touched) + len(at_once)
        for job_id in sorted(self.jobs):
            if job_id in touched or job_id in at_once or self.rng.random() < 0.2:
                self.close_job(job_id)
        self.handed_out, self.offers = set(), []
        fast.touched_jobs.clear()
        self.compare()

    def update(self) -> None:
        """The step is over."""
        for pair in tuple(self.live):
            if pair.is_loading:
                if self.rng.random() < 0.5:
                    self.settle(pair)
            elif self.is_over(pair.slow) or self.rng.random() < 0.1:
                self.end(pair)
            self.compare()

    def run(self, steps: int) -> None:
        """Some steps, then everybody ends."""
        for _ in range(steps):
            for _ in range(self.rng.randint(1, 8)):
                self.decide()
            self.flush()
            self.update()
        while self.live:
            self.end(self.live[0])
            self.compare()
        self.flush()
        for job_id in tuple(self.jobs):
            self.close_job(job_id)
        assert not any(piece.watch for piece in self.fast.pool._queue)

    def compare(self) -> None:
        """Everything that can be seen of the pools, and the order in which blocks will be evicted."""
        slow, fast, rng = self.slow.pool, self.fast.pool, self.rng
        assert slow.num_free == fast.num_free
        assert slow.evicted_blocks == fast.evicted_blocks
        assert slow.release_epoch == fast.release_epoch
        assert len(slow.cached) == len(fast.cached)
        free = slow.free_list()
        contents = [as_key(slow.hashes[block]) for block in free]
        assert contents == fast.free_list()
        for pair in self.live:
            slow_table, fast_table = self.slow.tables[pair.slow], self.fast.tables[pair.fast]
            assert len(slow_table) == len(fast_table)
            assert self.slow.num_remaining_blocks(pair.slow) == self.fast.num_remaining_blocks(pair.fast)
            hashed = sum(slow.hashes[block] != NO_HASH for block in slow_table)
            assert hashed == fast_table.num_hashed
        segments = {rng.randint(1, 10) for _ in range(rng.randint(0, 3))}
        limit = rng.randint(0, self.num_blocks)
        held = [
            b in self.watched or (k is not None and k.segment in segments) for b, k in zip(free, contents, strict=True)
        ]
        safe = fast.blocks_before(segments, limit)
        if not self.offers and self.handed_out.isdisjoint(self.watched):  # else the reference still watches it
            assert safe == min([limit, len(free), *[at for at, is_held in enumerate(held) if is_held][:1]])
        slow.check(self.slow.holders())
        fast.check(self.fast.holders())
        self.seen["evicted"] = slow.evicted_blocks
        self.seen["duplicates"] = max(self.seen["duplicates"], sum(map(len, slow._duplicates.values())))
