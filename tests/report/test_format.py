"""Numbers as people read them."""

from __future__ import annotations

import pytest

from kvsim.report.format import change, duration, is_better, memory, number, percent, shorten, traffic, value


@pytest.mark.parametrize(
    ("amount", "text"),
    [
        (0, "0"),
        (0.0, "0"),
        (7, "7"),
        (12345, "12,345"),
        (12345.6, "12,346"),
        (99.55, "99.5"),
        (3.0, "3.00"),
        (0.01234, "0.0123"),
        (-2.5, "-2.50"),
    ],
)
def test_number(amount: float, text: str) -> None:
    """Integers stay as they are; other numbers keep three digits and have no exponent."""
    assert number(amount) == text


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (0, "0 s"),
        (0.84, "0.84 ms"),
        (12.0, "12.0 ms"),
        (999.0, "999 ms"),
        (1000.0, "1.00 s"),
        (119_000.0, "119 s"),
        (382_000.0, "6.37 min"),
        (7_200_000.0, "2.00 h"),
    ],
)
def test_duration(ms: float, text: str) -> None:
    """A time is given in the unit that suits its size."""
    assert duration(ms) == text


def test_sizes() -> None:
    """Traffic is decimal and memory is binary, and the unit says which."""
    assert [traffic(size) for size in (0, 512, 1_500, 2_000_000, 230_000_000_000, 5 * 10**12)] == [
        "0 bytes",
        "512 bytes",
        "1.50 kB",
        "2.00 MB",
        "230 GB",
        "5.00 TB",
    ]
    assert [memory(size) for size in (0, 2**10, 3 * 2**20, 64 * 2**30, 2**42)] == [
        "0 bytes",
        "1.00 KiB",
        "3.00 MiB",
        "64.0 GiB",
        "4,096 GiB",
    ]


def test_values() -> None:
    """Each kind of metric has its unit, and what does not exist is said not to."""
    assert value(None, "ms") == "n/a"
    assert value(0.781, "share") == percent(0.781) == "78.1 %"
    assert value(2.5, "s") == "2.50 s"
    assert value(52.04, "gb_per_s") == "52.0 GB/s"
    assert value(91004, "count") == "91,004"


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((None, None, "ms"), ""),
        ((0, 1.0, "ms"), "same"),
        ((0.0001, 1.00001, "ms"), "same"),
        ((0.00001, 1.1, "share"), "same"),
        ((-66, 0.34, "ms"), "-66.0 %"),
        ((10, 4.2, "per_s"), "4.20 times"),
        ((0.306, 1.5, "share"), "+30.6 points"),
        ((3, None, "count"), "+3"),
        ((2**30, None, "memory_bytes"), "+1.00 GiB"),
    ],
)
def test_change(arguments: tuple[float | None, float | None, str], text: str) -> None:
    """A change is in points for shares, else in percent or multiples, absolute where the first was zero."""
    assert change(*arguments) == text  # type: ignore[arg-type]


def test_is_better() -> None:
    """Lower latency and higher throughput are better; no difference and neutral metrics are neither."""
    assert is_better(-1, "lower") is True
    assert is_better(1, "lower") is False
    assert is_better(1, "higher") is True
    assert is_better(1, "") is None
    assert is_better(0, "higher") is None
    assert is_better(None, "higher") is None


def test_shorten() -> None:
    """A long name keeps its two ends and has exactly the width asked for."""
    assert shorten("abcdef", 6) == "abcdef"
    assert shorten("abcdefghij", 5) == "ab…ij"
    assert shorten("abcdefghij", 6) == "abc…ij"
