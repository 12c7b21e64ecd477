"""Chains and segments: what prompts have in common, as a tree of token ranges instead of lists of ids.

All prompts of a workload form a prefix tree. An edge of it that never branches is a `Segment`, and a prompt
is a `Chain`: the segments from the root to where it ends. A prompt of 11,000 blocks in a conversation of a
hundred turns is a handful of segments, so whatever works on chains (look-ups, evictions, reuse distances)
works on runs of blocks and never touches single ids.

The tree is grown by `PrefixTree`, from the block ids of a trace (`add`) or from lengths alone (`grow`).
`BlockIds` then gives every engine block of a chain a number, so that two blocks have the same number exactly
if they and everything before them are equal. That is what vLLM's chained block hash promises.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, NoReturn


class ChainError(ValueError):
    """An id of a trace is not chained: it occurs at two positions or after two different predecessors."""


class Segment:
    """An unbranched edge of the prefix tree: tokens ``[start_tokens, end_tokens)`` of every chain through it.

    Attributes:
        index: dense number within its tree.
        parent: the segment before it; None for the first of a chain.
        start_tokens: first token, equal to the parent's ``end_tokens``.
        end_tokens: one past the last token. Final only after the last addition to the tree.
    """

    __slots__ = ("end_tokens", "index", "parent", "start_tokens")

    def __init__(self, index: int, parent: Segment | None, start_tokens: int, end_tokens: int) -> None:
        self.index = index
        self.parent = parent
        self.start_tokens = start_tokens
        self.end_tokens = end_tokens

    def __repr__(self) -> str:
        return f"Segment({self.index}, [{self.start_tokens}, {self.end_tokens}))"


@dataclass(frozen=True, slots=True)
class Chain:
    """Content with an identity: the segments from the root on, the last one used up to ``num_tokens``.

    Attributes:
        segments: from the root down; empty if nothing is shared.
        num_tokens: tokens covered; lies inside the last segment or at its end.
    """

    segments: tuple[Segment, ...] = ()
    num_tokens: int = 0

    def truncated(self, num_tokens: int) -> Chain:
        """The first `num_tokens` tokens; the chain itself if it is not longer."""
        if num_tokens >= self.num_tokens:
            return self
        if num_tokens <= 0:
            return Chain()
        keep = len(self.segments)
        while self.segments[keep - 1].start_tokens >= num_tokens:
            keep -= 1
        return Chain(self.segments[:keep], num_tokens)

    def shared_tokens(self, other: Chain) -> int:
        """Length of the common prefix of two chains of the same tree."""
        low, high = 0, min(len(self.segments), len(other.segments))
        # Paths that agree at a segment agree above it, so the first difference is found by halving.
        while low < high:
            middle = (low + high) // 2
            if self.segments[middle] is other.segments[middle]:
                low = middle + 1
            else:
                high = middle
        if low == 0:
            return 0
        return min(self.num_tokens, other.num_tokens, self.segments[low - 1].end_tokens)


@dataclass(frozen=True, slots=True)
class Leaf:
    """Where a prompt ended when it was added; stays valid while the tree grows and splits.

    Attributes:
        index: of the segment that held the last token then; -1: the root, nothing known.
        num_tokens: tokens from the root to here.
    """

    index: int
    num_tokens: int


ROOT = Leaf(-1, 0)


class Kept(NamedTuple):
    """The first ids of a prompt that was added before: how many, and the last of them."""

    num_ids: int
    last_id: int


class _Run:
    """Ids that follow each other, all in one segment when they were added: from position `start` on, after `before`."""

    __slots__ = ("before", "ids", "segment", "start")

    def __init__(self, start: int, before: int | None, ids: list[int], segment: int) -> None:
        self.start, self.before, self.ids, self.segment = start, before, ids, segment

    def goes_on(self, position: int, before: int | None, number: int) -> bool:
        """Whether an id stands at this position, after that one."""
        at = position - self.start
        if not 0 <= at < len(self.ids) or self.ids[at] != number:
            return False
        return before == (self.ids[at - 1] if at else self.before)

    def num_common(self, position: int, ids: list[int], at: int) -> int:
        """How many ids it has in common with those from place `at` on, which is this position."""
        own = self.ids[position - self.start : position - self.start + len(ids) - at]
        others = ids[at : at + len(own)]
        if own != others:
            for place, number in enumerate(own):
                if number != others[place]:
                    return place
        return len(own)


class _Namespace:
    """The ids of one scope: each is compared and kept as part of a run, so the prompts' tree is all that is stored."""

    __slots__ = ("block_tokens", "run_of")

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.run_of: dict[int, _Run] = {}

    def complain(self, ids: Sequence[int], start: int, before: int | None) -> NoReturn:
        """Says which of the ids from position `start` on is not chained."""
        runs = [self.run_of.get(number) for number in ids]
        known = [(at, run, run.ids.index(ids[at])) for at, run in enumerate(runs) if run is not None]
        for at, run, place in known:
            if run.start + place != start + at:
                raise ChainError(f"id {ids[at]} at position {start + at} was at position {run.start + place} before")
        for at, run, _place in known:
            last = ids[at - 1] if at else before
            if not run.goes_on(start + at, last, ids[at]):
                raise ChainError(f"id {ids[at]} at position {start + at} follows id {last}, but another id before")
        at = next(at for at, number in enumerate(ids) if number in ids[at + 1 :])
        raise ChainError(f"id {ids[at]} occurs twice in one prompt, at position {start + at} and further on")


