"""The words behind ``vllm serve``, by the rules of the argument parsers of both releases."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from vllm_line.lines import BOTH

from kvsim.vllm_line.flags import Given, read_flags
from kvsim.vllm_line.transfer import parser_refusals

TRANSFER, EXTRA = "--kv-transfer-config", "kv_connector_extra_config"
GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "vllm_line"


def read(text: str, version: str = "0.33.0") -> Given:
    """The flags of a line without quotes in it."""
    return read_flags(text.split(), version)


@pytest.mark.parametrize("version", BOTH)
def test_as_the_real_parser(version: str) -> None:
    """180 random lines are taken or refused as the real ``vllm serve`` did, and its values are found."""
    rows = [json.loads(line) for line in (GOLDEN / f"{version}.jsonl").read_text().splitlines()]
    assert [sum(row["refused"] is refused for row in rows) for refused in (True, False)] == [90, 90]
    for row in rows:
        given = read_flags(row["words"], version)
        assert bool(given.refusals) == row["refused"], (row["words"], given.refusals)
        if not row["refused"]:
            assert given.model == row["model"], row["words"]
            for name, value in row["values"].items():
                assert _alike(given.values[name], value), (row["words"], name)


def _alike(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, dict):
        return all(_alike(value, theirs[key]) for key, value in ours.items() if key in theirs)
    return ours == theirs or str(ours) == str(theirs)


# Fragments of posts (facts/vllm-config.md, section 4): words, flag, value, and by release whether it is refused.
FRAGMENTS: dict[str, tuple[list[str], str, Any, dict[str, bool]]] = {
    "a comment inside JSON, router#167": (
        ["m", "--kv-transfer-config", '{"kv_connector": "X", "kv_role": "kv_producer", # kv_consumer on the D side\n}'],
        "--kv-transfer-config", None, {"0.23.0": True, "0.33.0": True},
    ),
    "a key that is gone, vllm#40778": (
        ["m", "--attention_config.use_fp4_indexer_cache=True"],
        "--attention-config", {"use_fp4_indexer_cache": "True"}, {"0.23.0": False, "0.33.0": True},
    ),
    "underscores and =, llm-d#1144": (
        ["m", "--kv_offloading_backend=native", "--kv_offloading_size=100"],
        "--kv-offloading-size", 100.0, {"0.23.0": False, "0.33.0": False},
    ),
    "a switch with a value, vllm#22303": (
        ["m", "--enforce_eager", "true"], "--enforce-eager", True, {"0.23.0": True, "0.33.0": True},
    ),
    "short for, llm-d#2239": (
        ["m", "--max-num-seq=128", "--max_model_len=20480"],
        "--max-num-seqs", 128, {"0.23.0": False, "0.33.0": False},
    ),
}  # fmt: skip


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("name", FRAGMENTS)
def test_fragments(name: str, version: str) -> None:
    """Posted fragments pass or fail as in the release."""
    words, flag, value, refused = FRAGMENTS[name]
    given = read_flags(words, version)
    assert bool(given.refusals) == refused[version], given.refusals
    assert given.values[flag] == value


TAKEN: dict[str, tuple[str, dict[str, Any]]] = {
    "binary and decimal": ("m --max-model-len 64K --max-num-batched-tokens 8k",
                           {"--max-model-len": 65_536, "--max-num-batched-tokens": 8000}),
    "decimals": ("m --max-model-len 25.6k", {"--max-model-len": 25_600}),
    "auto": ("m --max-model-len AUTO", {"--max-model-len": -1}),
    "bytes": ("m --kv-cache-memory 5.6g", {"--kv-cache-memory-bytes": 5_600_000_000}),
    "single dash": ("m -tp=4 -dp 2 -pp 3", {"--tensor-parallel-size": 4, "--data-parallel-size": 2,
                                           "--pipeline-parallel-size": 3}),
    "negative": ("m --max-model-len -1", {"--max-model-len": -1}),
    "a list": ("m --served-model-name a b c --seed 1", {"--served-model-name": ["a", "b", "c"], "--seed": 1}),
    "none": ("m --kv-cache-memory-bytes None", {"--kv-cache-memory-bytes": None}),
    "last wins": ("m --seed 1 --seed=2", {"--seed": 2}),
    "off": ("m --no-enable-prefix-caching", {"--enable-prefix-caching": False}),
    "level": ("m -O3", {"--optimization-level": "3"}),
    "dotted": (
        f"""m {TRANSFER}.kv_connector X --kv_transfer_config.{EXTRA}.n 80g
        {TRANSFER}.kv_role=kv_both {TRANSFER}.{EXTRA}.l+ a,b""",
        {"--kv-transfer-config": {"kv_connector": "X", "kv_role": "kv_both",
                                  "kv_connector_extra_config": {"n": 80_000_000_000, "l": ["a", "b"]}}},
    ),
    "dotted instead of whole": (
        'm --kv-transfer-config.kv_role kv_both --kv-transfer-config {"kv_connector":"X","kv_role":"kv_consumer"}',
        {"--kv-transfer-config": {"kv_role": "kv_both"}},
    ),
    "sizes inside JSON": (
        'm --kv-transfer-config {"kv_role":"kv_both","kv_connector_extra_config":{"a":80G,"b":"80G"}}',
        {"--kv-transfer-config": {"kv_role": "kv_both",
                                  "kv_connector_extra_config": {"a": 85_899_345_920, "b": "80G"}}},
    ),
}  # fmt: skip


@pytest.mark.parametrize("version", BOTH)
@pytest.mark.parametrize("name", TAKEN)
def test_values(name: str, version: str) -> None:
    """Values are what the parser makes of them."""
    text, expected = TAKEN[name]
    given = read(text, version)
    assert (given.refusals, given.model) == ([], "m")
    assert given.values == expected


REFUSED: dict[str, tuple[str, str]] = {
    "1k seqs": ("m --max-num-seqs 1k", "--max-num-seqs: expected a whole number (1k and 1K are not understood here)"),
    "GiB with a unit": ("m --kv-offloading-size 16G", "--kv-offloading-size: expected a plain number, found '16G'"),
    "binary decimals": ("m --max-model-len 25.6K", "--max-model-len: expected a whole number such as 8192"),
    "glued": ("m -tp4", "unknown flag -tp4, expected a blank or = before the number"),
    "misspelt": ("m --tensor-paralel-size 4", "unknown flag --tensor-paralel-size of vLLM 0.33.0, did you mean --tens"),
    "ambiguous": ("m --data-parallel 2", "--data-parallel is short for several flags, expected one of --data-par"),
    "gone": ("m --swap-space 16", "--swap-space: vLLM 0.33.0 has no such flag any more: V1 swaps no KV"),
    "a switch with =": ("m --enable-chunked-prefill=False", "takes no value; --no-enable-chunked-prefill turns it off"),
    "no value": ("m --max-model-len", "--max-model-len has no value"),
    "two models": ("m n", "unexpected word 'n': the model is 'm' already"),
    "choice": ("m --scheduling-policy fifo", "--scheduling-policy: expected one of fcfs, priority, found 'fifo'"),
    "removed key": ('m --kv-transfer-config {"kv_rank":0}', "vLLM 0.33.0 has no key 'kv_rank' there, vLLM 0.23.0 has"),
    "single quotes": ("m --kv-transfer-config {'kv_role':1}", "is not JSON: Expecting property name enclosed"),
    "decimals with G": ('m --kv-transfer-config {"a":1.5G}', "1.5G: vLLM takes decimals with k, m, g and t only"),
    "no sizes there": ('m --speculative-config {"a":80G}', "--speculative-config: is not JSON"),
    "nameless": ("--served-model-name a", "--served-model-name: expected the model in front of it"),
    "only before": ("m --max-num-partial-prefills 2", "vLLM 0.33.0 has no such flag"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name: str) -> None:
    """What the parser refuses is refused with its reason, once."""
    text, expected = REFUSED[name]
    refusals = read(text).refusals
    assert len(refusals) == 1
    assert expected in refusals[0]


def test_reading_goes_on_behind_a_refusal() -> None:
    """All that is wrong is found, and what the rest says."""
    given = read("--swap-space 16 --max-num-seqs 1k org/m --frobnicate --max-model-len 8k --tensor-parallel-size 2")
    assert given.model == "org/m"
    assert [text.split(":")[0].split(" of ")[0] for text in given.refusals] == [
        "--swap-space", "--max-num-seqs", "unknown flag --frobnicate",
    ]  # fmt: skip
    assert (given.values["--max-model-len"], given.values["--tensor-parallel-size"]) == (8000, 2)


def test_flags_of_one_release() -> None:
    """A flag, and the other name of a switch, are known where the release has them."""
    assert read("m --watermark 0.1").values == {"--watermark": 0.1}
    assert read("m --watermark 0.1", "0.23.0").refusals == [
        "--watermark: vLLM 0.23.0 has no such flag, vLLM 0.33.0 has"
    ]
    assert read("m --disable-prefix-caching").values == {"--enable-prefix-caching": False}
    assert len(read("m --disable-prefix-caching", "0.23.0").refusals) == 1
    assert read("m --disable-log-requests").refusals == []
    assert len(read("m --disable-log-requests", "0.23.0").refusals) == 1


def test_repeated_flags_are_noted() -> None:
    """The last value counts, and a note says so; the same value twice is nothing to tell."""
    assert read("m --seed 1 --seed 2").notes == ["--seed stands there more than once: the last one counts"]
    assert read("m --seed 1 --seed 1").notes == []


def test_config_file(tmp_path: Path) -> None:
    """``--config FILE`` stands behind the flags of the line; false is dropped, and the line's model wins."""
    file = tmp_path / "vllm.yaml"
    file.write_text(
        "model: other\nmax-model-len: 4096\nseed: 3\nenforce-eager: true\nenable-prefix-caching: false\n"
        "served-model-name: [a, b]\nkv-transfer-config: {kv_connector: X, kv_role: kv_both}\n"
    )
    given = read_flags(["m", "--config", str(file), "--seed", "5"], "0.33.0")
    assert (given.model, given.refusals) == ("m", [])
    assert given.values == {
        "--max-model-len": 4096, "--seed": 5, "--enforce-eager": True, "--served-model-name": ["a", "b"],
        "--kv-transfer-config": {"kv_connector": "X", "kv_role": "kv_both"},
    }  # fmt: skip
    assert given.notes[0].endswith("enable-prefix-caching: false is dropped by vllm serve, as if it were not there")
    assert read_flags(["--config", str(file)], "0.33.0").model == "other"
    assert read_flags(["m", "--config=x.yaml"], "0.33.0").notes[0].startswith("--config=FILE is not read by vLLM")
    assert "No such file" in read_flags(["m", "--config", "/nowhere/x.yaml"], "0.33.0").refusals[0]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"kv_connector": "X"}, "kv_role is missing, expected one of kv_both, kv_producer, kv_consumer"),
        ({"kv_connector": "X", "kv_role": "both"}, "kv_role: expected one of kv_both, kv_producer, kv_consumer, found"),
        ({"kv_connector": "X", "kv_role": "kv_both", "kv_load_failure_policy": "ignore"}, "expected fail or recompute"),
        ({"kv_connector": "X", "kv_role": "kv_both", "kv_connector_extra_config": []}, "expected a JSON object"),
    ],
)
def test_transfer_config_refusals(config: dict[str, Any], expected: str) -> None:
    """Roles and policies that the parser does not take."""
    (text,) = parser_refusals(config)
    assert expected in text
