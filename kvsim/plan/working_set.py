"""How much KV is in use at a time: distinct blocks that the prompts of a window touch."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.plan.prompts import Prompts
from kvsim.trace.reuse import blocks_per_window
from kvsim.trace.stats import WINDOWS_S, Distribution, distribution


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """Distinct blocks touched in consecutive windows of one length, counted from the first prompt.

    Attributes:
        window_s: length of a window.
        numbers: of the windows that saw a prompt; window ``n`` begins at ``n * window_s``.
        blocks: distinct blocks touched in each of them.
    """

    window_s: int
    numbers: tuple[int, ...]
    blocks: tuple[int, ...]

    @property
    def distribution(self) -> Distribution:
        """Over the windows that saw a prompt."""
        found = distribution(self.blocks)
        if found is None:
            raise ValueError("no window saw a prompt")
        return found


def working_sets(prompts: Prompts) -> tuple[WorkingSet, ...]:
    """For windows of 60, 300 and 900 s; none for an order without times, or without prompts."""
    if not prompts.times_s:
        return ()
    found = []
    for window_s in WINDOWS_S:
        touched = blocks_per_window(prompts.times_s, prompts.runs, window_s)
        found.append(WorkingSet(window_s, tuple(touched), tuple(touched.values())))
    return tuple(found)
