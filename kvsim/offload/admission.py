"""Admission: which of the chunks that a request offers are stored at all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence

from kvsim.offload.around import LedgerAround
from kvsim.offload.context import COUNTED, RequestContext
from kvsim.offload.ledger import Primary, StorePlan


class Admission(ABC):
    """Says of a chunk that is not there whether it is worth a place."""

    def on_offer(self, context: RequestContext, positions: Sequence[int]) -> None:
        """A request offers these chunks, in ascending order; perhaps not for the first time."""

    @abstractmethod
    def admits(self, context: RequestContext, position: int) -> bool:
        """Whether it is to be stored."""


class SecondTouch(Admission):
    """What enough requests have offered; each counts once.

    vLLM's ``store_threshold`` counts offers instead, of which one request can make several; what is remembered is
    bounded in the same way, the head of a request longest.
    Rule: vLLM 0.23.0 v1/kv_offload/reuse_manager.py, FilterReusedOffloadingManager.

    Args:
        uses: requests that must have offered a chunk, the one that would store it included.
        tracked_keys: chunks that are remembered.
    """

    def __init__(self, uses: int, tracked_keys: int) -> None:
        self._uses, self._tracked_keys = uses, tracked_keys
        self._counts: OrderedDict[int, int] = OrderedDict()  # the key that was offered longest ago first

    def on_offer(self, context: RequestContext, positions: Sequence[int]) -> None:
        counts, marks, keys = self._counts, context.marks, context.keys
        first_time = [position for position in positions if not marks[position] & COUNTED]
        for position in first_time:
            marks[position] |= COUNTED
        known = [keys[position] for position in first_time if keys[position] in counts]
        new = [keys[position] for position in first_time if keys[position] not in counts]
        for key in reversed(known):
            counts[key] = counts.pop(key) + 1
        for key in reversed(new[: self._tracked_keys - len(known)]):  # never instead of one of this offer
            if len(counts) == self._tracked_keys:
                counts.popitem(last=False)
            counts[key] = 1

    def admits(self, context: RequestContext, position: int) -> bool:
        return self._counts.get(context.keys[position], 0) >= self._uses


class MinLength(Admission):
    """Chunks of requests that are long enough.

    Args:
        chunks: of the request, from which on it is.
    """

    def __init__(self, chunks: int) -> None:
        self._chunks = chunks

    def admits(self, context: RequestContext, position: int) -> bool:
        return context.index(len(context.keys) - 1) + 1 >= self._chunks


class AdmittingLedger(LedgerAround):
    """Stands before a tier and offers it only what is admitted; nothing is stored behind a chunk that is not there.

    What the tier has already is offered all the same: that is how it hears of uses.
    """

    def __init__(self, tier: Primary, admission: Admission) -> None:
        super().__init__(tier)
        self._tier, self._admission = tier, admission

    def prepare_store(self, context: RequestContext, first: int, last: int) -> StorePlan | None:
        return self.prepare_store_of(context, range(first, last))

    def prepare_store_of(self, context: RequestContext, positions: Sequence[int]) -> StorePlan | None:
        self._admission.on_offer(context, positions)
        there = set(self._tier.held(context.path_to(positions)))
        chosen: list[int] = []
        for position in positions:
            key, parent = context.keys[position], context.parent(position)
            if key not in there:
                if (parent is not None and parent not in there) or not self._admission.admits(context, position):
                    continue
                there.add(key)
            chosen.append(position)
        return self._tier.prepare_store_of(context, chosen)
