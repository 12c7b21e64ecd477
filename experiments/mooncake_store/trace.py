# ruff: noqa: INP001 - scripts, run by path
"""The synthetic sessions of the scaling experiment, from the parameters that the blog gives."""

from __future__ import annotations

import gzip
import io
from pathlib import Path

from kvsim.trace.sessions import SessionLengths, TurnLengths, write_sessions

COMMON, FIRST, PER_TURN, OUTPUT, TURNS = 20_000, 10_000, 2_048, 900, 30  # tokens, and turns of a session


def sessions(count: int) -> list[SessionLengths]:
    """Each turn repeats the last prompt and its answer, and adds 2,048 tokens: 1.24 output tokens per 100 of input.

    The blog says about 1.3 % and does not say whether answers return; without them it would be 1.5 %.
    """
    first = TurnLengths(COMMON, FIRST, OUTPUT, 0)
    turns = [first]
    for _ in range(TURNS - 1):
        before = turns[-1]
        turns.append(TurnLengths(before.input_tokens + before.output_tokens, PER_TURN, OUTPUT, 0))
    return [SessionLengths(f"s{number:03}", tuple(turns)) for number in range(count)]


def write_trace(path: Path, count: int) -> None:
    """A packed trace file; the same bytes for the same count."""
    origin = {"generator": "experiments/mooncake_store/trace.py", "sessions": count}
    text = "".join(write_sessions(sessions(count), shared_prefix_tokens=COMMON, origin=origin))
    packed = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=packed, compresslevel=9, mtime=0) as stream:
        stream.write(text.encode())
    path.write_bytes(packed.getvalue())


if __name__ == "__main__":
    write_trace(Path(__file__).with_name("scaling-375.jsonl.gz"), 375)
