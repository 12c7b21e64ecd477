"""What the ledgers remember about a request: its keys, and what it has done with each of them."""

from __future__ import annotations

from collections.abc import Sequence

# Marks of one key, by position in the request.
SEEN = 1  # stored, loaded, or found present when offered
INSERTED = 2  # this request put it there
REUSED = 4  # it was there already, thanks to somebody else
MISSED = 8  # this request reported it missing (once)
COUNTED = 16  # an admission rule has counted its offer


class RequestContext:
    """One request, as offloading managers and policies see it.

    ``keys[i]`` names chunk ``i`` of the request (the hash of its last block, hence of everything before it);
    a key has the same position in every request that has it. ``marks[i]`` holds the flags above.
    """

    __slots__ = ("keys", "marks", "rank", "request_id")

    live_order: Sequence[int] | None = None  # places of the chunks in the request; None = their own numbers

    def __init__(self, request_id: str) -> None:
        self.request_id = request_id
        self.keys: list[int] = []
        self.marks = bytearray()
        self.rank = -1  # recency of the request's first access; -1 = none yet (LRU)

    def extend(self, keys: list[int]) -> None:
        """Append the keys of chunks that the request has gained."""
        self.keys += keys
        self.marks.extend(bytes(len(keys)))

    def final_order(self) -> Sequence[int] | None:
        """Places of the chunks at the request's end; None = their own numbers."""
        return None

    def from_the_tail(self) -> Sequence[int]:
        """Numbers of all chunks, the last of the request first."""
        return range(len(self.keys) - 1, -1, -1)

    def depth(self, position: int) -> int:
        """How far from the request's start a chunk lies; the same in every request that has it."""
        return position if self.live_order is None else self.live_order[position]

    def index(self, position: int) -> int:
        """How many chunks of its kind the request has before it."""
        return position

    def parent(self, position: int) -> int | None:
        """Key of the chunk before it, without which it is worth nothing; None for the first."""
        return self.keys[position - 1] if position else None

    def path_to(self, positions: Sequence[int]) -> list[int]:
        """Keys of these chunks and of all before them."""
        return self.keys[: max(positions, default=-1) + 1]
