"""Clusters that a person could write by mistake, and the one line that says what to mend."""

from __future__ import annotations

from pathlib import Path

import pytest
from command_line import kvsim

from kvsim.config import load_config
from kvsim.errors import UserError

NAMES = "round_robin, random, least_requests, least_tokens, session_affinity, prefix_aware, cost_based, module:Class"


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        ("{}", "cluster.instances is missing: groups of instances that are alike"),
        ("[]", "cluster: expected a mapping of keys, found a list"),
        ("{instances: []}", "cluster.instances: expected at least 1 entries, found a list"),
        ("{instances: [{name: a, count: 0}]}", "cluster.instances.0.count: expected at least 1, found 0"),
        ("{instances: [{count: 2}]}", "cluster.instances.0.name is missing: its instances are name-0, name-1, ..."),
        (
            "{instances: [{name: a}], router: prefix}",
            f"cluster.router.kind: expected one of {NAMES}, found 'prefix', did you mean prefix_aware?",
        ),
        (
            "{instances: [{name: a}], router: {kind: round_robin, min_match: 0.2}}",
            "unknown key cluster.router.min_match for kind round_robin, it belongs to kind prefix_aware",
        ),
        (
            "{instances: [{name: a}], router: {kind: prefix_aware, min_match: 3}}",
            "cluster.router.min_match: expected at most 1, found 3",
        ),
        (
            "{instances: [{name: a}, {name: a}]}",
            ("cluster.instances: two instances are called a-0, expected names of groups that differ"),
        ),
        (
            "{instances: [{name: a, trace: {path: x}}]}",
            "cluster.instances.0.trace: is the same for all instances, expected only at the top level",
        ),
        ("{instances: [{name: a, seed: 3}]}", "cluster.instances.0.seed: is the same for all"),
        (
            "{instances: [{name: a, size: 3}]}",
            (
                "unknown key cluster.instances.0.size, expected in cluster.instances.0: name,"
                " count, role, hardware, engine, connector, step_time, transfer"
            ),
        ),
        (
            "{instances: [{name: a, engine: {blok_size: 3}}]}",
            "cluster.instances.0: unknown key engine.blok_size, did you mean block_size? (in engine)",
        ),
        (
            "{instances: [{name: a, hardware: {tensor_parallel_size: 0}}]}",
            "cluster.instances.0: hardware.tensor_parallel_size: expected at least 1, found 0",
        ),
        (
            "{instances: [{name: a, connector: {kind: offloading}}]}",
            (
                "cluster.instances.0: connector.cpu_bytes_to_use is missing: CPU memory for KV, in total over all"
                " ranks of the engine, such as 64GiB"
            ),
        ),
        (
            "{instances: [{name: a, count: 9}], events: [{at: 1s, instance: a-9, action: drain}]}",
            (
                "cluster.events: instance 'a-9' is not in the cluster, expected one of a-0, a-1, a-2, a-3, a-4, a-5,"
                " a-6, a-7, ..., did you mean a-8?"
            ),
        ),
        (
            "{instances: [{name: a}], events: [{at: 1s, instance: a-0, action: stop}]}",
            "cluster.events.0.action: expected one of join, drain, fail, found 'stop'",
        ),
        (
            (
                "{instances: [{name: a, count: 2}], events: [{at: 2s, instance: a-0, action: fail},"
                " {at: 1s, instance: a-1, action: drain}]}"
            ),
            "cluster.events: after 2 s no instance takes requests any more, expected one that stays or joins",
        ),
        (
            "{instances: [{name: a}], events: [{at: 1s, instance: a-0, action: join}]}",
            "cluster.events: no instance takes requests at the start, expected one that need not join first",
        ),
        (
            (
                "{instances: [{name: a, count: 2}], events: [{at: 1s, instance: a-0, action: drain},"
                " {at: 2s, instance: a-0, action: drain}]}"
            ),
            "cluster.events: a-0 cannot drain at 2 s: it is draining then, expected fail or join",
        ),
        (
            "{instances: [{name: a}], router: {kind: 'nowhere:Router'}}",
            "cluster.router.kind: module nowhere not found, looked in sys.path, ",
        ),
        (
            "{instances: [{name: a}], router: {kind: 'kvsim.cluster.in_flight:InFlight'}}",
            (
                "cluster.router.kind: kvsim.cluster.in_flight:InFlight is not a router: expected a subclass of"
                " kvsim.cluster.routers.base.Router"
            ),
        ),
    ],
)
def test_clusters(tmp_path: Path, cluster: str, message: str) -> None:
    """A mistake in a cluster is one line that names its place."""
    file = tmp_path / "run.yaml"
    file.write_text(f"trace: {{path: t}}\nmodel: llama-3.1-8b\ncluster: {cluster}\n")
    with pytest.raises(UserError) as caught:
        load_config(file)
    assert str(caught.value).startswith(f"{file}:3: {message}")


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (
            "faults: {restarts: [1s]}",
            "faults: expected those of clients only (aborts, client_timeout) in a cluster; cluster.events fail others",
        ),
        (
            "faults: {cpu: {load_failures: {rate: 0.1}}}",
            "faults: expected those of clients only (aborts, client_timeout) in a cluster; cluster.events fail others",
        ),
    ],
)
def test_what_clusters_do_not_have(tmp_path: Path, more: str, message: str) -> None:
    """Faults of single servers are refused by name."""
    file = tmp_path / "run.yaml"
    file.write_text(f"trace: {{path: t}}\nmodel: m\ncluster: {{instances: [{{name: a}}]}}\n{more}\n")
    with pytest.raises(UserError) as caught:
        load_config(file)
    assert str(caught.value) == f"{file}:4: {message}"