class PrefixTree:
    """Grows the prefix tree of a workload and hands out the chains of its prompts.

    Add every prompt first, keep the `Leaf` of each, and build chains after the last addition: a later prompt
    may still split a segment in two. A split leaves the upper part in place and makes the lower part a new
    segment, so nothing handed out before has to be touched. The order of additions decides segment numbers.
    """

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self._children: list[list[Segment]] = []
        self._below: list[Segment | None] = []  # the part that a split took off a segment's lower end
        self._namespaces: dict[str, _Namespace] = {}

    def add(self, namespace: str, ids: list[int], block_tokens: int, kept: Kept | None = None) -> Leaf:
        """Adds a prompt given by its chained block ids.

        Args:
            namespace: scope of the ids (a file, a tenant); ids of two namespaces have nothing in common.
            ids: one id per `block_tokens` tokens, the last one possibly for a partial block. An id names its
                block and everything before it.
            block_tokens: tokens per id, the same in every call for a namespace.
            kept: the beginning of a prompt that was added before; `ids` are then only those behind it.

        Raises:
            ChainError: an id occurs at two positions or after two predecessors. The tree is unchanged.
        """
        if not ids and kept is None:
            return ROOT
        space = self._namespaces.get(namespace)
        if space is None:
            space = self._namespaces[namespace] = _Namespace(block_tokens)
        elif space.block_tokens != block_tokens:
            raise ValueError(f"{block_tokens} tokens per id, {space.block_tokens} before in {namespace!r}")
        run_of = space.run_of
        start, first = kept or (0, None)
        known, total, last = 0, len(ids), first
        run = None if first is None else run_of[first]
        # A chained id is known only if all before it are: the known ones are a prefix and end at the branch.
        while known < total and (found := run_of.get(ids[known])) is not None:
            run = found
            if not run.goes_on(start + known, last, ids[known]):
                space.complain(ids, start, first)
            known += run.num_common(start + known, ids, known)
            last = ids[known - 1]
        branch = ROOT if run is None else Leaf(run.segment, (start + known) * block_tokens)
        if known == total:
            return branch
        new = ids[known:]
        if len(set(new)) < len(new) or not run_of.keys().isdisjoint(new):
            space.complain(ids, start, first)
        leaf = self.grow(branch, branch.num_tokens, len(new) * block_tokens)
        if run is not None and leaf.index == run.segment and last == run.ids[-1]:
            run.ids += new
        else:
            run = _Run(start + known, last, new, leaf.index)
        run_of.update(dict.fromkeys(new, run))
        return leaf

    def forget(self, namespace: str) -> None:
        """Drops the ids of a scope from which no prompt comes any more; its part of the tree stays."""
        self._namespaces.pop(namespace, None)

    def grow(self, leaf: Leaf, keep_tokens: int, add_tokens: int) -> Leaf:
        """Adds a prompt that keeps the first `keep_tokens` of another one and goes on with fresh content.

        Args:
            leaf: the other prompt; `ROOT` to begin from nothing.
            keep_tokens: 0 up to the length of `leaf`.
            add_tokens: tokens that no other prompt has so far; 0 gives the shortened prompt.
        """
        if not 0 <= keep_tokens <= leaf.num_tokens or add_tokens < 0:
            raise ValueError(f"cannot keep {keep_tokens} of {leaf.num_tokens} tokens and add {add_tokens}")
        if keep_tokens == 0:
            if add_tokens == 0:
                return ROOT
            return Leaf(self._new(None, 0, add_tokens).index, add_tokens)
        at = self._holder(leaf, keep_tokens)
        end = keep_tokens + add_tokens
        if add_tokens == 0:
            return Leaf(at.index, end)
        if keep_tokens < at.end_tokens:
            self._split(at, keep_tokens)
        elif not self._children[at.index]:
            at.end_tokens = end  # nothing has gone on from here yet: the edge just gets longer
            return Leaf(at.index, end)
        return Leaf(self._new(at, keep_tokens, end).index, end)

    def chain(self, leaf: Leaf, num_tokens: int) -> Chain:
        """The first `num_tokens` tokens up to `leaf` as a chain; valid once nothing more is added."""
        if num_tokens > leaf.num_tokens:
            raise ValueError(f"a leaf of {leaf.num_tokens} tokens has no chain of {num_tokens}")
        if num_tokens <= 0:
            return Chain()
        segments: list[Segment] = []
        segment: Segment | None = self._holder(leaf, num_tokens)
        while segment is not None:
            segments.append(segment)
            segment = segment.parent
        segments.reverse()
        return Chain(tuple(segments), num_tokens)

    def _holder(self, leaf: Leaf, num_tokens: int) -> Segment:
        """The segment on the way to `leaf` that holds the token before `num_tokens` today."""
        # Splits may have moved the leaf's token. Go down to it first: the way up from it is the prompt's own.
        segment: Segment | None = self.segments[leaf.index]
        while segment is not None and leaf.num_tokens > segment.end_tokens:
            segment = self._below[segment.index]
        while segment is not None and segment.start_tokens >= num_tokens:
            segment = segment.parent
        if segment is None:
            raise ValueError(f"token {num_tokens} is not on the way to {leaf}: it belongs to another tree")
        return segment

    def _new(self, parent: Segment | None, start_tokens: int, end_tokens: int) -> Segment:
        segment = Segment(len(self.segments), parent, start_tokens, end_tokens)
        self.segments.append(segment)
        self._children.append([])
        self._below.append(None)
        if parent is not None:
            self._children[parent.index].append(segment)
        return segment

    def _split(self, segment: Segment, at_tokens: int) -> None:
        lower = Segment(len(self.segments), segment, at_tokens, segment.end_tokens)
        self.segments.append(lower)
        self._children.append(self._children[segment.index])
        self._below.append(self._below[segment.index])
        for child in self._children[lower.index]:
            child.parent = lower
        segment.end_tokens = at_tokens
        self._children[segment.index] = [lower]
        self._below[segment.index] = lower


