"""Models by name or by file: ``load_model("llama-3.1-8b")``, ``load_model("path/to/config.json")``."""

from __future__ import annotations

import json
import os
import re
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from kvsim.errors import UserError
from kvsim.steptime.hf_config import spec_from_config
from kvsim.steptime.spec import AttentionGroup, Mla, ModelSpec, Moe, Quantization

__all__ = [
    "AttentionGroup",
    "Mla",
    "ModelSpec",
    "Moe",
    "Quantization",
    "load_model",
    "model_names",
    "spec_from_config",
]

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PRESETS = Path(__file__).resolve().parent.parent / "presets" / "models.yaml"
# endings of repository names that do not change a dimension
_SUFFIXES = ("-instruct", "-thinking", "-chat", "-base", "-bf16", "-hf", "-it")


def model_names() -> list[str]:
    """Names of the shipped models."""
    return sorted(_presets())


def load_model(name_or_path: str | Path, kv_cache_dtype: str = "auto") -> ModelSpec:
    """A model by preset name, Hugging Face name (both case-insensitive) or path.

    Args:
        name_or_path: ``llama-3.1-70b``, ``meta-llama/Llama-3.1-70B-Instruct``, a ``config.json`` file or a
            folder with one.
        kv_cache_dtype: as in vLLM; ``auto`` = bf16.

    Raises:
        UserError: unknown name (with the closest ones), unreadable or unsupported config.
    """
    text = str(name_or_path).strip()
    path = Path(text)
    if text.endswith(".json") or os.path.isdir(path):  # noqa: PTH112 - False for what cannot be a path
        return _from_file(path / "config.json" if path.is_dir() else path).with_kv_cache_dtype(kv_cache_dtype)
    wanted = _normal(text)
    names = _names()
    key = names.get(wanted) or names.get(_without_suffix(wanted))
    if key is None:
        close = get_close_matches(wanted, names, n=6, cutoff=0.5)
        hint = ", ".join(list(dict.fromkeys(names[c] for c in close))[:3])
        raise UserError(
            f"model: {text!r} is not known; {'closest: ' + hint if hint else '`kvsim list models` shows them'};"
            " or give the path of its config.json"
        )
    entry = _presets()[key]
    spec = spec_from_config(entry["config"], key, entry["source"], entry.get("notes", ()))
    return spec.with_kv_cache_dtype(kv_cache_dtype)


def repository_of(name: str) -> str | None:
    """The Hugging Face repository that a preset's config.json was read from; None = only its name is known."""
    entry = _presets().get(name)
    found = re.search(r"model_configs/([\w.-]+?)--([\w.-]+)_config\.json", str(entry["source"])) if entry else None
    if found is None:
        return None
    repository = f"{found[1]}/{found[2]}"
    return repository if _names().get(_normal(repository)) == name else None


def _from_file(path: Path) -> ModelSpec:
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"model: {path}: no such file") from None
    except (OSError, ValueError) as err:
        raise UserError(f"model: {path}: not readable as JSON: {err}") from err
    if not isinstance(config, dict):
        raise UserError(f"model: {path}: expected a JSON object, found {type(config).__name__}")
    name = str(config.get("_name_or_path") or (path.parent.name if path.name == "config.json" else path.stem))
    return spec_from_config(config, name, source=str(path))


def _normal(name: str) -> str:
    """Lower case, last part of an organisation/name pair, one kind of separator."""
    return re.sub(r"[\s_-]+", "-", name.lower().rsplit("/", 1)[-1]).strip("-")


def _without_suffix(name: str) -> str:
    for suffix in _SUFFIXES:
        if name.endswith(suffix):
            return _without_suffix(name[: -len(suffix)])
    return name


@cache
def _names() -> dict[str, str]:
    """Every spelling that resolves, normalised, to its preset."""
    names: dict[str, str] = {}
    for key, entry in _presets().items():
        for alias in (key, *entry.get("aliases", ())):
            normal = _normal(str(alias))
            if names.setdefault(normal, key) != key:
                raise ValueError(f"{_PRESETS.name}: {alias!r} names both {names[normal]!r} and {key!r}")
    return names


@cache
def _presets() -> dict[str, Any]:
    text = _PRESETS.read_text(encoding="utf-8")
    presets: dict[str, Any] = yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader
    return presets
