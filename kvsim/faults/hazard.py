"""When something goes wrong: by chance, in windows of time, or by number."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from kvsim.clock import Clock


@dataclass(frozen=True, slots=True)
class Chance:
    """How often a kind of fault happens.

    ``rate`` per block, key or job, whatever is at stake; ``windows`` (start, end) in ns in which it holds, none =
    always; ``numbers`` = jobs, counted from 0, that it happens to in any case.
    """

    rate: float = 0.0
    windows: Sequence[tuple[int, int]] = ()
    numbers: frozenset[int] = field(default_factory=frozenset)


class Hazard:
    """A chance with its own stream of random numbers: faults of one kind do not shift those of another.

    Args:
        seed: the config's.
        name: of the kind; the same seed and name give the same stream.
    """

    def __init__(self, clock: Clock, chance: Chance, seed: int, name: str) -> None:
        self._clock, self._chance = clock, chance
        self._random = random.Random(f"{seed} {name}")

    def may_strike(self) -> bool:
        """Whether chance decides now; if not, nobody need ask for one thing after another."""
        chance, now = self._chance, self._clock.now
        return chance.rate > 0 and (not chance.windows or any(start <= now < end for start, end in chance.windows))

    def strikes(self) -> bool:
        """Whether it happens to the next thing at stake."""
        return self.may_strike() and self._random.random() < self._chance.rate

    def names(self, number: int) -> bool:
        """Whether it happens to this job in any case."""
        return number in self._chance.numbers
