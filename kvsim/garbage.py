"""Python's search for unreachable cycles of objects, which a simulation hardly has, only now and then."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_OBJECTS = 500_000
"""Python searches after every 700 new objects by default. That was a seventh of a Mooncake run, for nothing: it needs
no more memory without any search."""
_MANY_OBJECTS = 300_000
"""Left by simulations that are over when it is time to search for them: some 40 MB, a tenth of a second."""
_depth = 0
"""Of `rarely_collected` inside each other."""
_num_unsearched = 0
"""Objects left inside, since the last search of all."""


@contextmanager
def rarely_collected(*, keeps: bool = False) -> Iterator[None]:
    """Inside, the youngest objects are searched once per 500,000 new ones, and those that are there now not at all.

    A simulation is one large cycle. Python would not notice that the last ones have been forgotten, for what was put
    aside does not count as new; so once they are many, all objects are searched before the next one begins.

    ``keeps``: what comes in meanwhile is here to stay, and not searched behind it either.
    """
    global _depth, _num_unsearched  # noqa: PLW0603 - as the thresholds are
    before, is_outermost = gc.get_threshold(), not _depth and not gc.get_freeze_count()  # which counts all, one by one
    if is_outermost and _num_unsearched > _MANY_OBJECTS and before[0]:
        gc.collect()
        _num_unsearched = 0
    gc.set_threshold(max(before[0], _NEW_OBJECTS) if before[0] else 0, *before[1:])
    gc.freeze()
    searches = gc.get_stats()[0]["collections"]
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if is_outermost:
            _num_unsearched += gc.get_count()[0] + _NEW_OBJECTS * (gc.get_stats()[0]["collections"] - searches)
            if keeps:
                gc.freeze()
            gc.unfreeze()
        gc.set_threshold(*before)
