"""What vLLM is told about KV connectors, in our words: a ``--kv-transfer-config`` JSON becomes a connector section.

Keys, units and defaults are vLLM's (0.33.0 config/kv_transfer.py and the connectors' own reading of
``kv_connector_extra_config``). vLLM ignores extra keys that it does not know, so that a typo never fails there; here
each is named. What changes nothing in a simulation is listed in a note; what would change decisions and is not
simulated is refused.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kvsim.checked import closest, show
from kvsim.errors import UserError
from kvsim.registry import CONNECTORS

GIB = 2**30
# vLLM 0.33.0 kv_connector/factory.py, and names of before.
KNOWN_CONNECTORS = (
    "DecodeBenchConnector", "ExampleConnector", "ExampleHiddenStatesConnector", "FlexKVConnectorV1", "HF3FSKVConnector",
    "HiSparseConnector", "LMCacheConnectorV1", "LMCacheMPConnector", "MoRIIOConnector", "MooncakeConnector",
    "MooncakeStoreConnector", "MultiConnector", "NixlConnector", "NixlPullConnector", "NixlPushConnector",
    "OffloadingConnector", "P2pNcclConnector", "SharedStorageConnector", "SimpleCPUOffloadConnector",
)  # fmt: skip
TOP_KEYS = (
    "kv_connector", "kv_role", "kv_connector_extra_config", "kv_load_failure_policy", "kv_connector_module_path",
    "engine_id", "kv_buffer_device", "kv_port", "enable_permute_local_kv",
)  # fmt: skip
REMOVED_KEYS = ("kv_buffer_size", "kv_rank", "kv_parallel_size", "kv_ip")  # an error since 0.24
ROLES = ("kv_both", "kv_producer", "kv_consumer")
_SIZES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_BARE_SIZE = re.compile(r'"(?:[^"\\]|\\.)*"|(?<![\w.])(\d+(?:\.\d+)?)([kmgtKMGT])\b')


@dataclass(slots=True)
class Translation:
    """A connector section, and what was left out of it and why."""

    connector: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def translate(value: object, version: str) -> Translation:
    """Translate what follows ``--kv-transfer-config``, or flags of ``vllm serve``, for a release.

    Args:
        value: the JSON, as text or as a mapping; or ``--kv-transfer-config``, ``--kv-offloading-size`` and
            ``--kv-offloading-backend`` with their values.
        version: vLLM's, of the config.

    Raises:
        UserError: about the first thing that vLLM would refuse, or that is not simulated.
    """
    if isinstance(value, str):
        value = _flags(value) if re.match(r"\s*(?:\w+=\S*\s+)*--", value) else _parse(value)
    if not isinstance(value, Mapping):
        raise UserError(f"expected the JSON of --kv-transfer-config, found {show(value)}")
    return _transfer_config(value, version)


def _parse(text: str) -> object:
    """JSON, with vLLM's sizes where they stand without quotes: 80g = 80e9, 80G = 80 * 2**30 (utils/argparse)."""

    def size(found: re.Match[str]) -> str:
        number, unit = found[1], found[2]
        return found[0] if number is None else str(int(float(number) * _SIZES[unit]))

    try:
        return json.loads(_BARE_SIZE.sub(size, text))
    except json.JSONDecodeError as error:
        near = " ".join(error.doc[max(error.pos - 20, 0) : error.pos + 20].split())
        hint = " (JSON has double quotes)" if "'" in near else ""
        raise UserError(f"is not JSON: {error.msg}, near {near!r}{hint}") from None


def _flags(text: str) -> Mapping[str, Any]:
    """The three flags that choose a connector. vLLM 0.33.0 config/vllm.py: a size overwrites the connector."""
    try:
        words = shlex.split(text.replace("\\\n", ""))
    except ValueError as error:
        raise UserError(f"cannot be split into words as a shell does: {error}") from None
    environment = dict(word.split("=", 1) for word in words if re.match(r"\w+=", word))
    words = [part for word in words if not re.match(r"\w+=", word) for part in _split_flag(word)]
    given: dict[str, str] = {}
    known = ("--kv-transfer-config", "--kv-offloading-size", "--kv-offloading-backend")
    if len(words) % 2:
        raise UserError(f"{words[-1]} has no value")
    for flag, word in zip(words[::2], words[1::2], strict=True):
        if flag not in known:
            guess = closest(flag, known)
            raise UserError(f"unknown flag {flag}, expected {', '.join(known)}{_did_you_mean(guess)}")
        given[flag] = word
    config = _parse(given["--kv-transfer-config"]) if "--kv-transfer-config" in given else {}
    if not isinstance(config, dict):
        raise UserError(f"--kv-transfer-config: expected a JSON object, found {show(config)}")
    size = given.get("--kv-offloading-size")
    if size is None:
        if not config:
            raise UserError("--kv-offloading-backend alone turns nothing on in vLLM, expected --kv-offloading-size")
        return config
    try:
        num_bytes = float(size) * GIB
    except ValueError:
        raise UserError(f"--kv-offloading-size: expected GiB as a plain number, found {size!r}") from None
    backend = given.get("--kv-offloading-backend", "native")
    if backend == "lmcache":
        return {**config, "kv_connector": "LMCacheMPConnector", "kv_role": "kv_both"}
    if backend != "native":
        raise UserError(f"--kv-offloading-backend: expected native or lmcache, found {backend!r}")
    simple = environment.get("VLLM_USE_SIMPLE_KV_OFFLOAD", "0") == "1"
    return {
        **config,
        "kv_connector": "SimpleCPUOffloadConnector" if simple else "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {**config.get("kv_connector_extra_config", {}), "cpu_bytes_to_use": num_bytes},
    }


