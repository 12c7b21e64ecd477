"""What a cache of each size gets on a trace: LRU and the optimum, knees, working sets, tenants, all in bytes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from kvsim.plan.mrc import MissRatioCurve, miss_ratio_curve, tenant_curve
from kvsim.plan.opt import Optimum
from kvsim.plan.prompts import Prompts
from kvsim.trace.reuse import find_reuses
from kvsim.trace.stats import Distribution

MILESTONES = (50, 90, 99)
"""Percent of the most hits whose sizes are given."""

_STEPS = (1.0, 1.5, 2.0, 3.0, 5.0, 7.0)  # sizes per decade: in the last two all of them, before every other one
_CURVE_POINTS = 500

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class SizeRow:
    """One size. Rates are shares of all block uses; those of the optimum are None where it was not asked for.

    Attributes:
        size_bytes, size_blocks: how large the cache is; only whole blocks count.
        lru_hit_rate: exact.
        opt_hit_rate: of the best policy there could be.
        opt_bypass_hit_rate: of the best one that may decline blocks.
        marks: why this size: ``knee``, ``90 %`` (of the most hits); empty for one of the grid, or asked for.
    """

    size_bytes: int
    size_blocks: int
    lru_hit_rate: float
    opt_hit_rate: float | None = None
    opt_bypass_hit_rate: float | None = None
    marks: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class KneeRow:
    """A knee (see `MissRatioCurve.knees`).

    Attributes:
        size_bytes, size_blocks: where it is.
        hit_rate: of LRU there.
        points_per_gb_before, points_per_gb_after: percentage points of hit rate that 1e9 bytes buy on either side.
    """

    size_bytes: int
    size_blocks: int
    hit_rate: float
    points_per_gb_before: float
    points_per_gb_after: float


@dataclass(frozen=True, slots=True)
class WindowRow:
    """KV touched per window, in bytes.

    Attributes:
        window_s: length of the windows.
        windows: how many saw a prompt.
        p50_bytes, p90_bytes, mean_bytes, max_bytes: over these.
        start_s: of each, since the first prompt.
        touched_bytes: in each.
    """

    window_s: int
    windows: int
    p50_bytes: int
    p90_bytes: int
    mean_bytes: int
    max_bytes: int
    start_s: tuple[int, ...]
    touched_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TenantRow:
    """One tenant.

    Attributes:
        name: of the tenant.
        prompts, block_uses, unique_bytes: what its prompts need.
        max_hit_rate: with a cache without limit.
        size_bytes: sizes, those of the whole.
        shared_hit_rate: of its prompts in the cache that all tenants share.
        alone_hit_rate: of its prompts in a cache of that size of its own.
    """

    name: str
    prompts: int
    block_uses: int
    unique_bytes: int
    max_hit_rate: float
    size_bytes: tuple[int, ...]
    shared_hit_rate: tuple[float, ...]
    alone_hit_rate: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Sizing:
    """All of it, and the conventions behind it.

    Attributes:
        order: in which the prompts come, in words.
        block_tokens: tokens per block of the trace, whose fate is followed.
        kv_bytes_per_token: of all layers, one copy over all ranks.
        prompts: with at least one block.
        block_uses: blocks of all of them.
        compulsory_misses: uses of a block that was never used before.
        unique_bytes: KV of all different blocks.
        largest_prompt_bytes: KV of the longest prompt.
        max_hit_rate: of a cache without limit.
        full_bytes: the smallest LRU cache that gets there.
        milestones: percent of the most hits -> size of the smallest LRU cache that gets so many.
        knees: by size.
        sizes: by size.
        working_set: by length of the window; empty for an order without times.
        tenants: empty unless asked for.
        curve: (size in bytes, LRU's hit rate), closely spaced, for drawing.
    """

    order: str
    block_tokens: int
    kv_bytes_per_token: int
    prompts: int
    block_uses: int
    compulsory_misses: int
    unique_bytes: int
    largest_prompt_bytes: int
    max_hit_rate: float
    full_bytes: int
    milestones: dict[int, int]
    knees: tuple[KneeRow, ...]
    sizes: tuple[SizeRow, ...]
    working_set: tuple[WindowRow, ...]
    tenants: tuple[TenantRow, ...]
    curve: tuple[tuple[int, float], ...]


def sizing(
    prompts: Prompts,
    kv_bytes_per_token: int,
    *,
    sizes: Sequence[int] = (),
    optimum: bool = True,
    bypass: bool = False,
    per_tenant: bool = False,
    progress: Progress | None = None,
) -> Sizing:
    """Everything about the caches of some prompts.

    Args:
        prompts: in order.
        kv_bytes_per_token: what a token needs.
        sizes: of caches, in bytes; empty = a grid over the sizes that matter, with the knees and milestones.
        optimum: whether to compute it.
        bypass: whether to compute the optimum of a cache that may decline blocks.
        per_tenant: whether to split the hits by tenant.
        progress: called with (sizes done, all sizes).
    """
    block_bytes = prompts.block_tokens * kv_bytes_per_token
    reuses = find_reuses(prompts.runs)
    curve = miss_ratio_curve(prompts, reuses)
    knees = curve.knees()
    milestones = {percent: curve.size_for(percent) for percent in MILESTONES} if curve.full_blocks else {}
    marks: dict[int, list[str]] = {size: [] for size in sizes or _grid(curve, block_bytes)}
    if not sizes:
        for knee in knees:
            marks.setdefault(knee.blocks * block_bytes, []).append("knee")
        for percent, blocks in milestones.items():
            marks.setdefault(blocks * block_bytes, []).append(f"{percent} %")
    best = Optimum(reuses) if optimum or bypass else None
    rows = []
    for done, (size, why) in enumerate(sorted(marks.items())):
        if progress is not None:
            progress(done, len(marks))
        blocks = size // block_bytes
        rows.append(
            SizeRow(
                size_bytes=size,
                size_blocks=blocks,
                lru_hit_rate=curve.hit_rate(blocks),
                opt_hit_rate=_share(best.hits(blocks), curve) if best and optimum else None,
                opt_bypass_hit_rate=_share(best.hits(blocks, bypass=True), curve) if best and bypass else None,
                marks=tuple(why),
            )
        )
    per_gb = 100 * 1e9 / block_bytes
    return Sizing(
        order=prompts.order,
        block_tokens=prompts.block_tokens,
        kv_bytes_per_token=kv_bytes_per_token,
        prompts=len(prompts.runs),
        block_uses=curve.uses,
        compulsory_misses=curve.first_uses,
        unique_bytes=curve.first_uses * block_bytes,
        largest_prompt_bytes=max(reuses.used_blocks, default=0) * block_bytes,
        max_hit_rate=curve.max_hit_rate,
        full_bytes=curve.full_blocks * block_bytes,
        milestones={percent: blocks * block_bytes for percent, blocks in milestones.items()},
        knees=tuple(
            KneeRow(
                knee.blocks * block_bytes,
                knee.blocks,
                knee.hit_rate,
                knee.rate_before * per_gb,
                knee.rate_after * per_gb,
            )
            for knee in knees
        ),
        sizes=tuple(rows),
        working_set=tuple(
            _window(found.window_s, found.distribution, found.numbers, found.blocks, block_bytes)
            for found in curve.working_set
        ),
        tenants=tuple(
            _tenant(name, prompts.of_tenant(place), tenant_curve(prompts, reuses, place), list(marks), block_bytes)
            for place, name in enumerate(prompts.tenants)
        )
        if per_tenant
        else (),
        curve=_drawn(curve, block_bytes, marks),
    )


def _share(hits: int, curve: MissRatioCurve) -> float:
    return hits / curve.uses if curve.uses else 0.0


def _grid(curve: MissRatioCurve, block_bytes: int) -> list[int]:
    """Round sizes from where LRU has a hundredth of its hits to where it has them all."""
    first, last = max(curve.size_for(1), 1) * block_bytes, max(curve.full_blocks, 1) * block_bytes
    decade, grid = 1, list[int]()
    while decade <= 10 * last:
        steps = _STEPS if 1000 * decade > last else _STEPS[::2]
        grid += [round(decade * step) for step in steps]
        decade *= 10
    lower = max((place for place, size in enumerate(grid) if size <= first), default=0)
    upper = next(place for place, size in enumerate(grid) if size >= last)
    return grid[lower : upper + 1]


def _drawn(curve: MissRatioCurve, block_bytes: int, sizes: Iterable[int]) -> tuple[tuple[int, float], ...]:
    """The curve at some sizes and all its corners; where these are many, at sizes with equal ratios and its knees."""
    corners = set(curve.corners[1:])
    if len(corners) > _CURVE_POINTS:
        first, last = curve.corners[1], curve.full_blocks
        spaced = (round(first * (last / first) ** (at / _CURVE_POINTS)) for at in range(_CURVE_POINTS + 1))
        corners = {*spaced, *(knee.blocks for knee in curve.knees())}
    points = sorted(corners | {size // block_bytes for size in sizes})
    return tuple((blocks * block_bytes, curve.hit_rate(blocks)) for blocks in points if blocks)


def _window(
    window_s: int, found: Distribution, numbers: Sequence[int], blocks: Sequence[int], block_bytes: int
) -> WindowRow:
    return WindowRow(
        window_s=window_s,
        windows=found.n,
        p50_bytes=round(found.p50) * block_bytes,
        p90_bytes=round(found.p90) * block_bytes,
        mean_bytes=round(found.mean * block_bytes),
        max_bytes=round(found.max) * block_bytes,
        start_s=tuple(number * window_s for number in numbers),
        touched_bytes=tuple(each * block_bytes for each in blocks),
    )


def _tenant(name: str, prompts: Prompts, shared: MissRatioCurve, sizes: Sequence[int], block_bytes: int) -> TenantRow:
    alone = miss_ratio_curve(prompts)
    ordered = sorted(sizes)
    return TenantRow(
        name=name,
        prompts=len(prompts.runs),
        block_uses=shared.uses,
        unique_bytes=shared.first_uses * block_bytes,
        max_hit_rate=shared.max_hit_rate,
        size_bytes=tuple(ordered),
        shared_hit_rate=tuple(shared.hit_rate(size // block_bytes) for size in ordered),
        alone_hit_rate=tuple(alone.hit_rate(size // block_bytes) for size in ordered),
    )
