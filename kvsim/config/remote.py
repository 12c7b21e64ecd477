"""Connectors that hand KV over from prefill to decode instances."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kvsim.checked import Component
from kvsim.config.fields import ON_LOAD_FAILURE, SECOND_NS, KVLoadFailurePolicy
from kvsim.units import Duration

MS_NS = 1_000_000


class NixlConnectorConfig(Component):
    """vLLM's NixlConnector."""

    kind: Literal["nixl"] = Field("nixl", description="vLLM's NixlConnector")
    mode: Literal["pull", "push"] = Field(
        "pull", description="pull = decode instances read; push = prefill instances write (NixlPushConnector)"
    )
    kv_buffer_device: Literal["cuda", "cpu"] = Field(
        "cuda", description="what the network reads and writes: the GPU's memory, or a buffer in the host's"
    )
    kv_lease_duration: Annotated[Duration, Field(ge=SECOND_NS)] = Field(
        30 * SECOND_NS, description="KV of a prompt is kept so long for a decode instance that does not ask for it"
    )
    handshake: Duration = Field(100 * MS_NS, description="first contact of two instances (assumed)")
    kv_load_failure_policy: KVLoadFailurePolicy = Field("fail", description=ON_LOAD_FAILURE)


class MooncakeConnectorConfig(Component):
    """vLLM's MooncakeConnector: prefill instances write, and nobody waits for their answer."""

    kind: Literal["mooncake"] = Field("mooncake", description="vLLM's MooncakeConnector")
    num_workers: Annotated[int, Field(ge=1)] = Field(10, description="requests that a prefill instance writes at once")
    abort_request_timeout: Annotated[Duration, Field(ge=SECOND_NS)] = Field(
        480 * SECOND_NS,
        description="KV that nobody asks for is kept so long (vLLM's VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT)",
    )
    handshake: Duration = Field(100 * MS_NS, description="first contact of two instances (assumed)")
    kv_load_failure_policy: KVLoadFailurePolicy = Field("fail", description=ON_LOAD_FAILURE)


class P2pNcclConnectorConfig(Component):
    """vLLM 0.23.0's P2pNcclConnector: layers are sent while a prompt is computed, and both sides wait for them."""

    kind: Literal["p2p_nccl"] = Field("p2p_nccl", description="vLLM 0.23.0's P2pNcclConnector")
    kv_load_failure_policy: KVLoadFailurePolicy = Field("fail", description="without effect: nobody notices failures")


class DecodeBenchConnectorConfig(Component):
    """vLLM's DecodeBenchConnector: prompts are there as if by magic, to see how fast a server decodes."""

    kind: Literal["decode_bench"] = Field("decode_bench", description="vLLM's DecodeBenchConnector")
    kv_load_failure_policy: KVLoadFailurePolicy = Field("fail", description="without effect: nothing is loaded")
