"""Named connectors: 3FS, FlexKV and MoRIIO as keys of a config, alone, in clusters and from vLLM's own config."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from worlds import MS, TraceBuilder, run

from kvsim.config import (
    MooncakeConnectorConfig,
    MooncakeStoreConnectorConfig,
    MultiConnectorConfig,
    NixlConnectorConfig,
    OffloadingConnectorConfig,
    RunConfig,
    load_config,
)
from kvsim.config.presets import ASSUMED, load_preset, preset_names
from kvsim.copy_plan import ASSUMED as ASSUMED_BY_PLANS
from kvsim.errors import UserError
from kvsim.nics import load_nic
from kvsim.results.records import RunRecord

SHARED = {"instances": [{"name": "i", "count": 2}]}
SPLIT = {"instances": [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode"}]}
CLUSTERS: dict[str, Any] = {"flexkv": None, "hf3fs": SHARED, "moriio": SPLIT, "moriio-read": SPLIT}


def load(folder: Path, connector: object, cluster: object = None, *overrides: str, **parts: Any) -> RunConfig:
    """A config with this connector, of a small engine with fixed step times."""
    data = {
        "trace": {"path": "t"}, "model": "llama-3.1-8b", "connector": connector,
        "engine": {"num_gpu_blocks_override": 150, "max_num_batched_tokens": 4096, "max_model_len": 4096},
        "step_time": {"kind": "fixed", "per_step": "1ms", "per_token": "10us"}, **parts,
    } | ({} if cluster is None else {"cluster": cluster})  # fmt: skip
    (folder / "run.yaml").write_text(json.dumps(data))
    return load_config(folder / "run.yaml", overrides)


def simulate(settings: RunConfig) -> RunRecord:
    """Five sessions of one turn with the same prompt, 2 s apart, then another prompt and the first again."""
    builder = TraceBuilder(outputs_return=False)
    builder.common_prefix(2_050)
    for number in range(5):
        builder.session(f"s{number}", [(0, 5, 0)], start_ns=number * 2_000 * MS)
    return run(builder.build(), settings)[1]


@pytest.mark.parametrize("name", preset_names())
def test_every_preset_runs(name: str, tmp_path: Path) -> None:
    """Requests finish and find KV, and the notes say whose place the preset takes and what is approximate."""
    record = simulate(load(tmp_path, {"preset": name}, CLUSTERS[name]))
    assert [request.status for request in record.requests] == ["finished"] * 5
    if name.startswith("moriio"):  # what the decode instance has not is sent; its own cache has the rest
        assert [request.remote_tokens for request in record.requests] == [2_050, 2, 2, 2, 2]
    else:
        assert all(r.local_hit_tokens + r.external_hit_tokens == 2_048 for r in record.requests[1:])
    preset = load_preset(name)
    assert f"preset {name}: stands for vLLM's {preset.vllm}" in record.notes
    assert sum(f"preset {name}, approximate: " in note for note in record.notes) == len(preset.approximate)
    assert [note for note in record.notes if note.startswith(ASSUMED) and f"preset {name}" in note] == [
        f"{ASSUMED}preset {name}: {line}" for line in preset.assumed
    ]


def test_3fs(tmp_path: Path) -> None:
    """A store of all instances whose disk is one file system; the second instance finds what the first has stored."""
    settings = load(tmp_path, {"preset": "hf3fs"}, SHARED)
    assert isinstance(settings.connector, MooncakeStoreConnectorConfig)
    assert settings.connector.save_decode_cache
    assert settings.cluster is not None
    store = settings.cluster.store
    assert store is not None
    assert (store.disk, store.disk_path, store.placement) == ("3fs", "shared", "local")
    record = simulate(settings)
    assert [r.external_hit_tokens for r in record.requests[:2]] == [0, 2_048]


def test_flexkv(tmp_path: Path) -> None:
    """CPU memory and an SSD that drops its oldest, copied by kernels; what is given beside the preset wins."""
    settings = load(tmp_path, {"preset": "flexkv", "cpu_bytes_to_use": "1GiB"})
    assert isinstance(settings.connector, OffloadingConnectorConfig)
    assert settings.connector.cpu_bytes_to_use == 2**30
    assert [(tier.kind, tier.name) for tier in settings.connector.tiers] == [("fs", "ssd")]
    assert settings.transfer.kind == "profile"
    assert settings.transfer.path == "kernel"
    kept = load(tmp_path, {"preset": "flexkv"}, transfer={"kind": "instant"})
    assert kept.transfer.kind == "instant"


def test_moriio(tmp_path: Path) -> None:
    """Writes by default and reads with read_mode, each over a NIC with its published rates, unless one is named."""
    writes, reads = (load(tmp_path, {"preset": name}, SPLIT) for name in ("moriio", "moriio-read"))
    assert isinstance(writes.connector, MooncakeConnectorConfig)
    assert isinstance(reads.connector, NixlConnectorConfig)
    assert [s.cluster.network.nic for s in (writes, reads) if s.cluster] == ["mori-thor2-write", "mori-thor2-read"]
    other = load(tmp_path, {"preset": "moriio"}, SPLIT | {"network": {"nic": "cx7-400g", "nics_per_gpu": 2}})
    assert other.cluster is not None
    assert (other.cluster.network.nic, other.cluster.network.nics_per_gpu) == ("cx7-400g", 2)


@pytest.mark.parametrize(("name", "published"), [("mori-thor2-write", 41.39), ("mori-thor2-read", 36.55)])
def test_rates_of_mori(name: str, published: float) -> None:
    """Messages of 64 KiB reach the published GB/s."""
    profile = load_nic(name)
    part = profile.efficiency.parts[2**16]
    assert part * profile.bandwidth.used / 1e9 == pytest.approx(published, rel=1e-3)


def test_overrides_and_parts(tmp_path: Path) -> None:
    """A preset can be chosen and changed with --set, come from vLLM's config, and be a part of a MultiConnector."""
    chosen = load(tmp_path, {"kind": "none"}, None, "connector={preset: flexkv}", "connector.tiers.0.capacity=1TB")
    assert isinstance(chosen.connector, OffloadingConnectorConfig)
    assert chosen.connector.tiers[0].capacity == 10**12  # type: ignore[union-attr]
    vllm = {"kv_connector": "HF3FSKVConnector", "kv_role": "kv_both"}
    stored = load(tmp_path, {"from_vllm": json.dumps(vllm)}, SHARED, "cluster.store.disk_per_node=2TB")
    assert stored.cluster is not None
    assert stored.cluster.store is not None
    assert (stored.cluster.store.disk, stored.cluster.store.disk_per_node) == ("3fs", 2 * 10**12)
    both = load(tmp_path, {"kind": "multi", "connectors": [{"preset": "moriio"}, {"preset": "hf3fs"}]}, SPLIT)
    assert isinstance(both.connector, MultiConnectorConfig)
    assert [part.kind for part in both.connector.connectors] == ["mooncake", "mooncake_store"]


@pytest.mark.parametrize(
    ("connector", "cluster", "message"),
    [
        ({"preset": "flexkw"}, None, "connector.preset: expected one of flexkv, hf3fs, moriio, moriio-read, found"),
        ({"preset": 3}, None, "connector.preset: expected one of flexkv, hf3fs, moriio, moriio-read, found 3"),
        ({"preset": "hf3fs"}, None, "connector.preset: hf3fs: expected a cluster (cluster.instances, one at least)"),
        ({"preset": "flexkv", "kind": "lmcache"}, None, "connector.preset: flexkv: expected no kind beside it"),
        ({"preset": "flexkv", "mode": "push"}, None, "unknown key connector.mode for kind offloading"),
        ({"preset": "moriio"}, {**SPLIT, "network": 3}, "cluster.network"),
    ],
)
def test_what_is_refused(connector: object, cluster: object, message: str, tmp_path: Path) -> None:
    """One line with file, key, what was found and what was expected."""
    with pytest.raises(UserError) as caught:
        load(tmp_path, connector, cluster)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "run.yaml"))


def test_one_word_for_assumptions() -> None:
    """The command line counts notes that begin so."""
    assert ASSUMED == ASSUMED_BY_PLANS
