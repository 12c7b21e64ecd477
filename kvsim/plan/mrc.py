"""The miss-ratio curve of an LRU cache, exact for every size, from one pass over the prompts.

The cache works as vLLM's do, a prompt at a time: all its blocks are looked up in the cache as the prompts before left
it, and then all of them are its most recent, the first one most of all (vLLM frees them tail first). What a cache of a
certain size holds is then always the beginning of a list, and what a prompt finds of another's blocks is some of their
beginning: of the blocks of a `Reuse`, the first one is there from ``newer_blocks + 1`` blocks on, the second from one
more, and so on. So each `Reuse` adds a slope to the curve, and the curve is a chain of straight lines.

What it leaves out: requests that run hold their blocks (add so many times their context), generated tokens are not
cached, and a cache with another policy does better or worse.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from kvsim.plan.prompts import Prompts, prompts_of
from kvsim.plan.working_set import WorkingSet, working_sets
from kvsim.trace.reuse import Reuse, Reuses, find_reuses
from kvsim.trace.session import Trace

KNEE_SHARE = (1, 20)
"""Corners nearer to a straight line than this share of the most hits are no knees: our choice, for few of them."""


@dataclass(frozen=True, slots=True)
class Knee:
    """A size from which on more cache buys clearly less.

    Attributes:
        blocks: the size.
        hit_rate: of LRU at it.
        rate_before: hit rate that a block buys from the knee before (or from nothing) up to here.
        rate_after: hit rate that a block buys from here to the next knee (or to the size that needs no more).
    """

    blocks: int
    hit_rate: float
    rate_before: float
    rate_after: float


@dataclass(frozen=True)
class MissRatioCurve:
    """Hits of LRU caches of all sizes, over some prompts.

    Attributes:
        prompts: those that count.
        uses: block uses of them.
        first_uses: those that no cache can serve.
        corners: sizes in blocks where the curve bends, rising, from 0 to the least that serves all it can.
        corner_hits: hits at these; between two corners they rise evenly.
    """

    prompts: Prompts
    uses: int
    first_uses: int
    corners: tuple[int, ...]
    corner_hits: tuple[int, ...]

    def hits(self, blocks: int) -> int:
        """Block hits in a cache of so many blocks."""
        at = bisect_right(self.corners, blocks) - 1
        if at < 0:
            raise ValueError(f"a cache of {blocks} blocks")
        start, hits = self.corners[at], self.corner_hits[at]
        if at + 1 == len(self.corners):
            return hits
        slope = (self.corner_hits[at + 1] - hits) // (self.corners[at + 1] - start)
        return hits + slope * (blocks - start)

    def hit_rate(self, blocks: int) -> float:
        """Share of the block uses that a cache of so many blocks serves."""
        return self.hits(blocks) / self.uses if self.uses else 0.0

    def miss_ratio(self, blocks: int) -> float:
        """The rest of them."""
        return 1.0 - self.hit_rate(blocks)

    @property
    def max_hit_rate(self) -> float:
        """Of a cache without limit: all uses but the first ones."""
        return self.corner_hits[-1] / self.uses if self.uses else 0.0

    @property
    def full_blocks(self) -> int:
        """The smallest cache that gets there."""
        return self.corners[-1]

    def size_for(self, percent: int) -> int:
        """The smallest cache that gets so many percent of the most hits, in blocks."""
        if not 0 <= percent <= 100:
            raise ValueError(f"{percent} %")
        wanted = -(-self.corner_hits[-1] * percent // 100)
        at = bisect_left(self.corner_hits, wanted)
        if at == 0:
            return 0
        start, hits = self.corners[at - 1], self.corner_hits[at - 1]
        slope = (self.corner_hits[at] - hits) // (self.corners[at] - start)
        return start + -(-(wanted - hits) // slope)

    def knees(self) -> tuple[Knee, ...]:
        """Where more cache begins to buy clearly less: a few corners of the curve's concave hull.

        Drawn as straight lines through the knees, from nothing to the full size, the hull is right to within 5 % of
        the most hits everywhere. The first knee taken is the corner farthest above the line from end to end: before
        it a block buys more than on average, behind it less. The others are found likewise on both sides of it.
        """
        hull = _concave_hull(list(zip(self.corners, self.corner_hits, strict=True)))
        if len(hull) < 2:
            return ()
        least, of = KNEE_SHARE
        chosen = _farthest(hull, least * self.corner_hits[-1], of)
        points = [hull[0], *chosen, hull[-1]]
        knees = []
        for before, knee, after in zip(points, chosen, points[2:], strict=False):
            rates = [(b[1] - a[1]) / (b[0] - a[0]) / self.uses for a, b in ((before, knee), (knee, after))]
            knees.append(Knee(knee[0], knee[1] / self.uses, *rates))
        return tuple(knees)

    @cached_property
    def working_set(self) -> tuple[WorkingSet, ...]:
        """Blocks touched per window of 60, 300 and 900 s; empty if the order has no times."""
        return working_sets(self.prompts)


def miss_ratio_curve(requests: Trace | Prompts, reuses: Reuses | None = None) -> MissRatioCurve:
    """The curve of a trace, or of prompts in a certain order.

    Args:
        requests: prompts; those of a trace come in its own order (see `prompts_of`).
        reuses: of these prompts, if they are known already.
    """
    prompts = prompts_of(requests) if isinstance(requests, Trace) else requests
    found = find_reuses(prompts.runs) if reuses is None else reuses
    return _curve(prompts, found.links, found.uses)


def tenant_curve(prompts: Prompts, reuses: Reuses, tenant: int) -> MissRatioCurve:
    """What the prompts of one tenant find in the cache that all share."""
    owner = prompts.tenant_of
    own = (link for link in reuses.links if owner[link.request] == tenant)
    uses = sum(used for used, of in zip(reuses.used_blocks, owner, strict=True) if of == tenant)
    return _curve(prompts.of_tenant(tenant), own, uses)


def _curve(prompts: Prompts, links: Iterable[Reuse], uses: int) -> MissRatioCurve:
    bends: dict[int, int] = {}
    reused = 0
    for link in links:
        first = link.newer_blocks
        bends[first] = bends.get(first, 0) + 1
        bends[first + link.blocks] = bends.get(first + link.blocks, 0) - 1
        reused += link.blocks
    corners, corner_hits = [0], [0]
    slope = 0
    for size, bend in sorted(bends.items()):
        if not bend:
            continue
        if size:
            corner_hits.append(corner_hits[-1] + slope * (size - corners[-1]))
            corners.append(size)
        slope += bend
    return MissRatioCurve(prompts, uses, uses - reused, tuple(corners), tuple(corner_hits))


_Point = tuple[int, int]


def _concave_hull(points: list[_Point]) -> list[_Point]:
    """Corners of the smallest concave curve above some points, which rise in both coordinates."""
    hull: list[_Point] = []
    for point in points:
        while len(hull) > 1 and _above(hull[-2], point, hull[-1]) <= 0:
            hull.pop()
        hull.append(point)
    return hull


def _above(start: _Point, end: _Point, point: _Point) -> int:
    """How far a point lies above a line, times the length of the line along the first axis."""
    width = end[0] - start[0]
    return (point[1] - start[1]) * width - (end[1] - start[1]) * (point[0] - start[0])


def _farthest(hull: list[_Point], least: int, of: int) -> list[_Point]:
    """Corners, in order, without which lines would be off by ``least / of`` or more."""
    if len(hull) < 3:
        return []
    start, end = hull[0], hull[-1]
    at = max(range(1, len(hull) - 1), key=lambda place: _above(start, end, hull[place]))
    if _above(start, end, hull[at]) * of < least * (end[0] - start[0]):
        return []
    return [*_farthest(hull[: at + 1], least, of), hull[at], *_farthest(hull[at:], least, of)]
