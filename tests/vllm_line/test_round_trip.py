"""A config as a ``vllm serve`` line, and the line as a config."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.config import RunConfig, make_config
from kvsim.steptime.model import load_model, model_names, repository_of
from kvsim.vllm_line import config_of_line, parse_command_line, to_command_line
from kvsim.vllm_line.pastes import read_paste
from kvsim.yamlfile import Document

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
    gpu_memory_utilization=st.floats(0.9, 1),
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
# A model, and GPUs whose memory it fits into.
SERVER = st.builds(
    lambda server, dtype, hardware: (
        {"name": server[0]} | dtype,
        hardware | {"gpu": server[1], "tensor_parallel_size": server[2]},
    ),
    st.sampled_from(
        [
            ("meta-llama/Llama-3.1-8B", "h100-sxm", 1),
            ("meta-llama/Llama-3.1-8B", "a100-sxm", 8),
            ("Qwen/Qwen3-30B-A3B", "h100-sxm", 1),
            ("deepseek-v3", "b200", 8),
            ("qwen3-next-80b-a3b", "h100-sxm", 8),
            ("qwen3-next-80b-a3b", "a100-sxm", 4),
        ]
    ),
    keys(kv_cache_dtype=st.sampled_from(["auto", "bf16", "fp8"])),
    keys(expert_parallel=st.booleans()),
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
@given(SERVER, ENGINE, CONNECTOR)
def test_there_and_back(
    server: tuple[dict[str, Any], dict[str, Any]], engine: dict[str, Any], connector: dict[str, Any]
) -> None:
    """The line of a config is read back as an equal config, by the release's own rules."""
    wanted = config(model=server[0], hardware=server[1], engine=engine, connector=connector)
    text = to_command_line(wanted)
    assert not any(word in text for word in ("not in vLLM", "no flag says", "would not start", "cannot be read back"))
    back = config_of_line(text, wanted)
    assert same(wanted, back), text


@settings(max_examples=50)
@given(SERVER, ENGINE, st.one_of(st.just({"kind": "none"}), SIMPLE, LMCACHE, kind("p2p_nccl")))
def test_there_and_back_with_the_older_release(
    server: tuple[dict[str, Any], dict[str, Any]], engine: dict[str, Any], connector: dict[str, Any]
) -> None:
    """The same for 0.23.0, without what it does not have."""
    known = {
        key: value for key, value in engine.items() if key not in ("speculative", "prefix_cache_retention_interval")
    }
    wanted = config(model=server[0], hardware=server[1], engine=known | {"vllm_version": "0.23.0"}, connector=connector)
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
    assert comments(to_command_line(wanted)) == [
        "llama-3.2-1b is a name of kvsim's: put the model's repository or folder",
        DRAFTER,
        "start beside it: lmcache server --l1-size-gb 128 --chunk-size 512",
        "not in vLLM: engine.structured_output.share = 0.5",
        "not in vLLM: engine.encoder_cache_size = 99",
    ]


def comments(text: str) -> list[str]:
    """Those behind the first, which names release and GPUs."""
    return [line.removeprefix("# ") for line in text.splitlines() if line.startswith("# ")][1:]


def test_what_vllm_does_not_have() -> None:
    """A policy, an admission and assumptions that no flag of vLLM brings back are named, each with its value."""
    wanted = config(
        engine={"speculative": {"method": "ngram", "acceptance_rate": 0.5}},
        hardware={"host_dram_bandwidth": "100GB/s"},
        connector={
            "kind": "offloading", "cpu_bytes_to_use": "64GiB", "eviction_policy": "s3fifo", "admission": "second_touch",
        },
        transfer={"kind": "instant"},
    )  # fmt: skip
    text = to_command_line(wanted)
    assert f"--kv-transfer-config '{OFFLOADED}'" in text
    assert comments(text) == [
        "no flag says: hardware.host_dram_bandwidth = 100GB/s",
        "no flag says: engine.speculative.acceptance_rate = 0.5",
        "not in vLLM: connector.eviction_policy = s3fifo",
        "not in vLLM: connector.admission.kind = second_touch",
        "not in vLLM: connector.admission.uses = 2",
        "not in vLLM: connector.admission.tracked_keys = 64000",
        "no flag says: transfer.kind = instant",
    ]


def test_what_would_not_start() -> None:
    """A line that vLLM's engine refuses says so, and still names what it lacks."""
    wanted = config(
        hardware={"tensor_parallel_size": 3},
        connector={"kind": "offloading", "cpu_bytes_to_use": "64GiB", "eviction_policy": "opt_bypass"},
    )
    assert comments(to_command_line(wanted)) == [
        (
            "vLLM 0.33.0 would not start: --tensor-parallel-size: 3: the 32 attention heads of llama-3.1-8b are not"
            " divisible by it"
        ),
        "not in vLLM: connector.eviction_policy = opt_bypass",
    ]


