"""Clusters from the command line: tables, files, KV events, and routers of a user's own."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from command_line import kvsim

from kvsim.config import dump_config, load_config
from kvsim.results.runfolder import load_run
from kvsim.trace.generate import GeneratorParameters, write_trace

RUN = """
trace: {path: trace.jsonl.gz, session_interval: 1s}
model: llama-3.1-8b
engine: {num_gpu_blocks_override: 9000}
cluster:
  instances:
  - {name: small, count: 2}
  - {name: large, engine: {num_gpu_blocks_override: 30000}, hardware: {gpu: h200-sxm}}
  router: prefix_aware
  events: [{at: 30s, instance: small-1, action: drain}]
"""
TABLES_ONLY = ("--set", "output.plots=false")
ROUTER = """
from kvsim.checked import Component
from kvsim.cluster.routers.base import Router


class Largest(Router):
    class Config(Component):
        only_for: str

    hears_kv_events = True

    def __init__(self, site, config):
        super().__init__(site)
        self.config, self.events = config, 0

    def choose(self, turn, among):
        return max(among, key=lambda i: self.site.kv_tokens[i])

    def heard(self, news):
        self.events += 1
"""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small trace, a config and a router."""
    folder = tmp_path_factory.mktemp("cluster")
    write_trace(folder / "trace.jsonl.gz", GeneratorParameters(sessions=4, seed=3, median_turns=8))
    (folder / "run.yaml").write_text(RUN)
    (folder / "my_router.py").write_text(ROUTER)
    return folder


def test_a_run_of_a_cluster(workplace: Path) -> None:
    """Tables and files name the instances; the summary has one of each; the run reads back; a comparison works."""
    result = kvsim("run", "run.yaml", "-o", "one", cwd=workplace)
    assert result.returncode == 0, result.stderr
    assert "3 instances behind router prefix_aware" in result.stdout
    run = load_run(workplace / "one")
    assert [each["name"] for each in run.summary["instances"]] == ["small-0", "small-1", "large-0"]
    assert [each["hardware"] for each in run.summary["instances"]] == ["1 x h100-sxm", "1 x h100-sxm", "1 x h200-sxm"]
    assert [each["state"] for each in run.summary["instances"]] == ["up", "draining", "up"]
    assert run.summary["cluster"]["instances"] == 3
    assert set(run.requests["instance"]) <= {"small-0", "small-1", "large-0"}
    arrived = [each["requests"]["arrived"] for each in run.summary["instances"]]
    assert sum(arrived) == run.summary["requests"]["arrived"] == len(run.requests)
    assert set(run.instances["instance"]) == {"small-0", "small-1", "large-0"}
    page = (workplace / "one" / "report.html").read_text()
    assert '<h2 id="instances">Instances</h2>' in page
    assert "large-0" in page
    options = ["--set", "cluster.router=random", *TABLES_ONLY]
    result = kvsim("run", "run.yaml", "-o", "other", *options, "--json", cwd=workplace)
    assert json.loads(result.stdout)["cluster"]["router"] == "random"
    result = kvsim("compare", "one", "other", "-o", "both", cwd=workplace)
    assert result.returncode == 0, result.stderr
    assert "Busiest / mean" in result.stdout


def test_a_resolved_config_is_the_same_cluster(workplace: Path) -> None:
    """What a run folder holds reads back as an equal config."""
    config = load_config(workplace / "run.yaml")
    resolved = workplace / "resolved.yaml"
    resolved.write_text(dump_config(config))
    assert load_config(resolved) == config


def test_kv_events_name_their_instance(workplace: Path) -> None:
    """One file for all, in the order of time; equal contents have equal hashes wherever they are."""
    options = ["--set", "output.kv_events=true", "--set", "cluster.router=round_robin", *TABLES_ONLY]
    result = kvsim("run", "run.yaml", "-o", "events", *options, cwd=workplace)
    assert result.returncode == 0, result.stderr
    lines = (workplace / "events" / "kv_events.jsonl").read_text().splitlines()
    batches = [json.loads(line) for line in lines]
    assert {batch["instance"] for batch in batches} == {"small-0", "small-1", "large-0"}
    assert [batch["ts"] for batch in batches] == sorted(batch["ts"] for batch in batches)
    firsts = {}
    for batch in batches:
        firsts.setdefault(batch["instance"], batch["events"][0]["block_hashes"][0])
    assert len(set(firsts.values())) == 1  # all sessions begin alike


def test_a_router_of_ones_own(workplace: Path) -> None:
    """Found beside the YAML file, with checked options; it may ask for KV events."""
    options = ["--set", "cluster.router={kind: 'my_router:Largest', options: {only_for: tests}}", *TABLES_ONLY]
    result = kvsim("run", "run.yaml", "-o", "own", *options, cwd=workplace)
    assert result.returncode == 0, result.stderr
    assert "reference engine, because of a router that hears KV events" in " ".join(result.stdout.split())
    assert set(load_run(workplace / "own").requests["instance"]) == {"large-0"}
    result = kvsim("run", "run.yaml", "--set", "cluster.router={kind: 'my_router:Largest'}", cwd=workplace)
    assert result.returncode == 2
    assert "cluster.router.options.only_for is missing" in result.stderr


def test_routers_are_listed() -> None:
    """`kvsim list routers` names them all, each with a line."""
    result = kvsim("list", "routers", "--json", cwd=Path.cwd())
    names = [row["name"] for row in json.loads(result.stdout)]
    assert names == [
        *("round_robin", "random", "least_requests", "least_tokens", "session_affinity", "prefix_aware", "cost_based"),
        "module:Class",
    ]
