"""What a config says about the network and about handing KV over, as plain values."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.config import (
    Connector,
    MooncakeConnectorConfig,
    MultiConnectorConfig,
    NetworkConfig,
    NixlConnectorConfig,
    RunConfig,
)
from kvsim.errors import UserError
from kvsim.kv_groups import KVGroups
from kvsim.network import PPM, Nic
from kvsim.nics import load_nic
from kvsim.results.records import ASSUMED
from kvsim.steptime.spec import ModelSpec

REMOTE = ("nixl", "mooncake", "p2p_nccl")  # connectors that hand KV over


@dataclass(frozen=True, slots=True)
class NetworkPlan:
    """The network of a cluster."""

    nic: Nic
    nics_per_gpu: float
    latency_ns: int
    oversubscription: float
    notes: tuple[str, ...]

    def nics_of(self, gpus: int) -> int:
        """NICs of an instance."""
        return max(1, round(self.nics_per_gpu * gpus))


def plan_network(config: NetworkConfig) -> NetworkPlan:
    """Look up the NIC.

    Raises:
        UserError: there is no such profile.
    """
    try:
        profile = load_nic(config.nic)
    except UserError as error:
        raise UserError(f"cluster.network.nic: {error}") from None
    given = {"bandwidth": config.bandwidth, "setup": config.setup, "latency": config.latency}
    assumed = [line for line in profile.assumptions() if given.get(line.partition(":")[0]) is None]
    efficiency = tuple((size, round(part * PPM)) for size, part in profile.efficiency.parts.items())
    nic = Nic(
        profile.bandwidth.used if config.bandwidth is None else config.bandwidth,
        profile.setup.used if config.setup is None else config.setup,
        efficiency,
    )
    over = f", {config.oversubscription:g} times oversubscribed" if config.oversubscription > 1 else ""
    per_gpu = f"{config.nics_per_gpu:g} NICs per GPU of {nic.bytes_per_s / 1e9:g} GB/s each way"
    return NetworkPlan(
        nic,
        config.nics_per_gpu,
        profile.latency.used if config.latency is None else config.latency,
        config.oversubscription,
        (f"network: {profile.name}, {per_gpu}{over}", *(f"{ASSUMED}network {profile.name} {line}" for line in assumed)),
    )


def kinds_of(connector: Connector) -> frozenset[str]:
    """The kind of a connector, or those of a MultiConnector's."""
    parts = connector.connectors if isinstance(connector, MultiConnectorConfig) else (connector,)
    return frozenset(part.kind for part in parts)


def check_remote(config: RunConfig, groups: KVGroups, *, is_part: bool = False) -> None:
    """Connectors and roles of instances must fit each other.

    Args:
        config: the run.
        groups: KV groups of the engine.
        is_part: the connector is one of several, of which another one may hand KV over.

    Raises:
        UserError: they do not.
    """
    kind, is_split = config.connector.kind, config.cluster is not None and config.cluster.is_split
    if is_split and not is_part and not kinds_of(config.connector) & set(REMOTE):
        raise UserError(
            f"connector.kind: {kind}: expected {' or '.join(REMOTE)} for an instance with a role: its KV has to get"
            " from prefill to decode"
        )
    if kind not in REMOTE:
        return
    if not is_split:
        raise UserError(f"connector.kind: {kind}: expected a cluster with instances of role prefill and decode")
    if kind == "p2p_nccl" and config.engine.vllm_version != "0.23.0":
        raise UserError(
            f"connector.kind: p2p_nccl: vLLM {config.engine.vllm_version} has no P2pNcclConnector, expected"
            " engine.vllm_version 0.23.0"
        )
    if groups.specs:
        raise UserError(
            f"connector.kind: {kind}: not simulated with the {len(groups.specs)} KV groups of {config.model.name};"
            " engine.disable_hybrid_kv_cache_manager simulates it as one group"
        )
    if config.engine.speculative is not None:
        raise UserError(f"engine.speculative: expected none with connector {kind}: drafts of it are not simulated")


def regions(config: RunConfig, model: ModelSpec, layers: int) -> int:
    """Pieces of a block on one rank that lie apart.

    vLLM 0.33.0 nixl/base_worker.py (register_kv_caches): a region per layer, K and V packed; 0.23.0 nixl/worker.py
    (split_k_and_v): two per layer, one for latents.
    """
    return layers if model.mla or config.engine.vllm_version != "0.23.0" else 2 * layers


def notes_of_remote(config: RunConfig) -> list[str]:
    """Choices and assumptions."""
    connector = config.connector
    if isinstance(connector, MultiConnectorConfig) and connector.split:
        together = "ending together as far as line rates and what the instance itself has asked for tell"
        return [
            f"connector.split: prefixes come from prefill instance and store at once, which no vLLM does, {together}"
        ]
    if not isinstance(connector, NixlConnectorConfig | MooncakeConnectorConfig):
        return []
    return [f"{ASSUMED}handshake of {connector.handshake / 1e6:g} ms at the first contact of two instances"]
