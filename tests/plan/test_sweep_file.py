"""What a sweep's file means: its points, in order, and what is said about mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sweep_builder import RUN, small_trace, write_sweep

from kvsim.errors import UserError
from kvsim.plan.draw import Draws
from kvsim.plan.sweep import points_of, resolved
from kvsim.plan.sweep_file import read_sweep
from kvsim.units import parse_size
from kvsim.yamlfile import dump_yaml

GIB = 2**30
REPO = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with a trace."""
    small_trace(tmp_path)
    return tmp_path


def test_a_grid_is_the_product_of_its_axes(folder: Path) -> None:
    """All combinations in the order of the file, the last axis fastest; a variant changes several keys at once."""
    file = write_sweep(
        folder,
        set={"trace.max_sessions": 2},
        grid={
            "connector.cpu_bytes_to_use": ["1GiB", "2GiB"],
            "engine": {
                "small": {"engine.max_num_seqs": 8, "engine.block_size": 32},
                "default": {},
            },
        },
    )
    sweep = read_sweep(file)
    assert sweep.axes == ("connector.cpu_bytes_to_use", "engine")
    assert [point.labels for point in sweep.points] == [
        {"connector.cpu_bytes_to_use": "1GiB", "engine": "small"},
        {"connector.cpu_bytes_to_use": "1GiB", "engine": "default"},
        {"connector.cpu_bytes_to_use": "2GiB", "engine": "small"},
        {"connector.cpu_bytes_to_use": "2GiB", "engine": "default"},
    ]
    configs = [point.config for point in points_of(sweep)]
    assert [
        (each.connector.cpu_bytes_to_use, each.engine.max_num_seqs, each.engine.block_size) for each in configs
    ] == [
        (1 * GIB, 8, 32),
        (1 * GIB, None, None),
        (2 * GIB, 8, 32),
        (2 * GIB, None, None),
    ]
    assert {each.trace.max_sessions for each in configs} == {2}


def test_a_list_gives_points_one_by_one(folder: Path) -> None:
    """Points of a list change what each says; another kind drops the keys of the one before; axes are all keys used."""
    file = write_sweep(
        folder, list=[{}, {"name": "off", "connector.kind": "none"}, {"seed": 3, "labels": {"which": "third"}}]
    )
    sweep = read_sweep(file)
    assert sweep.axes == ("connector.kind", "which")
    assert [point.name for point in sweep.points] == [None, "off", None]
    first, second, third = (point.config for point in points_of(sweep))
    assert (first.connector.kind, second.connector.kind, third.seed) == ("offloading", "none", 3)
    assert (first.name, second.name) == ("sweep-0", "off")


def test_random_points(folder: Path) -> None:
    """Draws are those of the seed, inside their range, and do not depend on other keys or on the number of points."""
    every: dict[str, Any] = {
        "engine.max_num_seqs": [64, 128, 256],
        "connector.cpu_bytes_to_use": {"from": "32GiB", "to": "1TiB", "scale": "log"},
        "engine.gpu_memory_utilization": {"from": 0.5, "to": 0.9},
        "seed": {"from": 1, "to": 3},
        "trace.session_interval": {"from": "1s", "to": "60s"},
    }

    def drawn(points: int, seed: int = 0, over: Any = every) -> list[dict[str, Any]]:
        file = write_sweep(folder, random={"points": points, "seed": seed, "over": over})
        return [point.labels for point in read_sweep(file).points]

    found = drawn(4)
    assert found == [
        {
            "engine.max_num_seqs": 256,
            "connector.cpu_bytes_to_use": "137.984GiB",
            "engine.gpu_memory_utilization": 0.586023,
            "seed": 3,
            "trace.session_interval": "51.9972s",
        },
        *found[1:],
    ]
    assert drawn(8)[:4] == found
    assert drawn(4, seed=1) != found
    assert drawn(4, over={"seed": every["seed"]}) == [{"seed": row["seed"]} for row in found]
    assert len(points_of(read_sweep(write_sweep(folder, random={"points": 4, "over": every})))) == 4


