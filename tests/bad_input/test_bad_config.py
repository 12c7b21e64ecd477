"""Run configs that a person could write by mistake, and the one line that says what to mend.

Each case is a file in ``config/`` and the parts that its message must have: the line, the key, the value that
was found and what was expected.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.config import load_config
from kvsim.errors import UserError

FOLDER = Path(__file__).parent / "config"
SIZE = "expected a size with its unit, such as 64GiB or 64GB"
TIME = "expected a time with its unit, such as 30ms, 60s or 1.5h"

CASES: dict[str, list[str]] = {
    "admission_option_out_of_range": [":6: connector.admission.uses: expected at least 2, found 1"],
    "admission_option_unknown": [":6: unknown key connector.admission.token, did you mean tokens?"],
    "admission_unknown": [":6: connector.admission", "expected one of always, second_touch, min_length", "second_tuch"],
    "admission_with_threshold": [":7: connector.admission: expected always with a store_threshold, found second_touch"],
    "admission_write_behind": [
        ":6: connector.admission: write_behind: OffloadingConnector offers",
        "lazy_offload: true",
    ],
    "alias_bomb": ["aliases unfold to more than 100,000 values"],
    "alias_in_itself": [":1: an alias stands inside the value that it names"],
    "budget_below_model_len": [
        ":5: engine.max_num_batched_tokens: expected at least max_model_len (131072)",
        "because enable_chunked_prefill is false, found 8192",
    ],
    "async_of_0_23": [":5: engine.async_scheduling: is simulated for vllm_version 0.33.0, expected none with 0.23.0"],
    "speculative_of_0_23": [":5: engine.speculative: is simulated for vllm_version 0.33.0, expected none with 0.23.0"],
    "budget_below_seqs": [":4: engine.max_num_batched_tokens: expected at least max_num_seqs (256), found 128"],
    "colon_in_value": [":2:16: is not valid YAML", "in quotes"],
    "control_character": [":2: control character U+0001 is not allowed"],
    "dashes_in_key": [":4: unknown key engine.max-num-seqs, did you mean max_num_seqs? (in engine)"],
    "duplicate_key": [":4: seed stands here again, expected once (first on line 3)"],
    "duplicate_nested_key": [":6: engine.block_size stands here again", "first on line 4"],
    "empty": ["is empty, expected name, seed, trace, model"],
    "fault_of_no_copies": [":3: faults: copies to and from CPU memory fail, expected a connector that makes some"],
    "fault_rate": [":4: faults.aborts.rate: expected at most 1, found 2.5"],
    "fault_tier": [":4: faults: something happens to tier 'nvme', expected one of cpu, fs"],
    "fault_window": [":4: faults.outages.0.end: expected a moment after start"],
    "fraction_for_count": [":4: hardware.tensor_parallel_size: expected a whole number, found 1.5"],
    "key_of_other_kind": [":5: unknown key connector.cpu_bytes_to_use for kind none, it belongs to kind offloading"],
    "kind_missing": [":3: connector.kind is missing, expected one of none, offloading"],
    "leading_zero": [":4: engine.block_size: expected a whole number, found '016'"],
    "list_as_key": [":3: a key must be text"],
    "model_missing": [":1: model is missing: name of a model preset"],
    "multi_empty": [":3: connector.connectors: expected at least 1 entries"],
    "multi_in_multi": [":5: connector.connectors.0.kind: expected one of offloading, simple_cpu", "found 'multi'"],
    "multi_policy": [":5: connector.connectors: simple_cpu has a kv_load_failure_policy, expected it beside"],
    "multi_twice": [":5: connector.connectors: expected each kind once, found simple_cpu 2 times"],
    "name_with_slash": [":3: name: expected a name that can be a folder's", "found 'a/b'"],
    "negative_seed": [":3: seed: expected at least 0, found -1"],
    "network_undersubscribed": [":5: cluster.network.oversubscription: expected at least 1, found 0.5"],
    "no_paths": [":2: trace.path: expected a path or a list of paths, found []"],
    "not_utf8": [":2: is not UTF-8 text (byte 0xe9)"],
    "number_for_boolean": [":4: hardware.expert_parallel: expected true or false, found 1"],
    "only_comment": ["is empty, expected name, seed, trace, model"],
    "outputs_return": [":3: trace.outputs_return: expected one of auto, yes, no, found 'sometimes'"],
    "python_tag": [":3: tag 'tag:yaml.org,2002:python/object:os.system' is not supported here"],
    "python_tag_scalar": [":4:17: is not valid YAML", "tags are not supported here"],
    "rate_in_bits": [":4: hardware.host_dram_bandwidth: expected a rate", "'Gbps' counts bits, write 50GB/s"],
    "rate_without_second": [":4: hardware.host_dram_bandwidth: expected a rate", "'55GB': write 55GB/s"],
    "required_missing": [":3: connector.cpu_bytes_to_use is missing: CPU memory for KV", "such as 64GiB"],
    "required_misspelt": [":5: unknown key connector.cpu_byte_to_use, did you mean cpu_bytes_to_use?"],
    "section_is_text": [":3: connector: expected a mapping of keys, found 'offloading'"],
    "size_ambiguous": [
        f":5: connector.cpu_bytes_to_use: {SIZE}",
        "'64Gib'",
        "write 64GiB (2**30",
        "64GB (10**9",
    ],
    "size_infinite": [f":5: connector.cpu_bytes_to_use: {SIZE}", "found the plain number inf"],
    "size_letter_only": [
        f":5: connector.cpu_bytes_to_use: {SIZE}",
        "'64G'",
        "write 64GiB (2**30",
        "or 64GB (10**9",
    ],
    "size_negative": [f":5: connector.cpu_bytes_to_use: {SIZE}, not negative, found '-1GiB'"],
    "size_too_large": [f":5: connector.cpu_bytes_to_use: {SIZE}", "more than 2**63 - 1"],
    "size_without_unit": [f":5: connector.cpu_bytes_to_use: {SIZE}, found the plain number 64"],
    "size_zero": [":5: connector.cpu_bytes_to_use: expected more than 0, found 0"],
    "step_time_zero": [":5: step_time.per_step: expected more than 0 when per_token is 0, found 0"],
    "store_placement": [":6: cluster.store.placement: expected one of random, local, found 'near'"],
    "store_watermark": [":6: cluster.store.eviction_high_watermark_ratio: expected at most 1, found 95"],
    "store_without_memory": [":6: cluster.store.memory_per_node is missing: memory that each instance's node lends"],
    "store_threshold_one": [":6: connector.store_threshold: expected 0 (store always) or 2 and more, found 1"],
    "tab": [":2:1: is not valid YAML: a tab, expected spaces"],
    "time_ambiguous": [f":3: trace.max_think_time: {TIME}", "found '5m'", "write 5min or 5ms"],
    "time_scale_nan": [":3: trace.time_scale: expected a finite number, found nan"],
    "time_scale_zero": [":3: trace.time_scale: expected more than 0, found 0"],
    "time_with_colon": [f":3: trace.session_interval: {TIME}, found '1:30'"],
    "time_without_unit": [f":3: trace.session_interval: {TIME}, found the plain number 60"],
    "top_level_list": [":1: expected a mapping of keys (name, seed, trace", "found a list"],
    "top_level_text": [":1: expected a mapping of keys (name, seed, trace", "found 'just text'"],
    "trace_missing": [":1: trace is missing: the requests to play: at least trace.path"],
    "two_documents": [":3:1: is not valid YAML: a second document starts here, expected one"],
    "unclosed_brace": [":2:6: is not valid YAML", "inside the bracket that opens on line 1"],
    "unknown_key": [":5: unknown key engine.max_num_batched_token, did you mean max_num_batched_tokens?"],
    "unknown_key_nothing_close": [":4: unknown key engine.temperature, expected in engine: kind, vllm_version"],
    "unknown_kind": [
        ":4: connector.kind: expected one of none, offloading, simple_cpu, example, lmcache,",
        "did you mean offloading?",
    ],
    "policy_option_of_another": [":7: unknown key connector.eviction_policy_options.threshold"],
    "policy_option_out_of_range": [
        ":7: connector.eviction_policy_options.small_share: expected less than 1, found 10",
    ],
    "policy_option_unknown": [
        ":7: unknown key connector.eviction_policy_options.treshold, did you mean threshold?",
    ],
    "unknown_policy": [
        ":6: connector.eviction_policy: expected one of lru, arc, fifo, sieve,",
        "module:Class, found 's3fif0', did you mean s3fifo?",
    ],
    "unknown_top_key": [":3: unknown key conector, did you mean connector? (in the top level)"],
    "utilization_percent": [":4: engine.gpu_memory_utilization: expected at most 1, found 92"],
    "version_as_number": [":4: engine.vllm_version: expected one of 0.33.0, 0.23.0, found 0.33"],
    "version_unknown": [":4: engine.vllm_version: expected one of 0.33.0, 0.23.0, found '0.34.0'"],
    "zero_sessions": [":3: trace.max_sessions: expected at least 1, found 0"],
}

OVERRIDES: dict[str, str] = {
    "engine.block_size": "--set engine.block_size: expected key=value, such as engine.block_size=32",
    "=32": "--set =32: expected key=value",
    "engine..block_size=32": "--set engine..block_size=32: expected key=value",
    "engine.block_size=big": "engine.block_size=big: engine.block_size: expected a whole number, found 'big'",
    "engine.blok_size=32": "engine.blok_size=32: unknown key engine.blok_size, did you mean block_size?",
    "enginee.block_size=32": "--set enginee.block_size=32: unknown key enginee, did you mean engine?",
    "trace.path.x=1": "--set trace.path.x=1: trace.path has no keys below it",
    "trace.path=[a": "--set trace.path=[a:1:3: is not valid YAML",
    "connector.kind=ofload": "--set connector.kind=ofload: connector.kind: expected one of none, offloading",
    "connector.kind=offloading": "--set connector.kind=offloading: connector.cpu_bytes_to_use is missing",
    "connector.store_threshold=2": "unknown key connector.store_threshold for kind none, it belongs to kind",
    "connector=none": "--set connector=none: connector: expected a mapping of keys, found 'none'",
    "step_time.per_step=5ms": "unknown key step_time.per_step for kind roofline, it belongs to kind fixed",
    "seed=null": "--set seed=null: seed: expected a whole number, found nothing (null)",
    "model=": "--set model=: model: expected a mapping of keys, found nothing (null)",
}


def message(path: Path, *overrides: str) -> str:
    """What the user hears about a config; the test fails if it is accepted."""
    with pytest.raises(UserError) as caught:
        load_config(path, overrides)
    text = str(caught.value)
    assert "\n" not in text
    assert text.isprintable()
    return text


@pytest.mark.parametrize("name", CASES)
def test_a_bad_config_is_refused_in_one_line_that_says_where_and_what(name: str) -> None:
    """The message names file, line, key and value, and what was expected instead."""
    text = message(FOLDER / f"{name}.yaml")
    assert text.startswith(f"{FOLDER / name}.yaml:")
    for part in CASES[name]:
        assert part in text


def test_every_bad_config_has_its_case() -> None:
    """No file lies in the folder without a message that is checked."""
    assert {path.stem for path in FOLDER.glob("*.yaml")} == set(CASES)


@pytest.mark.parametrize("override", OVERRIDES)
def test_a_bad_override_is_named_in_the_message(tmp_path: Path, override: str) -> None:
    """A problem that comes from the command line is said with the override, not with a line of the file."""
    file = tmp_path / "good.yaml"
    file.write_text("trace: {path: t.jsonl}\nmodel: llama-3.1-8b\n")
    assert OVERRIDES[override] in message(file, override)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """A path that is not there gives its name and no traceback."""
    assert message(tmp_path / "absent.yaml") == f"{tmp_path}/absent.yaml: no such file"


def test_a_folder_is_not_a_config(tmp_path: Path) -> None:
    """A folder is refused as such."""
    assert message(tmp_path) == f"{tmp_path}: is a folder, expected a YAML file"


def test_a_file_of_megabytes_is_refused_unread(tmp_path: Path) -> None:
    """A trace given for a config by mistake is not parsed for minutes."""
    file = tmp_path / "trace.jsonl"
    file.write_bytes(b"[" * (5 * 2**20))
    assert "is larger than 4 MiB, expected a small YAML file" in message(file)


def test_deep_nesting_is_refused(tmp_path: Path) -> None:
    """Brackets deeper than Python's stack are one line too, not a RecursionError."""
    file = tmp_path / "deep.yaml"
    file.write_text("trace: " + "[" * 20_000)
    assert "is nested too deeply" in message(file)


