"""Python's search for unreachable cycles of objects, which a simulation hardly has, only now and then."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

_NEW_OBJECTS = 50_000
"""Python searches after every 700 new objects by default. That was a seventh of a Mooncake run, for nothing: it needs
no more memory without any search."""


@contextmanager
def rarely_collected() -> Iterator[None]:
    """Inside, the youngest objects are searched once per 50,000 new ones, and those that are there now not at all."""
    before, is_outermost = gc.get_threshold(), not gc.get_freeze_count()
    gc.set_threshold(max(before[0], _NEW_OBJECTS) if before[0] else 0, *before[1:])
    gc.freeze()
    try:
        yield
    finally:
        gc.set_threshold(*before)
        if is_outermost:
            gc.unfreeze()
