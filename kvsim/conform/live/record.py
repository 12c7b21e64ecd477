"""Records what vLLM's scheduler decides on scenarios. Run in a Python that has torch, with vLLM installed or given.

    python record.py [--vllm-source DIR]

Speaks JSON lines. It says {"vllm": version} or {"fatal": why not}; for each scenario on standard input it answers
{"summary": {...}, "records": [...]} or {"error": what broke}. Nothing else is written to standard output.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, TextIO

MAX_STEPS = 30_000
STALL_STEPS = 500  # without progress, and nothing due: vLLM is stuck

# Before vLLM is imported. The second model runner would tell resumed requests as new ones.
ENVIRONMENT = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "CUDA_VISIBLE_DEVICES": "",
    "VLLM_USE_V2_MODEL_RUNNER": "0",
}


class SessionState:
    """The tokens of one session; two blocks are equal exactly when they hold the same part of the same session."""

    def __init__(self, spec: dict[str, Any], number_of: dict[str, int], system: list[int]) -> None:
        self.name: str = spec["name"]
        self.owner: str = spec.get("same_as") or self.name
        self.turns: list[list[int]] = spec["turns"]
        self.priority: int = spec.get("priority", 0)
        self.aborts = dict(spec.get("abort", ()))
        self.lora: int = spec.get("lora", 0)
        self.streaming: bool = bool(spec.get("streaming", False))
        self.request_id = ""  # of the turn that is being served, or of the streaming session
        self._grammars = dict(spec.get("grammars", ()))
        self._images = sorted(spec.get("images", ()))
        self._starts: list[int] = []  # of each turn's own tokens
        self.next_turn = 0
        self.context = list(system)
        self._next_token = 130 + 1_000_000 * (number_of[self.owner] + 1)

    def begin_turn(self) -> str:
        """Id of the next turn's request: a new one, or that of the open streaming session."""
        if not (self.streaming and self.request_id):
            self.request_id = f"{self.name}t{self.next_turn}"
        return self.request_id

    def demands(self) -> dict[str, Any]:
        """What the next turn asks for; to be called when its own tokens are about to be appended."""
        self._starts.append(len(self.context))
        images = [
            [self._starts[turn] + start, tokens, name]
            for turn, start, tokens, name in self._images
            if turn <= self.next_turn
        ]
        return {
            "streaming": self.streaming,
            "lora": self.lora,
            "grammar_steps": self._grammars.get(self.next_turn),
            "images": images,
        }

    def fresh(self, count: int) -> list[int]:
        """The next tokens of the session."""
        first = self._next_token
        self._next_token += count
        return list(range(first, first + count))


