"""A config as a ``vllm serve`` line, and the line as a config."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.config import RunConfig
from kvsim.steptime.model import load_model, model_names, repository_of
from kvsim.vllm_line import config_of_line, parse_command_line, to_command_line
from kvsim.vllm_line.pastes import read_paste

GIB = 2**30
OFFLOADED = (
    '{"kv_connector":"OffloadingConnector","kv_role":"kv_both",'
    '"kv_connector_extra_config":{"cpu_bytes_to_use":68719476736}}'
)
DRAFTER = (
    'put your method (eagle stands for eagle3 and mtp too) and the "model" of your drafter into --speculative-config'
)
SIZES = st.integers(1, 2**43).map(lambda size: f"{size}B")
GIBS = st.integers(1, 4096).map(lambda quarters: f"{quarters * GIB // 4}B")
SECONDS = st.integers(1, 1000).map(lambda seconds: f"{seconds}s")


def keys(**optional: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Some of these keys."""
    return st.fixed_dictionaries({}, optional=optional)


def kind(name: str, **optional: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A section of this kind, with some of these keys."""
    return st.fixed_dictionaries({"kind": st.just(name)}, optional=optional)


POLICY = st.sampled_from(["fail", "recompute"])
FS = kind("fs", n_read_threads=st.integers(1, 64), n_write_threads=st.integers(1, 64), enable_kv_events=st.booleans())
OBJ = kind("obj", io_threads=st.integers(1, 64), enable_kv_events=st.booleans())
TIERS = st.lists(st.one_of(FS, OBJ, kind("example")), max_size=3)
CHUNK = st.one_of(
    st.just({}),
    st.integers(2, 16).map(lambda n: {"block_size_factor": n}),
    st.integers(1, 16).map(lambda n: {"block_size": 16 * n}),
)
OFFLOADING = st.builds(
    lambda main, chunk, tiers: main | chunk | ({"tiers": tiers, "store_threshold": 0} if tiers else {}),
    st.fixed_dictionaries(
        {"kind": st.just("offloading"), "cpu_bytes_to_use": SIZES},
        optional={
            "eviction_policy": st.sampled_from(["lru", "arc"]),
            "offload_prompt_only": st.booleans(),
            "store_threshold": st.sampled_from([0, 2, 5]),
        },
    ),
    CHUNK,
    TIERS,
)
SIMPLE = kind("simple_cpu", cpu_bytes_to_use=SIZES, cpu_bytes_to_use_per_rank=SIZES, lazy_offload=st.booleans(),
              max_batch_descriptors=st.integers(0, 1000))  # fmt: skip
LMCACHE = kind("lmcache", chunk_size=st.integers(1, 1024), max_local_cpu_size=SIZES, save_decode_cache=st.booleans(),
               min_retrieve_tokens=st.integers(0, 99))  # fmt: skip
WITH_DISK = st.builds(
    lambda main, size, remote: main | {"local_disk": {"max_local_disk_size": size}} | remote,
    LMCACHE, GIBS, st.sampled_from([{}, {"remote": {}}]),
)  # fmt: skip
LAYERWISE = LMCACHE.map(lambda main: main | {"use_layerwise": True})
NIXL = kind("nixl", mode=st.sampled_from(["pull", "push"]), kv_buffer_device=st.sampled_from(["cuda", "cpu"]),
            kv_lease_duration=SECONDS)  # fmt: skip
STORE = kind("mooncake_store", role=st.sampled_from(["both", "producer", "consumer"]), save_decode_cache=st.booleans(),
             enable_lookup=st.booleans(), lookup_async=st.booleans(), load_recv_threads=st.integers(1, 9))  # fmt: skip
MOONCAKE = kind("mooncake", num_workers=st.integers(1, 99), abort_request_timeout=SECONDS)
MP = kind("lmcache_mp", heartbeat_interval=SECONDS)
WITH_POLICY = st.builds(
    lambda main, policy: main | {"kv_load_failure_policy": policy},
    st.one_of(OFFLOADING, SIMPLE, STORE, MOONCAKE, MP),
    POLICY,
)  # fmt: skip
# Without a buffer device or a policy, which are those of all connectors together.
PARTS = st.lists(
    st.one_of(OFFLOADING, SIMPLE, LMCACHE, STORE, MOONCAKE, MP, kind("example")),
    min_size=1, max_size=3, unique_by=lambda part: part["kind"],
)  # fmt: skip
MULTI = st.builds(lambda parts: {"kind": "multi", "connectors": parts}, PARTS)
CONNECTOR = st.one_of(
    st.just({"kind": "none"}), WITH_POLICY, LMCACHE, WITH_DISK, LAYERWISE, NIXL, MULTI, kind("example"),
    kind("decode_bench"),
)  # fmt: skip


def chunked(engine: dict[str, Any]) -> dict[str, Any]:
    """Without chunked prefill a budget that is given must hold a whole prompt."""
    if engine.get("enable_chunked_prefill", True):
        return engine
    return {key: value for key, value in engine.items() if key != "max_num_batched_tokens"}


ENGINE = keys(
    block_size=st.sampled_from([16, 32, 64]),
    num_gpu_blocks_override=st.integers(2, 10**6),
    gpu_memory_utilization=st.floats(0.01, 1),
    kv_cache_memory_bytes=SIZES,
    max_num_seqs=st.integers(1, 256),
    max_num_batched_tokens=st.integers(256, 10**5),
    max_model_len=st.integers(1, 200),
    scheduling_policy=st.sampled_from(["fcfs", "priority"]),
    long_prefill_token_threshold=st.integers(0, 9999),
    enable_chunked_prefill=st.booleans(),
    enable_prefix_caching=st.just(True),
    prefix_cache_retention_interval=st.one_of(st.none(), st.integers(0, 4096)),
    disable_hybrid_kv_cache_manager=st.one_of(st.none(), st.just(True)),
    scheduler_reserve_full_isl=st.booleans(),
    data_parallel_size=st.integers(1, 8),
    max_loras=st.integers(1, 8),
    disable_chunked_mm_input=st.booleans(),
    speculative=st.fixed_dictionaries(
        {"method": st.sampled_from(["ngram", "eagle", "draft_model"])},
        optional={"num_speculative_tokens": st.integers(1, 100), "lookahead_block_hashes": st.booleans()},
    ),
).map(chunked)
MODEL = st.fixed_dictionaries(
    {"name": st.sampled_from(["meta-llama/Llama-3.1-8B", "Qwen/Qwen3-30B-A3B", "deepseek-v3", "qwen3-next-80b-a3b"])},
    optional={"kv_cache_dtype": st.sampled_from(["auto", "bf16", "fp8"])},
)  # fmt: skip
HARDWARE = keys(
    gpu=st.sampled_from(["h100-sxm", "a100-sxm", "b200"]),
    tensor_parallel_size=st.sampled_from([1, 2, 8]),
    expert_parallel=st.booleans(),
)


def config(**sections: Any) -> RunConfig:
    """A config with these sections."""
    base: dict[str, Any] = {"trace": {"path": "t"}, "model": "meta-llama/Llama-3.1-8B-Instruct"}
    return RunConfig.model_validate(base | sections)


def same(first: RunConfig, second: RunConfig) -> bool:
    """Whether they are the same server; the name of a model may be another of its names."""
    names = {load_model(each.model.name).name for each in (first, second)}
    alike = first.model_copy(update={"model": first.model.model_copy(update={"name": second.model.name})})
    sections = ("model", "hardware", "engine", "connector")
    return len(names) == 1 and all(getattr(alike, name) == getattr(second, name) for name in sections)


@settings(max_examples=300)
@given(MODEL, HARDWARE, ENGINE, CONNECTOR)
def test_there_and_back(
    model: dict[str, Any], hardware: dict[str, Any], engine: dict[str, Any], connector: dict[str, Any]
) -> None:
    """The line of a config is read back as an equal config, by the release's own rules."""
    wanted = config(model=model, hardware=hardware, engine=engine, connector=connector)
    text = to_command_line(wanted)
    assert "not in vLLM" not in text
    back = config_of_line(text, wanted)
    assert same(wanted, back), text


@settings(max_examples=50)
@given(MODEL, HARDWARE, ENGINE, st.one_of(st.just({"kind": "none"}), SIMPLE, LMCACHE, kind("p2p_nccl")))
def test_there_and_back_with_the_older_release(
    model: dict[str, Any], hardware: dict[str, Any], engine: dict[str, Any], connector: dict[str, Any]
) -> None:
    """The same for 0.23.0, without what it does not have."""
    known = {
        key: value for key, value in engine.items() if key not in ("speculative", "prefix_cache_retention_interval")
    }
    wanted = config(model=model, hardware=hardware, engine=known | {"vllm_version": "0.23.0"}, connector=connector)
    assert same(wanted, config_of_line(to_command_line(wanted), wanted))


def test_a_line() -> None:
    """Plain flags, one a line, compact JSON in single quotes, and nothing that is vLLM's default."""
    wanted = config(
        model={"name": "llama-3.1-70b", "kv_cache_dtype": "fp8"},
        hardware={"tensor_parallel_size": 4},
        engine={"max_num_seqs": 64, "async_scheduling": True, "enable_chunked_prefill": True},
        connector={"kind": "offloading", "cpu_bytes_to_use": "200GiB", "block_size_factor": 4},
    )
    assert to_command_line(wanted) == (
        "# vLLM 0.33.0 on 4 x h100-sxm\n"
        "vllm serve meta-llama/Meta-Llama-3.1-70B \\\n"
        "  --tensor-parallel-size 4 \\\n"
        "  --kv-cache-dtype fp8 \\\n"
        "  --max-num-seqs 64 \\\n"
        "  --async-scheduling \\\n"
        '  --kv-transfer-config \'{"kv_connector":"OffloadingConnector","kv_role":"kv_both",'
        '"kv_connector_extra_config":{"cpu_bytes_to_use":214748364800,"blocks_per_chunk":4}}\'\n'
    )


def test_what_has_no_counterpart() -> None:
    """Keys that no flag says, and what a reader has to put or to start, are comments."""
    wanted = config(
        model="llama-3.2-1b",
        engine={"structured_output": {"share": 0.5}, "encoder_cache_size": 99, "speculative": {"method": "eagle"}},
        connector={"kind": "lmcache_mp", "l1_size": "128GiB", "chunk_size": 512},
        seed=3,
    )
    comments = [line.removeprefix("# ") for line in to_command_line(wanted).splitlines() if line.startswith("#")]
    assert comments == [
        "vLLM 0.33.0 on 1 x h100-sxm",
        "llama-3.2-1b is a name of kvsim's: put the model's repository or folder",
        DRAFTER,
        "start beside it: lmcache server --l1-size-gb 128 --chunk-size 512",
        "not in vLLM: engine.structured_output.share = 0.5",
        "not in vLLM: engine.encoder_cache_size = 99",
    ]


def test_a_line_like_another_one() -> None:
    """What a recommendation changes is changed; model, drafter and flags without effect stay as they were pasted."""
    line = parse_command_line(
        "vllm serve /models/Qwen/Qwen3-8B --served-model-name a b --port $PORT --max_num_seqs 4 --trust-remote-code -O3"
        ' --enforce-eager -sc \'{"method":"eagle3","model":"my/drafter","num_speculative_tokens":2}\' --seed=1',
        "0.33.0",
        "h100-sxm",
    )
    sections = line.checked_sections()
    changed = config(**sections | {"connector": {"kind": "offloading", "cpu_bytes_to_use": "64GiB"}})
    text = to_command_line(changed, line)
    assert text.splitlines()[1:] == [
        "vllm serve /models/Qwen/Qwen3-8B \\",
        "  --max-num-seqs 4 \\",
        """  --speculative-config '{"method":"eagle3","model":"my/drafter","num_speculative_tokens":2}' \\""",
        f"  --kv-transfer-config '{OFFLOADED}' \\",
        "  --served-model-name a b \\",
        '  --port "$PORT" \\',
        "  --trust-remote-code \\",
        "  --optimization-level 3 \\",
        "  --enforce-eager \\",
        "  --seed=1",
    ]
    assert same(changed, config_of_line(text, changed))


def test_tiers() -> None:
    """Storage behind CPU memory has vLLM's keys; its speed and size are ours alone."""
    wanted = config(
        connector={"kind": "offloading", "cpu_bytes_to_use": "1GiB", "tiers": [
            {"kind": "fs", "capacity": "2TB", "eviction": "lru", "read_bandwidth": "7GB/s", "n_read_threads": 8}]}
    )  # fmt: skip
    text = to_command_line(wanted)
    assert '"secondary_tiers":[{"type":"fs","root_dir":"/path/to/kv","n_read_threads":8}]' in text
    assert text.splitlines()[-3:] == [
        "# /path/to/kv: put the folder of your storage",
        "# not in vLLM: connector.tiers.0.capacity = 2TB",
        "# not in vLLM: connector.tiers.0.eviction = lru",
    ]


def test_chunks_of_the_older_release() -> None:
    """0.23.0 has no blocks_per_chunk: its chunks are counted in tokens."""
    wanted = config(
        engine={"vllm_version": "0.23.0", "block_size": 32},
        connector={"kind": "offloading", "cpu_bytes_to_use": "1GiB", "block_size_factor": 4},
    )
    line = parse_command_line(to_command_line(wanted), "0.23.0", "h100-sxm")
    assert line.sections["connector"]["block_size"] == 128


def test_a_connector_of_ones_own() -> None:
    """The line is that of a server without it, and says so."""
    text = to_command_line(config(connector={"kind": "my.module:Mine", "options": {}}))
    assert "--kv-transfer-config" not in text
    assert "# vLLM has no connector like my.module:Mine" in text.splitlines()


def test_prefill_and_decode() -> None:
    """Each group of a cluster has its line, with its role and what differs in it."""
    wanted = config(
        connector={"kind": "nixl"},
        cluster={"instances": [
            {"name": "p", "count": 2, "role": "prefill", "hardware": {"tensor_parallel_size": 2}},
            {"name": "d", "role": "decode", "engine": {"max_num_seqs": 7}},
        ]},
    )  # fmt: skip
    first, second = to_command_line(wanted).split("# 1 x d, decode\n")
    assert first.startswith("# 2 x p, prefill\n# vLLM 0.33.0 on 2 x h100-sxm\nvllm serve ")
    found = [parse_command_line(text, "0.33.0", "h100-sxm") for text in (first, second)]
    assert [line.transfer.role for line in found if line.transfer] == ["kv_producer", "kv_consumer"]
    assert [(line.gpus, line.max_num_seqs) for line in found] == [(2, 1024), (1, 7)]


@pytest.mark.parametrize("name", model_names())
def test_repositories(name: str) -> None:
    """The repository that a preset's line names is read back as the same preset."""
    repository = repository_of(name)
    if repository is not None:
        assert load_model(repository).name == name
        assert read_paste(to_command_line(config(model=name))).words[0] == repository


def test_quoting() -> None:
    """Folders with blanks and quotes in them survive the shell."""
    path = "/models/it's mine/config.json"
    words = shlex.split(to_command_line(config(model=path)), comments=True)
    assert words == ["vllm", "serve", "/models/it's mine"]
