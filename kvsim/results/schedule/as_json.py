"""Records of a schedule as JSON objects and back; whatever is not of its type is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, NoReturn

from kvsim.results.schedule.records import (
    DIRECTIONS,
    FORMAT,
    LAYOUT_KINDS,
    VERSION,
    WAY_NAMES,
    Header,
    Initial,
    Job,
    Layout,
    Pairs,
    Step,
    Way,
)
from kvsim.results.schedule.rules import BrokenRuleError

_HEADER_TEXTS = ("run", "kvsim", "digest", "model", "vllm_version", "gpu", "link")
_HEADER_NUMBERS = ("rank", "tensor_parallel_size", "gpu_blocks", "host_blocks")
_HEADER = ("format", "version", *_HEADER_TEXTS, *_HEADER_NUMBERS, "layout", "way", "filter", "initial")
_LAYOUT_NUMBERS = ("layers", "kv_heads", "head_size", "block_tokens", "pieces", "piece_bytes")
_LAYOUT = ("kind", "dtype", *_LAYOUT_NUMBERS)
_STEP = ("step", "start_ns", "not_before_ns", "compute_ns", "end_ns", "after", "writes", "jobs")
_JOB = (
    "job", "direction", "request", "source", "destination", "contents", "behind", "after", "bytes", "submitted_ns",
    "started_ns", "finished_ns",
)  # fmt: skip


def header_line(header: Header) -> str:
    """A header as one line of JSON."""
    layout = {name: getattr(header.layout, name) for name in Layout.__slots__}
    initial = header.initial
    return _line(
        {
            "format": FORMAT,
            "version": VERSION,
            **{name: getattr(header, name) for name in (*_HEADER_TEXTS, *_HEADER_NUMBERS)},
            "layout": layout,
            "way": {"load": header.way.load, "store": header.way.store},
            "filter": header.filter,
            "initial": None if initial is None else {"gpu": initial.gpu, "host": initial.host, "files": initial.files},
        }
    )


def step_line(step: Step) -> str:
    """A step as one line of JSON."""
    record: dict[str, Any] = {name: getattr(step, name) for name in _STEP}
    record["jobs"] = [{name: getattr(job, name) for name in _JOB} for job in step.jobs]
    return _line(record)


def _line(record: Mapping[str, Any]) -> str:
    return _ENCODE(record) + "\n"


def parse_object(text: str) -> dict[str, Any]:
    """One line as a JSON object.

    Raises:
        BrokenRuleError: it is none.
    """
    try:
        value = _STRICT.decode(text.strip())
    except json.JSONDecodeError as error:
        raise BrokenRuleError(f"not JSON ({error.msg}, column {error.colno}), expected a JSON object") from None
    except RecursionError:
        raise BrokenRuleError("nested too deeply, expected a flat JSON object") from None
    except ValueError as error:  # a constant that JSON has not, or an integer of thousands of digits
        what = str(error) if isinstance(error, _NoNumberError) else "an integer of thousands of digits"
        raise BrokenRuleError(f"holds {what}, expected whole numbers") from None
    if not isinstance(value, dict):
        raise BrokenRuleError(f"found {_show(value)}, expected a JSON object")
    return value


def header_of(value: dict[str, Any]) -> Header:
    """A header from its JSON object.

    Raises:
        BrokenRuleError: another format or version, or a field that is missing, unknown or of another type.
    """
    if value.get("format") != FORMAT:
        _fail("format", value.get("format"), f'"{FORMAT}"')
    if value.get("version") != VERSION or type(value.get("version")) is not int:
        _fail("version", value.get("version"), str(VERSION))
    _keys("", value, _HEADER)
    layout = _object("layout", value["layout"], _LAYOUT)
    way = _object("way", value["way"], ("load", "store"))
    plain: dict[str, Any] = {name: _text(name, value[name]) for name in _HEADER_TEXTS}
    plain |= {name: _number(name, value[name]) for name in _HEADER_NUMBERS}
    if value["filter"] is not None and not isinstance(value["filter"], dict):
        _fail("filter", value["filter"], "null or an object")
    return Header(
        **plain,
        layout=Layout(
            kind=_one_of("layout.kind", layout["kind"], LAYOUT_KINDS),
            dtype=_text("layout.dtype", layout["dtype"]),
            **{name: _number(f"layout.{name}", layout[name]) for name in _LAYOUT_NUMBERS},
        ),
        way=Way(
            _one_of("way.load", way["load"], WAY_NAMES),
            _one_of("way.store", way["store"], WAY_NAMES),
        ),
        filter=value["filter"],
        initial=None if value["initial"] is None else _initial(value["initial"]),
    )


def _initial(value: object) -> Initial:
    sides = _object("initial", value, ("gpu", "host", "files"))
    return Initial(**{side: _pairs(f"initial.{side}", pairs) for side, pairs in sides.items()})


def step_of(value: dict[str, Any]) -> Step:
    """A step from its JSON object.

    Raises:
        BrokenRuleError: a field is missing, unknown or of another type.
    """
    _keys("", value, _STEP)
    if type(value["jobs"]) is not list:
        _fail("jobs", value["jobs"], "a list of objects")
    return Step(
        step=_number("step", value["step"]),
        start_ns=_number("start_ns", value["start_ns"]),
        not_before_ns=_number_or_null("not_before_ns", value["not_before_ns"]),
        compute_ns=_number("compute_ns", value["compute_ns"]),
        end_ns=_number("end_ns", value["end_ns"]),
        after=_ids("after", value["after"]),
        writes=_pairs("writes", value["writes"]),
        jobs=tuple(_job(f"jobs[{place}]", job) for place, job in enumerate(value["jobs"])),
    )


def _job(name: str, given: object) -> Job:
    value = _object(name, given, _JOB)
    behind = value["behind"]
    if behind not in (None, "previous", "this"):
        _fail(f"{name}.behind", behind, '"previous", "this" or null')
    return Job(
        job=_number(f"{name}.job", value["job"]),
        direction=_one_of(f"{name}.direction", value["direction"], DIRECTIONS),
        request=None if value["request"] is None else _text(f"{name}.request", value["request"]),
        source=_ids(f"{name}.source", value["source"]),
        destination=_ids(f"{name}.destination", value["destination"]),
        contents=_ids(f"{name}.contents", value["contents"]),
        behind=behind,
        after=_ids(f"{name}.after", value["after"]),
        bytes=_number(f"{name}.bytes", value["bytes"]),
        submitted_ns=_number(f"{name}.submitted_ns", value["submitted_ns"]),
        started_ns=_number_or_null(f"{name}.started_ns", value["started_ns"]),
        finished_ns=_number(f"{name}.finished_ns", value["finished_ns"]),
    )


# -- types
def _keys(name: str, value: dict[str, Any], expected: Sequence[str]) -> None:
    where = f"{name}: " if name else ""
    missing = [key for key in expected if key not in value]
    if missing:
        raise BrokenRuleError(f"{where}{missing[0]} is missing, expected {', '.join(expected)}")
    unknown = [key for key in value if key not in expected]
    if unknown:
        raise BrokenRuleError(f"{where}{unknown[0]} is unknown, expected {', '.join(expected)}")


def _object(name: str, value: object, keys: Sequence[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        _fail(name, value, "an object")
    _keys(name, value, keys)
    return value


def _number(name: str, value: object) -> int:
    if type(value) is not int:
        _fail(name, value, "a whole number")
    return value


def _number_or_null(name: str, value: object) -> int | None:
    return None if value is None else _number(name, value)


def _text(name: str, value: object) -> str:
    if type(value) is not str or not value:
        _fail(name, value, "a text that is not empty")
    return value


def _one_of(name: str, value: object, names: Sequence[Any]) -> Any:
    if not isinstance(value, str) or value not in names:
        _fail(name, value, f"one of {', '.join(names)}")
    return value


def _ids(name: str, value: object) -> tuple[int, ...]:
    if type(value) is not list:
        _fail(name, value, "a list of whole numbers")
    if not set(map(type, value)) <= {int}:
        place = next(i for i, each in enumerate(value) if type(each) is not int)
        _fail(f"{name}[{place}]", value[place], "a whole number")
    return tuple(value)


def _pairs(name: str, value: object) -> Pairs:
    if type(value) is not list:
        _fail(name, value, "a list of pairs")
    for place, pair in enumerate(value):
        if type(pair) is not list or len(pair) != 2:
            _fail(f"{name}[{place}]", pair, "a pair of whole numbers")
    flat = _ids(name, list(chain.from_iterable(value)))
    return tuple(zip(flat[::2], flat[1::2], strict=True))


class _NoNumberError(ValueError):
    """One of the constants that Python's reader takes and JSON does not have."""


def _refuse(constant: str) -> NoReturn:
    raise _NoNumberError(constant)


_STRICT = json.JSONDecoder(parse_constant=_refuse)
_ENCODE = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def _show(value: object) -> str:
    if isinstance(value, dict):
        return f"an object with {len(value)} keys"
    if isinstance(value, list) and len(value) > 8:
        return f"a list of {len(value)} values"
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _fail(name: str, value: object, expected: str) -> NoReturn:
    raise BrokenRuleError(f"{name} is {_show(value)}, expected {expected}")
