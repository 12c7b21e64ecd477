"""``connector.from_vllm``: what people give to ``vllm serve``, as the connector that it chooses here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from worlds import TraceBuilder

from kvsim.config import OffloadingConnectorConfig, RunConfig, SimpleCPUConnectorConfig, dump_config, load_config
from kvsim.errors import UserError
from kvsim.resolve import resolve
from kvsim.vllm_args import KNOWN_CONNECTORS, Translation, translate

GIB = 2**30


def offloading(**extra: Any) -> str:
    """A --kv-transfer-config for OffloadingConnector."""
    return transfer("OffloadingConnector", **{"cpu_bytes_to_use": 64 * GIB, **extra})


def transfer(name: str, **extra: Any) -> str:
    """A --kv-transfer-config."""
    return json.dumps({"kv_connector": name, "kv_role": "kv_both", "kv_connector_extra_config": extra})


def load(folder: Path, connector: str, *overrides: str, engine: str = "{}") -> RunConfig:
    """A config whose connector section is this text."""
    (folder / "run.yaml").write_text(
        f"trace: {{path: t}}\nmodel: llama-3.1-8b\nengine: {engine}\nconnector:\n  from_vllm: {connector}\n"
    )
    return load_config(folder / "run.yaml", overrides)


def translated(value: object, version: str = "0.33.0") -> dict[str, Any]:
    """The section alone."""
    return translate(value, version).connector


# From issues and recipes of vLLM (facts/vllm-config.md, section 4), numbers as there.
REAL = {
    "kvcached#267": (
        "--kv-offloading-size 4",
        {"kind": "offloading", "cpu_bytes_to_use": "4294967296B"},
    ),
    "vllm#41515": ("--kv-offloading-size 16", {"kind": "offloading", "cpu_bytes_to_use": "17179869184B"}),
    "llm-d#1144": (
        "--kv_offloading_backend=native --kv_offloading_size=100",
        {"kind": "offloading", "cpu_bytes_to_use": "107374182400B"},
    ),
    "vllm#52656, SimpleCPU": (
        transfer("SimpleCPUOffloadConnector", cpu_bytes_to_use_per_rank=274877906944, lazy_offload="false"),
        {"kind": "simple_cpu", "cpu_bytes_to_use_per_rank": "274877906944B", "lazy_offload": True},
    ),
    "recipes Kimi-K2.6": (
        transfer("SimpleCPUOffloadConnector", cpu_bytes_to_use_per_rank=321854111744, lazy_offload=False),
        {"kind": "simple_cpu", "cpu_bytes_to_use_per_rank": "321854111744B", "lazy_offload": False},
    ),
    "vllm#52656": (
        offloading(
            spec_name="TieringOffloadingSpec",
            blocks_per_chunk=4,
            eviction_policy="lru",
            secondary_tiers=[{"type": "fs", "root_dir": "/kvcache"}],
        ),
        {"block_size_factor": 4, "tiers": [{"kind": "fs"}]},
    ),
    "LMCache#1889": (
        '{"kv_connector":"LMCacheConnectorV1", "kv_role":"kv_both"}',
        {"kind": "lmcache", "save_decode_cache": False, "use_layerwise": False},
    ),
    "--kv-offloading-backend lmcache": (
        "--kv-offloading-size 32 --kv-offloading-backend lmcache",
        {"kind": "lmcache_mp"},  # the size is lost, as in vLLM
    ),
    "vllm#54914": (
        transfer("OffloadingConnector", cpu_bytes_to_use=549755813888, blocks_per_chunk=4),
        {"kind": "offloading", "cpu_bytes_to_use": "549755813888B", "block_size_factor": 4},
    ),
}


@pytest.mark.parametrize("issue", REAL)
def test_real_ones(issue: str) -> None:
    """What people have posted is read with vLLM's units and meaning."""
    text, expected = REAL[issue]
    assert translated(text).items() >= expected.items()