class Play:
    """One scenario on one engine."""

    def __init__(self, scenario: dict[str, Any], files: str) -> None:
        from engine import RealEngine
        from settings import options_of

        self._scenario, self._options = scenario, options_of(scenario)
        self._names: dict[bytes, str] = {}  # contents of blocks, by hash
        self._engine = RealEngine(self._options, self._names.__getitem__, files)
        specs = scenario["sessions"]
        number_of = {spec["name"]: number for number, spec in enumerate(specs)}
        self._sessions = [SessionState(spec, number_of, [11] * scenario["system_tokens"]) for spec in specs]
        self._by_name = {session.name: number for number, session in enumerate(self._sessions)}
        self._due = {number: spec["start_step"] for number, spec in enumerate(specs)}  # session -> step
        self._aborts: dict[int, int] = {}  # session -> step
        self._done = 0
        self._records: list[dict[str, Any]] = []

    def run(self) -> dict[str, Any]:
        """The answer to the scenario."""
        from copies import CLOCK

        total = sum(len(session.turns) for session in self._sessions)
        last_progress, deadlock = 0, False
        while self._done < total and CLOCK.step < self._scenario.get("max_steps", MAX_STEPS) and not deadlock:
            step = CLOCK.step
            self._arrivals(step)
            ended = self._abort_due(step)
            record = self._step()
            ended += record["finished"] if record else []
            if ended or (record and record["sched"]):
                last_progress = CLOCK.step
            deadlock = CLOCK.step - last_progress > STALL_STEPS and not self._due and not self._aborts
            for request_id in ended if not deadlock else ():
                self._turn_ended(request_id, step)
        for _ in range(self._options["drain"]):
            self._step()
        self._engine.shutdown()
        totals = self._engine.totals
        return {
            "summary": {
                "vllm": vllm_version(),
                "scenario": self._scenario["name"],
                "done": self._done,
                "total": total,
                "deadlock": deadlock,
                **{name: totals[name] for name in ("steps", "scheduled_tokens", "preemptions", "gpu_evictions")},
            },
            "records": self._records,
        }

    def _step(self) -> dict[str, Any] | None:
        record = self._engine.step()
        if record is not None:
            self._records.append(record)
        return record

    def _arrivals(self, step: int) -> None:
        """What is due arrives, in the order of the sessions."""
        for number in sorted(number for number, due in self._due.items() if due <= step):
            del self._due[number]
            session = self._sessions[number]
            user, out = session.turns[session.next_turn]
            demands = session.demands()
            session.context += session.fresh(user)
            output = session.fresh(out)
            prompt = list(session.context)
            session.context += output
            self._name_blocks(session)
            self._engine.add(session.begin_turn(), prompt, output, session.priority, demands)
            if session.next_turn in session.aborts:
                self._aborts[number] = step + session.aborts[session.next_turn]

    def _abort_due(self, step: int) -> list[str]:
        """Behind the arrivals of the step, before its schedule(): whoever is due and has not finished is aborted."""
        aborted = []
        for number in sorted(number for number, due in self._aborts.items() if due <= step):
            del self._aborts[number]
            session = self._sessions[number]
            request_id = session.request_id
            self._engine.abort(request_id)
            aborted.append(request_id)
        return aborted

    def _turn_ended(self, request_id: str, step: int) -> None:
        number = self._by_name[request_id.rpartition("t")[0]]
        session = self._sessions[number]
        self._aborts.pop(number, None)
        self._done += 1
        session.next_turn += 1
        goes_on = session.next_turn < len(session.turns)
        if goes_on:
            self._due[number] = step + 1 + self._scenario["think_steps"]
        if session.streaming and not self._engine.end_session(request_id, goes_on=goes_on):
            session.request_id = ""

    def _name_blocks(self, session: SessionState) -> None:
        from engine import adapter_root, block_hash

        size, tokens, ahead = self._engine.hash_tokens, session.context, self._engine.hash_lookahead
        previous, prefix = adapter_root(session.lora), f"{session.lora}/" if session.lora else ""
        for index in range((len(tokens) - ahead) // size):
            previous = block_hash(previous, tokens[index * size : (index + 1) * size + ahead])
            owner = "sys" if (index + 1) * size + ahead <= self._scenario["system_tokens"] else session.owner
            self._names.setdefault(previous, f"{prefix}{owner}:{index}")


def vllm_version() -> str:
    """As vLLM tells it."""
    import vllm

    return str(vllm.__version__)


def answer(scenario: dict[str, Any]) -> dict[str, Any]:
    """Record one scenario; whatever breaks in vLLM or in our hold on it is told in one line."""
    try:
        with tempfile.TemporaryDirectory(prefix="kvsim-tier-") as files:
            return Play(scenario, files).run()
    except Exception as error:  # noqa: BLE001 - the caller names the scenario and goes on
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        return {"error": " ".join(f"{type(error).__name__}: {error} ({where})".split())}


def prepare(vllm_source: str | None) -> str | None:
    """Import torch and vLLM; why it is impossible, or None."""
    os.environ |= ENVIRONMENT
    logging.disable(logging.CRITICAL)
    try:
        import torch  # noqa: F401
    except ImportError as error:
        return f"torch cannot be imported by {sys.executable}: {error}"
    if vllm_source is not None:
        sys.path.insert(0, vllm_source)
    import stubs

    stubs.install()
    try:
        version = vllm_version()
    except Exception as error:  # noqa: BLE001 - a foreign package may raise anything
        return f"vLLM cannot be imported by {sys.executable}: {type(error).__name__}: {error}"
    try:
        stubs.describe_models_without_loading()
        import engine  # noqa: F401
    except Exception as error:  # noqa: BLE001 - as above
        return f"vLLM {version} is too different for this recorder: {type(error).__name__}: {error}"
    return None


def main() -> None:
    """Answer scenarios until standard input ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--vllm-source", metavar="DIR", help="an unpacked vLLM wheel")
    arguments = parser.parse_args()
    # Whatever vLLM prints goes to standard error.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as out:
        os.dup2(2, 1)
        reason = prepare(arguments.vllm_source)
        if reason is not None:
            _say(out, {"fatal": " ".join(reason.split())})
            return
        _say(out, {"vllm": vllm_version()})
        for line in sys.stdin:
            _say(out, answer(json.loads(line)))


def _say(out: TextIO, value: dict[str, Any]) -> None:
    out.write(json.dumps(value) + "\n")
    out.flush()


if __name__ == "__main__":
    main()
