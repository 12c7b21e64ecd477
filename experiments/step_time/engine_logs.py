# ruff: noqa: INP001 - scripts, run by path
"""Two request logs of real vLLM servers, replayed by the whole engine: every step scheduled, every block allocated.

Run `python experiments/step_time/engine_logs.py --data DIR`, where DIR holds the logs that LLMServingSim publishes
(bench/examples, MIT; vLLM 0.19.0, 300 ShareGPT requests at 10/s, Llama-3.1-8B). Third-party data, not committed here.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from kvsim.build import Simulation
from kvsim.chain import Chain, PrefixTree
from kvsim.config import RunConfig
from kvsim.errors import UserError
from kvsim.resolve import resolve
from kvsim.trace.session import Session, Trace, Turn


@dataclass(frozen=True)
class Log:
    """One log and the server behind it."""

    file: str
    gpu: str
    max_num_seqs: int
    num_gpu_blocks: int
    blocks_source: str
    target: float  # largest error of TPOT and makespan that the project asks for


LOGS = (
    Log("RTX4090__Llama-3.1-8B", "rtx-4090", 256, 2588, "the log's meta.json", 0.10),
    Log("RTXPRO6000__Llama-3.1-8B", "rtx-pro-6000", 128, 30_000, "not logged; never binding", 0.05),
)


@dataclass(frozen=True)
class Times:
    """What a client sees of a run: means and percentiles in seconds."""

    ttft_mean: float
    ttft_p50: float
    ttft_p99: float
    tpot_mean: float
    tpot_p50: float
    tpot_p99: float
    makespan: float


def read_log(folder: Path, log: Log) -> list[dict[str, Any]]:
    """Requests of a log, by the time the engine got them."""
    path = folder / f"{log.file}__requests.jsonl.gz"
    if not path.is_file():
        raise UserError(f"{path}: no such file; expected the logs of LLMServingSim's bench/examples")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return sorted(map(json.loads, lines), key=lambda row: row["queued_ts"])


def measured(rows: list[dict[str, Any]]) -> Times:
    """The log's own times."""
    return _times(
        [row["first_token_ts"] - row["queued_ts"] for row in rows],
        [(row["last_token_ts"] - row["first_token_ts"]) / (row["output_toks"] - 1) for row in rows],
        max(row["last_token_ts"] for row in rows) - rows[0]["queued_ts"],
    )


def simulated(rows: list[dict[str, Any]], log: Log) -> Times:
    """The same requests through the engine. 0.23.0 is the profile nearest to the server's 0.19.0."""
    start = rows[0]["queued_ts"]
    sessions = tuple(
        Session(
            row["request_id"],
            round((row["queued_ts"] - start) * 1e9),
            (Turn(row["input_toks"], row["output_toks"], Chain(), 0, 0),),
        )
        for row in rows
    )
    trace = Trace(log.file, "log", 1, sessions, False, (), PrefixTree())
    config = RunConfig.model_validate(
        {
            "trace": {"path": log.file},
            "model": {"name": "llama-3.1-8b"},
            "hardware": {"gpu": log.gpu},
            "engine": {
                "vllm_version": "0.23.0",
                "num_gpu_blocks_override": log.num_gpu_blocks,
                "max_num_seqs": log.max_num_seqs,
                "max_num_batched_tokens": 2048,
                "max_model_len": 32768,
            },
        }
    )
    done = Simulation(resolve(config, trace)).run().requests
    return _times(
        [(entry.first_token_ns - entry.arrival_ns) / 1e9 for entry in done],
        [(entry.finish_ns - entry.first_token_ns) / (entry.output_tokens - 1) / 1e9 for entry in done],
        max(entry.finish_ns for entry in done) / 1e9,
    )


def _times(ttft: list[float], tpot: list[float], makespan: float) -> Times:
    def three(values: list[float]) -> tuple[float, float, float]:
        return float(np.mean(values)), float(np.percentile(values, 50)), float(np.percentile(values, 99))

    return Times(*three(ttft), *three(tpot), makespan)


def main() -> None:
    """Print predicted against measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    default = Path(__file__).resolve().parents[3] / "shared" / "traces" / "llmservingsim-vllm-measured"
    parser.add_argument("--data", type=Path, default=default, help="folder with the logs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args()
    results = {}
    for log in LOGS:
        rows = read_log(options.data, log)
        results[log.file] = (log, measured(rows), simulated(rows, log))
    if options.json:
        out = {name: {"measured": asdict(real), "simulated": asdict(sim)} for name, (_, real, sim) in results.items()}
        sys.stdout.write(json.dumps(out, indent=1) + "\n")
        return
    console = Console(width=100)
    for name, (log, real, sim) in results.items():
        table = Table(title=f"{name.replace('__', ', ')} ({log.num_gpu_blocks:,} KV blocks: {log.blocks_source})")
        for column in ("", "measured", "simulated", "error"):
            table.add_column(column, justify="right" if column else "left")
        for key, value in asdict(real).items():
            predicted = getattr(sim, key)
            table.add_row(key.replace("_", " ") + ", s", f"{value:.4g}", f"{predicted:.4g}",
                          f"{100 * (predicted / value - 1):+.1f} %")  # fmt: skip
        console.print(table)


if __name__ == "__main__":
    try:
        main()
    except UserError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(2)
