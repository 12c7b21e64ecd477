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
from collections.abc import Mapping
from typing import Any

from kvsim.checked import closest, show
from kvsim.errors import UserError
from kvsim.vllm_connectors import ROLES, Extra, Translation, did_you_mean, translations

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
_SIZES = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_HUMAN_INT = re.compile(r"(\d+(?:\.\d+)?)([kmgtKMGT])")
_BARE_SIZE = re.compile(r'"(?:[^"\\]|\\.)*"|(?<![\w.])(\d+(?:\.\d+)?[kmgtKMGT])\b')


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
        value = _flags(value) if re.match(r"\s*(?:\w+=\S*\s+)*--", value) else parse_json(value)
    if not isinstance(value, Mapping):
        raise UserError(f"expected the JSON of --kv-transfer-config, found {show(value)}")
    return _transfer_config(value, version)


def human_int(text: str) -> int:
    """A number as vLLM's human_readable_int takes it: 1k = 1000, 1K = 1024, 25.6k = 25600 (utils/argparse_utils.py).

    Raises:
        ValueError: it is none; decimals go with k, m, g and t only.
    """
    found = _HUMAN_INT.fullmatch(text.strip())
    if found is None:
        return int(text)
    number, unit = found.groups()
    return int(float(number) * _SIZES[unit]) if unit.islower() else int(number) * _SIZES[unit]


def parse_json(text: str) -> object:
    """JSON, with vLLM's sizes where they stand without quotes: 80g = 80e9, 80G = 80 * 2**30 (utils/argparse).

    Raises:
        UserError: says what is wrong, and near what.
    """

    def size(found: re.Match[str]) -> str:
        try:
            return found[0] if found[1] is None else str(human_int(found[1]))
        except ValueError:
            raise UserError(f"{found[1]}: vLLM takes decimals with k, m, g and t only") from None

    try:
        return json.loads(_BARE_SIZE.sub(size, text))
    except json.JSONDecodeError as error:
        near = " ".join(error.doc[max(error.pos - 20, 0) : error.pos + 20].split())
        hint = " (JSON has double quotes)" if "'" in near else " (JSON has no comments)" if "#" in near else ""
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
            raise UserError(f"unknown flag {flag}, expected {', '.join(known)}{did_you_mean(guess)}")
        given[flag] = word
    config = parse_json(given["--kv-transfer-config"]) if "--kv-transfer-config" in given else {}
    if not isinstance(config, dict):
        raise UserError(f"--kv-transfer-config: expected a JSON object, found {show(config)}")
    size = given.get("--kv-offloading-size")
    if size is None:
        if not config:
            raise UserError("--kv-offloading-backend alone turns nothing on in vLLM, expected --kv-offloading-size")
        return config
    try:
        gib = float(size)
    except ValueError:
        raise UserError(f"--kv-offloading-size: expected GiB as a plain number, found {size!r}") from None
    return with_offloading_size(config, gib, given.get("--kv-offloading-backend", "native"), environment)


def with_offloading_size(
    config: Mapping[str, Any], gib: float, backend: str, environment: Mapping[str, str]
) -> dict[str, Any]:
    """What ``--kv-offloading-size`` makes of a ``--kv-transfer-config``: the connector is another, other keys stay.

    vLLM 0.23.0 and 0.33.0 config/vllm.py: for LMCache the size is not used.
    """
    if backend == "lmcache":
        return {**config, "kv_connector": "LMCacheMPConnector", "kv_role": "kv_both"}
    if backend != "native":
        raise UserError(f"--kv-offloading-backend: expected native or lmcache, found {backend!r}")
    simple = environment.get("VLLM_USE_SIMPLE_KV_OFFLOAD", "0") == "1"
    return {
        **config,
        "kv_connector": "SimpleCPUOffloadConnector" if simple else "OffloadingConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {**config.get("kv_connector_extra_config", {}), "cpu_bytes_to_use": gib * GIB},
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
            raise UserError(f"unknown key {key}, expected {', '.join(TOP_KEYS)}{did_you_mean(closest(key, TOP_KEYS))}")
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
    connectors = translations()
    if not isinstance(name, str) or name not in connectors:
        known = "is not simulated" if name in KNOWN_CONNECTORS else "is unknown"
        guess = closest(str(name), connectors)
        raise UserError(f"kv_connector {name} {known}, expected one of {_supported()}{did_you_mean(guess)}")
    extra = value.get("kv_connector_extra_config") or {}
    if not isinstance(extra, Mapping):
        raise UserError(f"kv_connector_extra_config: expected a JSON object, found {show(extra)}")
    silent = [key for key in ("engine_id", "kv_port", "enable_permute_local_kv") if key in value]
    if role != "kv_both" and name != "MooncakeStoreConnector":
        silent.append(f"kv_role ({role} stores and loads as kv_both does, with this connector)")
    connectors[name](Extra(extra, out, silent, version, role=role))
    _buffer_device(value.get("kv_buffer_device"), out, silent)
    _load_failure_policy(value.get("kv_load_failure_policy", "fail"), out)
    if silent:
        out.notes.append(f"from vLLM's {name} config, without effect in a simulation: {', '.join(silent)}")
    return out


def _buffer_device(device: object, out: Translation, silent: list[str]) -> None:
    if device is not None and out.connector.get("kind") != "nixl":
        silent.append("kv_buffer_device")
    elif device is not None:
        out.connector["kv_buffer_device"] = device


def _load_failure_policy(policy: object, out: Translation) -> None:
    if policy not in ("fail", "recompute"):
        raise UserError(f"kv_load_failure_policy: expected fail or recompute, found {show(policy)}")
    if policy == "recompute":
        out.connector["kv_load_failure_policy"] = policy


def _supported() -> str:
    return ", ".join(translations())
