"""Small clusters by hand: who serves whom and when, who comes and goes. 1 ms a step, 10 us a token."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from worlds import MS, TraceBuilder, config, run

from kvsim.build import Simulation
from kvsim.cluster_plan import ClusterPlan, resolve_run
from kvsim.errors import ConfigError, UserError
from kvsim.results.records import RunRecord

Session = tuple[int, list[tuple[int, int, int]]]  # start in ms, turns: new tokens, output tokens, think ns


def play(*sessions: Session, **cluster: Any) -> RunRecord:
    """A run of two instances, a-0 and a-1, unless the cluster says otherwise."""
    return run(trace_of(*sessions), settings(**cluster))[1]


def trace_of(*sessions: Session) -> Any:
    """Sessions s0, s1, ..."""
    builder = TraceBuilder()
    for number, (start, turns) in enumerate(sessions):
        builder.session(f"s{number}", turns, start_ns=start * MS)
    return builder.build()


def settings(**cluster: Any) -> Any:
    """The config; ``parts``: of other sections."""
    parts = cluster.pop("parts", {})
    return config(cluster={"instances": [{"name": "a", "count": 2}]} | cluster, **parts)


def served(record: RunRecord) -> list[tuple[str, int]]:
    """(instance, finished in us) of each request, in order of arrival."""
    return [(entry.instance, entry.finish_ns // 1000) for entry in record.requests]


def test_instances_are_independent() -> None:
    """Two prompts of one instant go to two instances, and neither waits for the other."""
    record = play((0, [(200, 1, 0)]), (0, [(100, 1, 0)]))
    assert served(record) == [("a-0", 3000), ("a-1", 2000)]


def test_round_robin_loses_the_cache() -> None:
    """Every other turn of a lone session finds what it left; with affinity each does."""
    turns = [(160, 1, 0), (16, 1, 200 * MS), (16, 1, 200 * MS), (16, 1, 200 * MS)]
    hits = {
        kind: [entry.local_hit_tokens for entry in play((0, turns), router=kind).requests]
        for kind in ("round_robin", "session_affinity", "prefix_aware", "cost_based")
    }
    assert hits["round_robin"] == [0, 0, 160, 176]
    assert hits["session_affinity"] == hits["prefix_aware"] == hits["cost_based"] == [0, 160, 176, 192]


def test_groups_have_parts_of_their_own() -> None:
    """A group has what it changes and the rest of the config: other step times, fewer blocks, no connector."""
    slow = {"kind": "fixed", "per_step": "2ms", "per_token": "0"}
    groups = [
        {"name": "a"},
        {"name": "b", "step_time": slow, "engine": {"num_gpu_blocks_override": 100}, "connector": {"kind": "none"}},
    ]
    record = play(
        (0, [(200, 1, 0)]),
        (0, [(200, 1, 0)]),
        instances=groups,
        parts={"connector": {"kind": "offloading", "cpu_bytes_to_use": "64MiB"}},
    )
    assert served(record) == [("a-0", 3000), ("b-0", 2000)]
    assert [(each.name, each.group, each.totals.num_gpu_blocks) for each in record.instances] == [
        ("a-0", "a", 199),
        ("b-0", "b", 99),
    ]
    assert [each.totals.store_jobs > 0 for each in record.instances] == [True, False]
    assert any(note.startswith("b: ") for note in record.notes) is False  # they differ in nothing worth a note


def test_totals_and_samples_are_those_of_all() -> None:
    """Twice the blocks; tokens and steps add up; an instance that idles halves the busy time."""
    record = play((0, [(200, 1, 0)]))
    totals, last = record.totals, record.series.samples[-1]
    assert (totals.num_gpu_blocks, totals.prompt_tokens, totals.steps) == (398, 200, 1)
    assert (totals.gpu_busy_ns, totals.end_ns) == (3 * MS // 2, 3 * MS)
    assert (last.time_ns, last.prompt_tokens, last.gpu_busy_ns, last.gpu_cached_blocks) == (
        3 * MS,
        200,
        3 * MS // 2,
        12,
    )
    assert [each.totals.prompt_tokens for each in record.instances] == [200, 0]


def test_samples_are_added_on_a_grid() -> None:
    """Each instance samples at the ends of its own steps; together they are read every 10 ms."""
    record = play((0, [(100, 30, 0)]), (5, [(100, 30, 0)]))
    times = [sample.time_ns for sample in record.series.samples]
    assert times == [10 * MS, 20 * MS, 30 * MS, record.totals.end_ns]
    assert [sample.running for sample in record.series.samples] == [2, 2, 2, 0]
    own = [[(s.time_ns, s.running) for s in each.series.samples] for each in record.instances]
    assert own[0][:2] == [(2 * MS, 1), (10_080_000, 1)]  # the first step's end, then the first behind 10 ms
    assert own[1][:2] == [(7 * MS, 1), (10_030_000, 1)]


# -- joining, draining, failing
def test_who_drains_finishes_what_it_has() -> None:
    """From 5 ms on a-0 gets nothing new; its request goes on to its end."""
    events = [{"at": "5ms", "instance": "a-0", "action": "drain"}]
    record = play((0, [(100, 30, 0)]), (6, [(100, 1, 0)]), (7, [(100, 1, 0)]), events=events)
    assert [entry.instance for entry in record.requests] == ["a-0", "a-1", "a-1"]
    assert {entry.status for entry in record.requests} == {"finished"}
    assert [each.state for each in record.instances] == ["draining", "up"]
    assert "0.005 s: a-0 is draining" in record.notes


def test_who_drained_comes_back_with_its_cache() -> None:
    """Drained, then joined: what it had computed is still there."""
    events = [
        {"at": "10ms", "instance": "a-0", "action": "drain"},
        {"at": "20ms", "instance": "a-0", "action": "join"},
    ]
    record = play((0, [(160, 1, 0), (16, 1, 12 * MS), (16, 1, 10 * MS)]), router="session_affinity", events=events)
    # The hash says a-1 for this session, so let it be the other one that stays.
    assert {entry.status for entry in record.requests} == {"finished"}
    events = [event | {"instance": record.requests[0].instance} for event in events]
    record = play((0, [(160, 1, 0), (16, 1, 12 * MS), (16, 1, 10 * MS)]), router="session_affinity", events=events)
    first, second, third = record.requests
    assert first.instance == third.instance != second.instance
    assert [entry.local_hit_tokens for entry in record.requests] == [0, 0, 160]


def test_who_fails_loses_its_requests_and_its_memory() -> None:
    """The request fails, its session goes on at the other one; joined again, the instance begins from nothing."""
    events = [
        {"at": "5ms", "instance": "a-0", "action": "fail"},
        {"at": "100ms", "instance": "a-0", "action": "join"},
        {"at": "101ms", "instance": "a-1", "action": "drain"},
    ]
    record = play((0, [(160, 30, 0), (16, 1, 0), (16, 1, 150 * MS)]), events=events)
    assert [(entry.instance, entry.status, entry.reason) for entry in record.requests] == [
        ("a-0", "failed", "the engine died"),
        ("a-1", "finished", ""),
        ("a-0", "finished", ""),
    ]
    failed, _, last = record.requests
    assert (failed.finish_ns, failed.output_tokens, last.local_hit_tokens) == (5 * MS, 3, 0)
    assert record.faults.engine_deaths == 1
    assert [each.state for each in record.instances] == ["up", "draining"]


def test_who_has_to_join_is_not_there_before() -> None:
    """An instance whose first event is to join gets nothing before."""
    events = [{"at": "10ms", "instance": "a-0", "action": "join"}]
    record = play(*[(start, [(50, 1, 0)]) for start in (0, 2, 4, 12, 14)], events=events)
    assert [entry.instance for entry in record.requests] == ["a-1", "a-1", "a-1", "a-0", "a-1"]


def test_turns_fail_while_nobody_takes_any() -> None:
    """All drained for a moment: turns fail at once, with the reason, and sessions go on."""
    events = [
        {"at": "10ms", "instance": "a-0", "action": "drain"},
        {"at": "10ms", "instance": "a-1", "action": "fail"},
        {"at": "20ms", "instance": "a-1", "action": "join"},
    ]
    record = play((15, [(50, 1, 0), (50, 1, 0), (50, 1, 30 * MS)]), events=events)
    reason = "no instance took requests (1 draining, 1 failed)"
    assert [(entry.status, entry.reason, entry.instance, entry.arrival_ns // MS) for entry in record.requests] == [
        ("failed", reason, "", 15),
        ("failed", reason, "", 15),
        ("finished", "", "a-1", 45),
    ]


def test_events_after_the_last_request_do_not_happen() -> None:
    """The clock does not run on for them."""
    record = play((0, [(100, 1, 0)]), events=[{"at": "1h", "instance": "a-0", "action": "fail"}])
    assert record.totals.end_ns == 2 * MS
    assert record.instances[0].state == "up"


def test_an_instance_with_tiers_may_fail() -> None:
    """Storage outlives the engine: what was written there comes back to the next one, with either engine."""
    events = [
        {"at": "50ms", "instance": "a-0", "action": "fail"},
        {"at": "60ms", "instance": "a-0", "action": "join"},
    ]
    tiers = {"kind": "offloading", "cpu_bytes_to_use": "64MiB", "tiers": [{"kind": "example"}]}
    groups = [{"name": "a"}, {"name": "b", "connector": {"kind": "none"}}]
    wanted = settings(
        instances=groups, events=events, router="session_affinity", parts={"connector": tiers, "debug": False}
    )
    trace = trace_of((0, [(160, 1, 0), (16, 1, 100 * MS)]))
    plan = resolve_run(wanted, trace)
    assert isinstance(plan, ClusterPlan)
    assert plan.notes[0].startswith("fast engine")
    for each in (plan, plan.changed(lambda member: replace(member, fast=False))):
        record = Simulation(each).run()
        assert [entry.status for entry in record.requests] == ["finished", "finished"]
        assert [entry.instance for entry in record.requests] == ["a-0", "a-0"]
        assert record.requests[1].secondary_hit_tokens == 160


# -- KV events
def test_kv_events_arrive_late() -> None:
    """Before the delay is over nobody is known to have the prefix, and the fewest requests decide."""

    def instances(delay: str) -> list[str]:
        router = {"kind": "prefix_aware", "index": "kv_events", "event_delay": delay}
        turns = [(160, 1, 0), (16, 1, 5 * MS), (16, 1, 10 * MS)]
        return [entry.instance for entry in play((0, turns), router=router).requests]

    assert instances("0") == ["a-0", "a-0", "a-0"]
    assert instances("6ms") == ["a-0", "a-1", "a-1"]  # at 20 ms it has heard of both, and a-1 has more
    assert instances("20ms") == ["a-0", "a-1", "a-0"]


def test_kv_events_take_the_reference_engine() -> None:
    """And the notes say so; history does not."""
    trace = trace_of((0, [(160, 1, 0)]))
    by_events = resolve_run(
        settings(router={"kind": "cost_based", "index": "kv_events"}, parts={"debug": False}), trace
    )
    assert by_events.notes[0] == "reference engine, because of a router that hears KV events"
    assert "the router hears the instances' KV events, each 10 ms after its step (assumed)" in by_events.notes
    by_history = resolve_run(settings(router="cost_based", parts={"debug": False}), trace)
    assert by_history.fast
    assert any(note.startswith("the router guesses what instances keep") for note in by_history.notes)


# -- what does not fit
@pytest.mark.parametrize(
    ("group", "message"),
    [
        (
            {"hardware": {"gpu": "h900"}},
            "cluster.instances.1 (b): hardware.gpu: gpu: 'h900' is not known; closest: h200-sxm",
        ),
        ({"hardware": {"tensor_parallel_size": 3}}, "cluster.instances.1 (b): hardware: "),
        ({"hardware": {"gpus": 3}}, "config: cluster.instances.1: unknown key hardware.gpus"),
        ({"engine": {"block_size": "big"}}, "config: cluster.instances.1: engine.block_size: expected a whole number"),
        ({"connector": {"kind": "offload"}}, "config: cluster.instances.1: connector.kind: expected one of"),
        ({"engine": {"structured_output": {"share": 0.5}}}, "cluster.instances: expected the same engine.structured"),
    ],
)
def test_groups_that_do_not_fit_are_named(group: dict[str, Any], message: str) -> None:
    """What a group changes is checked with the rest of the config."""
    with pytest.raises(ConfigError) as error:
        resolve_run(settings(instances=[{"name": "a"}, {"name": "b", **group}]), trace_of((0, [(10, 1, 0)])))
    assert str(error.value).startswith(message)


def test_a_router_must_choose_among_those_it_was_given() -> None:
    """A router of a user's own that does not is named."""
    plan = resolve_run(settings(), trace_of((0, [(10, 1, 0)])))
    simulation = Simulation(plan)
    assert simulation.cluster is not None
    simulation.cluster.router.choose = lambda _turn, _among: 7  # type: ignore[method-assign,assignment,misc]
    with pytest.raises(UserError, match="router RoundRobin chose instance 7, expected one of 0, 1"):
        simulation.run()


