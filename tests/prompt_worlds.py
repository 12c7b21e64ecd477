"""Random small traces for caches of whole prompts, and caches of single blocks that play them by the book."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random

from kvsim.chain import PrefixTree
from kvsim.trace.session import Session, Trace, Turn

BLOCK_TOKENS = 4
Block = tuple[int, int]  # tenant, id


@dataclass(frozen=True)
class World:
    """A trace with arrival times, and its prompts as blocks in that order."""

    trace: Trace
    tenants: tuple[str, ...]
    prompts: list[list[Block]]
    tenant_of: list[int]
    capacities: list[int]


def world(seed: int, most_prompts: int = 40, most_added: int = 8) -> World:
    """Prompts that fork off each other, come back whole, or end inside a block; of one to three tenants."""
    rng = Random(seed)
    tenants = tuple(f"tenant-{number}" for number in range(rng.choice((0, 0, 2, 3))))
    seen: list[list[int]] = []
    fresh = 0
    for _ in range(rng.randrange(2, most_prompts)):
        base = rng.choice(seen) if seen and rng.random() < 0.8 else []
        keep, add = rng.randrange(len(base) + 1), rng.randrange(1, most_added)
        seen.append(base[:keep] + list(range(fresh, fresh + add)))
        fresh += add
    tree = PrefixTree()
    sessions, drafts = [], []
    for number in range(rng.randrange(1, most_prompts)):
        ids = rng.choice(seen)
        drafts.append((number, tree.add("f", ids, BLOCK_TOKENS), ids, rng.randrange(BLOCK_TOKENS)))
    for number, leaf, ids, missing in drafts:
        tokens = len(ids) * BLOCK_TOKENS - missing
        turn = Turn(tokens, 1, tree.chain(leaf, tokens), tokens, len(ids))
        sessions.append(Session(f"s{number}", number * 10**9, (turn,)))
    owners = [number % max(1, len(tenants)) for number, *_ in drafts]
    prompts = [[(owner, one) for one in ids] for owner, (_, _, ids, _) in zip(owners, drafts, strict=True)]
    largest, distinct = max(map(len, prompts)), len({block for prompt in prompts for block in prompt})
    capacities = [0, rng.randint(1, largest), rng.randint(1, distinct), rng.randint(largest, distinct + 2)]
    trace = Trace("world", "mooncake", BLOCK_TOKENS, tuple(sessions), outputs_return=False, notes=(), tree=tree)
    return World(trace, tenants, prompts, owners, capacities)


def leading(prompt: Sequence[Block], cache: set[Block] | frozenset[Block] | OrderedDict[Block, None]) -> int:
    """Blocks of a prompt that are there, up to the first one that is not."""
    return next((place for place, block in enumerate(prompt) if block not in cache), len(prompt))


def lru_hits(prompts: Sequence[Sequence[Block]], capacity: int) -> list[int]:
    """Hits of each prompt in an LRU cache that takes a prompt at a time, the last block first."""
    cache: OrderedDict[Block, None] = OrderedDict()
    hits = []
    for prompt in prompts:
        hits.append(leading(prompt, cache))
        for block in reversed(prompt):
            cache[block] = None
            cache.move_to_end(block)
        while len(cache) > capacity:
            cache.popitem(last=False)
    return hits


def belady_hits(prompts: Sequence[Sequence[Block]], capacity: int, *, bypass: bool) -> list[int]:
    """Hits of each prompt if the block whose next use is farthest goes first, of several the deepest."""
    never = len(prompts)
    cache: dict[Block, tuple[int, int]] = {}  # block -> next use, depth
    hits = []
    for now, prompt in enumerate(prompts):
        found = leading(prompt, set(cache))
        assert found == sum(block in cache for block in prompt)
        hits.append(found)
        pinned = set() if bypass else set(prompt[:capacity])
        for depth, block in enumerate(prompt):
            following = (at for at in range(now + 1, never) if block in prompts[at])
            cache[block] = next(following, never), depth
        while len(cache) > capacity:
            del cache[max((block for block in cache if block not in pinned), key=lambda block: cache[block])]
        if not bypass and len(prompt) >= capacity:
            assert set(cache) == pinned
    return hits


def most_hits(prompts: Sequence[Sequence[Block]], capacity: int, *, bypass: bool) -> int:
    """The most hits of any policy, by trying everything that it could keep."""
    states: dict[frozenset[Block], int] = {frozenset(): 0}
    for prompt in prompts:
        after: dict[frozenset[Block], int] = {}
        own = set(prompt)
        for cache, hits in states.items():
            total = hits + leading(prompt, cache)
            must, may = (set(), cache | own) if bypass else (own, cache - own)
            if len(must) > capacity:  # larger than the cache: pushes everything else out
                must, may = set(), own
            for size in range(min(len(may), capacity - len(must)) + 1):
                for choice in combinations(sorted(may), size):
                    state = frozenset(must.union(choice))
                    after[state] = max(after.get(state, 0), total)
        states = after
    return max(states.values())