def test_every_key_of_the_offloading_connector() -> None:
    """Our names for all that decides something."""
    extra = {"spec_name": "CPUOffloadingSpec", "block_size": 256, "eviction_policy": "arc", "store_threshold": 2,
             "offload_prompt_only": False, "max_tracker_size": 64_000, "sync_load_budget_bytes": 0}  # fmt: skip
    assert translate(offloading(**extra), "0.33.0") == Translation(
        {
            "kind": "offloading", "cpu_bytes_to_use": "68719476736B", "block_size": 256, "eviction_policy": "arc",
            "store_threshold": 2, "offload_prompt_only": False,
        },
        [],
    )  # fmt: skip


def test_secondary_tiers() -> None:
    """In their order, with vLLM's thread counts; where they are stored changes nothing, what is assumed is told."""
    tiers = [
        {"type": "fs", "root_dir": "/kv", "n_read_threads": 32, "enable_kv_events": True},
        {"type": "obj", "store_config": {"bucket": "b"}, "io_threads": 8},
        {"type": "example", "custom_param": 67},
    ]
    found = translate(offloading(spec_name="TieringOffloadingSpec", secondary_tiers=tiers), "0.33.0")
    assert found.connector["tiers"] == [
        {"kind": "fs", "n_read_threads": 32, "enable_kv_events": True}, {"kind": "obj", "io_threads": 8},
        {"kind": "example"},
    ]  # fmt: skip
    assert found.notes[0].endswith("is behind tier 0 (fs): connector.tiers.0.storage nvme-gen4 is assumed")
    assert found.notes[1].endswith("is behind tier 1 (obj): connector.tiers.1.storage s3 is assumed")
    assert found.notes[2].endswith("root_dir of tier 0, store_config of tier 1, custom_param of tier 2")
    assert "tiers" not in translated(offloading(secondary_tiers=tiers))  # vLLM reads them with the tiering spec only


def test_lmcache() -> None:
    """LMCache's own keys stand behind ``lmcache.``; its sizes are GiB, its interval seconds."""
    extra = {
        "use_native": True, "lmcache.chunk_size": 512, "lmcache.max_local_cpu_size": 2.5,
        "lmcache.local_disk": "file:///kv", "lmcache.max_local_disk_size": 100, "lmcache.remote_url": "redis://h:1",
        "lmcache.save_decode_cache": True,
    }  # fmt: skip
    assert translated(transfer("LMCacheConnectorV1", **extra)) == {
        "kind": "lmcache", "chunk_size": 512, "max_local_cpu_size": f"{5 * GIB // 2}B", "save_decode_cache": True,
        "use_layerwise": False, "local_disk": {"max_local_disk_size": f"{100 * GIB}B"}, "remote": {},
    }  # fmt: skip
    server = transfer("LMCacheMPConnector", **{"lmcache.mp.port": 5555, "lmcache.mp.heartbeat_interval": 2.5})
    assert translated(server) == {"kind": "lmcache_mp", "heartbeat_interval": "2.5s"}
    assert translated(transfer("ExampleConnector", shared_storage_path="/tmp")) == {"kind": "example"}  # noqa: S108


def test_mooncake_store() -> None:
    """The role counts, sizes stand in a file of Mooncake's that is not read."""
    value = json.dumps(
        {
            "kv_connector": "MooncakeStoreConnector", "kv_role": "kv_consumer",
            "kv_connector_extra_config": {"save_decode_cache": True, "lookup_async": True, "cache_prefix": "x"},
        }
    )  # fmt: skip
    found = translate(value, "0.33.0")
    assert found.connector == {
        "kind": "mooncake_store", "role": "consumer", "save_decode_cache": True, "enable_lookup": True,
        "lookup_async": True,
    }  # fmt: skip
    assert found.notes == [
        "vLLM's config does not say how large the store is: cluster.store does",
        "from vLLM's MooncakeStoreConnector config, without effect in a simulation: cache_prefix",
    ]


