"""The Python interface: `import kvsim; kvsim.run(...)`."""

from __future__ import annotations

import doctest
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from sweep_builder import small_trace

import kvsim
from kvsim.config import load_config
from kvsim.runner import run_and_save

REPO = Path(__file__).parents[1]
TIERED = {"kind": "offloading", "cpu_bytes_to_use": "800MiB", "tiers": [{"kind": "fs"}]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trace of four sessions."""
    folder = tmp_path_factory.mktemp("api")
    small_trace(folder, sessions=4, turns=6, seed=5)
    return folder


@pytest.fixture
def config(folder: Path) -> dict[str, Any]:
    """A run of it, as a mapping."""
    return {
        "trace": {"path": str(folder / "trace.jsonl.gz"), "session_interval": "1s"},
        "model": "llama-3.1-8b",
        "engine": {"num_gpu_blocks_override": 500, "max_model_len": 8000},
        "connector": TIERED,
        "output": {"plots": False},
    }


def test_the_example_in_the_readme(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line of Python in the README gives what is printed below it."""
    monkeypatch.chdir(REPO)
    found = doctest.testfile(str(REPO / "README.md"), module_relative=False)
    assert found.attempted >= 6
    assert found.failed == 0


def test_a_result_is_what_a_run_folder_holds(config: dict[str, Any], tmp_path: Path) -> None:
    """Mapping, YAML file and `RunConfig` give the summary, and `save` the files, that `kvsim run` leaves."""
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")
    run_and_save(load_config(file), tmp_path / "command")
    result = kvsim.run(file)
    assert result.save(tmp_path / "saved") == tmp_path / "saved"
    names = sorted(path.name for path in (tmp_path / "command").iterdir())
    assert names == [
        *("config.resolved.yaml", "report.html", "requests.parquet", "series.parquet", "summary.json"),
        "tiers.parquet",
    ]
    for name in set(names) - {"report.html"}:  # whose title is the folder's name
        assert (tmp_path / "saved" / name).read_bytes() == (tmp_path / "command" / name).read_bytes(), name
    summary = json.loads((tmp_path / "command" / "summary.json").read_text())
    for other in (result, kvsim.run(config), kvsim.run(load_config(file))):
        assert json.loads(json.dumps(other.summary)) == summary
        pd.testing.assert_frame_equal(other.requests, result.requests)
    assert result.digest == summary["digest"]
    assert result.warnings == summary["warnings"]
    assert result.notes == summary["notes"]
    assert set(result.tiers["tier"]) == {"fs"}
    assert repr(kvsim.run(config)).startswith("<kvsim.Result unnamed: ")
    assert result.config.name == "run"


def test_kv_events_are_saved_too(config: dict[str, Any], tmp_path: Path) -> None:
    """A run that is to publish KV events has them in memory, and they are saved as `kvsim run` writes them."""
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps(config), encoding="utf-8")
    overrides = ["output.kv_events=true", "trace.max_sessions=1", "connector={kind: none}"]
    run_and_save(load_config(file, overrides), tmp_path / "command")
    result = kvsim.run(file, overrides=overrides)
    result.save(tmp_path / "saved")
    written = (tmp_path / "command" / "kv_events.jsonl").read_text()
    assert written.count("BlockStored") > 0
    assert result.kv_events == written
    assert (tmp_path / "saved" / "kv_events.jsonl").read_text() == written


def test_overrides(config: dict[str, Any]) -> None:
    """Overrides change a mapping and a `RunConfig` alike, and do not touch it; one may stand without a list."""
    before = json.dumps(config)
    fewer = kvsim.run(config, overrides="trace.max_sessions=2")
    assert fewer.summary["sessions"]["count"] == 2
    assert json.dumps(config) == before
    assert kvsim.run(fewer.config, overrides=["trace.max_sessions=1"]).summary["sessions"]["count"] == 1
    assert fewer.config.trace.max_sessions == 2


ENGINES = [
    {},
    {"engine": {"kind": "reference"}},
    {"engine": {"async_scheduling": True}},
    {"connector": {"kind": "lmcache", "max_local_cpu_size": "0.3GiB"}},
    {"trace": {"loras": 2, "images": {"share": 0.5, "tokens": 300}, "tenants": ["a", "b"], "max_sessions": 3}},
    {"connector": {"kind": "none"}, "cluster": {"instances": [{"name": "a", "count": 2}], "router": "prefix_aware"}},
]