@given(
    st.integers(1, 10**6),
    st.integers(1, 10**6),
    st.sampled_from(["GiB", "GB", "TiB", "B", " MiB"]),
    st.sampled_from(["linear", "log"]),
    st.integers(0, 99),
)
@settings(max_examples=40)
def test_what_is_drawn_lies_in_its_range(first: int, more: int, unit: str, scale: str, seed: int) -> None:
    """Whole numbers and sizes lie between both ends, which belong to the range, on either scale."""
    for value in Draws(seed, "a").between({"from": first, "to": first + more, "scale": scale}, 20):
        assert isinstance(value, int)
        assert first <= value <= first + more
    ends = {"from": f"{first}{unit}", "to": f"{first + more}{unit}", "scale": scale}
    for text in Draws(seed, "a").between(ends, 20):
        assert parse_size(ends["from"]) <= parse_size(text) <= parse_size(ends["to"])


def test_every_whole_number_is_drawn_alike() -> None:
    """Of 30,000 draws from 1 to 3, each number has a third, give or take four deviations; on a log scale 1 has half."""
    flat = Draws(0, "a").between({"from": 1, "to": 3}, 30_000)
    assert all(abs(flat.count(number) - 10_000) < 4 * 82 for number in (1, 2, 3))
    steep = Draws(0, "a").between({"from": 1, "to": 3, "scale": "log"}, 30_000)
    assert abs(steep.count(1) - 15_000) < 4 * 87  # log 2 of log 4


def test_where_values_come_from(folder: Path) -> None:
    """The base is read beside the sweep's file; `set` changes it, the command line changes that, axes win over both."""
    (folder / "below").mkdir()
    (folder / "below" / "run.yaml").write_text(dump_yaml(RUN | {"trace": {"path": "../trace.jsonl.gz"}, "seed": 1}))
    file = write_sweep(
        folder, base="below/run.yaml", set={"seed": 2, "engine.max_num_seqs": 9}, grid={"engine.block_size": [32]}
    )
    (point,) = points_of(read_sweep(file), ["seed=3", "engine.block_size=64"])
    config = point.config
    assert (config.seed, config.engine.max_num_seqs, config.engine.block_size) == (3, 9, 32)
    assert config.trace.path == (str(folder / "trace.jsonl.gz"),)
    (folder / "other").mkdir()
    small_trace(folder / "other")
    file = write_sweep(folder, grid={"trace.path": ["other/trace.jsonl.gz"], "model": ["llama-3.1-70b"]})
    (point,) = points_of(read_sweep(file))
    assert point.config.trace.path == (str(folder / "other" / "trace.jsonl.gz"),)
    assert point.config.model.name == "llama-3.1-70b"


