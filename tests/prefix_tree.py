"""A random tree of prompts, whose chunks the reference calls by numbers and the extents by the run."""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from kvsim.extents.path import Key, Path, Run

SEGMENT = 10**6


def spelled(keys: Iterable[Key]) -> list[int]:
    """The reference's names of some keys."""
    return [key.segment * SEGMENT + key.position for key in keys]


class PrefixTree:
    """Segments that branch off anywhere in others; a prompt is a way from the root into one of them."""

    def __init__(self, rng: Random, num_segments: int, longest: int) -> None:
        self._rng = rng
        self._ways: list[list[tuple[int, int]]] = []  # of each segment: (segment, end) from the root on
        for segment in range(num_segments):
            way: list[tuple[int, int]] = []
            if segment and rng.random() < 0.8:
                way = self._cut(rng.choice(self._ways))
            first = way[-1][1] if way else 0
            self._ways.append([*way, (segment, first + rng.randint(1, longest))])

    def _cut(self, way: list[tuple[int, int]]) -> list[tuple[int, int]]:
        *before, (segment, end) = way
        first = before[-1][1] if before else 0
        return [*before, (segment, end if self._rng.random() < 0.5 else self._rng.randint(first + 1, end))]

    def path(self) -> Path:
        """A random prompt."""
        way = self._cut(self._rng.choice(self._ways))
        return Path([segment for segment, _end in way], [end for _segment, end in way])

    def stretch(self) -> list[Run]:
        """Part of a prompt."""
        path = self.path()
        first = self._rng.randrange(len(path))
        return path.runs(first, self._rng.randint(first + 1, len(path)))
