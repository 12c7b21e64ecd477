"""OPT that need not store what it would evict first."""

from __future__ import annotations

from kvsim.offload.context import RequestContext
from kvsim.offload.policies.leaves import Chunk
from kvsim.offload.policies.opt import OptPolicy


class OptBypassPolicy(OptPolicy):
    """As `opt`, but a new chunk whose next use is not before that of all that could go for it is not stored.

    Definition: Belady's rule with the new chunks among the candidates; the last of a request go unstored first, so what
    is stored of it is still a prefix. What `opt` says of closed loops holds here too.
    """

    def admit(self, context: RequestContext, positions: list[int]) -> list[int]:
        excess = len(self.slots) + len(positions) - self.capacity
        if excess <= 0:
            return positions
        self._protected = self.protected_by(context, positions)
        self._settle()
        kept, victims = list(positions), list[Chunk]()
        while excess > 0 and kept:
            victim = self.next_victim()
            if victim is not None and self.view.next_use(context.request_id, kept[-1]) < victim.note:
                victims.append(victim)
                self._detach(victim)
            else:
                kept.pop()
                if victim is not None:
                    self._moved.append(victim)
                    self.put(victim)
            excess -= 1
        self._moved += self._aside
        self._aside = []
        self._take_back(victims)
        return kept
