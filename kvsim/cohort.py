"""Requests that do nothing but decode, advanced together: what n of them do in k steps, without looking at each."""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heappop, heappush

from kvsim.extents.path import PathKeys
from kvsim.request import Request


class Cohort:
    """Members compute one token in every step, so between two joins all that differs among them is constant.

    A member's numbers (``num_tokens``, ``num_computed_tokens``, the count of known block hashes) are those of the
    moment it joined; `leave` brings them up to date. Its blocks are counted by the phase in which it joined: a member
    needs a block in every ``block_size``-th step, and all with the same phase need theirs in the same one.
    """

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.steps = 0  # that have been computed since the beginning
        self.num_computed_tokens = 0  # of all members together
        self.num_prompt_tokens = 0  # likewise
        self._by_phase = [0] * block_size  # members by (computed tokens - steps) modulo block size
        self._of_phase: list[dict[Request, None]] = [{} for _ in range(block_size)]  # the same, one by one
        self._joined: dict[Request, int] = {}  # the step in which it joined
        self._places: dict[Request, tuple[int, int]] = {}  # order, and number of its join
        self._num_joins = 0
        # Heap: steps at its end, place, request. Stale if that is not its place, for it has left since.
        self._ends: list[tuple[int, tuple[int, int], Request]] = []

    def __len__(self) -> int:
        return len(self._joined)

    def __contains__(self, request: Request) -> bool:
        return request in self._joined

    def __iter__(self) -> Iterator[Request]:
        return iter(self._joined)

    def join(self, request: Request, order: int, steps_left: int) -> None:
        """From the next step on.

        Args:
            request: all of its tokens but the last are computed.
            order: its place among the running requests.
            steps_left: steps until it ends.
        """
        computed = request.num_computed_tokens
        self._joined[request] = self.steps
        self._num_joins += 1
        place = self._places[request] = order, self._num_joins
        self.num_computed_tokens += computed
        self.num_prompt_tokens += request.num_prompt_tokens
        self._by_phase[(computed - self.steps) % self.block_size] += 1
        self._of_phase[(computed - self.steps) % self.block_size][request] = None
        heappush(self._ends, (self.steps + steps_left, place, request))

    def leave(self, request: Request, *, scheduled: int = 0) -> None:
        """Not a member any more; ``scheduled``: 1 if the step that is being computed counts as computed already."""
        joined = self._joined.pop(request)
        del self._places[request]
        passed = self.steps - joined
        self._by_phase[(request.num_computed_tokens - joined) % self.block_size] -= 1
        del self._of_phase[(request.num_computed_tokens - joined) % self.block_size][request]
        self.num_computed_tokens -= request.num_computed_tokens + passed
        self.num_prompt_tokens -= request.num_prompt_tokens
        self._bring_up_to_date(request, passed, scheduled)

    def _bring_up_to_date(self, request: Request, passed: int, scheduled: int) -> None:
        request.num_computed_tokens += passed + scheduled
        request.num_tokens += passed
        known: object = request.block_hashes
        assert isinstance(known, PathKeys)
        known.num_keys = request.num_tokens // self.block_size

    def computed_tokens(self) -> dict[Request, int]:
        """Tokens of each member that are computed now."""
        return {request: request.num_computed_tokens + self.steps - joined for request, joined in self._joined.items()}

    def full_blocks(self, *, ahead: int = 0) -> int:
        """Blocks of all members that are computed to the end, so many steps from now."""
        steps, size = self.steps + ahead, self.block_size
        begun = sum([count * ((phase + steps) % size) for phase, count in enumerate(self._by_phase) if count])
        return (self.num_computed_tokens + ahead * len(self) - begun) // size

    def filling(self, steps: int) -> dict[Request, int]:
        """Who fills a block in the last of the next so many steps, with so many tokens computed then; in order."""
        members = self._of_phase[-(self.steps + steps) % self.block_size]
        passed, joined, places = self.steps + steps, self._joined, self._places
        in_order = sorted(members, key=places.__getitem__) if len(members) > 1 else members
        return {request: request.num_computed_tokens + passed - joined[request] for request in in_order}

    def fills_next(self, steps: int) -> int:
        """The first number of steps from this one on in the last of which somebody fills a block; there is somebody."""
        at, size = self.steps, self.block_size
        return next(n for n in range(steps, steps + size) if self._by_phase[-(at + n) % size])

    def demand(self, steps: int) -> int:
        """Blocks that all members together need for the next so many steps."""
        if steps == 1:
            return self._by_phase[-self.steps % self.block_size]
        whole, rest = divmod(steps, self.block_size)
        need, by_phase, at = whole * len(self._joined), self._by_phase, self.steps
        for step in range(rest):
            need += by_phase[-(at + step) % self.block_size]
        return need

    def most_steps(self, limit: int, blocks: int) -> int:
        """The largest number of steps up to ``limit`` for which so many blocks are enough."""
        low, high = 0, limit
        if self.demand(limit) <= blocks:
            return limit
        while low < high:
            middle = (low + high + 1) // 2
            if self.demand(middle) <= blocks:
                low = middle
            else:
                high = middle - 1
        return low

    def advance(self, steps: int) -> None:
        """So many steps have been computed; nobody has ended in them."""
        self.steps += steps
        self.num_computed_tokens += steps * len(self._joined)

    def steps_to_end(self) -> int:
        """Steps from now on until the first member ends with the last of them."""
        ends = self._ends
        while self._places.get(ends[0][2]) != ends[0][1]:
            heappop(ends)
        return ends[0][0] - self.steps

    def due(self) -> list[Request]:
        """Members that end with the next step, in their order."""
        found: list[Request] = []
        ends, last = self._ends, self.steps + 1
        if not ends or ends[0][0] > last:
            return found
        while ends and ends[0][0] <= last:
            _, place, request = heappop(ends)
            if self._places.get(request) == place:
                found.append(request)
        found.sort(key=self._places.__getitem__)
        return found
