"""Configs: units, defaults, overrides, paths, and that a resolved config means the same run."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from kvsim.config import (
    FixedStepTime,
    ModelConfig,
    NoConnector,
    OffloadingConnectorConfig,
    RooflineStepTime,
    RunConfig,
    dump_config,
    load_config,
)
from kvsim.units import (
    LARGEST,
    format_rate,
    format_size,
    format_time,
    parse_rate,
    parse_size,
    parse_time,
)
from kvsim.yamlfile import dump_yaml, parse_yaml

REPO = Path(__file__).resolve().parent.parent
SMALL = "trace: {path: t.jsonl}\nmodel: llama-3.1-8b\n"
OFFLOADING = SMALL + "connector:\n  kind: offloading\n  cpu_bytes_to_use: 64GiB\n  store_threshold: 2\n"


def load(tmp_path: Path, text: str, *overrides: str) -> RunConfig:
    """Load a config from its text."""
    file = tmp_path / "run.yaml"
    file.write_text(text, encoding="utf-8")
    return load_config(file, overrides)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("64GiB", 68_719_476_736),
        ("512 GB", 512_000_000_000),
        ("1.5TiB", 1_649_267_441_664),
        ("1.1GiB", 1_181_116_006),
        ("1e3KB", 1_000_000),
        ("1_000MB", 1_000_000_000),
        (" 7 B ", 7),
        (0, 0),
        ("0", 0),
    ],
)
def test_sizes_are_read_as_bytes(text: object, size_bytes: int) -> None:
    """GiB is 2**30, GB is 10**9, and a fraction is rounded to whole bytes."""
    assert parse_size(text) == size_bytes


@pytest.mark.parametrize(
    ("text", "time_ns"),
    [
        ("30ms", 30_000_000),
        ("1.5h", 5_400_000_000_000),
        ("2 min", 120_000_000_000),
        ("0.5us", 500),
        ("7µs", 7_000),
        ("7μs", 7_000),
        (0.0, 0),
    ],
)
def test_times_are_read_as_nanoseconds(text: object, time_ns: int) -> None:
    """Both Unicode spellings of micro are known."""
    assert parse_time(text) == time_ns


@pytest.mark.parametrize(("text", "rate"), [("55GB/s", 55 * 10**9), ("83.4 GB/s", 83_400_000_000), ("1KiB/s", 1024)])
def test_rates_are_read_as_bytes_per_second(text: str, rate: int) -> None:
    """A rate is a size and /s."""
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    "value",
    ["64", 64, "64G", "64g", "64gb", "64Gib", "64GIB", "64 gigabytes", "-1GiB", "GiB", "", "1e999GiB",
     "nan", "inf", "1GiB/s", "0.3B", "99999999TiB", float("nan"), float("inf"), True, None, [], "1 GiB 2"],
)  # fmt: skip
def test_a_size_that_could_be_misread_is_refused(value: object) -> None:
    """No unit, wrong case, bits, negative, infinite and absurd sizes are errors, never a guess."""
    with pytest.raises(ValueError, match="expected a size with its unit, such as 64GiB or 64GB"):
        parse_size(value)


@pytest.mark.parametrize(
    ("value", "hint"),
    [("30", "without a unit"), ("30m", "write 30min or 30ms"), ("30S", "write 30s"),
     ("30 seconds", "write 30s"), ("30MS", "write 30ms"),
     ("2d", "unknown unit 'd'"), (60, "plain number 60"), ("-5s", "not negative"),
     ("0.1ns", "rounds to 0")],
)  # fmt: skip
def test_a_time_that_could_be_misread_is_refused(value: object, hint: str) -> None:
    """The message shows how to write what was probably meant."""
    with pytest.raises(ValueError, match=f"expected a time with its unit.*{hint}"):
        parse_time(value)


@pytest.mark.parametrize(
    ("text", "size_bytes"),
    [
        ("64GiB", 2**36),
        ("512GB", 512 * 10**9),
        ("1.5GiB", 3 * 2**29),
        ("1023B", 1023),
        ("1KB", 1000),
        ("0", 0),
    ],
)
def test_sizes_are_written_in_their_shortest_exact_form(text: str, size_bytes: int) -> None:
    """The unit that a person would take comes back."""
    assert format_size(size_bytes) == text


def test_times_and_rates_are_written_with_units() -> None:
    """Examples of what stands in a resolved config."""
    assert [format_time(t) for t in (60 * 10**9, 1_500_000, 5_400 * 10**9)] == ["60s", "1.5ms", "1.5h"]
    assert format_rate(83_400_000_000) == "83.4GB/s"


@settings(deadline=None, derandomize=True)
@given(st.integers(0, LARGEST))
def test_what_is_written_reads_back_exactly(amount: int) -> None:
    """No size, time or rate changes when it is written and read."""
    assert parse_size(format_size(amount)) == amount
    assert parse_time(format_time(amount)) == amount
    assert parse_rate(format_rate(amount)) == amount


def test_a_small_config_gets_vllm_defaults(tmp_path: Path) -> None:
    """Trace and model are enough; the rest is as in `vllm serve`, and the run is named after the file."""
    config = load(tmp_path, SMALL)
    assert config.name == "run"
    assert config.output_folder == Path("runs/run")
    assert config.model == ModelConfig(name="llama-3.1-8b")
    assert (config.engine.block_size, config.engine.vllm_version) == (None, "0.33.0")
    assert config.engine.gpu_memory_utilization == 0.92
    assert config.trace.session_interval == 60 * 10**9
    assert isinstance(config.connector, NoConnector)
    assert isinstance(config.step_time, RooflineStepTime)


def test_kind_selects_the_class(tmp_path: Path) -> None:
    """`kind:` decides which keys a component has."""
    config = load(tmp_path, OFFLOADING + "step_time: {kind: fixed, per_step: 5ms, per_token: 50us}\n")
    assert config.connector == OffloadingConnectorConfig(cpu_bytes_to_use="64GiB", store_threshold=2)  # type: ignore[arg-type]
    assert config.step_time == FixedStepTime(per_step="5ms", per_token="50us")  # type: ignore[arg-type]
    assert (config.step_time.per_step, config.step_time.per_token) == (5_000_000, 50_000)


def test_a_section_without_keys_means_its_defaults(tmp_path: Path) -> None:
    """Commenting out every key of a section is no error."""
    assert load(tmp_path, SMALL + "engine:\n  # block_size: 32\nconnector:\n") == load(tmp_path, SMALL)


def test_yaml_booleans_are_fine_for_yes_and_no(tmp_path: Path) -> None:
    """YAML reads a bare `no` as false; the key takes both."""
    text = "trace: {path: t.jsonl, outputs_return: no}\nmodel: m\n"
    assert load(tmp_path, text).trace.outputs_return == "no"
    assert load(tmp_path, text, "trace.outputs_return=true").trace.outputs_return == "yes"


def test_anchors_and_merge_keys_are_understood() -> None:
    """Own keys win over merged ones, and the earlier mapping over the later one."""
    document = parse_yaml("a: &a {x: 1, y: 1}\nb: &b {y: 2, z: 2}\nc:\n  <<: [*a, *b]\n  x: 3\n", "f")
    assert document.data["c"] == {"x": 3, "y": 1, "z": 2}


def test_paths_are_relative_to_the_file_and_overrides_to_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Preset names stay names; `..` is resolved; absolute paths stay."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    text = "trace: {path: [../t.jsonl, /data/u.jsonl]}\nmodel: m/config.json\nhardware: {link: pcie5-h100}\n"
    config = load(tmp_path, text)
    assert config.trace.path == (f"{tmp_path.parent}/t.jsonl", "/data/u.jsonl")
    assert config.model.name == f"{tmp_path}/m/config.json"
    assert config.hardware.link == "pcie5-h100"
    changed = load(tmp_path, text, "trace.path=v.jsonl", "hardware.link=./mine.profile.yaml", "output.folder=out")
    assert changed.trace.path == (f"{tmp_path}/here/v.jsonl",)
    assert changed.hardware.link == f"{tmp_path}/here/mine.profile.yaml"
    assert changed.output_folder == Path("out")


def test_overrides_change_single_keys_and_the_last_one_wins(tmp_path: Path) -> None:
    """Sections that the file leaves out appear; values are YAML, so null and numbers work."""
    config = load(
        tmp_path, SMALL, "engine.block_size=32", "engine.block_size=64", "trace.max_think_time=null",
        "model.kv_cache_dtype=fp8", "name=other", "engine.max_num_seqs=8",
    )  # fmt: skip
    assert config.engine.block_size == 64
    assert config.engine.max_num_seqs == 8
    assert config.trace.max_think_time is None
    assert config.model == ModelConfig(name="llama-3.1-8b", kv_cache_dtype="fp8")
    assert config.name == "other"


def test_setting_a_kind_drops_the_keys_of_the_other_kind(tmp_path: Path) -> None:
    """`connector.kind=none` is enough to switch offloading off, and the same kind again keeps its keys."""
    assert load(tmp_path, OFFLOADING, "connector.kind=none").connector == NoConnector()
    again = load(tmp_path, OFFLOADING, "connector.kind=offloading", "connector.eviction_policy=arc").connector
    assert isinstance(again, OffloadingConnectorConfig)
    assert (again.eviction_policy, again.store_threshold) == ("arc", 2)


def test_configs_are_frozen(tmp_path: Path) -> None:
    """Nobody changes a config behind the run's back."""
    config = load(tmp_path, SMALL)
    with pytest.raises(ValidationError):
        config.seed = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    "text", ["1e9", "no", "null", "016", "1:30", "2026-11-29", "~", "a: b", "#x", "", "<<", ".inf"]
)
def test_text_stays_text_when_written(text: str) -> None:
    """Text that looks like a number, a boolean or a date is written so that it is read back as text."""
    assert parse_yaml(dump_yaml({"x": text}), "f").data == {"x": text}


