"""``--speculative-config`` and its shorthands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvsim.checked import closest, show
from kvsim.vllm_connectors import did_you_mean

_SHORT = {"--spec-method": "method", "--spec-model": "model", "--spec-tokens": "num_speculative_tokens"}
# vLLM config/speculative.py; every *_mtp means mtp.
_BOTH = ("ngram", "draft_model", "suffix", "custom_class", "eagle", "eagle3", "extract_hidden_states", "mtp", "dflash",
         "ngram_gpu")  # fmt: skip
_METHODS = {"0.23.0": (*_BOTH, "medusa", "mlp_speculator"), "0.33.0": (*_BOTH, "dspark")}
# vLLM tells by the drafter's name, and by its config, which a line does not have.
_BY_NAME = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"))
# Who decides KV slots, budget and prefix hits in the same way (SpeculativeConfig.use_eagle, needs_eagle_block_drop).
SIMULATED = {"ngram": "ngram", "draft_model": "draft_model", "eagle": "eagle", "eagle3": "eagle", "mtp": "eagle"}


@dataclass
class Problems:
    """Why a release does not take it."""

    refusals: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)


def speculative_config(values: Mapping[str, Any], version: str) -> tuple[dict[str, Any] | None, Problems]:
    """What drafts, by vLLM's keys, its method by its present name; None = nothing does."""
    problems = Problems()
    given = values.get("--speculative-config")
    if given is not None and not isinstance(given, dict):
        problems.refusals.append(f"--speculative-config: expected a JSON object, found {show(given)}")
        return None, problems
    found = dict(given or {})
    for flag, key in _SHORT.items():
        if values.get(flag) is None:
            continue
        if key in found:
            problems.failures.append(f"{flag} and {key} of --speculative-config: expected one of them")
        found[key] = values[flag]
    if not found:
        return None, problems
    method = found.get("method")
    if method is not None and not isinstance(method, str):
        problems.failures.append(f"--speculative-config: method: expected text, found {show(method)}")
        return None, problems
    if isinstance(method, str) and method.endswith("_mtp"):
        found["method"] = method = "mtp"
    if method is not None and method not in _METHODS[version]:
        guess = did_you_mean(closest(str(method), _METHODS[version]))
        problems.failures.append(f"speculative method {method!r:.40}: vLLM {version} has none of that name{guess}")
    if method is None and isinstance(model := found.get("model"), str):
        guessed = (name for part, name in _BY_NAME if part in model.lower())
        found["method"] = "ngram" if model in ("ngram", "[ngram]") else next(guessed, "draft_model")
    elif method is None:
        problems.failures.append("--speculative-config: expected a method or a model, found neither")
    number = found.get("num_speculative_tokens")
    if number is not None and (not isinstance(number, int) or isinstance(number, bool) or number < 1):
        problems.failures.append(f"num_speculative_tokens: expected a whole number, at least 1, found {show(number)}")
    return found, problems
