"""Max-min fair shares of bandwidth, in whole bytes per second."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol, TypeVar


class Pool:
    """Something that flows share: the NICs by which they leave or enter, or the core of a fabric.

    Attributes:
        flows: that are on their way through it.
        left, num_open: bytes per second for those of them that have no rate yet, and how many these are.
    """

    __slots__ = ("bytes_per_s", "flows", "left", "num_open")

    def __init__(self, bytes_per_s: int) -> None:
        self.bytes_per_s, self.left, self.num_open = bytes_per_s, 0, 0
        self.flows: dict[Any, None] = {}


class Sharer(Protocol):
    """A flow: what it can use at most, in bytes per second, and the two pools that it goes through."""

    cap: int
    pools: tuple[Pool, Pool]


S = TypeVar("S", bound=Sharer)


def fair_rates(flows: dict[S, None], pools: Iterable[Pool], core: int | None) -> list[tuple[S, int]]:
    """Max-min fair rates by progressive filling, whole bytes per second, at least 1.

    Whoever is held back most comes first: a flow by its own cap, or all flows of the pool with the smallest share.

    Args:
        flows: all that share anything with each other.
        pools: the NICs that they share.
        core: bytes per second of the core, if that is shared, too.
    """
    open_pools, waiting = list(pools), dict(flows)
    middle: tuple[Pool, ...] = ()
    if core is not None:
        middle = (Pool(core),)
        middle[0].flows = flows
        open_pools += middle
    for pool in open_pools:
        pool.left, pool.num_open = pool.bytes_per_s, len(pool.flows)
    smallest_cap = min((flow.cap for flow in waiting), default=0)  # or less
    rates: list[tuple[S, int]] = []
    while waiting:
        shares = [pool.left // pool.num_open for pool in open_pools]
        rate = min(shares)
        if smallest_cap <= rate:
            smallest_cap = min(flow.cap for flow in waiting)
        if smallest_cap <= rate:
            rate = smallest_cap
            settled = [[flow for flow in waiting if flow.cap == rate]]
        else:
            settled = [list(pool.flows) for pool, share in zip(open_pools, shares, strict=True) if share == rate]
        for some in settled:
            for flow in some:
                if flow not in waiting:
                    continue  # it has its rate already
                del waiting[flow]
                rates.append((flow, rate or 1))
                leaving, entering = flow.pools
                leaving.left -= rate
                leaving.num_open -= 1
                entering.left -= rate
                entering.num_open -= 1
                for pool in middle:
                    pool.left -= rate
                    pool.num_open -= 1
        open_pools = [pool for pool in open_pools if pool.num_open > 0]
    return rates