def test_numbers_follow_json_not_yaml_1_1() -> None:
    """Leading zeros and colons do not change the value behind the user's back; 1e9 is a number."""
    assert parse_yaml("[1e9, 016, 1:30, 2026-11-29, 1_000, -3, .5e1]", "f").data == [
        1e9, "016", "1:30", "2026-11-29", 1000, -3, 5.0,
    ]  # fmt: skip


SIZES = st.integers(1, 2**50).map(format_size)
TIMES = st.integers(0, 2**50).map(format_time)
COUNTS = st.integers(1, 10**6)
NAMES = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1).filter(
    lambda text: text[0] != "." and not set(text) & set("/\\")
)


def optional(values: st.SearchStrategy[object]) -> st.SearchStrategy[object]:
    """A value or None."""
    return st.none() | values


CONFIGS = st.fixed_dictionaries(
    {
        "trace": st.fixed_dictionaries(
            {"path": st.lists(NAMES.map(lambda name: f"/data/{name}"), min_size=1)},
            optional={
                "outputs_return": st.sampled_from(["auto", "yes", "no"]),
                "session_interval": TIMES,
                "max_think_time": optional(TIMES),
                "max_sessions": optional(COUNTS),
                "time_scale": st.floats(1e-9, 1e6),
                "spread_arrivals": st.booleans(),
            },
        ),
        "model": NAMES | st.fixed_dictionaries({"name": NAMES, "kv_cache_dtype": st.sampled_from(["auto", "fp8"])}),
    },
    optional={
        "name": NAMES,
        "seed": st.integers(0, 2**70),
        "hardware": st.fixed_dictionaries(
            {},
            optional={
                "gpu": NAMES,
                "tensor_parallel_size": COUNTS,
                "host_dram_bandwidth": optional(st.integers(1, 2**50).map(format_rate)),
            },
        ),
        "engine": st.fixed_dictionaries(
            {},
            optional={
                "vllm_version": st.sampled_from(["0.33.0", "0.23.0"]),
                "block_size": st.integers(1, 65536),
                "gpu_memory_utilization": st.floats(0, 1, exclude_min=True),
                "kv_cache_memory_bytes": optional(SIZES),
                "max_num_seqs": optional(COUNTS),
            },
        ),
        "connector": st.just({"kind": "none"})
        | st.fixed_dictionaries(
            {"kind": st.just("offloading"), "cpu_bytes_to_use": SIZES},
            optional={
                "eviction_policy": st.sampled_from(["lru", "arc"]),
                "store_threshold": st.integers(2, 9),
            },
        ),
        "step_time": st.fixed_dictionaries(
            {"kind": st.just("fixed"), "per_step": SIZES.map(lambda _: "5ms"), "per_token": TIMES}
        ),
        "transfer": st.fixed_dictionaries({"kind": st.sampled_from(["profile", "instant"])}),
        "output": st.fixed_dictionaries({}, optional={"folder": optional(NAMES), "plots": st.booleans()}),
    },
)


