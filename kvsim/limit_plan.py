"""The scheduler's limits of a run: what its config says, and vLLM's defaults."""

from __future__ import annotations

from kvsim.config import RunConfig
from kvsim.errors import UserError
from kvsim.limits import SchedulerLimits
from kvsim.steptime.capacity import default_limits
from kvsim.steptime.gpu import GpuSpec
from kvsim.steptime.spec import ModelSpec


def limits_of(config: RunConfig, model: ModelSpec, gpu: GpuSpec) -> SchedulerLimits:
    """VLLM 0.33.0 engine/arg_utils.py: defaults by GPU; a defaulted budget covers an unchunked prompt, no more."""
    engine = config.engine
    default_tokens, default_seqs = default_limits(gpu.memory_bytes, gpu.name, engine.vllm_version)
    max_model_len = engine.max_model_len or model.max_position
    budget = engine.max_num_batched_tokens
    if budget is None:
        budget = default_tokens if engine.enable_chunked_prefill else max(default_tokens, max_model_len)
        budget = min(budget, (engine.max_num_seqs or default_seqs) * max_model_len)
    elif budget < max_model_len and not engine.enable_chunked_prefill:
        raise UserError(
            f"engine.max_num_batched_tokens: {budget}: without chunked prefill expected at least"
            f" max_model_len ({max_model_len})"
        )
    max_num_seqs = engine.max_num_seqs or min(default_seqs, budget)
    if budget < max_num_seqs:
        raise UserError(f"engine.max_num_batched_tokens: {budget}: expected at least max_num_seqs ({max_num_seqs})")
    return SchedulerLimits(
        max_num_batched_tokens=budget,
        max_num_seqs=max_num_seqs,
        max_model_len=max_model_len,
        scheduling_policy=engine.scheduling_policy,
        enable_chunked_prefill=engine.enable_chunked_prefill,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        scheduler_reserve_full_isl=engine.scheduler_reserve_full_isl,
    )
