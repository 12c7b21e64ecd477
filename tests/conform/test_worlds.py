"""Random scenarios, and making them small."""

from __future__ import annotations

from typing import Any

from kvsim.conform.files import check_scenario
from kvsim.conform.scenario import Conformance
from kvsim.conform.shrink import shrink
from kvsim.conform.worlds import Extensions, world

ALL = Extensions(aborts=True, tiers=True, file_tier=True, async_scheduling=True)


def test_the_same_seed_gives_the_same_world() -> None:
    """A world depends on its seed and on what it may hold, and on nothing else."""
    assert world(7) == world(7)
    assert world(7, ALL) == world(7, ALL)
    assert world(7) != world(8)


def test_every_world_is_valid() -> None:
    """The check of scenario files lets every world pass."""
    for seed in range(400):
        check_scenario(world(seed), f"world {seed}")
        check_scenario(world(seed, ALL), f"world {seed} with all")


def test_worlds_cover_what_there_is() -> None:
    """Among a few hundred worlds there is each connector, policy, size and edge; extensions only if asked for."""
    worlds = [world(seed) for seed in range(400)]
    connectors = [(w["connector"].get("connector"), w["connector"].get("cpu_policy")) for w in worlds]
    assert set(connectors) == {(None, None), ("simple", None), ("offloading", "lru"), ("offloading", "arc")}
    assert {w["engine"]["policy"] for w in worlds} == {"fcfs", "priority"}
    assert {w["connector"].get("chunk_factor") for w in worlds} == {None, 1, 2, 3, 4}
    assert {w["connector"].get("lazy") for w in worlds} == {None, True, False}
    assert {w["connector"].get("store_threshold") for w in worlds} == {None, 0, 2, 3}
    assert {w["connector"].get("tier") for w in worlds} == {None, "virt"}
    assert {w["engine"]["no_prefix_caching"] for w in worlds} == {True, False}
    sessions = [(w, s) for w in worlds for s in w["sessions"]]
    assert any("same_as" in s for _, s in sessions)
    assert any(out == 1 for _, s in sessions for _, out in s["turns"])
    edges = {(w["system_tokens"] + s["turns"][0][0]) % w["engine"]["block_size"] for w, s in sessions}
    assert {0, 1, 15} <= edges
    cut = [w for w, s in sessions if w["system_tokens"] + sum(map(sum, s["turns"])) >= w["engine"]["max_model_len"]]
    assert cut  # the last answer does not fit into max_model_len
    assert not any("abort" in s for _, s in sessions)
    assert not any("async_scheduling" in w["engine"] for w in worlds)
    extended = [world(seed, ALL) for seed in range(200)]
    assert any("abort" in s for w in extended for s in w["sessions"])
    assert all(w["engine"]["async_scheduling"] for w in extended)
    assert any("tiers" in w["connector"] for w in extended)
    assert any(w["connector"].get("tier") == "fs" for w in extended)


def test_worlds_run() -> None:
    """Worlds end or get stuck on the reference engine, under both releases, with its invariants checked."""
    for seed in range(24):
        for version in ("0.33.0", "0.23.0"):
            records, _ = Conformance(world(seed), version).run()
            assert records
        records, _ = Conformance(world(seed, Extensions(async_scheduling=True)), "0.33.0").run()
        came_back = [record["updated"] for record in records if record["updated"] is not None]
        assert came_back == sorted(set(came_back))  # every step once, in order


def longest(scenario: dict[str, Any]) -> int:
    """Tokens of the longest turn."""
    return max(user for session in scenario["sessions"] for user, _ in session["turns"])


def test_shrinking_keeps_what_matters() -> None:
    """What is not needed for the failure is left out: one session with one turn of just so many tokens remains."""
    start = next(w for w in map(world, range(100)) if longest(w) > 200 and len(w["sessions"]) > 5)
    before = repr(start)
    small = shrink(start, lambda scenario: longest(scenario) > 100)
    assert repr(start) == before
    assert [session["turns"] for session in small["sessions"]] == [[[101, 1]]]
    assert (small["connector"], small["system_tokens"], small["think_steps"]) == ({}, 0, 0)


def test_shrinking_keeps_a_repetition_alive() -> None:
    """Where the original of a repetition is left out, one that repeats it becomes the original of the others."""
    start = {
        "name": "x",
        "engine": {},
        "connector": {},
        "system_tokens": 0,
        "think_steps": 0,
        "sessions": [
            {"name": "s0", "start_step": 0, "turns": [[4, 2]]},
            {"name": "s1", "start_step": 9, "turns": [[4, 2]], "same_as": "s0"},
            {"name": "s2", "start_step": 9, "turns": [[4, 2]], "same_as": "s0"},
        ],
    }
    small = shrink(start, lambda scenario: {"s1", "s2"} <= {session["name"] for session in scenario["sessions"]}
                   and any("same_as" in session for session in scenario["sessions"]))  # fmt: skip
    assert small["sessions"] == [
        {"name": "s1", "start_step": 0, "turns": [[1, 1]]},
        {"name": "s2", "start_step": 0, "turns": [[1, 1]], "same_as": "s1"},
    ]


def test_shrinking_asks_only_about_valid_scenarios_and_not_for_ever() -> None:
    """Every candidate is a valid scenario, and the number of questions is bounded."""
    asked: list[dict[str, Any]] = []

    def fails(scenario: dict[str, Any]) -> bool:
        asked.append(check_scenario(scenario, "candidate"))
        return len(asked) % 3 == 0

    shrink(world(5, ALL), fails, max_tries=50)
    assert len(asked) == 50
