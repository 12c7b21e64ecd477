"""The flags of ``vllm serve`` of each release: their names, and what their values may be."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from kvsim.vllm_args import human_int, parse_json

_TABLE = Path(__file__).resolve().parent.parent / "presets" / "vllm_flags.yaml"
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
# Facts about removed flags that posts still have; vLLM 0.23.0 and 0.33.0 know none of them.
REMOVED = {
    "--swap-space": "V1 swaps no KV to CPU memory; --kv-offloading-size GIB offloads it",
    "--max-seq-len-to-capture": "--max-cudagraph-capture-size is about batches",
    "--cuda-graph-sizes": "now --cudagraph-capture-sizes",
    "--num-scheduler-steps": "V1 has no multi-step scheduling",
    "--task": "now --runner pooling or --convert",
    "--max-num-partial-prefills": "V1 never kept to it",
    "--max-long-partial-prefills": "V1 never kept to it",
    "--calculate-kv-scales": "scales come with the checkpoint",
    "--disable-log-requests": "requests are not logged unless --enable-log-requests",
}


@dataclass(frozen=True)
class Flag:
    """A flag of ``vllm serve``; the fields are those of ``presets/vllm_flags.yaml``."""

    name: str
    type: str
    group: str
    short: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    nargs: str = ""
    optional: bool = False
    choices: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()

    @property
    def takes_value(self) -> bool:
        """Whether a value follows."""
        return self.type not in ("switch", "on")


@cache
def flags_of(version: str) -> dict[str, Flag]:
    """The flags of a release, by name."""
    table = yaml.load(_TABLE.read_text(encoding="utf-8"), Loader=_LOADER)  # noqa: S506 - a safe loader
    found: dict[str, Flag] = {}
    for name, entry in table.items():
        own = entry if "type" in entry else entry.get(version)
        if own is None or own.get("only", version) != version:
            continue
        listed = {key: tuple(own[key]) for key in ("short", "also", "choices", "keys") if key in own}
        found[name] = Flag(name, own["type"], own["group"], nargs=own.get("nargs", ""),
                           optional=own.get("optional", False), **listed)  # fmt: skip
    return found


@cache
def spellings(version: str) -> dict[str, tuple[Flag, bool]]:
    """Every way to write a flag, and whether it then means true."""
    found: dict[str, tuple[Flag, bool]] = {}
    for flag in flags_of(version).values():
        for name in (flag.name, *flag.also, *flag.short):
            found[name] = (flag, True)
        if flag.type == "switch":
            found[f"--no-{flag.name[2:]}"] = (flag, False)
            for one, other in (("--enable-", "--disable-"), ("--disable-", "--enable-")):
                if version != "0.23.0" and flag.name.startswith(one):
                    found[other + flag.name.removeprefix(one)] = (flag, False)
    return found


class Refused(ValueError):
    """Says what was expected itself."""


def _length(text: str) -> int:
    return -1 if text.strip() == "-1" or text.strip().lower() == "auto" else human_int(text)


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise Refused(f"is not JSON ({error.msg})") from None


def _object(text: str) -> Any:
    found = parse_json(text)
    if not isinstance(found, dict):
        raise Refused("expected a JSON object")
    return found


def _text_or_json(text: str) -> Any:
    return _json(text) if re.match(r"(?s)^\s*{.*}\s*$", text) else text


CONVERSIONS: dict[str, Callable[[str], Any]] = {
    "str": str,
    "append": str,
    "int": int,
    "float": float,
    "human-int": human_int,
    "human-int-or-auto": _length,
    "json": _json,
    "config": _object,
    "text-or-json": _text_or_json,
    "backend": lambda text: text.lower().replace("-", "_"),
}
EXPECTED = {
    "int": "a whole number (1k and 1K are not understood here)",
    "float": "a plain number",
    "human-int": "a whole number such as 8192, 8k (8000) or 8K (8192)",
    "human-int-or-auto": "a whole number such as 8192, 8k (8000) or 8K (8192), or auto",
}
