"""Sizes, times and rates as people write them (``64GiB``, ``30ms``, ``55GB/s``) and as the simulator does.

Inside the simulator everything is an integer: bytes, nanoseconds, bytes per second. In text every quantity
has its unit, because ``64`` may be bytes, GB or GiB and the answer differs by 7 % or by nine powers of ten.
GB is 10**9 and GiB is 2**30, always. Plain numbers are refused, except 0.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer

SIZE_UNITS: Mapping[str, int] = {
    "TiB": 2**40, "GiB": 2**30, "MiB": 2**20, "KiB": 2**10,
    "TB": 10**12, "GB": 10**9, "MB": 10**6, "KB": 10**3, "B": 1,
}  # fmt: skip
"""Bytes per unit, largest first within binary and decimal."""

TIME_UNITS: Mapping[str, int] = {
    "h": 3600 * 10**9, "min": 60 * 10**9, "s": 10**9, "ms": 10**6, "us": 10**3, "ns": 1,
}  # fmt: skip
"""Nanoseconds per unit, largest first."""

RATE_UNITS: Mapping[str, int] = {f"{unit}/s": bytes_ for unit, bytes_ in SIZE_UNITS.items()}
"""Bytes per second per unit."""

LARGEST = 2**63 - 1
"""Times and sizes are stored as int64 in the result files."""

# At most two digits of exponent, so that 1e999999999GiB is refused before anybody computes it.
_QUANTITY = re.compile(r"\s*(-?)\+?([0-9][0-9_]{0,24}(?:\.[0-9]{1,24})?(?:[eE][+-]?[0-9]{1,2})?)\s*(.*?)\s*")


def parse_size(value: object) -> int:
    """Bytes of ``64GiB``, ``512 GB``, ``1.5TiB`` or 0.

    Raises:
        ValueError: says what was found and how to write it.
    """
    return _parse(value, SIZE_UNITS, "a size with its unit, such as 64GiB or 64GB", _explain_size)


def parse_time(value: object) -> int:
    """Nanoseconds of ``30ms``, ``1.5h``, ``60 s`` or 0.

    Raises:
        ValueError: says what was found and how to write it.
    """
    return _parse(value, TIME_UNITS, "a time with its unit, such as 30ms, 60s or 1.5h", _explain_time)


def parse_rate(value: object) -> int:
    """Bytes per second of ``55GB/s``, ``100 MiB/s`` or 0.

    Raises:
        ValueError: says what was found and how to write it.
    """
    return _parse(value, RATE_UNITS, "a rate with its unit, such as 55GB/s", _explain_rate)


def format_size(size_bytes: int) -> str:
    """The shortest exact spelling of a size: 68719476736 is ``64GiB``, 512000000000 is ``512GB``."""
    return _format(size_bytes, SIZE_UNITS)


def format_time(time_ns: int) -> str:
    """The shortest exact spelling of a time: 90000000000 is ``90s``."""
    return _format(time_ns, TIME_UNITS)


def format_rate(bytes_per_s: int) -> str:
    """The shortest exact spelling of a rate: 83400000000 is ``83.4GB/s``."""
    return _format(bytes_per_s, RATE_UNITS)


Size = Annotated[int, BeforeValidator(parse_size), PlainSerializer(format_size)]
"""A config field in bytes, written with its unit."""

Duration = Annotated[int, BeforeValidator(parse_time), PlainSerializer(format_time)]
"""A config field in nanoseconds, written with its unit."""

Rate = Annotated[int, BeforeValidator(parse_rate), PlainSerializer(format_rate)]
"""A config field in bytes per second, written with its unit."""


def _parse(value: object, units: Mapping[str, int], expected: str, explain: Any) -> int:
    if isinstance(value, int | float) and not isinstance(value, bool):
        if value == 0:
            return 0
        raise ValueError(f"expected {expected}, found the plain number {value!r:.40}")
    if not isinstance(value, str):
        raise ValueError(f"expected {expected}, found {_kind(value)}")
    match = _QUANTITY.fullmatch(value)
    if match is None:
        raise ValueError(f"expected {expected}, found {value!r:.60}")
    sign, number, unit = match.groups()
    amount = Fraction(number)
    unit = unit.replace("µ", "u").replace("μ", "u")  # both Unicode spellings of micro
    if not unit and amount == 0:
        return 0
    if unit not in units:
        raise ValueError(f"expected {expected}, found {value!r:.60}{explain(number, unit)}")
    if sign and amount:
        raise ValueError(f"expected {expected}, not negative, found {value!r:.60}")
    result = round(amount * units[unit])
    if amount and not result:
        raise ValueError(f"expected {expected}, found {value!r:.60}, which rounds to 0")
    if result > LARGEST:
        raise ValueError(f"expected {expected}, found {value!r:.60}, which is more than 2**63 - 1")
    return result


def _kind(value: object) -> str:
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    return f"{value!r:.60}"


def _explain_size(number: str, unit: str) -> str:
    letter = unit[:1].upper()
    if unit == "":
        return " without a unit"
    if unit.endswith(("/s", "ps")):
        return ": that is a rate, not a size"
    if letter not in "KMGT" or unit.lower() not in {letter.lower() + tail for tail in ("", "b", "i", "ib")}:
        return f" with the unknown unit {unit!r:.20} (units: {', '.join(SIZE_UNITS)})"
    power = {"K": 1, "M": 2, "G": 3, "T": 4}[letter]
    return (
        f": {unit!r} could be read two ways, write {number}{letter}iB (2**{10 * power} bytes each)"
        f" or {number}{letter}B (10**{3 * power} bytes each)"
    )


def _explain_time(number: str, unit: str) -> str:
    if unit == "":
        return " without a unit"
    if unit == "m":
        return f": 'm' could be read two ways, write {number}min or {number}ms"
    words = {"sec": "s", "secs": "s", "second": "s", "seconds": "s", "minute": "min", "minutes": "min",
             "mins": "min", "hour": "h", "hours": "h", "hr": "h", "hrs": "h"}  # fmt: skip
    right = words.get(unit.lower(), unit.lower() if unit != "M" else "min")
    if right in TIME_UNITS:
        return f": write {number}{right}"
    return f" with the unknown unit {unit!r:.20} (units: {', '.join(TIME_UNITS)})"


def _explain_rate(number: str, unit: str) -> str:
    bits = re.fullmatch(r"([KMGTkmgt])(?:b/s|bps|bit/s)", unit)
    if unit == "":
        return " without a unit"
    if bits:
        eighth = Fraction(number) / 8
        return f": {unit!r} counts bits, write {float(eighth):g}{bits[1].upper()}B/s"
    if unit in SIZE_UNITS:
        return f": write {number}{unit}/s"
    return f" with the unknown unit {unit!r:.20} (units: {', '.join(RATE_UNITS)})"


def _format(amount: int, units: Mapping[str, int]) -> str:
    """The shortest exact spelling with at most three decimals; the first unit of the table wins ties."""
    if amount < 0:
        raise ValueError(f"a quantity cannot be negative: {amount}")
    if amount == 0:
        return "0"
    spellings = []
    for unit, size in units.items():
        whole, rest = divmod(amount, size)
        if rest * 1000 % size == 0 and (whole or size == 1):
            decimals = f".{rest * 1000 // size:03d}".rstrip("0").rstrip(".")
            spellings.append(f"{whole}{decimals}{unit}")
    return min(spellings, key=len)