def test_multi() -> None:
    """Each part is read like a whole config, in order; the failure policy of the whole counts alone."""
    nixl = {"kv_connector": "NixlConnector", "kv_role": "kv_producer", "kv_load_failure_policy": "recompute"}
    store = {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}
    for policy, expected in (("fail", {}), ("recompute", {"kv_load_failure_policy": "recompute"})):
        value = {
            "kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_load_failure_policy": policy,
            "kv_connector_extra_config": {"connectors": [nixl, store]},
        }  # fmt: skip
        connector = translated(value)
        parts = connector.pop("connectors")
        assert connector == {"kind": "multi"} | expected
        assert parts[0] == {"kind": "nixl"}
        assert (parts[1]["kind"], parts[1]["role"]) == ("mooncake_store", "both")


def test_presets() -> None:
    """Connectors without a model of their own become presets, with the settings that have a meaning there."""
    assert translated(transfer("FlexKVConnectorV1")) == {"preset": "flexkv"}
    found = translate(transfer("HF3FSKVConnector", hf3fs_file_size=2**34, hf3fs_client_numjobs=32), "0.33.0")
    assert found.connector == {"preset": "hf3fs"}
    assert found.notes[0].startswith("hf3fs_file_size 17179869184 is of each rank and of all instances together")
    assert translated(transfer("MoRIIOConnector", http_port="20005", defer_timeout=30)) == {
        "preset": "moriio", "abort_request_timeout": "30s",
    }  # fmt: skip
    assert translated(transfer("MoRIIOConnector", http_port=1, read_mode="True", defer_timeout=30)) == {
        "preset": "moriio-read", "kv_lease_duration": "30s",
    }  # fmt: skip


@pytest.mark.parametrize("name", ["LMCacheConnectorV1", "LMCacheMPConnector", "ExampleConnector"])
def test_every_connector_makes_a_config(tmp_path: Path, name: str) -> None:
    """What is left out has defaults, and what is assumed is told."""
    config = load(tmp_path, f"'{transfer(name)}'")
    assert config.connector.kind in ("lmcache", "lmcache_mp", "example")
    assert config.notes


def test_what_changes_nothing_is_noted() -> None:
    """Ports, ids, roles and byte layouts: one note that names them."""
    value = json.loads(offloading(canonical_layout=True, store_threshold=1))
    value |= {"kv_port": "30000", "engine_id": "x", "kv_role": "kv_producer"}
    found = translate(value, "0.33.0")
    assert found.connector["store_threshold"] == 0
    (note,) = found.notes
    assert note == (
        "from vLLM's OffloadingConnector config, without effect in a simulation: engine_id, kv_port, kv_role"
        " (kv_producer stores and loads as kv_both does, with this connector), store_threshold 1 (filters nothing),"
        " canonical_layout"
    )


def test_numbers_are_read_as_vllm_reads_them() -> None:
    """1e10, numbers in quotes, and sizes without quotes: 80g = 80e9, 80G = 80 * 2**30; not inside texts."""
    assert translated(offloading(cpu_bytes_to_use=1e10))["cpu_bytes_to_use"] == "10000000000B"
    assert translated(offloading(cpu_bytes_to_use="123"))["cpu_bytes_to_use"] == "123B"
    text = offloading(cpu_bytes_to_use=1)
    assert translated(text.replace(": 1}", ": 80g}"))["cpu_bytes_to_use"] == "80000000000B"
    assert translated(text.replace(": 1}", ": 80G}"))["cpu_bytes_to_use"] == "85899345920B"
    with pytest.raises(UserError, match="expected a number, found '80G'"):
        translated(text.replace(": 1}", ': "80G"}'))


