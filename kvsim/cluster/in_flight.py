"""What a router has sent and not got back."""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.cluster.views import TurnView


class InFlight:
    """Requests and prompt tokens in flight, per instance, and how many requests each has got so far."""

    def __init__(self, num_instances: int) -> None:
        self.requests, self.tokens, self.num_sent = ([0] * num_instances for _ in range(3))

    def sent(self, turn: TurnView, instance: int) -> None:
        """A turn has gone there."""
        self.requests[instance] += 1
        self.tokens[instance] += turn.prompt_tokens
        self.num_sent[instance] += 1

    def ended(self, turn: TurnView, instance: int) -> None:
        """It is over."""
        self.requests[instance] -= 1
        self.tokens[instance] -= turn.prompt_tokens

    def fewest_requests(self, among: Sequence[int]) -> int:
        """Where the fewest are in flight; of equals, where the fewest were sent so far: idle ones take turns."""
        return min(among, key=lambda instance: (self.requests[instance], self.num_sent[instance], instance))

    def fewest_tokens(self, among: Sequence[int]) -> int:
        """The same by prompt tokens."""
        return min(among, key=lambda instance: (self.tokens[instance], self.num_sent[instance], instance))
