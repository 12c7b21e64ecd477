"""What the ledgers remember about a request whose KV lies in several groups."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvsim.offload.context import RequestContext


class GroupContext(RequestContext):
    """Chunks of all groups, numbered in the order in which the request has gained them.

    A chunk's number says nothing about where it lies in the request: ``ends`` does, in tokens. A key is
    ``hash * num_groups + group``, so no two groups share one.

    Attributes:
        numbers: per group the numbers of its chunks, from the request's start.
        live_order: per chunk its place among the request's chunks, later ones first to go while it lives.
    """

    def __init__(self, request_id: str, num_groups: int) -> None:
        super().__init__(request_id)
        self._num_groups = num_groups
        self.numbers: list[list[int]] = [[] for _ in range(num_groups)]
        self.live_order: list[int] = []
        self._groups: list[int] = []  # per chunk
        self._parents: list[int | None] = []  # per chunk
        self._indices: list[int] = []  # per chunk, within its group

    def extend_group(self, group: int, hashes: Iterable[int], chunk_tokens: int) -> None:
        """Append a group's next chunks, by the hashes of their last blocks."""
        count, numbers = self._num_groups, self.numbers[group]
        keys = [content * count + group for content in hashes]
        first = len(self.keys)
        self.extend(keys)
        for number in range(first, len(self.keys)):
            self._parents.append(self.keys[numbers[-1]] if numbers else None)
            self._indices.append(len(numbers))
            numbers.append(number)
            # vLLM 0.33.0 cpu/policies/lru.py: of chunks that end together the one with the smaller key goes first, and
            # the group is the key's last part.
            self.live_order.append(len(numbers) * chunk_tokens * count + count - 1 - group)
            self._groups.append(group)

    def final_order(self) -> list[int]:
        """The order at the request's end: of chunks that end together those of the last group go first.

        vLLM 0.33.0 cpu/manager.py, on_request_finished, and cpu/policies/base.py, order_request_keys: a stable sort of
        the chunks, group by group.
        """
        count = self._num_groups
        return [place - place % count + group for place, group in zip(self.live_order, self._groups, strict=True)]

    def index(self, position: int) -> int:
        """In its own group."""
        return self._indices[position]

    def parent(self, position: int) -> int | None:
        """The chunk before it in its own group."""
        return self._parents[position]

    def path_to(self, positions: Sequence[int]) -> list[int]:
        """Chunks of all groups up to there, which go together."""
        ends = [place // self._num_groups for place in self.live_order]
        last = max((ends[position] for position in positions), default=-1)
        return [key for key, end in zip(self.keys, ends, strict=True) if end <= last]

    def from_the_tail(self) -> list[int]:
        order = self.final_order()
        return sorted(range(len(order)), key=order.__getitem__, reverse=True)
