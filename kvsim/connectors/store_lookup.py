"""How long a prefix a shared store has: asked while the scheduler waits, or in the background."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from kvsim.clock import Clock
from kvsim.request import Request
from kvsim.store.client import StoreClient


@dataclass(eq=False, slots=True)
class _Question:
    """On its way to the store; the answer is ``found`` once it is there."""

    found: int = -1
    discarded: bool = False


class StoreLookup:
    """Asks for all full blocks of a request, from its first on, also those that the GPU has.

    All that are there get a lease, those behind a gap too. A hit on every token is looked at again without the last
    one, which has to be computed. Rules: vLLM 0.33.0 mooncake/store/worker.py (MooncakeStoreWorker.lookup;
    LookupKeyClient: one thread asks, an answer is used once).

    Args:
        hold_up: the scheduler waits so long.
        wake: the engine should look again.
        in_background: lookup_async.
    """

    def __init__(
        self,
        clock: Clock,
        client: StoreClient,
        block_size: int,
        *,
        hold_up: Callable[[int], None],
        wake: Callable[[], None],
        in_background: bool = False,
    ) -> None:
        self._clock, self.client, self._block_size = clock, client, block_size
        self._hold_up, self._wake, self._in_background = hold_up, wake, in_background
        self._asked: dict[Request, _Question] = {}
        self._free_ns = 0  # when the thread that asks is through with what it has

    def ask(self, request: Request) -> int | None:
        """Tokens that the store has; None = not known yet."""
        if not self._in_background:
            self._hold_up(self.client.count_lookup(self._num_blocks(request)))
            return self._look(request)
        question = self._asked.get(request)
        if question is None:
            question = self._asked[request] = _Question()
            self._free_ns = max(self._free_ns, self._clock.now) + self.client.count_lookup(self._num_blocks(request))
            answered = self.client.wait(self._free_ns - self._clock.now)
            assert answered.callbacks is not None
            answered.callbacks.append(lambda _event: self._answer(request, question))
        if question.found < 0:
            return None
        del self._asked[request]
        return question.found

    def is_asked(self, request: Request) -> bool:
        """Whether an answer about it is awaited."""
        return request in self._asked

    def discard(self, request: Request) -> None:
        """Nobody wants to know any more."""
        question = self._asked.pop(request, None)
        if question is not None:
            question.discarded = True

    def cautions(self) -> list[str]:
        """What would have surprised the operator of the real one."""
        counts = self.client.counts
        found = []
        if counts.failed_reads:
            found.append(f"{counts.failed_reads} blocks that the store had promised could not be read.")
        if counts.refused:
            found.append(f"{counts.refused} blocks found no room in the store, or in their tenant's quota.")
        return found

    def _num_blocks(self, request: Request) -> int:
        return request.num_tokens // self._block_size

    def _answer(self, request: Request, question: _Question) -> None:
        if not question.discarded:
            question.found = self._look(request)
            self._wake()

    def _look(self, request: Request) -> int:
        size = self._block_size
        blocks = request.num_tokens // size
        return self._usable(request, self.client.prefix(request.block_hashes[:blocks])) * size

    def _usable(self, request: Request, found: int) -> int:
        """Blocks, of so many that are there: one token is always computed."""
        size = self._block_size
        return min(found, (request.num_tokens - 1) // size) if found * size >= request.num_tokens else found
