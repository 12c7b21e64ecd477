"""The encoder's output cache: embeddings of images and audio, until the prompts that hold them are computed."""

from __future__ import annotations

from kvsim.request import Request


class EncoderCache:
    """Embeddings by identity, each held by the requests that still need it; what nobody holds goes when room is short.

    Oldest released first. Sizes are in encoder tokens (embeddings).
    Rules: vLLM 0.33.0 v1/core/encoder_cache_manager.py. A request that holds the same item at several positions keeps
    it until the last of them is computed.
    """

    keeps_until_last_position = True
    reports_returned = False  # what was evicted and added again in one step is reported as evicted

    def __init__(self, size_tokens: int) -> None:
        self.size_tokens = size_tokens
        self.free_tokens = size_tokens
        self.reclaimable_tokens = size_tokens  # free ones, and those that nobody holds
        self._evicted: list[str] = []
        self._holders: dict[str, set[Request]] = {}  # never iterated
        self._sizes: dict[str, int] = {}
        self._released: dict[str, None] = {}  # held by nobody, oldest first
        # Positions (indices) that a request holds. vLLM frees them in the order of a set of small integers, which does
        # not depend on the hash seed: ours is such a set too.
        self._held: dict[Request, set[int]] = {}

    def hold(self, request: Request, index: int) -> bool:
        """Keep the input for the request if it is here; whether it is."""
        identity = request.demands.encoder_inputs[index].identity
        holders = self._holders.get(identity)
        if holders is None:
            return False
        if not holders:
            del self._released[identity]
            self.reclaimable_tokens -= self._sizes[identity]
        holders.add(request)
        self._held.setdefault(request, set()).add(index)
        return True

    def make_room(self, tokens: int) -> bool:
        """Whether so many tokens could be added now; evicts what nobody holds as far as that takes."""
        if tokens <= self.free_tokens:
            return True
        if tokens > self.reclaimable_tokens:
            return False
        while tokens > self.free_tokens:
            identity = next(iter(self._released))
            del self._released[identity], self._holders[identity]
            self.free_tokens += self._sizes.pop(identity)
            self._evicted.append(identity)
        return True

    def add(self, request: Request, index: int) -> None:
        """The input is going to be computed in this step; `make_room` has made room for it."""
        wanted = request.demands.encoder_inputs[index]
        self._holders.setdefault(wanted.identity, set()).add(request)
        self._sizes[wanted.identity] = wanted.num_tokens
        self._held.setdefault(request, set()).add(index)
        self.free_tokens -= wanted.num_tokens
        self.reclaimable_tokens -= wanted.num_tokens

    def release_computed(self, request: Request) -> None:
        """Let go of the inputs whose positions are all computed."""
        inputs, sure = request.demands.encoder_inputs, request.num_computed_tokens - request.num_output_placeholders
        for index in list(self._held.get(request, ())):
            if inputs[index].end_tokens <= sure:
                self._release(request, index)

    def release(self, request: Request) -> None:
        """Let go of everything that the request holds."""
        for index in list(self._held.get(request, ())):
            self._release(request, index)

    def _release(self, request: Request, index: int) -> None:
        inputs, held = request.demands.encoder_inputs, self._held[request]
        identity = inputs[index].identity
        held.remove(index)
        elsewhere = any(inputs[other].identity == identity for other in held)
        if not held:
            del self._held[request]
        holders = self._holders.get(identity)
        if not holders or (elsewhere and self.keeps_until_last_position):
            return
        holders.discard(request)
        if not holders:
            self._released[identity] = None
            self.reclaimable_tokens += self._sizes[identity]

    def take_evicted(self) -> list[str]:
        """Identities that the worker may drop, in order, since the last call; not those that have come back."""
        evicted, self._evicted = self._evicted, []
        return [identity for identity in evicted if self.reports_returned or identity not in self._holders]

    def check(self, *, at_end: bool = False) -> None:
        """Raise AssertionError if the sums are wrong, or something is held for nobody."""
        held = [identity for identity, holders in self._holders.items() if holders]
        assert self.size_tokens - self.free_tokens == sum(self._sizes.values()), "encoder cache: free tokens"
        assert self.size_tokens - self.reclaimable_tokens == sum(self._sizes[identity] for identity in held)
        assert not (at_end and (held or self._held)), "encoder inputs are held at the end"


class EncoderCache023(EncoderCache):
    """0.23.0: the first computed position releases the item, though the request may hold it at others."""

    keeps_until_last_position = False
    reports_returned = True
