"""Checked fields of parsed JSON objects: every complaint names place, field, value and expectation."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import NoReturn

from kvsim.errors import UserError


@dataclass(frozen=True, slots=True)
class Limits:
    """Largest values taken for real; anything above is a broken row, not a workload.

    Attributes:
        max_input_tokens: of one prompt. The largest context of a served model is 10 M (Llama 4 Scout).
        max_output_tokens: of one response.
        max_seconds: of a time or gap (about 32 years: Unix time stamps do not fit, relative ones do).
    """

    max_input_tokens: int = 10_000_000
    max_output_tokens: int = 1_000_000
    max_seconds: float = 1e9


def parse_json(text: str, where: str, *, whole_file: bool = False) -> object:
    """Parses one JSON value; NaN and Infinity are refused as JSON refuses them.

    Args:
        text: the JSON text.
        where: put in front of a complaint.
        whole_file: the text is not one line of a file, so a complaint has to name the line.
    """
    try:
        return _STRICT.decode(text.rstrip())
    except json.JSONDecodeError as error:
        line = f" line {error.lineno}:" if whole_file else ""
        what = f"{error.msg}, column {error.colno}"
        raise UserError(f"{where}:{line} not JSON ({what}), expected a JSON object") from error
    except RecursionError as error:
        raise UserError(f"{where}: nested too deeply, expected a flat JSON object") from error
    except _NotANumber as error:
        raise UserError(f"{where}: holds {error}, expected ordinary numbers") from error
    except ValueError as error:  # Python reads no integer of more than 4,300 digits
        what = "an integer of thousands of digits"
        raise UserError(f"{where}: holds {what}, expected ordinary numbers") from error


class _NotANumber(ValueError):
    """One of the constants that Python's reader takes and JSON does not have."""


def _refuse(constant: str) -> NoReturn:
    raise _NotANumber(constant)


_STRICT = json.JSONDecoder(parse_constant=_refuse)


class Fields:
    """The fields of one JSON object.

    Args:
        where: file and line or request, put in front of every complaint.
        value: the parsed object.
    """

    __slots__ = ("_values", "where")

    def __init__(self, where: str, value: object) -> None:
        if not isinstance(value, dict):
            raise UserError(f"{where}: found {show(value)}, expected a JSON object")
        self.where = where
        self._values = value

    def has(self, key: str) -> bool:
        """Whether the field is there and not null."""
        return self._values.get(key) is not None

    def get(self, key: str) -> object:
        """The field as it is, None if missing."""
        return self._values.get(key)

    def integer(self, key: str, low: int, high: int) -> int:
        """A whole number from `low` to `high`; true, 5.0 and "5" are none."""
        value = self._values.get(key)
        if type(value) is not int or not low <= value <= high:
            self.fail(key, f"an integer from {low:,} to {high:,}")
        return value

    def number(self, key: str, low: float, high: float) -> float:
        """A finite number from `low` to `high`."""
        value = self._values.get(key)
        if type(value) not in (int, float) or not low <= value <= high or not math.isfinite(value):  # type: ignore[operator, arg-type]
            self.fail(key, f"a number from {low:,g} to {high:,g}")
        return float(value)  # type: ignore[arg-type]

    def text(self, key: str) -> str:
        """A string that is not empty."""
        value = self._values.get(key)
        if type(value) is not str or not value:
            self.fail(key, "a text that is not empty")
        return value

    def boolean(self, key: str) -> bool:
        """True or false."""
        value = self._values.get(key)
        if type(value) is not bool:
            self.fail(key, "true or false")
        return value

    def array(self, key: str) -> list[object]:
        """A list."""
        value = self._values.get(key)
        if type(value) is not list:
            self.fail(key, "a list")
        return value

    def ids(self, key: str, expected: int, why: str) -> list[int]:
        """A list of exactly `expected` integers (`why` says where the number comes from)."""
        value = self._values.get(key)
        if type(value) is not list:
            self.fail(key, f"a list of {expected:,} block ids")
        self.check_ids(key, value, expected, why)
        return value

    def check_ids(self, key: str, ids: list[int], expected: int, why: str, before: int = 0) -> None:
        """Complains unless ids are integers and, with those `before` them, as many as expected."""
        if before + len(ids) != expected:
            raise UserError(f"{self.where}: {key} has {before + len(ids):,} ids, expected {expected:,} ({why})")
        if not set(map(type, ids)) <= {int}:
            at = next(place for place, item in enumerate(ids) if type(item) is not int)
            raise UserError(f"{self.where}: {key}[{before + at}] is {show(ids[at])}, expected an integer")

    def fail(self, key: str, expected: str) -> NoReturn:
        """Raises the complaint that field `key` is missing, or not what was expected."""
        if key not in self._values:
            raise UserError(f"{self.where}: {key} is missing, expected {expected}")
        raise UserError(f"{self.where}: {key} is {show(self._values.get(key))}, expected {expected}")


def show(value: object) -> str:
    """A JSON value for a message, cut to a readable length."""
    if isinstance(value, dict):
        return f"an object with {len(value)} keys"
    if isinstance(value, list) and len(value) > 8:
        return f"a list of {len(value)} values"
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 10**20:
        return "an integer of more than 20 digits"
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."
