"""The commands of ``kvsim trace``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvsim.cli_trace import trace_app
from kvsim.errors import UserError

SAMPLE = Path(__file__).resolve().parents[2] / "traces" / "swe-bench-like-60.jsonl.gz"


def test_stats_prints_tables_of_100_columns() -> None:
    """The tables fit into 100 columns and hold the main figures."""
    result = CliRunner().invoke(trace_app, ["stats", str(SAMPLE)])
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert max(map(len, lines)) <= 100
    for text in ("2,068", "130.09", "0.945995", "204,334", "interleaved", "note: generated tokens come back"):
        assert text in result.stdout


def test_stats_prints_json() -> None:
    """--json prints every figure, and nothing but JSON."""
    result = CliRunner().invoke(trace_app, ["stats", str(SAMPLE), "--json", "--kv-bytes-per-token", "1000"])
    found = json.loads(result.stdout)
    assert (found["sessions"], found["requests"], found["kv_bytes_per_token"]) == (60, 2068, 1000)
    assert found["hits"]["blocks_hit"] == 106_393_288
    assert found["orders"][1]["order"] == "interleaved"


def test_outputs_return_is_an_option() -> None:
    """--outputs-return no makes answers new content: fewer tokens are found."""
    runner = CliRunner()
    rates = []
    for choice in ("yes", "no"):
        result = runner.invoke(trace_app, ["stats", str(SAMPLE), "--json", "--outputs-return", choice])
        found = json.loads(result.stdout)
        rates.append((found["hits"]["block_rate"], found["notes"][0]))
    # Statistics never count generated tokens as cached, so the rate is the same; the note tells the choice.
    assert rates[0][0] == rates[1][0]
    assert rates[1][1] == "generated tokens are not found again in the next prompt (as asked for)"


def test_generate_writes_a_trace(tmp_path: Path) -> None:
    """What generate writes, stats can read; it is packed by its suffix."""
    path = tmp_path / "x.jsonl.gz"
    result = CliRunner().invoke(trace_app, ["generate", "-o", str(path), "--sessions", "4", "--seed", "3"])
    assert result.exit_code == 0
    assert result.stdout.startswith(f"{path}: 4 sessions, ")
    assert path.read_bytes()[:2] == b"\x1f\x8b"
    assert CliRunner().invoke(trace_app, ["stats", str(path)]).exit_code == 0


def test_help_holds_an_example() -> None:
    """Both commands show an example."""
    for command in ("stats", "generate"):
        result = CliRunner().invoke(trace_app, [command, "--help"])
        assert f"Example: kvsim trace {command}" in result.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stats", "no-such-file"], "no-such-file: no such file or folder, expected a trace"),
        (["stats", str(SAMPLE), "--outputs-return", "x"], "--outputs-return is 'x', expected auto, yes"),
        (["generate", "-o", "no/such/x.jsonl"], "no/such/x.jsonl: cannot be written"),
    ],
)
def test_user_errors_are_raised_for_the_command_line(arguments: list[str], message: str) -> None:
    """What the user can mend leaves the command as a `UserError`, which the main command prints."""
    result = CliRunner().invoke(trace_app, arguments)
    assert isinstance(result.exception, UserError)
    assert str(result.exception).startswith(message)
