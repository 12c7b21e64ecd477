"""Reports about traces (facts E5)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from worlds import MS, TraceBuilder, config, run

from kvsim.errors import UserError
from kvsim.trace.read import read_trace


def write(folder: Path, *rows: dict[str, Any] | str) -> Path:
    """A Mooncake trace with these rows (texts as they are), each of one block and 4 tokens of answer."""
    path = folder / "trace.jsonl"
    default = {"input_length": 512, "output_length": 4, "hash_ids": [1]}
    lines = (row if isinstance(row, str) else json.dumps(default | row) for row in rows)
    path.write_text("\n".join(lines))
    return path


def complaint(path: Path) -> str:
    """What reading it complains about, without the path."""
    with pytest.raises(UserError) as caught:
        read_trace([path])
    return str(caught.value).removeprefix(f"{path}: ")


def test_smg_636_a_missing_time_stamp_is_no_zero(tmp_path: Path) -> None:
    """Reported: rows without a time stamp all arrive at 0. Right: the row is named."""
    path = write(tmp_path, {"timestamp": 0}, {})
    assert complaint(path) == "line 2: timestamp is missing, expected a number from 0 to 1e+12"


@pytest.mark.parametrize("value", ["NaN", "null", '"soon"'])
def test_aisimulate_183_a_time_stamp_that_is_none_names_its_request(tmp_path: Path, value: str) -> None:
    """Reported: a NaN time goes through. Right: line, field and value are named."""
    path = write(
        tmp_path,
        {"timestamp": 0},
        f'{{"timestamp": {value}, "input_length": 512, "output_length": 4, "hash_ids": [1]}}',
    )
    message = complaint(path)
    assert message.startswith("line 2: ")
    assert value.strip('"') in message
    assert "expected" in message


def test_blis_1302_negative_times_are_refused(tmp_path: Path) -> None:
    """Reported: negative times give no completions and exit code 0. Right: an error that names the row."""
    assert complaint(write(tmp_path, {"timestamp": -5})) == (
        "line 1: timestamp is -5, expected a number from 0 to 1e+12"
    )


def test_blis_1606_times_since_1970_are_seen(tmp_path: Path) -> None:
    """Reported: Unix times give 0 completions, silently. Right: refused, or taken relatively to the first one.

    1,700,000,000,000 ms (2023) is refused; 1,700,000,000 is read as ms, time 0 is the first one, and all complete.
    """
    assert complaint(write(tmp_path, {"timestamp": 1_700_000_000_000})).startswith("line 1: timestamp is 17000000")
    trace = read_trace([write(tmp_path, {"timestamp": 1_700_000_000}, {"timestamp": 1_700_000_250})])
    _, record = run(trace, config())
    assert [(entry.status, entry.arrival_ns) for entry in record.requests] == [
        ("finished", 0),
        ("finished", 250_000_000),
    ]
    assert "time 0 is the first time stamp, 1,700,000.000 s" in trace.notes


@pytest.mark.parametrize(("prefix", "dropped", "kept"), [(3000, 0, 1536), (3100, 1536, 3072), (4700, 3072, 4608)])
def test_ascend_16639_eagle_costs_the_last_block_of_a_hit(prefix: int, dropped: int, kept: int) -> None:
    """Reported: blocks of 1,536 tokens and EAGLE: no hits below 3,072 tokens. So it is, unless hashes look ahead."""
    hits = []
    for look_ahead in (False, True):
        builder = TraceBuilder(outputs_return=False)
        builder.common_prefix(prefix)
        builder.session("a", [(10, 2, 0)])
        builder.session("b", [(3000, 2, 0)], start_ns=10_000 * MS)
        speculative = {"method": "eagle", "lookahead_block_hashes": look_ahead}
        engine = {"block_size": 1536, "max_model_len": 20_000, "max_num_batched_tokens": 8192}
        _, record = run(builder.build(), config(engine={**engine, "speculative": speculative}))
        hits.append(record.requests[1].local_hit_tokens)
    assert hits == [dropped, kept]
