"""Values of a key, drawn at random: from a list, or from a range of numbers, sizes, times or rates."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from kvsim.checked import closest, show
from kvsim.units import parse_rate, parse_size, parse_time

T = TypeVar("T")
_PARSERS: tuple[Callable[[object], int], ...] = (parse_size, parse_time, parse_rate)
_DIGITS = 6  # significant ones of what is drawn: enough for any size, and readable


class Draws:
    """The draws of one key. Point ``i`` gets the same value however many points there are."""

    def __init__(self, seed: int, axis: str) -> None:
        self._random = random.Random(f"{seed}:{axis}")

    def among(self, choices: Sequence[T], number: int) -> list[T]:
        """So many of them, with replacement."""
        return [choices[int(self._random.random() * len(choices))] for _ in range(number)]

    def between(self, wanted: Mapping[str, Any], number: int) -> list[Any]:
        """So many values of a range ``{from: 32GiB, to: 1TiB, scale: log}``, both ends included.

        Whole numbers stay whole; sizes, times and rates are drawn in the unit of ``from``.

        Raises:
            ValueError: what is wrong with the range.
        """
        for key in wanted:
            if key not in ("from", "to", "scale"):
                guess = closest(key, ("from", "to", "scale"))
                raise ValueError(
                    f"unknown key {key}, expected from, to, scale{f', did you mean {guess}?' if guess else ''}"
                )
        if "from" not in wanted or "to" not in wanted:
            raise ValueError(f"{'to' if 'from' in wanted else 'from'} is missing, expected both ends of the range")
        scale = wanted.get("scale", "linear")
        if scale not in ("linear", "log"):
            raise ValueError(f"scale: expected linear or log, found {show(scale)}")
        lowest, highest = wanted["from"], wanted["to"]
        if isinstance(lowest, str):
            return self._quantities(lowest, highest, scale == "log", number)
        for key, end in (("from", lowest), ("to", highest)):
            if isinstance(end, bool) or not isinstance(end, int | float) or not math.isfinite(end):
                raise ValueError(f"{key}: expected a number, as at the other end, found {show(end)}")
        _check_order(lowest, highest, lowest, highest, scale == "log")
        if isinstance(lowest, int) and isinstance(highest, int):
            # Every whole number has a part of the range of its own, of length 1.
            return [
                min(max(math.floor(self._real(lowest, highest + 1, scale == "log")), lowest), highest)
                for _ in range(number)
            ]
        drawn = (float(f"{self._real(lowest, highest, scale == 'log'):.{_DIGITS}g}") for _ in range(number))
        return [min(max(value, float(lowest)), float(highest)) for value in drawn]

    def _quantities(self, lowest: str, highest: Any, is_log: bool, number: int) -> list[str]:
        parse = next((parser for parser in _PARSERS if _parses(parser, lowest)), None)
        if parse is None:
            raise ValueError(f"from: expected a number, or a size, time or rate with its unit, found {show(lowest)}")
        first = parse(lowest)
        try:
            last = parse(highest)
        except ValueError as error:
            raise ValueError(f"to: {error}") from None
        _check_order(first, last, lowest, highest, is_log)
        unit = re.sub(r"^[^A-Za-zµμ]*(?:[eE][+-]?\d+\s*)?", "", lowest.strip())
        unit_size = parse(f"1{unit}")
        found = []
        for _ in range(number):
            text = f"{self._real(first, last, is_log) / unit_size:.{_DIGITS}g}{unit}"
            found.append(str(lowest) if parse(text) < first else str(highest) if parse(text) > last else text)
        return found

    def _real(self, lowest: float, highest: float, is_log: bool) -> float:
        share = self._random.random()
        if is_log:
            return math.exp(math.log(lowest) + share * (math.log(highest) - math.log(lowest)))
        return lowest + share * (highest - lowest)


def _parses(parser: Callable[[object], int], text: str) -> bool:
    try:
        parser(text)
    except ValueError:
        return False
    return True


def _check_order(first: float, last: float, lowest: object, highest: object, is_log: bool) -> None:
    if first >= last:
        raise ValueError(f"expected from less than to, found {show(lowest)} and {show(highest)}")
    if is_log and first <= 0:
        raise ValueError(f"scale: log: expected from more than 0, found {show(lowest)}")
