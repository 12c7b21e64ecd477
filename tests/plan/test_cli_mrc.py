"""The command ``kvsim mrc``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from typer.testing import CliRunner, Result

from kvsim.cli import app
from kvsim.errors import UserError

SAMPLE = Path(__file__).resolve().parents[2] / "traces" / "swe-bench-like-60.jsonl.gz"
SIZE = "expected a size with its unit, such as 64GiB or 64GB"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """Two prompts of three blocks in turn, three times, one every 10 s; a block is 16 tokens."""
    rows = [
        {
            "timestamp": 10_000 * at,
            "input_length": 48,
            "output_length": 1,
            "hash_ids": [3 * (at % 2) + k for k in range(3)],
        }
        for at in range(6)
    ]
    path = tmp_path / "small.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _invoke(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["mrc", *map(str, arguments)])


def _json(*arguments: object) -> dict[str, Any]:
    result = _invoke(*arguments, "--json")
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_tables_fit_into_100_columns() -> None:
    """The tables hold curve, optimum, knees and working set, each line of at most 100 columns."""
    result = _invoke(SAMPLE, "--bypass", "--tenants", "ana,bo,cy,di", "--per-tenant")
    assert result.exit_code == 0
    assert max(map(len, result.stdout.splitlines())) <= 100
    for text in ("112,467,040", "most hits", "Knees", "optimum", "may decline", "900 s", "cy", "note: only prompts"):
        assert text in result.stdout


def test_json_by_hand(small: Path) -> None:
    """Every figure of a small trace; sizes are in bytes, rates are shares of all block uses."""
    found = _json(small, "--block-tokens", 16, "--kv-bytes-per-token", 1000, "--sizes", "48KB,64KB,96KB", "--bypass")
    assert (found["trace"], found["order"], found["block_tokens"]) == ("small.jsonl", "by time stamp", 16)
    assert (found["prompts"], found["block_uses"], found["compulsory_misses"]) == (6, 18, 6)
    assert (found["unique_bytes"], found["largest_prompt_bytes"], found["full_bytes"]) == (96_000, 48_000, 96_000)
    assert found["sizes"] == [
        {"size_bytes": 48_000, "size_blocks": 3, "lru_hit_rate": 0.0, "opt_hit_rate": 0.0,
         "opt_bypass_hit_rate": 6 / 18, "marks": []},
        {"size_bytes": 64_000, "size_blocks": 4, "lru_hit_rate": 4 / 18, "opt_hit_rate": 4 / 18,
         "opt_bypass_hit_rate": 8 / 18, "marks": []},
        {"size_bytes": 96_000, "size_blocks": 6, "lru_hit_rate": 12 / 18, "opt_hit_rate": 12 / 18,
         "opt_bypass_hit_rate": 12 / 18, "marks": []},
    ]  # fmt: skip
    assert found["working_set"][0]["touched_bytes"] == [96_000]
    assert found["milestones"] == {"50": 80_000, "90": 96_000, "99": 96_000}
    assert found["tenants"] == []


def test_model_gives_the_bytes(small: Path) -> None:
    """A model's KV per token, in the type that is cached; windows and states are noted as not counted."""
    assert _json(small, "--block-tokens", 16, "--model", "llama-3.1-8b")["kv_bytes_per_token"] == 131_072
    assert (
        _json(small, "--block-tokens", 16, "--model", "llama-3.1-8b", "--kv-cache-dtype", "fp8")["kv_bytes_per_token"]
        == 65_536
    )
    assert _json(small, "--block-tokens", 16)["kv_bytes_per_token"] == 327_680
    notes = _json(small, "--block-tokens", 16, "--model", "gpt-oss-120b")["notes"]
    assert "gpt-oss-120b: sliding windows are counted as if they kept everything" in notes
    assert any(
        "recurrent states are not counted" in note
        for note in _json(small, "--block-tokens", 16, "--model", "qwen3-next-80b-a3b")["notes"]
    )


def test_orders_and_pace() -> None:
    """One session after the other needs far less than all at once; fewer at a time lie between."""
    needs = [
        _json(SAMPLE, "--no-opt", *options)["milestones"]["90"]
        for options in (("--order", "sequential"), ("--max-concurrent-sessions", "5"), ("--session-interval", "10s"))
    ]
    assert needs == sorted(needs)
    assert needs[0] < 80e9 < needs[2]
    assert _json(SAMPLE, "--no-opt", "--order", "sequential")["working_set"] == []


def test_folder_holds_tables_plots_and_json(small: Path, tmp_path: Path) -> None:
    """All files, the same bytes each time; a second time replaces the first, also files that it does not make."""
    folder = tmp_path / "new" / "sizes"
    common = (small, "--block-tokens", 16, "-o", folder)
    bytes_of: list[dict[str, bytes]] = []
    printed = _json(*common, "--tenants", "a,b", "--per-tenant")
    names = {f"{stem}.{end}" for stem in ("mrc", "tenants") for end in ("csv", "parquet", "png", "svg")} | {"mrc.json"}
    assert {path.name for path in folder.iterdir()} == names
    assert {**json.loads((folder / "mrc.json").read_text()), "folder": str(folder)} == printed
    frame = pd.read_parquet(folder / "mrc.parquet")
    assert list(frame.columns) == ["size_bytes", "size_blocks", "lru_hit_rate", "opt_hit_rate", "mark"]
    pd.testing.assert_frame_equal(frame, pd.read_csv(folder / "mrc.csv", keep_default_na=False))
    assert frame["lru_hit_rate"].tolist() == [row["lru_hit_rate"] for row in printed["sizes"]]
    for _ in range(2):
        assert _invoke(*common, "--no-opt").exit_code == 0
        names = {path.name for path in folder.iterdir()}
        assert names == {f"mrc.{end}" for end in ("csv", "json", "parquet", "png", "svg")}
        bytes_of.append({path.name: path.read_bytes() for path in folder.iterdir()})
    assert bytes_of[0] == bytes_of[1]
    assert "opt_hit_rate" not in pd.read_csv(folder / "mrc.csv")
    assert [path.name for path in folder.parent.iterdir()] == ["sizes"]


