"""Caches over runs of blocks: hits of an unlimited one, LRU reuse distances, blocks touched per window.

A prompt is a list of runs ``(segment index, blocks)``: the first so many trace blocks of each segment on its
way from the root. All blocks of a run meet the same fate, so everything here is exact and costs a few
operations per run, however long the prompts are.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kvsim.trace.session import Turn

Runs = list[tuple[int, int]]


def prompt_runs(turn: Turn, block_tokens: int) -> Runs:
    """The prompt of a turn, as far as it has ids, in trace blocks; a partial last block counts as one."""
    limit = turn.num_ids * block_tokens
    runs: Runs = []
    for segment in turn.chain.segments:
        if segment.start_tokens >= limit:
            break
        tokens = min(segment.end_tokens, limit) - segment.start_tokens
        runs.append((segment.index, tokens // block_tokens))
    return runs


class InfiniteCache:
    """Holds every prompt block it was ever shown."""

    def __init__(self) -> None:
        self._longest: dict[int, int] = {}

    def lookup(self, runs: Runs) -> int:
        """Leading blocks of a prompt that are there."""
        longest = self._longest
        hit = 0
        for segment, blocks in runs:
            have = longest.get(segment, 0)
            if have < blocks:
                return hit + have
            hit += blocks
        return hit

    def insert(self, runs: Runs) -> None:
        """Adds a prompt."""
        longest = self._longest
        for segment, blocks in runs:
            if blocks > longest.get(segment, 0):
                longest[segment] = blocks

    @property
    def blocks(self) -> int:
        """Distinct blocks held."""
        return sum(self._longest.values())


class Reuse(NamedTuple):
    """Blocks that one request uses and one earlier request used last: they meet the same fate in most caches.

    Attributes:
        request: who uses them now.
        last: who used them last.
        blocks: how many they are.
        newer_blocks: distinct blocks used by the requests between the two.
        held_blocks: blocks that `last` used and nobody since, these included.
    """

    request: int
    last: int
    blocks: int
    newer_blocks: int
    held_blocks: int


@dataclass(frozen=True, slots=True)
class Reuses:
    """All that LRU and the optimum need to know about requests in a certain order.

    Attributes:
        links: by request; those of a request by falling `last`, which is from its first block to its last.
        used_blocks: by each request.
        first_uses: uses of a block that was never used before.
    """

    links: tuple[Reuse, ...]
    used_blocks: tuple[int, ...]
    first_uses: int

    @property
    def uses(self) -> int:
        """Block uses of all requests."""
        return sum(self.used_blocks)


@dataclass(frozen=True, slots=True)
class ReuseDistances:
    """How far apart the uses of a block are, in distinct blocks used since: the size an LRU cache needs.

    The distance of a block used by request r and last by request p is the number of distinct blocks used by
    the requests ``p .. r-1``. An LRU cache of that many blocks, filled a request at a time, still holds it, and
    the whole prompt of p. What a smaller one still holds of that prompt is in `kvsim.plan.mrc`.

    Attributes:
        counts: (distance, uses with it), by rising distance.
        first_uses: uses of a block that was never used before; they have no distance.
    """

    counts: tuple[tuple[int, int], ...]
    first_uses: int

    @property
    def reuses(self) -> int:
        """Uses that have a distance."""
        return sum(uses for _, uses in self.counts)

    def percentile(self, percent: int) -> int | None:
        """Nearest-rank percentile over all reuses, in blocks; None if there are none."""
        rank = -(-percent * self.reuses // 100)
        seen = 0
        for distance, uses in self.counts:
            seen += uses
            if seen >= rank:
                return distance
        return None

    def hit_rate(self, capacity_blocks: int) -> float:
        """Share of all uses that an LRU cache of this size serves; first uses are misses."""
        total = self.reuses + self.first_uses
        hits = sum(uses for distance, uses in self.counts if distance <= capacity_blocks)
        return hits / total if total else 0.0


def reuse_distances(requests: Sequence[Runs]) -> ReuseDistances:
    """Reuse distances of prompts played in this order."""
    found = find_reuses(requests)
    counts: dict[int, int] = {}
    for link in found.links:
        distance = link.newer_blocks + link.held_blocks
        counts[distance] = counts.get(distance, 0) + link.blocks
    return ReuseDistances(tuple(sorted(counts.items())), found.first_uses)


def find_reuses(requests: Sequence[Runs]) -> Reuses:
    """Who uses again what whom used last, of prompts played in this order.

    Per segment a stack of (end, last request) tells who used which part last: a prompt that uses a segment up
    to some block used all before it, so the newest user is always in front. A Fenwick tree over the requests
    counts the blocks last used by each.
    """
    stacks: dict[int, list[tuple[int, int]]] = {}
    size = len(requests) + 1
    tree = [0] * size
    held = [0] * size  # blocks last used by each request
    links: list[Reuse] = []
    used_blocks: list[int] = []
    first_uses = live = 0
    for now, runs in enumerate(requests):
        moved: dict[int, int] = {}  # last request -> blocks this one takes over
        used = 0
        for segment, blocks in runs:
            if not blocks:
                continue
            used += blocks
            stack = stacks.get(segment)
            if stack is None:
                stack = stacks[segment] = []
            start = 0
            while stack and start < blocks:
                end, last = stack[-1]
                if end > blocks:
                    moved[last] = moved.get(last, 0) + blocks - start
                    start = blocks
                    break
                moved[last] = moved.get(last, 0) + end - start
                stack.pop()
                start = end
            first_uses += blocks - start
            stack.append((blocks, now))
        # Down from the root, uses never get later (who uses a block uses all before it): `moved` is in that order.
        for last, blocks in moved.items():
            older = 0  # blocks last used by the requests 0 .. last
            at = last + 1
            while at:
                older += tree[at]
                at &= at - 1
            links.append(Reuse(now, last, blocks, live - older, held[last]))
        for last, blocks in moved.items():
            held[last] -= blocks
            live -= blocks
            at = last + 1
            while at < size:
                tree[at] -= blocks
                at += at & -at
        held[now] = used
        live += used
        at = now + 1
        while at < size:
            tree[at] += used
            at += at & -at
        used_blocks.append(used)
    return Reuses(tuple(links), tuple(used_blocks), first_uses)


def blocks_per_window(times_s: Sequence[float], requests: Iterable[Runs], window_s: int) -> dict[int, int]:
    """Distinct blocks used in each window that saw a request, by its number counted from the earliest time."""
    if not times_s:
        return {}
    start_s = min(times_s)
    windows: dict[int, InfiniteCache] = {}
    for time_s, runs in zip(times_s, requests, strict=True):
        windows.setdefault(int((time_s - start_s) // window_s), InfiniteCache()).insert(runs)
    return {number: window.blocks for number, window in sorted(windows.items())}