def test_releases_differ() -> None:
    """0.23.0 does not know blocks_per_chunk and ignores it; kv_buffer_size was removed after it."""
    old = translate(offloading(blocks_per_chunk=4), "0.23.0")
    assert "block_size_factor" not in old.connector
    assert old.notes[0].endswith("blocks_per_chunk (vLLM 0.23.0 does not know it)")
    value = {**json.loads(offloading()), "kv_buffer_size": 1e9}
    assert translate(value, "0.23.0").notes == ["kv_buffer_size changes nothing here"]
    with pytest.raises(UserError, match=r"kv_buffer_size: vLLM 0.33.0 has no such key any more"):
        translate(value, "0.33.0")


def test_flags_choose_as_vllm_does() -> None:
    """A size overwrites the connector but keeps the other extra keys; an environment variable selects SimpleCPU."""
    both = f"--kv-transfer-config '{transfer('NixlConnector', store_threshold=3)}' --kv-offloading-size 1"
    assert (
        translated(both).items() >= {"kind": "offloading", "store_threshold": 3, "cpu_bytes_to_use": f"{GIB}B"}.items()
    )
    assert translated("VLLM_USE_SIMPLE_KV_OFFLOAD=1 --kv-offloading-size 0.5")["cpu_bytes_to_use"] == f"{GIB // 2}B"
    assert translated("VLLM_USE_SIMPLE_KV_OFFLOAD=1 --kv-offloading-size 0.5")["kind"] == "simple_cpu"


def test_connectors_that_hand_kv_over() -> None:
    """Seconds get their unit; the buffer's device counts for NixlConnector only."""
    nixl = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
    assert translated(nixl | {"kv_connector_extra_config": {"kv_lease_duration": 60, "backends": ["UCX"]}}) == {
        "kind": "nixl",
        "kv_lease_duration": "60s",
        "kv_buffer_device": "cpu",
    }
    assert translated(transfer("NixlPushConnector")) == {"kind": "nixl", "mode": "push"}
    assert translated(transfer("MooncakeConnector", num_workers=4)) == {"kind": "mooncake", "num_workers": 4}
    assert translated(transfer("DecodeBenchConnector", fill_std=0.1)) == {"kind": "decode_bench"}


