"""Which KV cache groups an engine has: what the model needs, and what vLLM makes of it under this config."""

from __future__ import annotations

from dataclasses import dataclass
from math import lcm

from kvsim.cache.groups import ChunkedLocal, FullAttention, GroupSpec, Mamba, SlidingWindow
from kvsim.config import OffloadingConnectorConfig, RunConfig
from kvsim.errors import UserError
from kvsim.limits import SchedulerLimits
from kvsim.releases import Release
from kvsim.steptime.gpu import GpuSpec
from kvsim.steptime.kv_layout import KVGroup, KVLayout, kv_layout
from kvsim.steptime.spec import ModelSpec

# In vLLM 0.33.0 connectors that are a SupportsHMA take groups; others turn the hybrid KV cache manager off. Here
# SimpleCPUOffloadConnector and MooncakeStoreConnector, which are, are simulated for one group only.
_CONNECTORS_WITH_GROUPS, _NOT_SIMULATED = ("none", "offloading"), ("simple_cpu", "mooncake_store", "multi")
# GPUs on which gated delta nets run on FlashInfer, whose prefill exports states every 64 tokens: Hopper and, with CUDA
# 13, Blackwell (vLLM 0.33.0 layers/mamba/gdn/qwen_gdn_linear_attn.py and v1/attention/backends/gdn_attn.py).
_FLASHINFER_GDN = ("h100", "h200", "h20", "h800", "gh200", "b100", "b200", "b300", "gb200", "gb300")
_GDN_ALIGNMENT, _MAMBA2_ALIGNMENT = 64, 1  # Mamba 2 kernels export states anywhere


@dataclass(frozen=True, slots=True)
class KVGroups:
    """The layout of the pool; ``specs`` is empty where all layers keep every token in one group."""

    layout: KVLayout
    specs: tuple[GroupSpec, ...]
    simulated: bool  # False: the groups share the pool, but windows and states are not followed
    in_vllm: int  # how many groups vLLM forms, simulated or not
    block_bytes: int  # one block on one rank
    layers: int  # whose KV is in a block
    notes: tuple[str, ...]

    def capacity_note(self, num_blocks: int, limits: SchedulerLimits) -> str:
        """What vLLM logs about a pool of so many blocks."""
        need, longest = self._blocks_of_the_longest(limits), limits.max_model_len
        return (
            f"KV capacity: a request of {longest:,} tokens holds up to {need:,} of {num_blocks:,} blocks"
            f" ({num_blocks / need:.2f} such requests, {num_blocks * longest // need:,} tokens in vLLM's log)"
        )

    def cautions(self, num_blocks: int, limits: SchedulerLimits) -> list[str]:
        """What is questionable about it."""
        need, longest = self._blocks_of_the_longest(limits), limits.max_model_len
        if need <= num_blocks:
            return []
        need_text = f"a request of max_model_len {longest:,} needs {need:,} blocks, the GPU has {num_blocks:,}"
        return [f"vLLM would refuse to start: {need_text}. Here only requests that do not fit are rejected."]

    def _blocks_of_the_longest(self, limits: SchedulerLimits) -> int:
        return self.layout.blocks_per_request(limits.max_model_len, limits.max_num_batched_tokens)


def kv_groups(
    config: RunConfig, model: ModelSpec, gpu: GpuSpec, release: Release, limits: SchedulerLimits, block_tokens: int
) -> KVGroups:
    """The groups that vLLM forms.

    Raises:
        UserError: vLLM would refuse to start.
    """
    tp, caching = config.hardware.tensor_parallel_size, config.engine.enable_prefix_caching
    _check_states(config, model)
    off = _why_off(config, model)
    layout = kv_layout(
        model,
        tp,
        block_tokens,
        hybrid=not off,
        prefix_caching=caching,
        state_alignment=_state_alignment(model, gpu) if caching else 0,
    )
    formed = (kv_layout(model, tp, block_tokens).groups, layout.block_bytes, layout.layers_per_group)
    if off and len(model.groups) > 1:
        return KVGroups(layout, (), True, *formed, notes=(f"{off}: all layers of {model.name} keep every token",))
    if layout.kinds[0].kind == "full" and layout.groups == 1:
        return KVGroups(layout, (), True, *formed, notes=())
    if not release.kv_groups:
        note = (
            f"{model.name} has {layout.groups} KV groups in one pool; windows are not simulated for vLLM"
            f" {config.engine.vllm_version}: all layers keep every token"
        )
        return KVGroups(layout, (), False, *_all_in_one(model, tp, layout), notes=(note,))
    specs = tuple(_spec(group, limits.max_model_len) for group in layout.kinds)
    _check_retention(config, specs)
    return KVGroups(layout, specs, True, *formed, notes=(f"{model.name} has {_described(layout)} over one pool",))


