"""The scheduler's limits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SchedulerLimits:
    """vLLM's limits, in its names."""

    max_num_batched_tokens: int
    max_num_seqs: int
    max_model_len: int
    scheduling_policy: str = "fcfs"
    enable_chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    scheduler_reserve_full_isl: bool = True
