"""Finding, opening and recognising trace files."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import UserError
from kvsim.trace.files import detect_kind
from kvsim.trace.read import read_trace

ROW = {"timestamp": 0, "input_length": 3, "output_length": 1, "hash_ids": [0]}


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        (json.dumps(ROW), "mooncake"),
        (json.dumps({"hash_ids": [0], "output_length": 1, "input_length": 3}), "mooncake"),
        ('{"id":"x","block_size":64,"requests":[]}', "kv-cache-tester"),
        ('{\n  "requests": [\n  ]\n}', "kv-cache-tester"),
        ('{"schema": "kvsim.sessions", "version": 1}', "sessions"),
    ],
)
def test_kind_is_told_by_content(tmp_path: Path, text: str, kind: str) -> None:
    """The name of a file says nothing; its first bytes do."""
    path = tmp_path / "anything.txt"
    path.write_text(text)
    assert detect_kind(path) == kind


def test_gzip_is_recognised_without_its_suffix(tmp_path: Path) -> None:
    """A packed file is unpacked whatever it is called, and a plain one may end in .gz."""
    packed, plain = tmp_path / "packed.jsonl", tmp_path / "plain.jsonl.gz"
    packed.write_bytes(gzip.compress(json.dumps(ROW).encode()))
    plain.write_text(json.dumps(ROW))
    assert read_trace([packed, plain]).num_requests == 2


def test_byte_order_mark_and_blank_lines_do_no_harm(tmp_path: Path) -> None:
    """A file saved by an editor is still a trace."""
    path = tmp_path / "m.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + f"{json.dumps(ROW)}\r\n\n{json.dumps(ROW)}\n  \n".encode())
    assert read_trace([path]).num_requests == 2


def test_duplicate_keys_do_no_harm(tmp_path: Path) -> None:
    """As JSON readers do, the last of equal keys counts."""
    path = tmp_path / "m.jsonl"
    path.write_text('{"timestamp":5,"timestamp":0,"input_length":3,"output_length":1,"hash_ids":[0]}')
    assert read_trace([path]).sessions[0].start_ns == 0


def test_progress_counts_files(write_rows: Callable[..., Path]) -> None:
    """The progress callback is told the files read and the files in all."""
    paths = [write_rows(f"{name}.jsonl", [ROW]) for name in "abc"]
    seen: list[tuple[int, int]] = []
    read_trace(paths, progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 3), (1, 3), (2, 3)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "azure"}, "trace kind is 'azure', expected auto or one of kv-cache-tester, mooncake"),
        ({"outputs_return": "maybe"}, "outputs_return is 'maybe', expected auto, yes or no"),
        ({"block_tokens": 0}, "block_tokens is 0, expected at least 1"),
    ],
)
def test_options_are_checked(options: dict[str, Any], message: str, write_rows: Callable[..., Path]) -> None:
    """A wrong option is one clear line."""
    with pytest.raises(UserError) as error:
        read_trace([write_rows("m.jsonl", [ROW])], **options)
    assert str(error.value).startswith(message)


def test_reading_twice_gives_the_same_trace(shared_traces: Path) -> None:
    """Nothing in a trace depends on the run: segments, chains and names are the same."""
    path = shared_traces / "mooncake" / "synthetic_trace.jsonl.gz"
    one, two = read_trace([path]), read_trace([path])
    for a, b in zip(one.sessions, two.sessions, strict=True):
        assert (a.name, a.start_ns) == (b.name, b.start_ns)
        chains = [[s.index for s in turn.chain.segments] for turn in (a.turns[0], b.turns[0])]
        assert chains[0] == chains[1]
