"""Python's search for unreachable cycles of objects, which a simulation hardly has, only now and then."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_OBJECTS = 500_000
"""Python searches after every 700 new objects by default. That was a seventh of a Mooncake run, for nothing: it needs
no more memory without any search."""
_SEARCH_AFTER_S = 10.0
"""CPU time inside after which all objects are searched once, which takes a tenth of a second: a simulation leaves about
1.4 MB for each second that it took."""
_depth = 0
"""Of `rarely_collected` inside each other."""
_unsearched_s = 0.0
"""CPU time inside since the last search of all objects."""


@contextmanager
def rarely_collected(*, keeps: bool = False) -> Iterator[None]:
    """Inside, the youngest objects are searched once per 500,000 new ones, and those that are there now not at all.

    A simulation is one large cycle. Python would not notice that the last ones have been forgotten, for what was put
    aside does not count as new; so from time to time all objects are searched before the next one begins.

    ``keeps``: what comes in meanwhile is here to stay, and not searched behind it either.
    """
    global _depth, _unsearched_s  # noqa: PLW0603 - as the thresholds are
    before, is_outermost = gc.get_threshold(), not _depth and not gc.get_freeze_count()  # which counts all, one by one
    if is_outermost and _unsearched_s > _SEARCH_AFTER_S and before[0]:
        gc.collect()
        _unsearched_s = 0.0
    gc.set_threshold(max(before[0], _NEW_OBJECTS) if before[0] else 0, *before[1:])
    gc.freeze()
    began_s = time.process_time()
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if is_outermost:
            _unsearched_s += time.process_time() - began_s
            if keeps:
                gc.freeze()
            gc.unfreeze()
        gc.set_threshold(*before)
