"""Broken traces, kept in the folder beside: each is one line with file, place, value and expectation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import UserError
from kvsim.trace.read import read_trace

FOLDER = Path(__file__).parent / "traces"

KINDS = "expected one of the formats kv-cache-tester, mooncake, sessions (see traces/README.md)"
CHAINED = "expected every id to have one position and one predecessor"
TOKENS = "expected an integer from 1 to 10,000,000"
ANSWER = "expected an integer from 0 to 1,000,000"
TIME_MS = "expected a number from 0 to 1e+12"
ORDINARY = "expected ordinary numbers"
NO_MAIN = "requests holds no request of the session itself, expected at least one"

MESSAGES = {
    # No trace at all
    "binary.jsonl": "not a text file, expected JSON or JSON lines (plain or gzip)",
    "blank.jsonl": "the file is empty, expected a trace",
    "csv.jsonl": f"line 1: begins with 'TIMESTAMP,ContextTokens,GeneratedTokens', {KINDS}",
    "empty.jsonl": "the file is empty, expected a trace",
    "other-schema.jsonl": f'line 1: begins with \'{{"schema": "dynamo.agentic_mooncake", "v\', {KINDS}',
    "unknown-object.jsonl": f'line 1: begins with \'{{"prompt": "hello"}}\', {KINDS}',
    # Mooncake
    "mooncake-boolean-id.jsonl": "line 1: hash_ids[1] is true, expected an integer",
    "mooncake-boolean-number.jsonl": f"line 1: timestamp is true, {TIME_MS}",
    "mooncake-float-length.jsonl": f"line 1: input_length is 600.0, {TOKENS}",
    "mooncake-huge-digits.jsonl": f"line 1: holds an integer of thousands of digits, {ORDINARY}",
    "mooncake-huge-length.jsonl": f"line 1: output_length is an integer of more than 20 digits, {ANSWER}",
    "mooncake-id-after-two-others.jsonl": (
        f"line 2: hash_ids: id 2 at position 1 follows id 7, but another id before, {CHAINED}"
    ),
    "mooncake-id-at-two-positions.jsonl": (f"line 2: hash_ids: id 2 at position 0 was at position 1 before, {CHAINED}"),
    "mooncake-id-twice-in-a-row.jsonl": (
        f"line 2: hash_ids: id 8 occurs twice in one prompt, at position 0 and further on, {CHAINED}"
    ),
    "mooncake-ids-as-text.jsonl": 'line 1: hash_ids is "1,2", expected a list of 2 block ids',
    "mooncake-infinite-timestamp.jsonl": f"line 1: timestamp is Infinity, {TIME_MS}",
    "mooncake-latin1.jsonl": "line 2: byte 0xe9 is not UTF-8, expected a JSON text file",
    "mooncake-missing-key.jsonl": f"line 2: output_length is missing, {ANSWER}",
    "mooncake-nan-length.jsonl": f"line 2: holds NaN, {ORDINARY}",
    "mooncake-negative-delay.jsonl": f"line 2: delay is -1, {TIME_MS}",
    "mooncake-negative-length.jsonl": f"line 1: input_length is -600, {TOKENS}",
    "mooncake-no-session-name.jsonl": 'line 1: session_id is "", expected a text that is not empty',
    "mooncake-no-time.jsonl": f"line 1: timestamp is missing, {TIME_MS}",
    "mooncake-not-an-object.jsonl": "line 2: found [1, 2], expected a JSON object",
    "mooncake-not-json.jsonl": "line 3: not JSON (Expecting ':' delimiter, column 32), expected a JSON",
    "mooncake-null-length.jsonl": f"line 1: input_length is null, {TOKENS}",
    "mooncake-text-number.jsonl": f'line 1: output_length is "4", {ANSWER}',
    "mooncake-too-few-ids.jsonl": "line 2: hash_ids has 1 ids, expected 2 (input_length / 512, rounded up)",
    "mooncake-unix-time.jsonl": f"line 1: timestamp is 1700000000000000.0, {TIME_MS}",
    "mooncake-unsorted.jsonl": (
        "line 2: timestamp is 2999.5, expected at least 3000 as in the line before (sorted by time)"
    ),
    # kv-cache-tester
    "session-bad-row-in-subagent.json": f"requests[1].requests[1]: out is -1, {ANSWER}",
    "session-cut-off.json": ("line 1: not JSON (Unterminated string starting at, column 169), expected a JSON object"),
    "session-id-at-two-positions.json": (
        f"requests[2]: hash_ids: id 2 at position 0 was at position 1 before, {CHAINED}"
    ),
    "session-model-number.json": "requests[0]: model is 4, expected a text",
    "session-negative-think-time.json": "requests[1]: think_time is -0.5, expected a number from 0 to 1e+09",
    "session-nested-subagents.json": (
        'requests[1].requests[1]: type is "subagent", expected "n" or "s": sub-agents of sub-agents are not '
        "part of the format"
    ),
    "session-no-block-size.json": "block_size is missing, expected an integer from 1 to 1,048,576",
    "session-no-requests.json": NO_MAIN,
    "session-only-subagents.json": NO_MAIN,
    "session-request-not-an-object.json": "requests[1]: found 7, expected a JSON object",
    "session-requests-missing.json": "requests is missing, expected a list",
    "session-text-time.json": 'requests[0]: t is "0", expected a number from 0 to 1e+09',
    "session-too-many-ids.json": ("requests[1]: hash_ids has 3 ids, expected 2 (in // block_size = 130 // 64)"),
    "session-truncated.json.gz": "the gzip data ends too early, expected a complete file",
    "session-damaged.json.gz": "damaged gzip data (",  # and what zlib says, which differs between versions
    "session-unknown-scope.json": 'hash_id_scope is "planet", expected "local" or "global"',
    "session-unknown-status.json": ('requests[1]: status is "failed", expected "completed" or "async_launched"'),
    "session-unknown-type.json": 'requests[0]: type is "x", expected "n", "s" or "subagent"',
    "session-zero-input.json": f"requests[0]: in is 0, {TOKENS}",
    # Our own format
    "lengths-empty-prompt.jsonl": "line 2: turns[0]: keep + new is 0, expected 1 to 10,000,000 tokens",
    "lengths-first-keep-too-long.jsonl": (
        "line 2: turns[0]: keep is 101, expected at most 100, the length of shared_prefix_tokens"
    ),
    "lengths-float.jsonl": "line 2: turns[0]: new is 50.5, expected an integer from 0 to 10,000,000",
    "lengths-keep-too-long.jsonl": (
        "line 2: turns[1]: keep is 156, expected at most 155, the length of the previous prompt and its answer"
    ),
    "lengths-no-output.jsonl": "line 2: turns[0]: out is 0, expected an integer from 1 to 1,000,000",
    "lengths-no-sessions.jsonl": "no session after the header, expected one per line",
    "lengths-no-turns.jsonl": "line 2: turns is [], expected at least one turn",
    "lengths-other-columns.jsonl": (
        "line 1: columns is [\"new\", \"keep\", \"out\", \"think_ms\"], expected ['keep', 'new', 'out', 'think_ms']"
    ),
    "lengths-text-flag.jsonl": 'line 1: outputs_return is "yes", expected true or false',
    "lengths-three-columns.jsonl": ("line 2: turns[0] is [100, 50, 5], expected a list [keep, new, out, think_ms]"),
    "lengths-wrong-version.jsonl": "line 1: version is 2, expected 1, the only one there is so far",
}


def _complaint(paths: list[Path], **options: Any) -> str:
    with pytest.raises(UserError) as error:
        read_trace(paths, **options)
    message = str(error.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", sorted(MESSAGES))
def test_broken_file_is_one_clear_line(name: str) -> None:
    """The complaint names file, place, field, value and what was expected."""
    path = FOLDER / name
    message = _complaint([path])
    assert message.startswith(f"{path}: {MESSAGES[name]}")


def test_every_broken_file_is_covered() -> None:
    """No file lies here without its message."""
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(MESSAGES)


def test_folder_without_a_trace(tmp_path: Path) -> None:
    """A folder that holds no trace is named, with the endings looked for."""
    (tmp_path / "notes.txt").write_text("hello")
    assert _complaint([tmp_path]) == (
        f"{tmp_path}: no trace in this folder, expected files ending in .json, .jsonl, .json.gz, .jsonl.gz"
    )


def test_file_that_is_not_there(tmp_path: Path) -> None:
    """A missing file is named."""
    path = tmp_path / "gone.json"
    assert _complaint([path]) == f"{path}: no such file or folder, expected a trace"


def test_nothing_given() -> None:
    """A trace needs at least one file."""
    assert _complaint([]) == "no trace given, expected at least one file or folder"


def test_formats_do_not_mix(tmp_path: Path) -> None:
    """Files of two formats in one call are refused at the first that differs."""
    one, two = tmp_path / "a.jsonl", tmp_path / "b.json"
    row = {"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [0]}
    one.write_text(json.dumps(row))
    two.write_text('{"block_size": 64, "requests": []}')
    expected = f"{two}: format kv-cache-tester, expected mooncake like a.jsonl before it"
    assert _complaint([one, two]) == expected
    assert _complaint([tmp_path]) == expected


def test_kind_that_the_file_is_not(tmp_path: Path) -> None:
    """A file read as another format is refused by what is missing."""
    path = tmp_path / "a.jsonl"
    row = {"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [0]}
    path.write_text(json.dumps(row))
    expected = "schema is missing, expected a text that is not empty"
    assert _complaint([path], kind="sessions") == f"{path}: line 1: {expected}"
    assert _complaint([path], kind="kv-cache-tester").startswith(f"{path}: block_size is missing")


def test_json_nested_without_end(tmp_path: Path) -> None:
    """A row nested too deeply to be read is refused, not a crash."""
    path = tmp_path / "deep.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": ' + "[" * 200_000)
    assert _complaint([path]) == f"{path}: line 1: nested too deeply, expected a flat JSON object"