def test_runs_share_a_trace(config: dict[str, Any]) -> None:
    """Runs of all sorts, one after the other on one trace, twice, do what they do on a trace of their own."""
    shared = kvsim.read_trace(config)
    wanted = [config | {key: {**config.get(key, {}), **value} for key, value in change.items()} for change in ENGINES]
    for change, each in zip(ENGINES, wanted, strict=True):
        if "connector" in change:
            each["connector"] = change["connector"]
    alone = [kvsim.run(each) for each in wanted]
    assert len({result.digest for result in alone}) >= 4
    for _ in range(2):
        for each, expected in zip(wanted, alone, strict=True):
            found = kvsim.run(each, trace=shared)
            assert found.digest == expected.digest
            assert found.summary == expected.summary


def test_a_trace_of_another_path_is_told(config: dict[str, Any], tmp_path: Path) -> None:
    """A run that plays another trace than its config names says so in a note, and only such a run does."""
    other = small_trace(tmp_path, sessions=1)
    played = kvsim.run(config, trace=kvsim.read_trace({**config, "trace": {"path": str(other)}}))
    note = f"played the trace that was given, of {other}, and not trace.path: {config['trace']['path']}"
    assert played.summary["sessions"]["count"] == 1
    assert note in played.notes
    assert not [note for note in kvsim.run(config, trace=kvsim.read_trace(config)).notes if "was given" in note]


def test_a_plot_is_a_figure(config: dict[str, Any]) -> None:
    """Every plot of a run can be had by its name, those of its tiers included; another name is an error."""
    result = kvsim.run(config)
    assert list(result.plots)[:6] == ["ttft_cdf", "e2e_cdf", "hit_rate", "kv_usage", "queues", "transfers"]
    assert len(result.plots) > 6
    assert [axes.get_title("left") for axes in result.plot("ttft_cdf").axes] == ["Time to first token (TTFT)"]
    for name in result.plots:
        assert result.plot(name).axes
    with pytest.raises(kvsim.UserError, match=r"found 'ttft_cfd', did you mean ttft_cdf\?"):
        result.plot("ttft_cfd")


def test_mistakes(config: dict[str, Any], tmp_path: Path) -> None:
    """What is wrong is one line, and nothing is written over."""
    with pytest.raises(kvsim.UserError, match=r"config: unknown key engine.blok_size, did you mean block_size\?"):
        kvsim.run(config | {"engine": {"blok_size": 16}})
    with pytest.raises(kvsim.UserError, match=r"^override seed=x: seed: expected a whole number, found 'x'"):
        kvsim.run(config, overrides=["seed=x"])
    with pytest.raises(kvsim.UserError, match=r"no-such.yaml: no such file"):
        kvsim.run(tmp_path / "no-such.yaml")
    with pytest.raises(kvsim.UserError, match=r"^trace: expected what kvsim.read_trace gives, found a list"):
        kvsim.run(config, trace=[])  # type: ignore[arg-type]
    result = kvsim.run(config, overrides=["trace.max_sessions=1"])
    result.save(tmp_path / "run")
    with pytest.raises(kvsim.UserError, match=r"a run is there already; .*overwrite=True"):
        result.save(tmp_path / "run")
    result.save(tmp_path / "run", overwrite=True)


def test_progress(config: dict[str, Any]) -> None:
    """Progress counts requests up to all of them."""
    seen: list[tuple[int, int]] = []
    result = kvsim.run(config, progress=lambda done, total: seen.append((done, total)))
    total = result.summary["requests"]["arrived"]
    assert seen == [(done, total) for done in range(1, total + 1)]


def test_importing_is_light() -> None:
    """`import kvsim` loads no pandas, no simulator; what it offers is listed, anything else is an AttributeError."""
    code = "import sys, kvsim; print(sorted({'pandas', 'simpy', 'pydantic'} & set(sys.modules)), hasattr(kvsim, 'x'))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[] False\n"
    assert {"Result", "RunConfig", "UserError", "read_trace", "run"} <= set(dir(kvsim))