def _all_in_one(model: ModelSpec, tp: int, layout: KVLayout) -> tuple[int, int, int]:
    """Groups that are not followed: a block of each of them together holds all layers."""
    return layout.groups, model.kv_bytes_per_token(tp) * layout.block_tokens, model.attention_layers


def _check_states(config: RunConfig, model: ModelSpec) -> None:
    """Recurrent states ask more of an engine (vLLM 0.33.0 model_executor/models/config.py, offloading/config.py)."""
    engine = config.engine
    if all(group.kind != "linear" for group in model.groups):
        return
    if engine.enable_prefix_caching and not engine.enable_chunked_prefill:
        raise UserError(f"engine.enable_chunked_prefill: false: prefix caching of {model.name} needs it in vLLM")
    if not engine.enable_prefix_caching and config.connector.kind != "none":
        raise UserError(f"engine.enable_prefix_caching: false: offloading of {model.name} needs it in vLLM")


def _check_retention(config: RunConfig, specs: tuple[GroupSpec, ...]) -> None:
    """VLLM 0.33.0 v1/core/kv_cache_coordinator.py, and the offloading connector's from_spec for its chunks."""
    interval, connector = config.engine.prefix_cache_retention_interval, config.connector
    factor = connector.block_size_factor if isinstance(connector, OffloadingConnectorConfig) else 1
    alignment = lcm(*(spec.block_size * factor for spec in specs))
    if interval and interval % alignment:
        raise UserError(
            f"engine.prefix_cache_retention_interval: {interval}: expected a multiple of the {alignment} tokens that"
            " the blocks (and chunks) of all groups have in common"
        )


def _why_off(config: RunConfig, model: ModelSpec) -> str:
    """Why the hybrid KV cache manager is off; empty = it is on (vLLM 0.33.0 config/vllm.py)."""
    wanted, kind = config.engine.disable_hybrid_kv_cache_manager, config.connector.kind
    forced = ""
    if config.engine.async_scheduling or config.engine.speculative is not None:
        key = "async_scheduling" if config.engine.async_scheduling else "speculative"
        forced = f"engine.{key} is simulated without KV groups"
    elif config.trace.streaming_sessions:
        forced = "trace.streaming_sessions is simulated without KV groups"
    elif any(group.chunked for group in model.groups):
        forced = "vLLM turns its hybrid KV cache manager off for chunked local attention"
    elif kind in _NOT_SIMULATED:
        forced = f"connector {kind} is simulated without KV groups"
    elif kind not in _CONNECTORS_WITH_GROUPS:
        forced = f"vLLM turns its hybrid KV cache manager off for connector {kind}"
    if wanted is False and forced:
        raise UserError(f"engine.disable_hybrid_kv_cache_manager: false: {forced}: expected null or true")
    return forced or ("engine.disable_hybrid_kv_cache_manager is set" if wanted else "")


def _state_alignment(model: ModelSpec, gpu: GpuSpec) -> int:
    """Tokens that the places where a state can be exported are multiples of; 0 = it cannot be."""
    recurrences = {group.recurrence for group in model.groups if group.kind == "linear"}
    if recurrences == {"mamba2"}:
        return _MAMBA2_ALIGNMENT
    if recurrences == {"gdn"} and gpu.name.lower().startswith(_FLASHINFER_GDN):
        return _GDN_ALIGNMENT
    return 0


def _spec(group: KVGroup, max_model_len: int) -> GroupSpec:
    match group.kind:
        case "sliding":
            return SlidingWindow(group.block_tokens, group.window)
        case "chunked":
            return ChunkedLocal(group.block_tokens, group.window)
        case "mamba" if group.block_tokens == 0:
            return Mamba(max_model_len, "none")
        case "mamba":
            return Mamba(group.block_tokens, checkpoints=group.checkpoints)
        case _:
            return FullAttention(group.block_tokens)


def _described(layout: KVLayout) -> str:
    """Such as "2 KV groups (18 sliding layers with window 128, 18 full layers)"."""
    parts: list[str] = []
    for group in layout.kinds:
        window = f" with window {group.window}" if group.window else ""
        blocks = f", blocks of {group.block_tokens}" if group.block_tokens not in (0, layout.block_tokens) else ""
        parts.append(f"{group.layers} {group.kind} layers{window}{blocks}")
    return f"{layout.groups} KV groups ({'; '.join(parts)})"
