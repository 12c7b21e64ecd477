"""``kvsim run --vllm``, ``from-vllm`` and ``to-vllm`` as a user types them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from kvsim.cli import main
from kvsim.config import load_config
from kvsim.trace.generate import GeneratorParameters, write_trace
from kvsim.vllm_line.flag_table import REMOVED

LINE = "vllm serve Qwen/Qwen3-0.6B --max-model-len 16k --kv-offloading-size 2 --port 8000"
TRANSFER = (
    '{"kv_connector":"OffloadingConnector","kv_role":"kv_both",'
    '"kv_connector_extra_config":{"cpu_bytes_to_use":2147483648}}'
)
REASON = f"--swap-space: vLLM 0.33.0 has no such flag any more: {REMOVED['--swap-space']}"
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def kvsim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs a command in a folder with a small trace: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    write_trace(tmp_path / "small.jsonl.gz", GeneratorParameters(sessions=2, seed=3))

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["kvsim", *words])
        code = 0
        try:
            main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        out, err = capsys.readouterr()
        return code, out, err

    return run


def test_from_vllm(kvsim: Run, tmp_path: Path) -> None:
    """What is printed is a config, with what was found and assumed in comments above it."""
    code, out, err = kvsim("from-vllm", LINE, "--gpu", "l40s", "--trace", "small.jsonl.gz")
    assert (code, err) == (0, "")
    assert out.splitlines()[:5] == [
        "# vLLM 0.33.0: Qwen/Qwen3-0.6B",
        "# 1 x l40s",
        "# max_num_batched_tokens 2048, max_num_seqs 256, max_model_len 16000",
        "# KV is offloaded by OffloadingConnector (kv_both): 2 GiB of CPU memory for each engine, 2 GiB for each rank",
        "# - without effect, serving front end: --port",
    ]
    (tmp_path / "run.yaml").write_text(out)
    config = load_config(tmp_path / "run.yaml")
    assert (config.model.name, config.hardware.gpu, config.engine.max_model_len) == ("Qwen/Qwen3-0.6B", "l40s", 16_000)


def test_from_vllm_with_problems(kvsim: Run) -> None:
    """What the line says is shown all the same, no half a config; the error is one line, exit code 2."""
    code, out, err = kvsim("from-vllm", f"{LINE} --swap-space 4 -pp 2 --kv-offloading-backend lmcache")
    assert code == 2
    assert all(line.startswith("# ") for line in out.splitlines())
    assert "# 2 x h100-sxm (PP 2)" in out
    assert "# KV is offloaded by LMCacheMPConnector (kv_both)" in out
    assert [line for line in out.splitlines() if line.startswith("# !")] == [
        f"# ! vLLM 0.33.0 refuses the line: {REASON}",
        "# ! not simulated: pipeline parallelism (2 ranks)",
    ]
    assert err.startswith("error: vLLM 0.33.0 refuses the line: --swap-space")
    assert err.endswith("(and 1 more; kvsim from-vllm shows all)\n")


def test_from_vllm_as_json(kvsim: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For machines; the line may come from a file or from standard input."""
    (tmp_path / "line.txt").write_text(f"export A=1\n{LINE}\n")
    code, out, _err = kvsim("from-vllm", "@line.txt", "--json", "--vllm-version", "0.23.0")
    found = json.loads(out)
    assert code == 0
    assert (found["version"], found["gpus"], found["problems"], found["environment"]) == ("0.23.0", 1, [], {"A": "1"})
    assert found["transfer"]["cpu_bytes"] == 2 * 2**30
    assert found["sections"]["connector"]["kind"] == "offloading"
    monkeypatch.setattr("sys.stdin", io.StringIO(LINE))
    assert json.loads(kvsim("from-vllm", "-", "--json")[1])["max_model_len"] == 16_000