def _split_flag(word: str) -> list[str]:
    if not word.startswith("--"):
        return [word]
    flag, equals, value = word.partition("=")
    return [flag.replace("_", "-"), value] if equals else [flag.replace("_", "-")]


def _transfer_config(value: Mapping[str, Any], version: str) -> Translation:
    out = Translation()
    for key in value:
        if key in REMOVED_KEYS and version == "0.23.0":
            out.notes.append(f"{key} changes nothing here")
        elif key in REMOVED_KEYS:
            raise UserError(f"{key}: vLLM {version} has no such key any more, expected {', '.join(TOP_KEYS)}")
        elif key not in TOP_KEYS:
            raise UserError(f"unknown key {key}, expected {', '.join(TOP_KEYS)}{_did_you_mean(closest(key, TOP_KEYS))}")
    name, role = value.get("kv_connector"), value.get("kv_role")
    if name is None:
        raise UserError(f"kv_connector is missing, expected one of {_supported()}")
    if value.get("kv_connector_module_path"):
        raise UserError(
            f"kv_connector_module_path {value['kv_connector_module_path']!r} is code for vLLM, expected one of"
            f" {_supported()}, or kind: module:Class with a connector written for kvsim"
        )
    if role not in ROLES:
        found = "is missing" if role is None else f"{role!r}"
        raise UserError(f"kv_role {found}: vLLM does not start so, expected one of {', '.join(ROLES)}")
    connectors = _connectors()
    if name not in connectors:
        known = "is not simulated" if name in KNOWN_CONNECTORS else "is unknown"
        guess = closest(str(name), connectors)
        raise UserError(f"kv_connector {name} {known}, expected one of {_supported()}{_did_you_mean(guess)}")
    extra = value.get("kv_connector_extra_config") or {}
    if not isinstance(extra, Mapping):
        raise UserError(f"kv_connector_extra_config: expected a JSON object, found {show(extra)}")
    silent = [key for key in ("engine_id", "kv_buffer_device", "kv_port", "enable_permute_local_kv") if key in value]
    if role != "kv_both":
        silent.append(f"kv_role ({role} stores and loads as kv_both does, with this connector)")
    _load_failure_policy(value.get("kv_load_failure_policy", "fail"), out)
    connectors[name](_Extra(extra, out, silent, version))
    if silent:
        out.notes.append(f"from vLLM's {name} config, without effect in a simulation: {', '.join(silent)}")
    return out


def _load_failure_policy(policy: object, out: Translation) -> None:
    if policy not in ("fail", "recompute"):
        raise UserError(f"kv_load_failure_policy: expected fail or recompute, found {show(policy)}")
    if policy == "recompute":
        out.notes.append("kv_load_failure_policy recompute: loads do not fail here")


class _Extra:
    """``kv_connector_extra_config`` of one connector: every key is taken, noted or named as unknown."""

    def __init__(self, extra: Mapping[str, Any], out: Translation, silent: list[str], version: str) -> None:
        self.out, self.silent, self.version = out, silent, version
        self._extra = dict(extra)
        self._known: list[str] = []

    def take(self, key: str, default: Any = None) -> Any:
        self._known.append(key)
        return self._extra.pop(key, default)

    def whole(self, key: str, least: int) -> int | None:
        """As ``int(value)`` of vLLM: also 1e10, and numbers in quotes."""
        value = self.take(key)
        if value is None:
            return None
        try:
            number = int(value)
        except (TypeError, ValueError, OverflowError):
            raise self.error(key, "a number", value) from None
        if isinstance(value, bool) or number < least:
            raise self.error(key, f"a number, at least {least}", value)
        return number

    def truth(self, key: str, *, default: bool) -> bool:
        """As ``bool(value)`` of vLLM: every text but the empty one is true, "false" as well."""
        value = self.take(key, default)
        if isinstance(value, str):
            self.out.notes.append(f"{key}: vLLM takes the text {value!r} for {'true' if value else 'false'}")
        return bool(value)

    def ignore(self, *keys: str) -> None:
        self._known += keys
        self.silent += [key for key in keys if self._extra.pop(key, None) is not None]

    def refuse(self, key: str, why: str, *, unless: Iterable[Any] = (None,)) -> None:
        value = self.take(key)
        if value not in tuple(unless) and value is not None:
            raise UserError(f"kv_connector_extra_config.{key}: {show(value)}: {why}")

    def end(self) -> None:
        for key in self._extra:
            guess = _did_you_mean(closest(key, self._known))
            raise UserError(f"unknown key kv_connector_extra_config.{key}, expected {', '.join(self._known)}{guess}")

    def error(self, key: str, expected: str, found: object) -> UserError:
        return UserError(f"kv_connector_extra_config.{key}: expected {expected}, found {show(found)}")


