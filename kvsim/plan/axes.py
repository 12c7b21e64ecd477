"""The axes of a plan's space: which values each may take, and how they are called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvsim.checked import closest, show
from kvsim.errors import UserError
from kvsim.units import SIZE_UNITS, format_size, parse_size

CPU, NVME, STORE, REPLICAS, SESSIONS = "cpu", "nvme", "shared_store", "replicas", "sessions"
GPU_BLOCKS, GPU_MEMORY, MAX_SEQS = "gpu_blocks", "gpu_memory", "max_num_seqs"
POLICY, FACTOR, ROUTER, PD = "eviction_policy", "block_size_factor", "router", "pd"
SIZES = (CPU, NVME, STORE, GPU_MEMORY)
COUNTS = (REPLICAS, GPU_BLOCKS)
KNOWN = (REPLICAS, GPU_BLOCKS, GPU_MEMORY, CPU, NVME, STORE, POLICY, FACTOR, MAX_SEQS, ROUTER, PD, SESSIONS)

LADDER_SPAN = 64
"""The smallest size that is tried is this part of the largest, rounded down to a power of two: our choice."""
MOST_VALUES = 1000
_OPTIONS: Mapping[str, tuple[str, ...]] = {
    NVME: ("storage", "eviction", "read_bandwidth", "write_bandwidth", "latency", "n_read_threads", "n_write_threads"),
    STORE: ("disk_per_node", "disk", "disk_path", "placement", "replicas"),
}
"""What else may stand beside from and to: keys of the tier, of cluster.store."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Something that a plan may choose.

    Attributes:
        name: as the plan has it: one of `KNOWN`, or a key of the config.
        values: bytes, counts, or plain data for the config; rising where the axis is monotone, but for ``sessions``,
            which falls: fewer are easier to serve.
        labels: of the values, for people.
        monotone: whether more (of sessions: fewer) never makes an SLO harder to meet.
        options: further keys that come with each of the values.
    """

    name: str
    values: tuple[Any, ...]
    labels: tuple[str, ...]
    monotone: bool = False
    options: tuple[tuple[str, Any], ...] = ()

    def index(self, value: object) -> int:
        """Where a value stands."""
        return self.values.index(value)

    def up_to(self, size: int) -> Axis:
        """The same without sizes beyond the first one that holds so many bytes."""
        last = next((at for at, value in enumerate(self.values) if value >= size), len(self.values) - 1)
        return Axis(self.name, self.values[: last + 1], self.labels[: last + 1], self.monotone, self.options)


def parse_axes(data: object, num_sessions: int | None = None) -> tuple[Axis, ...]:
    """The section ``space`` of a plan, in a fixed order whatever the order there.

    Args:
        data: the section.
        num_sessions: of the trace: the most that ``sessions`` can be.

    Raises:
        UserError: names the axis and what is wrong; the caller knows the file.
    """
    if not isinstance(data, Mapping) or not data:
        raise UserError("space: expected axes, such as {replicas: [1, 2], cpu: {from: 0GiB, to: 1TiB}}")
    for name in data:
        if "." not in name and name not in KNOWN:
            guess = closest(name, KNOWN)
            hint = f", did you mean {guess}?" if guess else ""
            raise UserError(
                f"space: unknown axis {name}{hint} (expected {', '.join(KNOWN)}, or a dotted key of the config such as"
                " engine.max_num_batched_tokens)"
            )
    if GPU_BLOCKS in data and GPU_MEMORY in data:
        raise UserError(f"space: expected {GPU_BLOCKS} or {GPU_MEMORY}, found both")
    names = [*(name for name in KNOWN if name in data), *(name for name in data if name not in KNOWN)]
    return tuple(_axis(name, data[name], num_sessions) for name in names)


def ladder(least: int, most: int) -> list[int]:
    """Sizes to try between two: powers of two and one and a half times them, with both ends."""
    rungs = {least, most}
    rung = 1 << max((most // LADDER_SPAN).bit_length() - 1, 0)
    while rung < most:
        rungs |= {size for size in (rung, rung + rung // 2) if least < size < most}
        rung *= 2
    return sorted(rungs)


def _axis(name: str, data: object, num_sessions: int | None) -> Axis:
    place = f"space.{name}"
    if name in SIZES:
        return _sizes(name, data, place)
    if name == SESSIONS:
        return _sessions(data, place, num_sessions)
    if isinstance(data, Mapping) and name not in KNOWN:
        if not data:
            raise UserError(f"{place}: expected values, found none")
        return Axis(name, tuple(data.values()), tuple(map(str, data)))
    if not isinstance(data, Sequence) or isinstance(data, str):
        data = [data]
    if not data:
        raise UserError(f"{place}: expected values, found none")
    if name in (*COUNTS, MAX_SEQS, FACTOR):
        counts = [_count(value, place) for value in data]
        _check_different(counts, place)
        values = sorted(counts) if name in COUNTS else counts
        return Axis(name, tuple(values), tuple(map(str, values)), name in COUNTS)
    labels = [_label(value) for value in data]
    _check_different(labels, place)
    if name == PD:
        data = [_pd(value, place) for value in data]
    if name == ROUTER:
        data = [{"kind": value} if isinstance(value, str) else value for value in data]
        for value in data:
            if not isinstance(value, Mapping) or "kind" not in value:
                raise UserError(f"{place}: expected a router's name, or {{kind: ...}}, found {show(value)}")
    return Axis(name, tuple(data), tuple(labels))


def _sizes(name: str, data: object, place: str) -> Axis:
    options: tuple[tuple[str, Any], ...] = ()
    if isinstance(data, Mapping):
        known = ("from", "to", "step", "values", *_OPTIONS.get(name, ()))
        for key in data:
            if key not in known:
                guess = closest(str(key), known)
                hint = f", did you mean {guess}?" if guess else ""
                raise UserError(f"{place}: unknown key {key}{hint} (expected {', '.join(known)})")
        options = tuple((key, data[key]) for key in _OPTIONS.get(name, ()) if key in data)
        values = _given(data["values"], f"{place}.values") if "values" in data else _range(data, place)
        if "values" in data and {"from", "to", "step"} & set(data):
            raise UserError(f"{place}: expected from and to, or values, found both")
    else:
        values = _given(data, place)
    if name == GPU_MEMORY and 0 in values:
        raise UserError(f"{place}: expected sizes above 0, found 0")
    return Axis(name, tuple(values), tuple(map(_size_label, values)), monotone=True, options=options)


def _given(data: object, place: str) -> list[int]:
    found = [_size(value, place) for value in (data if isinstance(data, list) else [data])]
    if not found:
        raise UserError(f"{place}: expected sizes, found none")
    _check_different(found, place)
    return sorted(found)


def _range(data: Mapping[str, Any], place: str) -> list[int]:
    for key in ("from", "to"):
        if key not in data:
            raise UserError(f"{place}.{key} is missing, expected {{from: 0GiB, to: 1TiB}}")
    least, most = (_size(data[key], f"{place}.{key}") for key in ("from", "to"))
    if most <= least:
        raise UserError(f"{place}: expected to above from ({_size_label(least)}), found {_size_label(most)}")
    if "step" not in data:
        return ladder(least, most)
    step = _size(data["step"], f"{place}.step")
    if not step or (most - least) // step >= MOST_VALUES:
        raise UserError(f"{place}.step: expected a size that gives up to {MOST_VALUES} values, found {data['step']!r}")
    return [*range(least, most, step), most]


def _sessions(data: object, place: str, num_sessions: int | None) -> Axis:
    """Falling: of fewer sessions the last ones are the easiest."""
    if isinstance(data, Mapping):
        for key in data:
            if key not in ("from", "to"):
                raise UserError(f"{place}: unknown key {key} (expected from, to)")
        least = _count(data.get("from", 1), f"{place}.from")
        if "to" not in data and num_sessions is None:
            raise UserError(f"{place}.to is missing, expected a number of sessions")
        most = _count(data.get("to", num_sessions), f"{place}.to")
        if most < least:
            raise UserError(f"{place}: expected to of at least from ({least}), found {most}")
        if most - least >= MOST_VALUES:
            raise UserError(f"{place}: expected up to {MOST_VALUES} values, found {least} to {most}")
        counts = list(range(least, most + 1))
    else:
        given = data if isinstance(data, list) else [data]
        counts = [_count(value, place) for value in given]
        if not counts:
            raise UserError(f"{place}: expected numbers of sessions, found none")
        _check_different(counts, place)
    values = sorted(counts, reverse=True)
    if num_sessions is not None and values[0] > num_sessions:
        raise UserError(
            f"{place}: expected at most {num_sessions}, as so many sessions are played; found {values[0]} at a time"
        )
    return Axis(SESSIONS, tuple(values), tuple(map(str, values)), monotone=True)


def _pd(value: object, place: str) -> object:
    if value in (None, "none"):
        return None
    if not isinstance(value, Mapping) or set(value) != {"prefill", "decode"}:
        raise UserError(f"{place}: expected none or {{prefill: 1, decode: 1}}, found {_label(value)}")
    return {key: _count(value[key], f"{place}.{key}") for key in ("prefill", "decode")}


def _count(value: object, place: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UserError(f"{place}: expected whole numbers of at least 1, found {show(value)}")
    return value


def _size(value: object, place: str) -> int:
    try:
        return parse_size(value)
    except ValueError as error:
        raise UserError(f"{place}: {error}") from None


def _size_label(size: int) -> str:
    """As people say it: odd sizes, such as a working set's, to three digits."""
    exact = format_size(size)
    if len(exact) <= 9:
        return exact
    unit, unit_bytes = next((unit, each) for unit, each in SIZE_UNITS.items() if size >= each)
    return f"{size / unit_bytes:.3g}{unit}"


def _label(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        if set(value) == {"kind"}:
            return str(value["kind"])
        return " ".join(f"{key}={_label(each)}" for key, each in value.items())
    if isinstance(value, list):
        return ",".join(map(_label, value))
    return str(value)


def _check_different(values: Sequence[object], place: str) -> None:
    twice = [value for value in values if values.count(value) > 1]
    if twice:
        raise UserError(f"{place}: expected different values, found {twice[0]} {values.count(twice[0])} times")