def test_run_with_a_line(kvsim: Run, tmp_path: Path) -> None:
    """A line and a trace are enough for a run; its notes say what was ignored; --set comes last."""
    options = [
        "--vllm",
        LINE,
        "--trace",
        "small.jsonl.gz",
        "--set",
        "engine.max_num_seqs=7",
        "--set",
        "output.plots=false",
    ]
    code, out, err = kvsim("run", *options, "--json")
    assert (code, err) == (0, "")
    found = json.loads(out)
    assert found["folder"] == "runs/small"
    assert "without effect, serving front end: --port" in found["notes"]
    config = load_config(tmp_path / "runs" / "small" / "config.resolved.yaml")
    assert (config.engine.max_num_seqs, config.connector.kind, config.hardware.gpu) == (7, "offloading", "h100-sxm")
    code, out, _err = kvsim("to-vllm", "runs/small/config.resolved.yaml")
    assert code == 0
    assert out.splitlines()[1:] == [
        "vllm serve Qwen/Qwen3-0.6B \\",
        "  --max-num-seqs 7 \\",
        "  --max-model-len 16000 \\",
        "  --no-async-scheduling \\",
        f"  --kv-transfer-config '{TRANSFER}'",
    ]


def test_run_with_a_config_and_a_line(kvsim: Run, tmp_path: Path) -> None:
    """The line takes the place of the file's server; trace, links and GPU stay the file's."""
    (tmp_path / "run.yaml").write_text(
        "trace: {path: small.jsonl.gz, session_interval: 1s}\nmodel: llama-3.1-8b\noutput: {plots: false}\n"
        "hardware: {gpu: l40s, tensor_parallel_size: 4, host_dram_bandwidth: 50GB/s}\nengine: {max_num_seqs: 3}\n"
        "connector: {kind: simple_cpu}\n"
    )
    code, _out, err = kvsim("run", "run.yaml", "--vllm", "vllm serve Qwen/Qwen3-0.6B", "-o", "x")
    assert (code, err) == (0, "")
    config = load_config(tmp_path / "x" / "config.resolved.yaml")
    assert (config.model.name, config.connector.kind, config.engine.max_num_seqs) == ("Qwen/Qwen3-0.6B", "none", None)
    assert (config.hardware.gpu, config.hardware.tensor_parallel_size) == ("l40s", 1)
    assert config.hardware.host_dram_bandwidth == 50 * 10**9
    assert config.trace.session_interval == 10**9


WRONG = {
    "nothing": (["run"], "expected a CONFIG file, or --vllm 'vllm serve ...' with --trace PATH"),
    "no trace": (["run", "--vllm", LINE], "--vllm: expected --trace PATH too, or a CONFIG that names a trace"),
    "no line": (["run", "--trace", "small.jsonl.gz", "--gpu", "l40s"], "--gpu: expected together with --vllm"),
    "not simulated": (
        ["run", "--vllm", f"{LINE} -pp 2", "--trace", "small.jsonl.gz"],
        "--vllm: not simulated: pipeline parallelism (2 ranks)",
    ),
    "does not fit": (
        ["run", "--vllm", f"{LINE} --max-loras 0 --enable-lora", "--trace", "small.jsonl.gz"],
        "--vllm: engine.max_loras: expected at least 1, found 0",
    ),
    "weights": (
        ["run", "--vllm", "vllm serve meta-llama/Llama-3.1-70B", "--trace", "small.jsonl.gz"],
        "--vllm: vLLM 0.33.0 would not start: 131.4 GiB of weights of llama-3.1-70b on each GPU, expected less than",
    ),
    "no file": (["run", "--vllm", "@nowhere.txt", "--trace", "small.jsonl.gz"], "nowhere.txt: No such file"),
    "no command": (["from-vllm", "ls"], "no vLLM command in it, expected one, such as: vllm serve"),
    "no server": (["from-vllm", "vllm bench serve --model Qwen/Qwen3-8B"], "vllm bench starts no server, expected a"),
    "gpu": (["from-vllm", LINE, "--gpu", "h1000"], "gpu: 'h1000' is not known; closest: "),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_one_line_for_what_is_wrong(kvsim: Run, tmp_path: Path, name: str) -> None:
    """Exit code 2, one line on standard error, and no folder."""
    words, expected = WRONG[name]
    code, out, err = kvsim(*words)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert expected in err
    assert err.count("\n") == 1
    assert not (tmp_path / "runs").exists()
