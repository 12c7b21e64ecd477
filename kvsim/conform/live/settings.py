"""A scenario's options as vLLM's own config objects, with the cache of a model of one small layer."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from vllm.config import (
    CacheConfig,
    DeviceConfig,
    KVTransferConfig,
    ModelConfig,
    ParallelConfig,
    SchedulerConfig,
    VllmConfig,
)
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
    KVCacheTensor,
    MambaSpec,
    SlidingWindowSpec,
)

MODEL = str(Path(__file__).resolve().parent / "tinymodel")
TOKEN_BYTES = 256  # one layer, one KV head of 64 values, K and V, 2 bytes each

Options = dict[str, Any]

# What holds where a scenario says nothing.
DEFAULTS: Options = {
    "num_gpu_blocks": 700, "block_size": 16, "max_num_batched_tokens": 1024, "max_num_seqs": 8,
    "max_model_len": 8192, "policy": "fcfs", "long_prefill_token_threshold": 0, "reserve_full_isl": True,
    "no_prefix_caching": False, "async_scheduling": False,
    "spec_method": None, "num_speculative_tokens": 3, "accepted": [3, 0, 1], "lookahead_block_hashes": True,
    "connector": None, "cpu_blocks": 1500, "cpu_policy": "lru", "chunk_factor": 1,
    "offload_prompt_only": None, "store_threshold": 0, "tier": None, "tier_load_delay": 3, "tier_store_delay": 2,
    "tiers": None, "lazy": False, "load_delay": 2, "store_delay": 2, "drain": 5, "groups": None,
    "retention_interval": 0, "max_loras": None, "encoder_budget": None, "encoder_cache": None,
    "disable_chunked_mm_input": False,
    "kv_load_failure_policy": "fail", "load_failures": None, "tier_load_failures": None, "tier_store_failures": None,
}  # fmt: skip


def options_of(scenario: dict[str, Any]) -> Options:
    """Engine and connector options of a scenario, with the defaults."""
    given = {**scenario["engine"], **scenario.get("connector", {})}
    return DEFAULTS | {name: value for name, value in given.items() if value is not None}


def vllm_config(options: Options, files: str) -> VllmConfig:
    """Everything but the cache. `files` is a folder for the file system tier."""
    model = ModelConfig(
        model=MODEL,
        tokenizer=MODEL,
        skip_tokenizer_init=True,
        dtype="float16",
        seed=0,
        max_model_len=options["max_model_len"],
    )
    scheduler = _make(
        SchedulerConfig,
        max_num_seqs=options["max_num_seqs"],
        max_num_batched_tokens=options["max_num_batched_tokens"],
        max_model_len=options["max_model_len"],
        enable_chunked_prefill=True,
        policy=options["policy"],
        long_prefill_token_threshold=options["long_prefill_token_threshold"],
        async_scheduling=bool(options["async_scheduling"]),
        is_encoder_decoder=False,
        scheduler_reserve_full_isl=bool(options["reserve_full_isl"]),
        watermark=0.0,
    )
    sizes = group_block_sizes(options)
    cache = CacheConfig(
        block_size=sizes[0] if len(sizes) == 1 else options["block_size"],
        gpu_memory_utilization=0.9,
        cache_dtype="auto",
        enable_prefix_caching=not options["no_prefix_caching"],
    )
    cache.num_gpu_blocks = options["num_gpu_blocks"]
    if any(group["kind"] == "mamba" for group in options["groups"] or ()) and not options["no_prefix_caching"]:
        cache.mamba_cache_mode, cache.mamba_block_size = "align", options["block_size"]
    if options["groups"] and hasattr(cache, "prefix_cache_retention_interval"):
        cache.prefix_cache_retention_interval = _retention(options)
    config = VllmConfig(
        model_config=model,
        scheduler_config=scheduler,
        cache_config=cache,
        kv_transfer_config=_transfer_config(options, files),
        device_config=DeviceConfig(device="cpu"),
        parallel_config=ParallelConfig(),
    )
    if options["spec_method"] is not None:
        config.speculative_config = _speculation(options, config)
    return config


def _speculation(options: Options, config: VllmConfig) -> Any:
    """An n-gram proposer's, under the method's name: a drafter is a model, which the scheduler never looks at."""
    from vllm.config import SpeculativeConfig

    speculative = SpeculativeConfig(
        method="ngram",
        num_speculative_tokens=options["num_speculative_tokens"],
        prompt_lookup_max=3,
        target_model_config=config.model_config,
        target_parallel_config=config.parallel_config,
    )
    speculative.method = options["spec_method"]
    speculative.disable_lookahead_block_hashes = not options["lookahead_block_hashes"]
    config.scheduler_config.max_num_scheduled_tokens = options["max_num_batched_tokens"]
    return speculative


def kv_cache_config(options: Options) -> KVCacheConfig:
    """One layer of full attention; or a layer per group, all with pages of one size."""
    largest = max(group_block_sizes(options)) if options["groups"] else options["block_size"]
    page = TOKEN_BYTES * largest
    size = page * options["num_gpu_blocks"]
    groups, tensors = [], []
    for number, spec in enumerate(_specs(options, page)):
        layer = f"layer{number}"
        groups.append(KVCacheGroupSpec([layer], spec))
        if "shared_by" in inspect.signature(KVCacheTensor).parameters:
            tensors.append(KVCacheTensor(size=size, shared_by=[layer]))
        else:
            tensors.append(KVCacheTensor(size=size, layers=[layer], layer_stride=size, block_stride=page))
    known = "prefix_cache_retention_interval" in inspect.signature(KVCacheConfig).parameters and options["groups"]
    retained = {"prefix_cache_retention_interval": _retention(options)} if known else {}
    return KVCacheConfig(
        num_blocks=options["num_gpu_blocks"], kv_cache_tensors=tensors, kv_cache_groups=groups, **retained
    )


def _retention(options: Options) -> int | None:
    return None if options["retention_interval"] == "dense" else int(options["retention_interval"])


def group_block_sizes(options: Options) -> list[int]:
    """Tokens per block of every group that keeps KV, or states with prefix caching."""
    groups = options["groups"] or [{"kind": "full"}]
    states = [] if options["no_prefix_caching"] else ["mamba"]
    return [
        group.get("block_size") or options["block_size"]
        for group in groups
        if group["kind"] in ("full", "sliding_window", "chunked_local", *states)
    ] or [options["max_model_len"]]


def _specs(options: Options, page: int) -> list[Any]:
    attention = {"num_kv_heads": 1, "head_size": 64, "dtype": torch.float16}
    if options["groups"] is None:
        spec = FullAttentionSpec(block_size=options["block_size"], **attention)
        assert spec.page_size_bytes == page, spec.page_size_bytes
        return [spec]
    return [_spec(group, options, attention, page) for group in options["groups"]]


def _spec(group: dict[str, Any], options: Options, attention: dict[str, Any], page: int) -> Any:
    size = group.get("block_size") or options["block_size"]
    padded = {} if TOKEN_BYTES * size == page else {"page_size_padded": page}
    if group["kind"] == "mamba":
        caching = not options["no_prefix_caching"]
        checkpoints = {"num_prefill_checkpoint_blocks": 1, "prefill_checkpoint_alignment": 1}
        return MambaSpec(
            block_size=size if caching else options["max_model_len"],
            shapes=((8,),),
            dtypes=(torch.float16,),
            page_size_padded=page,
            mamba_cache_mode="align" if caching else "none",
            **(checkpoints if group.get("checkpoints") else {}),
        )
    if group["kind"] == "sliding_window":
        return SlidingWindowSpec(block_size=size, sliding_window=group["window"], **attention, **padded)
    if group["kind"] == "chunked_local":
        return ChunkedLocalAttentionSpec(block_size=size, attention_chunk_size=group["chunk"], **attention, **padded)
    return FullAttentionSpec(block_size=size, **attention, **padded)


def _transfer_config(options: Options, files: str) -> KVTransferConfig | None:
    largest = max(group_block_sizes(options)) if options["groups"] else options["block_size"]
    cpu_bytes = options["cpu_blocks"] * TOKEN_BYTES * largest
    if options["connector"] is None:
        return None
    if options["connector"] == "stub":
        import stub_connector

        return _connector(stub_connector.NAME, {}, options)
    if options["connector"] == "simple":
        extra = {"cpu_bytes_to_use": cpu_bytes, "lazy_offload": bool(options["lazy"])}
        return _connector("SimpleCPUOffloadConnector", extra, options)
    if options["connector"] == "example":
        return _connector("ExampleConnector", {"shared_storage_path": files}, options)
    extra = {
        "spec_name": "CPUOffloadingSpec",
        "cpu_bytes_to_use": cpu_bytes * options["chunk_factor"],
        "eviction_policy": options["cpu_policy"],
    }
    if options["groups"]:
        extra["blocks_per_chunk"] = options["chunk_factor"]
    elif options["chunk_factor"] != 1:
        extra["block_size"] = options["block_size"] * options["chunk_factor"]
    if options["offload_prompt_only"] is not None:
        extra["offload_prompt_only"] = bool(options["offload_prompt_only"])
    if options["store_threshold"]:
        extra["store_threshold"] = options["store_threshold"]
    tiers = _tiers(options, files)
    if tiers:
        extra |= {"spec_name": "TieringOffloadingSpec", "secondary_tiers": tiers}
    return _connector("OffloadingConnector", extra, options)


def _tiers(options: Options, files: str) -> list[dict[str, Any]]:
    if not options["tiers"] and not options["tier"]:
        return []
    import tier  # not every release has tiers

    tier.VirtualTier.load_failures = [list(entry) for entry in options["tier_load_failures"] or ()]
    tier.VirtualTier.store_failures = list(options["tier_store_failures"] or ())
    if options["tiers"]:
        return tier.register([(entry["load_delay"], entry["store_delay"]) for entry in options["tiers"]])
    if options["tier"] == "virt":
        return tier.register([(options["tier_load_delay"], options["tier_store_delay"])])
    return [{"type": tier.file_system_type(), "root_dir": files, "n_read_threads": 1, "n_write_threads": 1}]


def _connector(name: str, extra: dict[str, Any], options: Options) -> KVTransferConfig:
    return KVTransferConfig(
        kv_connector=name,
        kv_role="kv_both",
        kv_connector_extra_config=extra,
        kv_load_failure_policy=options["kv_load_failure_policy"],
    )


def _make(kind: Any, **options: Any) -> Any:
    """An object of vLLM's, without the options that this release does not have."""
    known = inspect.signature(kind).parameters
    return kind(**{name: value for name, value in options.items() if name in known})
