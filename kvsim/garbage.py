"""Python's search for unreachable cycles of objects, which a simulation hardly has, only now and then."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_OBJECTS = 500_000
"""Python searches after every 700 new objects by default. That was a seventh of a Mooncake run, for nothing: it needs
no more memory without any search."""
_depth = 0
"""Of `rarely_collected` inside each other."""


@contextmanager
def rarely_collected(*, keeps: bool = False) -> Iterator[None]:
    """Inside, the youngest objects are searched once per 500,000 new ones, and those that are there now not at all.

    ``keeps``: what comes in meanwhile is here to stay, and not searched behind it either. (A simulation is not: it is one
    large cycle, which must be found when it is forgotten.)
    """
    global _depth  # noqa: PLW0603 - as the thresholds are
    before, is_outermost = gc.get_threshold(), not _depth and not gc.get_freeze_count()  # which counts all, one by one
    gc.set_threshold(max(before[0], _NEW_OBJECTS) if before[0] else 0, *before[1:])
    gc.freeze()
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if is_outermost:
            if keeps:
                gc.freeze()
            gc.unfreeze()
        gc.set_threshold(*before)