def test_each_trace_is_a_tenant(small: Path, tmp_path: Path) -> None:
    """Without names, every TRACE is a tenant of --per-tenant, and equal prompts of two share nothing."""
    other = tmp_path / "other.jsonl"
    other.write_bytes(small.read_bytes())
    found = _json(small, other, "--per-tenant", "--block-tokens", 16, "--kv-bytes-per-token", 1000, "--sizes", "96KB")
    assert [(each["name"], each["shared_hit_rate"], each["alone_hit_rate"]) for each in found["tenants"]] == [
        ("small.jsonl", [0.0], [12 / 18]),
        ("other.jsonl", [0.0], [12 / 18]),
    ]
    again = _json(small, small, "--per-tenant", "--block-tokens", 16)
    assert [each["name"] for each in again["tenants"]] == ["small.jsonl", "small.jsonl#2"]


def test_nothing_is_used_twice(tmp_path: Path) -> None:
    """A trace without any reuse has empty curves, and a plot that says so."""
    path = tmp_path / "once.jsonl"
    path.write_text('{"timestamp": 0, "input_length": 600, "output_length": 1, "hash_ids": [1, 2]}\n')
    found = _json(path, "-o", tmp_path / "out")
    assert (found["max_hit_rate"], found["full_bytes"], found["milestones"], found["knees"]) == (0.0, 0, {}, [])
    assert "No block is used twice" in (tmp_path / "out" / "mrc.svg").read_text()
    assert _invoke(path).exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--sizes", "40"), f"--sizes: {SIZE}, found '40' without a unit"),
        (("--sizes", "40GB,"), f"--sizes: {SIZE}, found ''"),
        (("--sizes", "-1GB"), f"--sizes: {SIZE}, not negative, found '-1GB'"),
        (("--sizes", "0"), "--sizes: expected sizes larger than 0, found '0'"),
        (("--sizes", "nan GB"), f"--sizes: {SIZE}, found 'nan GB'"),
        (("--order", "random"), "--order: expected one of auto, recorded, closed-loop, sequential, found 'random'"),
        (
            ("--order", "closed-loop"),
            "small.jsonl: all sessions have arrival times, expected an order recorded or sequential",
        ),
        (
            ("--max-think-time", "5"),
            "--max-think-time: expected a time with its unit, such as 30ms, 60s or 1.5h, found '5' without a unit",
        ),
        (("--model", "llama-9"), "model: 'llama-9' is not known; closest: "),
        (
            ("--model", "llama-3.1-8b", "--kv-bytes-per-token", "5"),
            "--kv-bytes-per-token: expected it or --model, not both",
        ),
        (
            ("--kv-cache-dtype", "fp8", "--kv-bytes-per-token", "5"),
            "--kv-bytes-per-token: expected it or --kv-cache-dtype, not both",
        ),
        (("--kv-cache-dtype", "int3"), "kv_cache_dtype: 'int3': expected one of "),
        (
            ("--per-tenant",),
            "--per-tenant: one TRACE and no --tenants, expected either names or one TRACE for each tenant",
        ),
        (("--tenants", "a,,b"), "--tenants: expected names with commas between them, found 'a,,b'"),
        (("--tenants", "a,a"), "tenants: expected different names, found a, a"),
        (("--kind", "csv"), "trace kind is 'csv', expected auto or one of "),
    ],
)
def test_bad_input_is_one_line(small: Path, arguments: tuple[str, ...], message: str) -> None:
    """Whatever is wrong is said in one line with what was expected, and nothing is written."""
    out = small.parent / "out"
    result = _invoke(small, "--block-tokens", 16, "-o", out, *arguments)
    assert isinstance(result.exception, UserError)
    assert str(result.exception).startswith(message)
    assert "\n" not in str(result.exception)
    assert not out.exists()


def test_trace_without_a_block(tmp_path: Path) -> None:
    """A trace whose prompts are all shorter than a block has no curve."""
    row = {"t": 0, "type": "n", "model": "m", "in": 40, "out": 1, "hash_ids": []}
    top = {"id": "x", "models": ["m"], "block_size": 64, "hash_id_scope": "local", "requests": [row]}
    path = tmp_path / "short.json"
    path.write_text(json.dumps(top))
    result = _invoke(path)
    assert str(result.exception) == f"{path}: no prompt is as long as a block of 64 tokens"


def test_other_peoples_folders_are_left_alone(small: Path, tmp_path: Path) -> None:
    """A folder with anything else in it, or a file, is not replaced."""
    folder, file = tmp_path / "mine", tmp_path / "file"
    folder.mkdir()
    (folder / "letter.txt").write_text("dear")
    file.write_text("x")
    for target in (folder, file):
        result = _invoke(small, "--block-tokens", 16, "-o", target)
        expected = "expected a new folder, or one that holds only what `kvsim mrc` wrote"
        assert str(result.exception) == f"{target}: {expected}"
    assert (folder / "letter.txt").read_text() == "dear"
    assert file.read_text() == "x"


def test_help_holds_an_example() -> None:
    """--help shows how to call it."""
    assert "Example: kvsim mrc traces/" in " ".join(_invoke("--help").stdout.split())