@pytest.mark.parametrize(
    ("tiers", "message"),
    [
        ("fs", "connector.tiers: expected a list, found 'fs'"),
        ("[fs]", "connector.tiers.0: expected a mapping of keys, found 'fs'"),
        ("[{kind: s3}]", "connector.tiers.0.kind: expected one of fs, obj, example, module:Class, found 's3'"),
        ("[{storage: s3}]", "connector.tiers.0.kind is missing, expected one of fs, obj, example"),
        (
            "[{kind: fs, capcity: 1GiB}]",
            "unknown key connector.tiers.0.capcity, did you mean capacity? (in connector.tiers.0)",
        ),
        (
            "[{kind: example}, {kind: obj, n_read_threads: 4}]",
            "unknown key connector.tiers.1.n_read_threads, did you mean io_threads? (in connector.tiers.1)",
        ),
        ("[{kind: fs, n_read_threads: 0}]", "connector.tiers.0.n_read_threads: expected at least 1, found 0"),
        (
            "[{kind: fs, capacity: 5}]",
            f"connector.tiers.0.capacity: {SIZE}, found the plain number 5",
        ),
        (
            "[{kind: fs, eviction: lru}]",
            "connector.tiers.0.eviction: expected a capacity with eviction lru: without one nothing is full",
        ),
        (
            "[{kind: fs, latency: -1ms}]",
            f"connector.tiers.0.latency: {TIME}, not negative, found '-1ms'",
        ),
    ],
)
def test_tiers(tmp_path: Path, tiers: str, message: str) -> None:
    """A mistake in a secondary tier is named with the number of the tier."""
    file = tmp_path / "run.yaml"
    file.write_text(
        f"trace: {{path: t}}\nmodel: m\nconnector:\n  kind: offloading\n  cpu_bytes_to_use: 1GiB\n  tiers: {tiers}\n"
    )
    with pytest.raises(UserError) as caught:
        load_config(file)
    assert str(caught.value) == f"{file}:6: {message}"