@pytest.mark.parametrize(("value", "flag"), [(True, "--async-scheduling"), (False, "--no-async-scheduling")])
def test_async_scheduling(value: bool, flag: str) -> None:
    """VLLM decides a step ahead unless it is told not to, so that what was simulated is printed either way."""
    line = parse_command_line(to_command_line(config(engine={"async_scheduling": value})), "0.33.0", "h100-sxm")
    assert line.async_scheduling is value
    assert flag in to_command_line(config(engine={"async_scheduling": value})).split()


def preset(connector: dict[str, Any], **cluster: Any) -> list[str]:
    """The lines of two servers whose connector comes from a preset, and of what belongs to both."""
    names = ("prefill", "decode") if connector["preset"].startswith("moriio") else ("both",)
    instances = [{"name": role[0], "role": role} for role in names]
    data = {"trace": {"path": "t"}, "model": "Qwen/Qwen3-8B", "connector": connector}
    wanted = make_config(Document("config", data | {"cluster": cluster | {"instances": instances}}), Path())
    return to_command_line(wanted).splitlines()


PRESETS: dict[str, tuple[dict[str, Any], str, str]] = {
    "moriio": (
        {"abort_request_timeout": "90s"},
        '{"kv_connector":"MoRIIOConnector","kv_role":"kv_producer","kv_connector_extra_config":{"defer_timeout":90.0}}',
        "preset moriio stands for MoRIIOConnector",
    ),
    "moriio-read": (
        {},
        '{"kv_connector":"MoRIIOConnector","kv_role":"kv_producer","kv_connector_extra_config":{"read_mode":"true"}}',
        "preset moriio-read stands for MoRIIOConnector",
    ),
    "hf3fs": (
        {},
        '{"kv_connector":"HF3FSKVConnector","kv_role":"kv_both"}',
        (
            "preset hf3fs stands for HF3FSKVConnector: put hf3fs_storage_path and hf3fs_metadata_server_url of your own"
            " into kv_connector_extra_config"
        ),
    ),
    "flexkv": (
        {},
        '{"kv_connector":"FlexKVConnectorV1","kv_role":"kv_both"}',
        "preset flexkv stands for FlexKVConnectorV1: its sizes stand in the file of FLEXKV_CONFIG_PATH",
    ),
}


@pytest.mark.parametrize("name", PRESETS)
def test_presets(name: str) -> None:
    """A preset's line names the connector it stands for, with its own keys and without a variable of another's."""
    given, expected, remark = PRESETS[name]
    lines = preset({"preset": name, **given})
    assert f"  --kv-transfer-config '{expected}'" in lines
    assert f"# {remark}" in lines
    assert "vllm serve Qwen/Qwen3-8B \\" in lines
    assert not [line for line in lines if line.startswith("# no") and "connector" in line]


def test_what_a_preset_does_not_say() -> None:
    """Keys given beside a preset that its connector has no setting for are named; so is what the cluster has."""
    lines = preset({"preset": "flexkv", "cpu_bytes_to_use": "64GiB"}, router={"kind": "prefix_aware"})
    assert "# not in vLLM: connector.cpu_bytes_to_use = 64GiB" in lines
    assert "# no flag says: cluster.router.kind = prefix_aware" in lines


def test_a_preset_among_several() -> None:
    """One of several connectors is named in a comment: its part of the line is what stands for it."""
    wanted = make_config(
        Document("config", {
            "trace": {"path": "t"}, "model": "Qwen/Qwen3-8B",
            "connector": {"kind": "multi", "connectors": [{"preset": "moriio-read"}, {"kind": "mooncake_store"}]},
            "cluster": {"instances": [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode"}],
                        "store": {"memory_per_node": "1GiB"}},
        }),
        Path(),
    )  # fmt: skip
    remark = "# preset moriio-read: put vLLM's MoRIIOConnector in the place of what stands for it"
    assert to_command_line(wanted).splitlines().count(remark) == 2


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
        "  --no-async-scheduling \\",
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
    assert text.splitlines()[-4:] == [
        "# /path/to/kv: put the folder of your storage",
        "# no flag says: connector.tiers.0.read_bandwidth = 7GB/s",
        "# not in vLLM: connector.tiers.0.capacity = 2TB",
        "# not in vLLM: connector.tiers.0.eviction = lru",
    ]


def test_chunks_of_the_older_release() -> None:
    """0.23.0 has no blocks_per_chunk: its chunks are counted in tokens."""
    wanted = config(
        engine={"vllm_version": "0.23.0", "block_size": 32},
        connector={"kind": "offloading", "cpu_bytes_to_use": "1GiB", "block_size_factor": 4},
    )
    text = to_command_line(wanted)
    assert parse_command_line(text, "0.23.0", "h100-sxm").sections["connector"]["block_size"] == 128
    assert comments(text) == []


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
    words = shlex.split(to_command_line(config(model=path)).replace("\\\n", ""), comments=True)
    assert words == ["vllm", "serve", "/models/it's mine", "--no-async-scheduling"]