def test_the_resolved_sweep_is_the_same_sweep(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """The resolved file, anywhere else, has the same configs with the same labels and names."""
    cluster = {"cluster": {"instances": [{"name": "a", "count": 2}], "router": "random"}}
    variants = {
        "cpu": {},
        "none": {"connector.kind": "none"},
        "two": cluster,
        "fs": {"connector.tiers": [{"kind": "fs"}]},
    }
    sweep = read_sweep(write_sweep(folder, name="s", grid={"seed": [0, 1], "what": variants}))
    points = points_of(sweep)
    again = tmp_path_factory.mktemp("else") / "sweep.yaml"
    again.write_text(resolved(sweep, points), encoding="utf-8")
    other = points_of(read_sweep(again))
    assert [point.config for point in other] == [point.config for point in points]
    assert [point.spec.labels for point in other] == [point.spec.labels for point in points]


def test_the_experiment_on_routers() -> None:
    """Seven routers with each of three memories, and two routers that hear KV events with two of them."""
    experiment = REPO / "experiments" / "routers"
    trace = [f"trace.path={REPO / 'traces' / 'swe-bench-like-60.jsonl.gz'}"]
    points = points_of(read_sweep(experiment / "sweep.yaml"), trace)
    assert [point.config.cluster.router.kind for point in points[::3]] == [
        *("round_robin", "least_tokens", "cost_based", "least_requests", "prefix_aware", "random", "session_affinity"),
    ]
    assert [point.config.connector.kind for point in points[::7]] == ["none", "offloading", "mooncake_store"]
    assert points[20].config.cluster.store.memory_per_node == 512 * 10**9
    heard = points_of(read_sweep(experiment / "kv_events.yaml"), trace)
    assert [point.config.cluster.router.index for point in heard] == ["kv_events"] * 4


BAD = [
    ("run: null\ngrid: {seed: [1]}", ":1: expected base (the path of a run's file) or run, found none"),
    ("base: a.yaml\nrun: {}\ngrid: {seed: [1]}", ":2: expected base (the path of a run's file) or run, found both"),
    ("name: s", ":1: expected one of grid, list, random, found none"),
    ("grid: {seed: [1]}\nlist: [{}]", ":2: expected one of grid, list, random, found grid and list"),
    ("gird: {seed: [1]}", ":1: unknown key gird, did you mean grid? (in the top level)"),
    ("grid: {}", ":1: grid: expected at least one axis, found none"),
    (
        "grid: {seed: []}",
        ":1: grid.seed: expected a list of values, or a mapping of named variants, found an empty one",
    ),
    ("list: []", ":1: list: expected at least one point, found none"),
    ("list: [3]", ":1: list.0: expected a mapping of keys, such as {connector.kind: none}, found 3"),
    ("list:\n- {}\n- {labels: 3}", ":3: list.1.labels: expected a mapping, found 3"),
    ("list: [{name: 3}]", ":1: list.0.name: expected text, found 3"),
    (
        "grid: {router: {a: 1}}",
        ":1: grid.router.a: expected a mapping of keys, such as {connector.kind: none}, found 1",
    ),
    ("grid: {engine.blok_size: [16]}", "value 16: unknown key engine.blok_size, did you mean block_size?"),
    ("grid:\n  seed:\n  - 0\n  - -1", ":4: axis seed, value -1: seed: expected at least 0, found -1"),
    ("grid: {connector.cpu_bytes_to_use: [64]}", "value 64: connector.cpu_bytes_to_use: expected a size with its unit"),
    ("grid: {r: {a: {cluster.router: random}}}", ":1: axis r, variant a: cluster.instances is missing"),
    ("set: {sed: 1}\ngrid: {seed: [1]}", ":1: set: unknown key sed, did you mean seed?"),
    (
        "list: [{connector.kind: none, connector.block_size: 16}]",
        ":1: list.0: unknown key connector.block_size for kind",
    ),
    ("grid: {faults.aborts: [{share: 2}]}", ":1: axis faults.aborts, value a mapping: "),
    (
        "set: {trace.streaming_sessions: true}\ngrid:\n  faults.client_timeout: [1s]",
        ":3: axis faults.client_timeout, value '1s': faults: expected none with streaming sessions",
    ),
    ("grid: {trace.path: [no.jsonl]}", ":1: point 0 (trace.path=no.jsonl): "),
    ("grid: {engine..x: [1]}", ":1: expected a key such as engine.block_size, found 'engine..x'"),
    ("random: {points: 2}", ":1: random.over is missing"),
    ("random: {points: 0, over: {seed: [1]}}", ":1: random.points: expected at least 1, found 0"),
    ("random: {points: 100_001, over: {seed: [1]}}", ":1: random.points: 100,001 points, expected at most 100,000"),
    ("random: {points: 2, over: {seed: {from: 1}}}", ":1: random.over.seed: to is missing, expected both ends"),
    ("random: {points: 2, over: {seed: {from: 1, til: 2}}}", ": unknown key til, expected from, to, scale"),
    ("random: {points: 2, over: {seed: {from: 1, to: 2, scale: lg}}}", "expected linear or log, found 'lg'"),
    ("random: {points: 2, over: {seed: {from: 2, to: 2}}}", "expected from less than to, found 2 and 2"),
    ("random: {points: 2, over: {seed: {from: 0, to: 2, scale: log}}}", "log: expected from more than 0, found 0"),
    ("random: {points: 2, over: {seed: {from: 1s, to: 2GiB}}}", "seed: to: expected a time with its unit"),
    ("random: {points: 2, over: {seed: {from: x, to: y}}}", "from: expected a number, or a size, time or rate"),
    (
        "random: {points: 2, over: {seed: {from: 0.0, to: .inf}}}",
        "to: expected a number, as at the other end, found inf",
    ),
    (
        "random: {points: 2, over: {seed: {from: true, to: 2}}}",
        "from: expected a number, as at the other end, found true",
    ),
]


@pytest.mark.parametrize(("content", "expected"), BAD)
def test_mistakes(folder: Path, content: str, expected: str) -> None:
    """What is wrong is one line that begins with the file, and names axis, value or point, before anything is run."""
    file = folder / "sweep.yaml"
    has_run = content.startswith(("run:", "base:"))
    file.write_text(content + "\n" + ("" if has_run else dump_yaml({"run": RUN})), encoding="utf-8")
    with pytest.raises(UserError) as raised:
        points_of(read_sweep(file))
    text = str(raised.value)
    assert text.startswith(f"{file}:")
    assert expected in text
    assert "\n" not in text