WRONG: dict[str, tuple[object, str]] = {
    "single quotes": ("{'kv_connector': 1}", "is not JSON: Expecting property name enclosed in double quotes"),
    "a list": ("[1]", "expected the JSON of --kv-transfer-config, found a list"),
    "top key": ({"kv_conector": "x"}, "unknown key kv_conector, expected kv_connector, kv_role,"),
    "no connector": ({"kv_role": "kv_both"}, "kv_connector is missing, expected one of OffloadingConnector,"),
    "no role": ({"kv_connector": "OffloadingConnector"}, "kv_role is missing: vLLM does not start so, expected one of"),
    "role": ({"kv_connector": "OffloadingConnector", "kv_role": "both"}, "kv_role 'both': vLLM does not start so"),
    "connector": (transfer("OfloadingConnector"), "is unknown, expected one of OffloadingConnector, SimpleCPU"),
    "multi of none": (transfer("MultiConnector", connectors=[]), "connectors: expected at least one connector, found"),
    "multi in multi": (
        transfer("MultiConnector", connectors=[json.loads(transfer("MultiConnector"))]),
        "connectors.0.kv_connector: expected one of OffloadingConnector, SimpleCPU",
    ),
    "hisparse": (transfer("HiSparseConnector"), "kv_connector HiSparseConnector is not simulated, expected one of Off"),
    "xgmi": (transfer("MoRIIOConnector", backend="xgmi"), "backend: 'xgmi': is not simulated, expected rdma"),
    "store, sync": (transfer("MooncakeStoreConnector", load_async=False), "load_async: false: is not simulated"),
    "store, tp": (transfer("MooncakeStoreConnector", store_tp_size=8), "store_tp_size: 8: is not simulated"),
    "flexkv": (transfer("FlexKVConnectorV1", cpu_cache_gb=32), "unknown key kv_connector_extra_config.cpu_cache_gb"),
    "both ways": (transfer("NixlConnector", bidirectional_kv_xfer=True), "bidirectional_kv_xfer: true: is not simula"),
    "tcp": (transfer("MooncakeConnector", mooncake_protocol="tcp"), "mooncake_protocol: 'tcp': is not simulated, exp"),
    "module": (
        {"kv_connector": "DynamoConnector", "kv_role": "kv_both", "kv_connector_module_path": "kvbm.connector"},
        "kv_connector_module_path 'kvbm.connector' is code for vLLM",
    ),
    "no bytes": (transfer("OffloadingConnector"), "cpu_bytes_to_use is missing: vLLM does not start without it"),
    "zero bytes": (offloading(cpu_bytes_to_use=0), "cpu_bytes_to_use: expected a number, at least 1, found 0"),
    "extra key": (
        offloading(cpu_byte_to_use=1),
        "unknown key kv_connector_extra_config.cpu_byte_to_use, expected cpu_bytes_to_use, spec_name,",
    ),
    "old blocks": (offloading(num_cpu_blocks=500), "num_cpu_blocks: vLLM reads it no more, expected cpu_bytes_to_use"),
    "both chunks": (offloading(block_size=64, blocks_per_chunk=4), "expected block_size or blocks_per_chunk"),
    "policy": (offloading(eviction_policy="lfu"), "eviction_policy: expected lru or arc, found 'lfu'"),
    "spec": (offloading(spec_name="FileOffloadingSpec"), "spec_name: expected CPUOffloadingSpec or TieringOffl"),
    "tier": (
        offloading(spec_name="TieringOffloadingSpec", secondary_tiers=[{"type": "p2p"}]),
        "kv_connector_extra_config.secondary_tiers.0.type: expected one of fs, obj, example, or tiers:",
    ),
    "tier key": (
        offloading(spec_name="TieringOffloadingSpec", secondary_tiers=[{"type": "fs", "read_threads": 2}]),
        "unknown key kv_connector_extra_config.secondary_tiers.0.read_threads, expected type, n_read_threads,",
    ),
    "sync loads": (offloading(sync_load_budget_bytes=5), "sync_load_budget_bytes: 5: synchronous loads are not"),
    "half layerwise": (
        transfer("LMCacheConnectorV1", use_layerwise=True),
        "expected use_layerwise and lmcache.use_layerwise to be the same",
    ),
    "LMCache size": (
        transfer("LMCacheConnectorV1", **{"lmcache.max_local_cpu_size": "5GB"}),
        "kv_connector_extra_config.lmcache.max_local_cpu_size: expected a number, found '5GB'",
    ),
    "LMCache key": (
        transfer("LMCacheConnectorV1", **{"lmcache.chunksize": 1}),
        "unknown key kv_connector_extra_config.lmcache.chunksize, expected lmcache.chunk_size,",
    ),
    "disk": (transfer("SimpleCPUOffloadConnector", kv_offload_backend="disk"), "kv_offload_backend: 'disk': is not"),
    "failure policy": (
        {**json.loads(offloading()), "kv_load_failure_policy": "ignore"},
        "kv_load_failure_policy: expected fail or recompute, found 'ignore'",
    ),
    "flag": ("--kv-offload-size 4", "unknown flag --kv-offload-size, expected --kv-transfer-config, --kv-offloading"),
    "size unit": ("--kv-offloading-size 16G", "--kv-offloading-size: expected GiB as a plain number, found '16G'"),
    "backend alone": ("--kv-offloading-backend native", "alone turns nothing on in vLLM"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_vllm_would_refuse_or_we_cannot_simulate(name: str) -> None:
    """One line: the key, what was found, what was expected."""
    value, expected = WRONG[name]
    with pytest.raises(UserError) as caught:
        translate(value, "0.33.0")
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_the_closest_key_is_named() -> None:
    """A typo that vLLM would silently ignore."""
    with pytest.raises(UserError, match=r"did you mean eviction_policy\?"):
        translate(offloading(evicton_policy="arc"), "0.33.0")
    with pytest.raises(UserError, match=r"did you mean OffloadingConnector\?"):
        translate(transfer("OfloadingConnector"), "0.33.0")


def test_in_a_config_the_text_becomes_our_keys(tmp_path: Path) -> None:
    """From JSON as text and as a YAML mapping; the resolved config has our keys and the notes, and reads back equal."""
    text = offloading(block_size=64, canonical_layout=False)
    config = load(tmp_path, f"'{text}'")
    assert config.connector == OffloadingConnectorConfig(kind="offloading", cpu_bytes_to_use="64GiB", block_size=64)
    assert load(tmp_path, text) == config
    assert config.notes == ("from vLLM's OffloadingConnector config, without effect in a simulation: canonical_layout",)
    (tmp_path / "again.yaml").write_text(dump_config(config))
    assert load_config(tmp_path / "again.yaml") == config


def test_tokens_of_a_chunk_become_blocks_of_a_chunk(tmp_path: Path) -> None:
    """block_size counts tokens: 64 are 4 blocks of 16 or 2 of 32; 40 do not fit."""
    trace = TraceBuilder()
    trace.session("s", [(10, 1, 0)])
    for engine, factor in (("{}", 4), ("{block_size: 32}", 2)):
        plan = resolve(load(tmp_path, f"'{offloading(block_size=64)}'", engine=engine), trace.build())
        assert isinstance(plan.config.connector, OffloadingConnectorConfig)
        assert (plan.config.connector.block_size_factor, plan.config.connector.block_size) == (factor, None)
        assert plan.sizes.cpu_chunk_bytes == 64 * 131072
    with pytest.raises(UserError, match=r"connector.block_size: 40: expected a multiple of the 16 tokens"):
        resolve(load(tmp_path, f"'{offloading(block_size=40)}'"), trace.build())


def test_overrides_and_from_vllm(tmp_path: Path) -> None:
    """Overrides act on the translated keys, may replace the whole, and choose the release that it is read for."""
    text = f"'{offloading(blocks_per_chunk=4)}'"
    config = load(tmp_path, text, "connector.eviction_policy=arc")
    assert isinstance(config.connector, OffloadingConnectorConfig)
    assert (config.connector.eviction_policy, config.connector.block_size_factor) == ("arc", 4)
    old = load(tmp_path, text, "engine.vllm_version=0.23.0").connector
    assert isinstance(old, OffloadingConnectorConfig)
    assert old.block_size_factor == 1
    other = load(tmp_path, text, f"connector.from_vllm={transfer('SimpleCPUOffloadConnector', lazy_offload=True)}")
    assert other.connector == SimpleCPUConnectorConfig(kind="simple_cpu", lazy_offload=True)


@pytest.mark.parametrize(
    ("connector", "overrides", "expected"),
    [
        ("'{}'", (), "run.yaml:5: connector.from_vllm: kv_connector is missing"),
        ("'{}'\n  kind: none", (), "run.yaml:5: connector.from_vllm: expected alone, found beside kind"),
        ("'--kv-offloading-size 1'", ("connector.from_vllm={}",), "--set connector.from_vllm={}: connector.from_vllm:"),
        (f"'{offloading(cpu_bytes_to_use=2**70)}'", (), "run.yaml:5: connector.cpu_bytes_to_use: expected a size"),
    ],
)
def test_errors_name_the_place(tmp_path: Path, connector: str, overrides: tuple[str, ...], expected: str) -> None:
    """File and line, or the override, also for what is wrong only after the translation."""
    with pytest.raises(UserError) as caught:
        load(tmp_path, connector, *overrides)
    assert str(caught.value).removeprefix(f"{tmp_path}/").startswith(expected)


def test_the_names_of_vllm_are_known() -> None:
    """Every connector that vLLM registers is told from a misspelt one."""
    assert len(KNOWN_CONNECTORS) == len(set(KNOWN_CONNECTORS)) == 19