def _offloading(extra: _Extra) -> None:
    """OffloadingConnector: v1/kv_offload/cpu/spec.py, tiering/spec.py, connector v1/offloading/config.py."""
    section = extra.out.connector
    section["kind"] = "offloading"
    size = extra.whole("cpu_bytes_to_use", 1)
    section["cpu_bytes_to_use"] = _bytes(size)
    spec = extra.take("spec_name", "CPUOffloadingSpec")
    if spec not in ("CPUOffloadingSpec", "TieringOffloadingSpec"):
        raise extra.error("spec_name", "CPUOffloadingSpec or TieringOffloadingSpec", spec)
    extra.refuse("spec_module_path", "is code for vLLM, expected none")
    blocks, tokens = extra.whole("blocks_per_chunk", 1), extra.whole("block_size", 1)
    if blocks is not None and extra.version == "0.23.0":
        extra.silent.append("blocks_per_chunk (vLLM 0.23.0 does not know it)")
    elif blocks is not None and tokens is not None:
        raise UserError("kv_connector_extra_config: expected block_size or blocks_per_chunk, found both")
    elif blocks is not None:
        section["block_size_factor"] = blocks
    if tokens is not None:
        section["block_size"] = tokens
    extra.refuse("cache_policy_module_path", "is code for vLLM, expected eviction_policy: module:Class for kvsim's")
    policy = extra.take("eviction_policy", "lru")
    if policy not in ("lru", "arc"):
        raise extra.error("eviction_policy", "lru or arc", policy)
    section["eviction_policy"] = policy
    threshold = extra.whole("store_threshold", 0) or 0
    section["store_threshold"] = threshold if threshold >= 2 else 0
    if threshold == 1:
        extra.silent.append("store_threshold 1 (filters nothing)")
    extra.refuse("max_tracker_size", "is not simulated, expected 64000", unless=(64_000,))
    section["offload_prompt_only"] = extra.truth("offload_prompt_only", default=True)
    extra.refuse("sync_load_budget_bytes", "synchronous loads are not simulated, expected 0", unless=(0,))
    extra.ignore("canonical_layout", "self_describing_kv_events", "tier_poll_interval_s")
    extra.refuse("backpressure", "is not simulated, expected none")
    tiers = extra.take("secondary_tiers", [])
    if spec == "CPUOffloadingSpec" and tiers:
        extra.silent.append("secondary_tiers (vLLM reads them with spec_name TieringOffloadingSpec only)")
    elif tiers:
        raise UserError("kv_connector_extra_config.secondary_tiers: cannot be translated yet, expected none")
    if extra.take("num_cpu_blocks") is not None:
        raise UserError("kv_connector_extra_config.num_cpu_blocks: vLLM reads it no more, expected cpu_bytes_to_use")
    extra.end()
    if size is None:
        raise UserError("kv_connector_extra_config.cpu_bytes_to_use is missing: vLLM does not start without it")


def _simple_cpu(extra: _Extra) -> None:
    """SimpleCPUOffloadConnector: kv_connector/v1/simple_cpu_offload_connector.py."""
    section = extra.out.connector
    section["kind"] = "simple_cpu"
    for key in ("cpu_bytes_to_use", "cpu_bytes_to_use_per_rank"):
        size = extra.whole(key, 1)
        if size is not None:
            section[key] = _bytes(size)
    section["lazy_offload"] = extra.truth("lazy_offload", default=False)
    extra.refuse("num_cpu_blocks", "is not simulated, expected cpu_bytes_to_use alone")
    extra.refuse("kv_offload_backend", "is not simulated, expected cpu", unless=("cpu",))
    extra.ignore("disk_path", "disk_capacity_bytes", "disk_buffer_slots", "use_page_cache")
    extra.end()


def _connectors() -> dict[str, Callable[[_Extra], None]]:
    """By vLLM's name, those that can be simulated."""
    translations: dict[str, tuple[str, Callable[[_Extra], None]]] = {
        "OffloadingConnector": ("offloading", _offloading),
        "SimpleCPUOffloadConnector": ("simple_cpu", _simple_cpu),
    }
    return {name: function for name, (kind, function) in translations.items() if kind in CONNECTORS.names()}


def _bytes(size: int | None) -> str:
    return f"{size or 0}B"


def _supported() -> str:
    return ", ".join(_connectors())


def _did_you_mean(guess: str | None) -> str:
    return f", did you mean {guess}?" if guess else ""