def test_streaming_sessions_stay_at_one_server(tmp_path: Path) -> None:
    """They are refused in a cluster."""
    file = tmp_path / "run.yaml"
    file.write_text("trace: {path: t, streaming_sessions: true}\nmodel: m\ncluster: {instances: [{name: a}]}\n")
    with pytest.raises(UserError) as caught:
        load_config(file)
    expected = "cluster: expected none with trace.streaming_sessions: their requests stay at one server"
    assert str(caught.value) == f"{file}:3: {expected}"


def test_overrides_reach_into_clusters(tmp_path: Path) -> None:
    """A router by its name, keys of a group, and another kind that forgets the keys of the one before."""
    file = tmp_path / "run.yaml"
    file.write_text(
        "trace: {path: t}\nmodel: m\n"
        "cluster:\n  instances: [{name: a}]\n  router: {kind: prefix_aware, min_match: 0.5}\n"
    )
    found = load_config(file, ["cluster.router.kind=random", "cluster.instances.0.count=3"])
    assert found.cluster is not None
    assert (found.cluster.router.kind, found.cluster.names) == ("random", ["a-0", "a-1", "a-2"])
    assert load_config(file, ["cluster=null"]).cluster is None


def test_the_exit_code_is_two(tmp_path: Path) -> None:
    """One line on standard error, also for what is only found when a group is resolved."""
    trace = tmp_path / "trace.jsonl"
    trace.write_text('{"timestamp": 0, "input_length": 100, "output_length": 5, "hash_ids": [1]}\n')
    file = tmp_path / "run.yaml"
    group = "{name: b, hardware: {tensor_parallel_size: 3}}"
    file.write_text(
        f"trace: {{path: trace.jsonl}}\nmodel: llama-3.1-8b\ncluster: {{instances: [{{name: a}}, {group}]}}\n"
    )
    result = kvsim("run", str(file), "-o", "out", cwd=tmp_path)
    assert result.returncode == 2
    assert result.stderr.startswith(f"error: {file}: cluster.instances.1 (b): hardware: ")
    assert result.stderr.count("\n") == 1
