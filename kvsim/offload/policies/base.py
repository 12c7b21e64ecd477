"""What a manager asks of an eviction policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Sequence

from kvsim.offload.context import RequestContext
from kvsim.offload.policies.view import BLIND, View
from kvsim.offload.slot import Slots


class EvictionPolicy(ABC):
    """Orders the chunks of one tier. The manager owns the slots; a policy owns only their order.

    Subclass it, override what your policy reacts to, and name the class in the registry (`kvsim.releases`). A policy
    must never choose a key whose slot is in use or that is protected. Chunks of a request should go tail first:
    a prefix with a hole is worth only what comes before the hole.
    """

    view: View = BLIND  # what it may know besides keys: time, sessions, the queue, the future

    def __init__(self, capacity: int, slots: Slots) -> None:
        self.capacity, self.slots = capacity, slots

    @abstractmethod
    def insert(self, context: RequestContext, position: int) -> None:
        """The request has put its chunk ``position`` into the tier."""

    @abstractmethod
    def evict(self, count: int, protected: Collection[int]) -> list[int] | None:
        """Choose and forget exactly ``count`` evictable keys, first victim first; None (and no change) if too few."""

    @abstractmethod
    def remove(self, key: int) -> None:
        """Forget a key whose content never arrived; its slot still exists."""

    def on_evictable(self, key: int) -> None:
        """Nobody reads or writes the key's slot any more."""

    def touch(self, keys: list[int]) -> None:
        """A lookup or a store has used these keys, present or not (release 0.23.0 only)."""

    def on_access(self, context: RequestContext, positions: Sequence[int]) -> None:
        """The living request is seen to use these chunks, in ascending order, for the first time."""

    def on_store_miss(self, keys: list[int]) -> None:
        """A request offers these keys for storing and they are absent (once per request and key)."""

    def on_request_finished(self, context: RequestContext) -> None:
        """The request is over: its marks are final, recency may be committed."""

    def admit(self, context: RequestContext, positions: list[int]) -> list[int]:
        """Which of these absent chunks, in ascending order, are to be stored at all."""
        return positions

    def protected_by(self, context: RequestContext, positions: Sequence[int]) -> Collection[int]:
        """Keys that an offer of these chunks protects while room is made for it: all that it offers."""
        keys = context.keys
        return {keys[position] for position in positions}

    def is_evictable(self, key: int, protected: Collection[int]) -> bool:
        """Ready, not being read, not protected."""
        return self.slots[key].ref_count == 0 and key not in protected
