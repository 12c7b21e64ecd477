"""What a perfect policy would get: Belady's optimum for prompts, from who uses again what whom used last.

Every block use that can hit is a wish: keep a block from one request to the next that uses it. All blocks of a
`Reuse` have the same wish, so the optimum is a matter of intervals and counts. When the cache is too small for all
wishes, those that end last are given up first (Belady). A prompt that uses a block uses all before it, so blocks
deeper in a prompt are never used again sooner: among equal wishes the deepest block goes first, what is kept of any
prompt is always its beginning, and every kept block is a hit. Hence no policy gets more block hits in this order of
requests. It is a bound for hits, not for time: all blocks count the same.
"""

from __future__ import annotations

import heapq

from kvsim.plan.prompts import Prompts
from kvsim.trace.reuse import Reuses, find_reuses


class Optimum:
    """Most hits that a cache of any size can have.

    Two caches are meant. Into one that a GPU computes in, a prompt goes whole: nothing of it can be left out while
    it runs. One behind it, such as CPU memory, may decline a block (`bypass`), and so never has fewer hits.

    A prompt larger than the first kind of cache pushes everything else out and leaves its beginning, as under LRU:
    no policy has a choice there.

    Args:
        reuses: of the prompts, in their order.
    """

    def __init__(self, reuses: Reuses) -> None:
        self._used_blocks = reuses.used_blocks
        self._wishes: list[list[tuple[int, int]]] = [[] for _ in reuses.used_blocks]
        for link in reuses.links:  # by request: each list is by rising next use, that is from the prompt's beginning
            self._wishes[link.last].append((link.request, link.blocks))

    def hits(self, blocks: int, *, bypass: bool = False) -> int:
        """Block hits of all prompts in a cache of this size."""
        return sum(self.hits_by_prompt(blocks, bypass=bypass))

    def hits_by_prompt(self, blocks: int, *, bypass: bool = False) -> list[int]:
        """Block hits of each prompt when all together have the most."""
        kept = [0] * len(self._wishes)  # blocks whose next use is each prompt's; what it finds when its turn comes
        latest: list[int] = []  # heap of negated prompts for which something is kept; may hold some for which not
        total = 0  # blocks kept for prompts to come
        for now, wishes in enumerate(self._wishes):
            total -= kept[now]
            fits = blocks
            if not bypass:
                used = self._used_blocks[now]
                total -= _give_up(kept, latest, total - max(blocks - used, 0))
                fits = min(used, blocks)
            for request, wished in wishes:
                taken = wished if bypass else min(wished, fits)
                if not taken:
                    break
                fits -= taken
                if not kept[request]:
                    heapq.heappush(latest, -request)
                kept[request] += taken
                total += taken
            if bypass:
                total -= _give_up(kept, latest, total - blocks)
        return kept


def optimum(prompts: Prompts | Reuses, blocks: int, *, bypass: bool = False) -> int:
    """Most block hits in a cache of one size; for several sizes, keep an `Optimum`."""
    reuses = prompts if isinstance(prompts, Reuses) else find_reuses(prompts.runs)
    return Optimum(reuses).hits(blocks, bypass=bypass)


def _give_up(kept: list[int], latest: list[int], excess: int) -> int:
    """Gives up so many blocks, those used last of all first; returns how many."""
    rest = excess
    while rest > 0:
        request = -latest[0]
        given = min(kept[request], rest)
        kept[request] -= given
        rest -= given
        if not kept[request]:
            heapq.heappop(latest)
    return max(excess, 0)
