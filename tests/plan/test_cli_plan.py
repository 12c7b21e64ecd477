"""``kvsim plan`` as a user types it, and what it leaves behind."""

from __future__ import annotations

import contextlib
import json
import shutil
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import Result
from plan_builder import RUN, small_trace
from typer.testing import CliRunner

from kvsim.cli import app
from kvsim.config import load_config
from kvsim.errors import UserError
from kvsim.plan.plan_config import load_plan
from kvsim.plan.prices import resources_of
from kvsim.steptime.model import load_model
from kvsim.units import parse_size
from kvsim.vllm_line import parse_command_line
from kvsim.yamlfile import dump_yaml

GIB = 2**30
PLAN: dict[str, Any] = {
    "base": "run.yaml",
    "slo": {"ttft_p90": "70ms"},
    "space": {"replicas": [1, 2], "cpu": ["0GiB", "4GiB", "6GiB"]},
}


def kvsim(*words: str, cwd: Path) -> Result:
    """Run the command line in this process; an error that a user would see is in ``exception``."""
    with contextlib.chdir(cwd):
        return CliRunner().invoke(app, words, env={"COLUMNS": "100"})


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a trace, a run and a plan."""
    folder = tmp_path_factory.mktemp("work")
    small_trace(folder, sessions=8)
    (folder / "run.yaml").write_text(dump_yaml(dict(RUN)))
    (folder / "plan.yaml").write_text(dump_yaml(PLAN))
    return folder


@pytest.fixture(scope="module")
def first(workplace: Path) -> Result:
    """The plan carried out."""
    return kvsim("plan", "plan.yaml", "-o", "first", "--jobs", "1", cwd=workplace)


def points(folder: Path) -> dict[str, tuple[int, int]]:
    """Stored points with the identity of their files."""
    return {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in (folder / "points").iterdir()}


def answer_in(folder: Path) -> dict[str, Any]:
    """What plan.json says."""
    found: dict[str, Any] = json.loads((folder / "plan.json").read_text())
    return found


def test_a_plan_prints_its_answer_and_leaves_its_folder(workplace: Path, first: Result) -> None:
    """The answer, its neighbours, the vLLM line and the files are there; nothing is wider than 100 columns but that."""
    assert first.exit_code == 0, first.output
    assert first.stderr == ""
    lines = first.stdout.splitlines()
    assert "Take replicas 1, cpu 6GiB (1 x h100-sxm, 6.00 GiB of CPU memory in all)." in " ".join(lines)
    assert "price of a GPU-hour of h100-sxm: 3.99 USD (Lambda" in first.stdout
    assert max(len(line) for line in lines if "--kv-transfer-config" not in line) <= 100
    names = {path.name for path in (workplace / "first").iterdir()}
    assert names == {
        "plan.json", "recommended.yaml", "report.html", "results.csv", "results.parquet", "pareto.png", "pareto.svg",
        "points",
    }  # fmt: skip


def test_the_folder_says_the_same_as_the_answer(workplace: Path, first: Result) -> None:
    """plan.json, the table of points and the recommended config agree, and the config runs as it stands."""
    assert first.exit_code == 0
    found = json.loads((workplace / "first" / "plan.json").read_text())
    assert (found["verdict"], found["meets_slo"]) == ("offload", True)
    assert found["recommended"]["point"] == {"replicas": "1", "cpu": "6GiB"}
    assert found["recommended"]["resources"]["dram_bytes"] == 6 * GIB
    assert found["simulated"]["all_neighbours"] is True
    table = pd.read_csv(workplace / "first" / "results.csv")
    best = table[table["recommended"]]
    assert list(best["name"]) == ["replicas 1, cpu 6GiB"]
    assert best["usd_per_1m_output_tokens"].iloc[0] == pytest.approx(found["recommended"]["usd_per_1m_output_tokens"])
    assert best["slo.ttft_p90"].iloc[0] == pytest.approx(best["latency.ttft_ms.p90"].iloc[0] * 1e6)
    assert best["key"].iloc[0] + ".json" in points(workplace / "first")
    assert len(table) == found["simulated"]["points"]
    config = load_config(workplace / "first" / "recommended.yaml")
    assert resources_of(config).dram_bytes == 6 * GIB


def test_the_vllm_line_is_the_recommended_config(workplace: Path, first: Result) -> None:
    """The line that is printed parses back to the engine, the GPUs and the connector that were simulated."""
    assert first.exit_code == 0
    line = json.loads((workplace / "first" / "plan.json").read_text())["vllm_serve"]
    sections = parse_command_line(line, "0.33.0", "h100-sxm").checked_sections()
    config = load_config(workplace / "first" / "recommended.yaml")
    assert load_model(sections["model"]["name"]) == load_model(config.model.name)
    assert sections["engine"]["max_model_len"] == 16384
    assert sections["connector"]["kind"] == "offloading"
    assert parse_size(sections["connector"]["cpu_bytes_to_use"]) == 6 * GIB


def test_a_plan_goes_on_where_it_was(workplace: Path, first: Result) -> None:
    """Points that are there are not simulated again: with a point lost only that one is, and the answer is the same."""
    assert first.exit_code == 0
    folder = workplace / "first"
    before, answer = points(folder), (folder / "plan.json").read_bytes()
    lost = min(before)
    (folder / "points" / lost).unlink()
    again = kvsim("plan", "plan.yaml", "-o", "first", "--jobs", "1", "--json", cwd=workplace)
    assert again.exit_code == 0, again.output
    after = points(folder)
    assert after.keys() == before.keys()
    assert [name for name in after if after[name] != before[name]] == [lost]
    assert (folder / "plan.json").read_bytes() == answer
    printed = json.loads(again.stdout)
    assert printed.pop("folder") == "first"
    assert printed == json.loads(answer)


def test_its_page_begins_with_the_answer(workplace: Path, first: Result) -> None:
    """The report says the answer first, then its neighbours with what they cost; `kvsim report` makes the same page."""
    assert first.exit_code == 0
    answer = json.loads((workplace / "first" / "plan.json").read_text())
    page = (workplace / "first" / "report.html").read_text()
    for text in ("The answer, and what is next to it", "USD per 1M output tokens", *answer["answer"].split("; ")[1:]):
        assert text in page.replace("\N{NO-BREAK SPACE}", " ")
    assert page.index("The answer, and what is next to it") < page.index("Over finished requests, as in vllm bench")
    again = kvsim("report", "first", "-o", "page.html", "--title", "kvsim plan: plan", cwd=workplace)
    assert again.exit_code == 0, again.output
    assert (workplace / "page.html").read_text() == page


def test_a_damaged_answer_is_told(workplace: Path, first: Result, tmp_path: Path) -> None:
    """A folder whose plan.json is not what a plan writes is one line, not a page without an answer."""
    assert first.exit_code == 0
    shutil.copytree(workplace / "first", tmp_path / "damaged")
    (tmp_path / "damaged" / "plan.json").write_text("{}")
    found = kvsim("report", "damaged", "-o", "page.html", cwd=tmp_path)
    assert isinstance(found.exception, UserError)
    assert "plan.json: damaged, or not the answer of a plan" in str(found.exception)


def test_from_a_vllm_line(workplace: Path) -> None:
    """A pasted line, a trace and a limit are a plan; what cannot be met is said, and --strict exits with 1."""
    words = [
        "plan", "--vllm", "vllm serve meta-llama/Llama-3.1-8B --max-model-len 16384 --num-gpu-blocks-override 1200",
        "--trace", "trace.jsonl.gz", "--slo", "ttft_p90=1ms", "--set", "space.replicas=[1]", "--set", "space.cpu=0GiB",
        "--jobs", "1", "-o", "line", "--strict",
    ]  # fmt: skip
    found = kvsim(*words, cwd=workplace)
    assert found.exit_code == 1, found.output
    assert "No point meets the SLO; the closest is replicas 1, cpu 0: TTFT P90" in found.stdout
    assert not (workplace / "line" / "recommended.yaml").exists()
    assert kvsim(*words[:-1], cwd=workplace).exit_code == 0


def test_rejected_requests_are_on_the_page(workplace: Path) -> None:
    """Beside a point that rejects more than the answer does, terminal and page say how many."""
    words = ["--set", "space.cpu=0GiB", "--set", "space.engine.max_model_len=[4096, 16384]", "--slo", "ttft_p90=1s"]
    found = kvsim("plan", "plan.yaml", *words, "--jobs", "1", "-o", "short", cwd=workplace)
    assert found.exit_code == 0, found.exception
    near = {each["point"]["engine.max_model_len"]: each for each in answer_in(workplace / "short")["neighbours"]}
    assert not near["4096"]["meets_slo"]
    rejected = near["4096"]["rejected"]
    assert rejected > 0
    assert f"engine.max_model_len 4096 ({rejected} requests rejected)" in (workplace / "short/report.html").read_text()
    assert f"engine.max_model_len 4096 ({rejected} of" in found.stdout


@pytest.mark.parametrize("option", ["--jobs=1", "--json"])
def test_no_time_for_a_single_point(workplace: Path, option: str) -> None:
    """A budget that ends before the first point is an answer in words, and a folder with an empty table."""
    found = kvsim("plan", "plan.yaml", "--set", "budget.time=1ns", "-o", "hasty", option, cwd=workplace)
    assert found.exit_code == 0, found.exception
    assert "Nothing could be simulated: the budget ended before the first point." in found.stdout
    assert json.loads((workplace / "hasty" / "plan.json").read_text())["verdict"] == "nothing_ran"
    assert {"slo.ttft_p90", "recommended"} <= set(pd.read_csv(workplace / "hasty" / "results.csv").columns)
    assert not (workplace / "hasty" / "report.html").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["plan"], "plan: expected a PLAN.yaml, or --vllm 'vllm serve ...' with --trace PATH and --slo KEY=VALUE"),
        (["plan", "plan.yaml", "--slo", "ttft_p90"], "--slo ttft_p90: expected a limit such as ttft_p90=2s"),
        (["plan", "run.yaml"], "run.yaml:1: unknown key trace"),
        (["plan", "plan.yaml", "-o", "."], ".: exists and is not a plan's folder"),
    ],
)
def test_a_mistake_is_one_line(workplace: Path, words: list[str], message: str) -> None:
    """What the user can mend is one line, and nothing else is printed or written."""
    found = kvsim(*words, cwd=workplace)
    assert isinstance(found.exception, UserError)
    assert str(found.exception).startswith(message)
    assert "\n" not in str(found.exception)
    assert found.output == ""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"base": None}, "plan.yaml:1: base: expected base (a run's file) or run (its sections), found neither"),
        ({"run": {}}, "base: expected base (a run's file) or run (its sections), found both"),
        ({"base": "none.yaml"}, "none.yaml: no such file"),
        ({"slo": None}, "slo: expected a mapping of keys, found nothing (null)"),
        ({"slo": {"ttft_p90": "2m"}}, "plan.yaml:3: slo.ttft_p90: expected a time with its unit, such as 30ms, 60s"),
        ({"space": {"cpu": 1}}, "plan.yaml:5: space.cpu: expected a size with its unit"),
        ({"objective": "cheap"}, "objective: expected one of cost_per_1m_output_tokens, least_dram, max_sessions"),
        ({"budget": {"points": 0}}, "budget.points: expected at least 1, found 0"),
        ({"budget": {"time": "0s"}}, "budget.time: expected more than 0, found '0s'"),
        ({"prices": {"gpu_hours": {}}}, "unknown key prices.gpu_hours, did you mean gpu_hour?"),
        ({"prices": {"dram_gib_hour": "1 EUR"}}, "prices.dram_gib_hour.usd: expected a price such as 2.99 USD"),
        ({"prices": {"gpu_hour": {"h1000": 1}}}, "prices.gpu_hour.h1000: "),
        ({"set": {"engine.block_sizes": 1}}, "unknown key engine.block_sizes"),
        ({"set": {"engine..x": 1}}, "set: expected a key such as engine.block_size, found 'engine..x'"),
    ],
)
def test_a_bad_plan_names_its_place(workplace: Path, change: dict[str, Any], message: str) -> None:
    """A mistake in a plan's file is told before anything is simulated, with file, line, key and expectation."""
    content = {key: value for key, value in (PLAN | change).items() if key != "base" or value is not None}
    place = workplace / "bad"
    place.mkdir(exist_ok=True)
    (place / "run.yaml").write_text((workplace / "run.yaml").read_text())
    small_trace(place, sessions=1, turns=1)
    (place / "plan.yaml").write_text(dump_yaml(content))
    with pytest.raises(UserError) as caught:
        load_plan(place / "plan.yaml")
    assert message in str(caught.value)