class BlockIds:
    """Numbers the engine blocks of the chains of one tree: equal exactly for equal content from token 0 on.

    Engine block ``i`` covers the tokens ``[i * b, (i + 1) * b)`` and belongs to the segment that holds its last token,
    because that decides its content. So a segment ``[t0, t1)`` owns the blocks ``t0 // b .. t1 // b - 1``. Numbers are
    dense and handed out a segment at a time, on first use.

    Args:
        block_size: tokens per engine block; need not divide the trace's block.
        lookahead_tokens: a block is full, and equal, only with so many tokens after it.
    """

    def __init__(self, block_size: int, lookahead_tokens: int = 0) -> None:
        if block_size < 1:
            raise ValueError(f"block size {block_size}, expected at least 1 token")
        self.block_size, self.lookahead_tokens, self.count = block_size, lookahead_tokens, 0
        self._offset: dict[int, int] = {}  # segment index -> number that block 0 would have if it began there

    def full(self, tokens: int) -> int:
        """Blocks that so many tokens fill."""
        return max(tokens - self.lookahead_tokens, 0) // self.block_size

    def of(self, chain: Chain, first: int, last: int) -> list[int]:
        """Numbers of the full blocks ``first .. last - 1`` of a chain.

        Raises:
            ValueError: `last` lies beyond the full blocks of the chain.
        """
        if last <= first:
            return []
        if last > (full := self.full(chain.num_tokens)) or first < 0:
            raise ValueError(f"blocks {first}..{last} of a chain of {full} full blocks")
        segments = chain.segments
        at = len(segments) - 1
        while self.full(segments[at].start_tokens) > first:
            at -= 1
        numbers, block = list[int](), first
        while block < last:
            segment = segments[at]
            end = min(self.full(segment.end_tokens), last)
            if end > block:
                if (offset := self._offset.get(segment.index)) is None:
                    offset = self._register(segment)
                numbers.extend(range(offset + block, offset + end))
                block = end
            at += 1
        return numbers

    def private(self, num_blocks: int) -> int:
        """First of `num_blocks` consecutive numbers of its own, for content that nobody else has."""
        first = self.count
        self.count += num_blocks
        return first

    def _register(self, segment: Segment) -> int:
        start = self.full(segment.start_tokens)
        offset = self._offset[segment.index] = self.count - start
        self.count += self.full(segment.end_tokens) - start
        return offset
