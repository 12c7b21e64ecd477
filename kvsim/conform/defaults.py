"""What a scenario leaves out."""

from __future__ import annotations

from typing import Any

# What the recorder assumes where a scenario says nothing.
DEFAULTS: dict[str, Any] = {
    "num_gpu_blocks": 700, "block_size": 16, "max_num_batched_tokens": 1024, "max_num_seqs": 8,
    "max_model_len": 8192, "policy": "fcfs", "long_prefill_token_threshold": 0, "reserve_full_isl": True,
    "no_prefix_caching": False, "async_scheduling": False,
    "spec_method": None, "num_speculative_tokens": 3, "accepted": [3, 0, 1], "lookahead_block_hashes": True,
    "connector": None, "cpu_blocks": 1500, "cpu_policy": "lru", "chunk_factor": 1,
    "offload_prompt_only": True, "store_threshold": 0, "tier": None, "tier_load_delay": 3,
    "tier_store_delay": 2, "tiers": None, "lazy": False, "load_delay": 2, "store_delay": 2, "drain": 5, "groups": None,
    "retention_interval": 0, "max_loras": None, "encoder_budget": None, "encoder_cache": None,
    "disable_chunked_mm_input": False,
    "kv_load_failure_policy": "fail", "load_failures": None, "tier_load_failures": None, "tier_store_failures": None,
}  # fmt: skip