def test_ranks_inside_an_instance() -> None:
    """Data-parallel ranks behind vLLM's balancer, behind the router: instance and rank are noted."""
    parts = {"engine": {"data_parallel_size": 2}}
    record = play(*[(0, [(50, 1, 0)])] * 4, parts=parts)
    assert [(entry.instance, entry.rank) for entry in record.requests] == [
        ("a-0", 0),
        ("a-1", 0),
        ("a-0", 1),
        ("a-1", 1),
    ]
    assert record.totals.num_gpu_blocks == 4 * 199
    late = [{"at": "5ms", "instance": "a-1", "action": "join"}]
    record = play(*[(start, [(50, 1, 0)]) for start in (0, 1, 6, 7)], parts=parts, events=late)
    assert [entry.instance for entry in record.requests] == ["a-0", "a-0", "a-1", "a-0"]


def test_ranks_cannot_fail_one_by_one() -> None:
    """An instance of several ranks that fails is refused by name."""
    events = [{"at": "1s", "instance": "a-0", "action": "fail"}]
    wanted = settings(events=events, parts={"engine": {"data_parallel_size": 2}})
    with pytest.raises(ConfigError, match="a-0 fails, expected"):
        resolve_run(wanted, trace_of((0, [(10, 1, 0)])))


def test_plans_of_groups_can_be_changed() -> None:
    """Each group has one plan, which all of its instances share."""
    plan = resolve_run(settings(), trace_of((0, [(10, 1, 0)])))
    assert isinstance(plan, ClusterPlan)
    changed = plan.changed(lambda each: replace(each, fast=True))
    assert changed.fast
    assert changed.members[0].plan is changed.members[1].plan


def test_a_schedule_is_that_of_one_server() -> None:
    """Exporting the copies of a cluster is refused by name."""
    with pytest.raises(UserError, match="--export-schedule: cluster: expected none: a schedule is that of one server"):
        resolve_run(settings(), trace_of((0, [(10, 1, 0)])), exports_schedule=True)
