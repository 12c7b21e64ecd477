"""A stand-in for a Python with vLLM: speaks the recorder's language and answers with our own engine's records.

The environment tells how it should misbehave: FAKE_VLLM is the version it claims, FAKE_FATAL what it cannot
start with, FAKE_ERROR what breaks in every scenario, FAKE_WRONG a number of tokens from which on a prompt's step
has one free block too many, FAKE_EXIT the scenarios after which it dies, FAKE_LOG a file for a line per scenario.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def say(value: object) -> None:
    """One line."""
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


def main() -> None:
    """Answer scenarios until standard input ends."""
    version = os.environ.get("FAKE_VLLM", "0.33.0")
    if "FAKE_FATAL" in os.environ:
        say({"fatal": os.environ["FAKE_FATAL"]})
        return
    say({"vllm": version})
    for count, line in enumerate(sys.stdin):
        if count == int(os.environ.get("FAKE_EXIT", "-1")):
            sys.stderr.write("out of memory\n")
            sys.exit(3)
        if "FAKE_LOG" in os.environ:
            with Path(os.environ["FAKE_LOG"]).open("a", encoding="utf-8") as log:
                log.write("asked\n")
        if "FAKE_ERROR" in os.environ:
            say({"error": os.environ["FAKE_ERROR"]})
            continue
        from kvsim.conform.order import SetOrder  # noqa: PLC0415 - whoever fails does so at once
        from kvsim.conform.scenario import Conformance  # noqa: PLC0415 - as above

        scenario = json.loads(line)
        records, deadlock = Conformance(scenario, "0.33.0", SetOrder()).run()
        wrong = int(os.environ.get("FAKE_WRONG", "1000000"))
        for record in records:
            if any(tokens >= wrong for tokens in record["sched"].values()):
                record["free"] += 1
        summary = {"vllm": version, "scenario": scenario["name"], "deadlock": deadlock, "steps": len(records)}
        say({"summary": summary, "records": records})


if __name__ == "__main__":
    main()