@settings(deadline=None, derandomize=True)
@given(CONFIGS)
def test_a_resolved_config_is_the_same_config(tmp_path_factory: pytest.TempPathFactory, data: object) -> None:
    """What a run writes as config.resolved.yaml loads as an equal config, from any folder."""
    folder = tmp_path_factory.getbasetemp() / "resolved"
    (folder / "elsewhere").mkdir(parents=True, exist_ok=True)
    first_file, second_file = folder / "run.yaml", folder / "elsewhere" / "config.resolved.yaml"
    first_file.write_text(dump_yaml(data), encoding="utf-8")
    first = load_config(first_file)
    second_file.write_text(dump_config(first), encoding="utf-8")
    assert load_config(second_file) == first


@pytest.mark.parametrize("path", sorted((REPO / "experiments" / "demo").glob("*.yaml")), ids=lambda path: path.stem)
def test_the_demo_configs_are_valid(path: Path) -> None:
    """Each of the demo's configs loads, is named after its file, and plays the trace of the repository."""
    config = load_config(path)
    assert config.name == path.stem
    assert config.output_folder == Path("runs/demo") / path.stem
    assert config.trace.path == (str(REPO / "traces" / "swe-bench-like-60.jsonl.gz"),)


def test_every_key_has_help() -> None:
    """Each field of each component says what it means."""
    for component in (RunConfig, *(type(getattr(RunConfig(trace={"path": "t"}, model="m"), key)) for key in  # type: ignore[arg-type]
                                   ("trace", "model", "hardware", "engine", "output"))):  # fmt: skip
        for name, field in component.model_fields.items():
            assert field.description, f"{component.__name__}.{name}"
