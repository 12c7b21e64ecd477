"""Prefill and decode apart from the command line: tables, files, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import kvsim

from kvsim.config import dump_config, load_config
from kvsim.results.runfolder import load_run

RUN = """
trace: {path: trace.jsonl}
model: llama-3.1-8b
engine: {num_gpu_blocks_override: 9000}
connector: {kind: nixl}
cluster:
  instances:
  - {name: p, role: prefill}
  - {name: d, role: decode, hardware: {gpu: h200-sxm}}
  router: round_robin
  decode_router: least_requests
  network: {nic: h800-8xcx7, nics_per_gpu: 2}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a config and its trace."""
    rows = [
        {"timestamp": 300 * n, "input_length": 1_024 * (n + 1), "output_length": 20, "hash_ids": list(range(2 * n + 2))}
        for n in range(6)
    ]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "run.yaml").write_text(RUN)
    return tmp_path


def test_a_run(folder: Path) -> None:
    """The terminal and the summary show the network, requests what became of their KV; twice the same bytes."""
    result = kvsim("run", "run.yaml", "-o", "out", cwd=folder)
    assert result.returncode == 0, result.stderr
    assert "Remote wait" in result.stdout
    assert "prefill," in result.stdout
    run = load_run(folder / "out")
    network = run.summary["network"]
    assert network["totals"]["nics"] == 4
    assert network["totals"]["blocks_wanted"] == network["totals"]["blocks_received"] > 0
    assert network["remote_tokens"] == int(run.requests["remote_tokens"].sum()) > 0
    assert run.summary["latency"]["ttft_ms"]["count"] == run.summary["requests"]["finished"]
    assert run.summary["latency"]["tpot_ms"]["p50"] > 0
    assert {each["role"] for each in run.summary["instances"]} == {"prefill", "decode"}
    assert any(note.startswith("network: h800-8xcx7, 2 NICs per GPU of 25 GB/s") for note in run.summary["notes"])
    assert any("handshake of 100 ms" in note for note in run.summary["notes"])
    again = kvsim("run", "run.yaml", "-o", "again", "--json", "--set", "output.plots=false", cwd=folder)
    assert json.loads(again.stdout)["digest"] == run.summary["digest"]


def test_the_config_is_written_and_read_back(folder: Path) -> None:
    """With roles, both routers and the network."""
    config = load_config(folder / "run.yaml")
    (folder / "again.yaml").write_text(dump_config(config))
    assert load_config(folder / "again.yaml") == config


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("cluster.network.nic=cx9", "cluster.network.nic: nic 'cx9': no such profile"),
        ("cluster.network.oversubscription=0.5", "cluster.network.oversubscription: expected at least 1, found 0.5"),
        ("cluster.network.nics_per_gpu=0", "cluster.network.nics_per_gpu: expected more than 0, found 0"),
        ("cluster.decode_router=round_robbin", "round_robbin"),
        ("connector.mode=pul", "connector.mode: expected one of pull, push, found 'pul', did you mean pull?"),
        ("connector.kv_lease_duration=1ms", "connector.kv_lease_duration: expected at least"),
        ("connector.kind=p2p_nccl", "connector.kind: p2p_nccl: vLLM 0.33.0 has no P2pNcclConnector, expected"),
        (
            "connector.kind=none",
            "connector.kind: none: expected nixl or mooncake or p2p_nccl for an instance with",
        ),
        ("engine.async_scheduling=true", "engine.async_scheduling: true: expected false with connector nixl"),
        ("engine.data_parallel_size=2", "engine.data_parallel_size: 2: expected 1 with connector.kind nixl"),
        ("faults.client_timeout=1s", "expected none with prefill and decode instances"),
    ],
)
def test_one_clear_error(folder: Path, change: str, message: str) -> None:
    """On one line, with exit code 2."""
    result = kvsim("run", "run.yaml", "-o", "out", "--set", change, cwd=folder)
    assert result.returncode == 2
    assert message in result.stderr
    assert result.stderr.count("\n") == 1, result.stderr
