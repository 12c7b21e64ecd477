"""Makes a failing scenario small: as long as something can be left out and it still fails, it is left out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any

from kvsim.conform.files import check_scenario
from kvsim.errors import UserError

Scenario = dict[str, Any]

MAX_TRIES = 1000

_PREFERRED: dict[str, Any] = {
    # Roomy and simple values; an option that has one of these is not what makes the scenario fail.
    "policy": "fcfs", "long_prefill_token_threshold": 0, "reserve_full_isl": True, "no_prefix_caching": False,
    "chunk_factor": 1, "store_threshold": 0, "cpu_policy": "lru", "lazy": False, "offload_prompt_only": True,
    "max_num_batched_tokens": 1024, "max_num_seqs": 8, "max_model_len": 8192, "load_delay": 0, "store_delay": 0,
    "tier_load_delay": 0, "tier_store_delay": 0,
}  # fmt: skip


def shrink(scenario: Scenario, fails: Callable[[Scenario], bool], max_tries: int = MAX_TRIES) -> Scenario:
    """A scenario that still fails, with fewer and simpler parts.

    Args:
        scenario: one that fails; it is not changed.
        fails: tells whether a valid scenario fails.
        max_tries: `fails` is asked at most so often.
    """
    best, tries = scenario, 0
    improved = True
    while improved:
        improved = False
        for smaller in _smaller(best):
            if tries >= max_tries:
                return best
            if not _is_valid(smaller):
                continue
            tries += 1
            if fails(smaller):
                best, improved = smaller, True
                break
    return best


def _is_valid(scenario: Scenario) -> bool:
    try:
        check_scenario(scenario, "")
    except UserError:
        return False
    return True


def _smaller(scenario: Scenario) -> Iterator[Scenario]:
    """Variants with something left out, the boldest first."""
    yield from _fewer_sessions(scenario)
    yield from _fewer_turns(scenario)
    yield from _plainer_options(scenario)
    yield from _plainer_sessions(scenario)
    yield from _shorter_turns(scenario)


def _fewer_sessions(scenario: Scenario) -> Iterator[Scenario]:
    count = len(scenario["sessions"])
    size = count // 2
    while size:
        for first in range(0, count, size):
            left = scenario["sessions"][:first] + scenario["sessions"][first + size :]
            if left:
                yield _with_sessions(scenario, left)
        size //= 2


def _with_sessions(scenario: Scenario, sessions: list[dict[str, Any]]) -> Scenario:
    """Where an original has gone, the first that repeats it takes its place."""
    sessions = copy.deepcopy(sessions)
    names = {session["name"] for session in sessions}
    heirs: dict[str, str] = {}
    for session in sessions:
        original = session.get("same_as")
        if original is None or original in names:
            continue
        if original in heirs:
            session["same_as"] = heirs[original]
        else:
            heirs[original] = session["name"]
            del session["same_as"]
    return {**scenario, "sessions": sessions}


def _fewer_turns(scenario: Scenario) -> Iterator[Scenario]:
    for index, session in enumerate(scenario["sessions"]):
        turns = session["turns"]
        if len(turns) < 2:
            continue
        aborts = session.get("abort", [])
        kept = [entry for entry in aborts if entry[0] < len(turns) - 1]
        yield _change(scenario, index, turns=turns[:-1], abort=kept or None)
        (user, out), (next_user, next_out), *others = turns
        kept = [[max(0, turn - 1), steps] for turn, steps in aborts if turn]
        yield _change(scenario, index, turns=[[user + out + next_user, next_out], *others], abort=kept or None)


def _plainer_options(scenario: Scenario) -> Iterator[Scenario]:
    if scenario.get("connector"):
        yield {**scenario, "connector": {}}
    if scenario["connector"].get("tier") or scenario["connector"].get("tiers"):
        kept = {key: value for key, value in scenario["connector"].items() if not key.startswith("tier")}
        yield {**scenario, "connector": kept}
    for part in ("engine", "connector"):
        for key, value in scenario[part].items():
            if key in _PREFERRED and value != _PREFERRED[key]:
                yield {**scenario, part: {**scenario[part], key: _PREFERRED[key]}}
    for key in ("think_steps", "system_tokens"):
        if scenario[key]:
            yield {**scenario, key: 0}


def _plainer_sessions(scenario: Scenario) -> Iterator[Scenario]:
    for index, session in enumerate(scenario["sessions"]):
        for key in ("abort", "priority", "same_as"):
            if session.get(key):
                yield _change(scenario, index, **{key: None})
        start = session["start_step"]
        for earlier in dict.fromkeys((0, start // 2, start - 1)):
            if 0 <= earlier < start:
                yield _change(scenario, index, start_step=earlier)


def _shorter_turns(scenario: Scenario) -> Iterator[Scenario]:
    for index, session in enumerate(scenario["sessions"]):
        for number, turn in enumerate(session["turns"]):
            for position in (0, 1):
                value = turn[position]
                for shorter in dict.fromkeys((1, value // 2, value - 16, value - 1)):
                    if 1 <= shorter < value:
                        turns = copy.deepcopy(session["turns"])
                        turns[number][position] = shorter
                        yield _change(scenario, index, turns=turns)


def _change(scenario: Scenario, index: int, **changes: Any) -> Scenario:
    """One session with other values; None takes a key away."""
    sessions = copy.deepcopy(scenario["sessions"])
    sessions[index] = {key: value for key, value in {**sessions[index], **changes}.items() if value is not None}
    return {**scenario, "sessions": sessions}
