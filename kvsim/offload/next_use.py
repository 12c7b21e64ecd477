"""When every chunk of a known order of requests is used next: what Belady's rule needs to know."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from kvsim.offload.policies.view import NEVER


class NextUses:
    """Next uses by request and position, for requests whose order is known.

    All chunks of a stretch mostly have the same next use, so what is kept is a list of stretches per request.

    Args:
        names: of the requests, in their order; all differ.
        keys_of: keys of a request, by its number.
    """

    def __init__(self, names: Sequence[str], keys_of: Callable[[int], Sequence[int]]) -> None:
        self.number_of = {name: number for number, name in enumerate(names)}
        self._starts: list[list[int]] = [[] for _ in names]  # first position of each stretch
        self._nexts: list[list[int]] = [[] for _ in names]  # its next use
        last: dict[int, int] = {}
        for number in range(len(names) - 1, -1, -1):
            keys = keys_of(number)
            starts, nexts, known = self._starts[number], self._nexts[number], -1
            for position, key in enumerate(keys):
                found = last.get(key, NEVER)
                if found != known:
                    starts.append(position)
                    nexts.append(found)
                    known = found
            starts.append(len(keys))
            nexts.append(NEVER)  # what lies behind is nobody else's
            last.update(dict.fromkeys(keys, number))

    def after(self, number: int, position: int) -> int:
        """Number of the next request that has the chunk at this position of that request; `NEVER` if none has."""
        return self._nexts[number][bisect_right(self._starts[number], position) - 1]
