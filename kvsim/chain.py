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
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

# Ids below this are used as array indices as they are; larger ones (hashes) go through a dictionary first.
_DENSE_IDS = 1 << 24


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


class _Namespace:
    """What is known of the ids of one namespace: position, predecessor and segment of each."""

    __slots__ = ("block_tokens", "names", "position", "predecessor", "segment")

    def __init__(self, block_tokens: int) -> None:
        self.block_tokens = block_tokens
        self.position: NDArray[np.int32] = np.full(1024, -1, dtype=np.int32)
        self.predecessor: NDArray[np.int32] = np.full(1024, -1, dtype=np.int32)
        self.segment: NDArray[np.int32] = np.full(1024, -1, dtype=np.int32)
        # Id -> small number, only where the ids themselves are large.
        self.names: dict[int, int] | None = None

    def numbers(self, ids: Sequence[int]) -> NDArray[np.int64]:
        """The ids as array indices; makes room for them."""
        if self.names is None:
            if min(ids) >= 0 and (highest := max(ids)) < _DENSE_IDS:
                self._reserve(highest + 1)
                return np.array(ids, dtype=np.int64)
            known = np.flatnonzero(self.position >= 0).tolist()
            self.names = {number: place for place, number in enumerate(known)}
            for column in (self.position, self.predecessor, self.segment):
                column[: len(known)] = column[known]
                column[len(known) :] = -1
            # Predecessors are numbers too; names of -1 (none) stay -1.
            old = self.predecessor[: len(known)].tolist()
            self.predecessor[: len(known)] = [self.names.get(x, -1) for x in old]
        names = self.names
        numbers = np.array([names.setdefault(x, len(names)) for x in ids], dtype=np.int64)
        self._reserve(len(names))
        return numbers

    def _reserve(self, size: int) -> None:
        have = len(self.position)
        if size <= have:
            return
        more = np.full(max(size, 2 * have) - have, -1, dtype=np.int32)
        self.position = np.concatenate((self.position, more))
        self.predecessor = np.concatenate((self.predecessor, more))
        self.segment = np.concatenate((self.segment, more))


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

    def add(self, namespace: str, ids: Sequence[int], block_tokens: int) -> Leaf:
        """Adds a prompt given by its chained block ids.

        Args:
            namespace: scope of the ids (a file, a tenant); ids of two namespaces have nothing in common.
            ids: one id per `block_tokens` tokens, the last one possibly for a partial block. An id names its
                block and everything before it.
            block_tokens: tokens per id, the same in every call for a namespace.

        Raises:
            ChainError: an id occurs at two positions or after two predecessors. The tree is unchanged.
        """
        if len(ids) == 0:
            return ROOT
        space = self._namespaces.get(namespace)
        if space is None:
            space = self._namespaces[namespace] = _Namespace(block_tokens)
        elif space.block_tokens != block_tokens:
            raise ValueError(f"{block_tokens} tokens per id, {space.block_tokens} before in {namespace!r}")
        numbers = space.numbers(ids)
        total = len(numbers)
        position = space.position[numbers]
        # A chained id is known only if all before it are: the known ones are a prefix and end at the branch.
        unknown = position < 0
        known = int(unknown.argmax()) if unknown[-1] else total
        places = np.arange(total, dtype=np.int32)
        if not (np.array_equal(position[:known], places[:known]) and bool(unknown[known:].all())):
            self._complain(ids, position)
        if known > 1 and not np.array_equal(space.predecessor[numbers[1:known]], numbers[: known - 1]):
            at = 1 + int((space.predecessor[numbers[1:known]] != numbers[: known - 1]).argmax())
            raise ChainError(f"id {ids[at]} at position {at} follows id {ids[at - 1]}, but another id before")
        if known == total:
            return Leaf(int(space.segment[numbers[-1]]), total * block_tokens)
        new = numbers[known:]
        space.position[new] = places[known:]
        if not np.array_equal(space.position[new], places[known:]):
            at = known + int((space.position[new] != places[known:]).argmax())
            space.position[new] = -1
            raise ChainError(f"id {ids[at]} occurs twice in one prompt, at position {at} and further on")
        space.predecessor[new[1:]] = new[:-1]
        start = ROOT
        if known:
            space.predecessor[new[0]] = numbers[known - 1]
            start = Leaf(int(space.segment[numbers[known - 1]]), known * block_tokens)
        leaf = self.grow(start, start.num_tokens, (total - known) * block_tokens)
        space.segment[new] = leaf.index
        return leaf

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

    def _complain(self, ids: Sequence[int], position: NDArray[np.int32]) -> NoReturn:
        wrong = (position >= 0) & (position != np.arange(len(ids), dtype=np.int32))
        if wrong.any():
            at = int(wrong.argmax())
            raise ChainError(f"id {ids[at]} at position {at} was at position {int(position[at])} before")
        # At its old position, but after an id never seen: it had another predecessor.
        first = int((position < 0).argmax())
        at = first + int((position[first:] >= 0).argmax())
        raise ChainError(f"id {ids[at]} at position {at} follows id {ids[at - 1]}, but another id before")


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
