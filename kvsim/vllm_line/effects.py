"""What flags of ``vllm serve`` do to a simulation: taken, without effect (and why), or not simulated."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsim.vllm_line.flag_table import Flag

TAKEN = frozenset({
    "--model", "--served-model-name", "--hf-config-path", "--max-model-len", "--max-num-batched-tokens",
    "--max-num-seqs", "--long-prefill-token-threshold", "--max-num-partial-prefills", "--scheduling-policy",
    "--scheduler-reserve-full-isl", "--async-scheduling", "--enable-chunked-prefill", "--enable-prefix-caching",
    "--prefix-cache-retention-interval", "--block-size", "--gpu-memory-utilization", "--kv-cache-memory-bytes",
    "--num-gpu-blocks-override", "--kv-cache-dtype", "--kv-offloading-size", "--kv-offloading-backend",
    "--kv-transfer-config", "--disable-hybrid-kv-cache-manager", "--tensor-parallel-size", "--pipeline-parallel-size",
    "--data-parallel-size", "--prefill-context-parallel-size", "--decode-context-parallel-size",
    "--enable-expert-parallel", "--speculative-config", "--spec-method", "--spec-model", "--spec-tokens", "--max-loras",
    "--enable-lora", "--disable-chunked-mm-input", "--performance-mode", "--config",
})  # fmt: skip
"""Flags whose meaning a config of ours has, or that decide what it is."""

NOT_SIMULATED: Mapping[str, tuple[tuple[Any, ...], str]] = {
    "--max-num-active-seqs": ((None,), "a cap on admitted requests"),
    "--max-num-queued-reqs": ((None,), "refusing requests when the queue is full"),
    "--max-num-queued-tokens": ((None,), "refusing requests when the queue is full"),
    "--max-num-scheduled-tokens": ((None,), "a budget of its own for scheduled tokens"),
    "--long-prefill-token-threshold-adaptive": ((False,), "a threshold that follows the number of requests"),
    "--watermark": ((0.0,), "blocks that stay free when requests are admitted"),
    "--prefill-schedule-interval": ((1,), "prefill in every so many steps only"),
    "--scheduler-cls": ((None,), "a scheduler of your own"),
    "--prefix-match-unit": ((None,), "another unit of prefix hits"),
    "--mamba-block-size": ((None,), "another block size of states"),
    "--mamba-cache-mode": (("align",), "another way to keep states"),
    "--swa-bounded-replay": ((False,), "replaying windows"),
    "--use-replayssm": ((False,), "replaying states"),
    "--enable-mamba-shared-prefix-checkpoint": ((False,), "checkpoints of states at shared prefixes"),
    "--kv-sharing-fast-prefill": ((False,), "layers that skip prefill"),
    "--disable-sliding-window": ((False,), "a shorter model length instead of windows"),
    "--cpu-offload-gb": ((0, 0.0), "weights (not KV) in CPU memory, which frees GPU memory and slows steps down"),
    "--offload-group-size": ((0,), "weights (not KV) in CPU memory"),
    "--runner": (("auto", "generate"), "pooling"),
    "--convert": (("auto", "none"), "pooling"),
    "--diffusion-config": ((None,), "diffusion"),
    "--ec-transfer-config": ((None,), "encoders in instances of their own"),
    "--engram-config": ((None,), "engrams"),
    "--mm-encoder-only": ((False,), "an encoder alone"),
    "--enable-elastic-ep": ((False,), "a number of ranks that changes"),
}
"""Flags that change decisions or capacity: the values at which they do not, and what they would be about."""

_TIMING = "timing that the step model does not know"
_MEMORY = "memory and weights, as the model's config says them"
_PROCESSES = "processes and nodes"
_GROUPS = {
    "Frontend": "serving front end",
    "LoadConfig": "loading of weights",
    "LoggingConfig": "logging and metrics",
    "ObservabilityConfig": "logging and metrics",
    "StructuredOutputsConfig": "serving front end",
    "MultiModalConfig": "images and audio",
    "LoRAConfig": "LoRA memory",
    "AttentionConfig": _TIMING,
    "KernelConfig": _TIMING,
    "CompilationConfig": _TIMING,
    "MambaConfig": _TIMING,
    "ParallelConfig": _PROCESSES,
    "ModelConfig": "model files and API",
    "options": _PROCESSES,
    "OffloadConfig": "weights in CPU memory",
}
_OWN = {
    **dict.fromkeys(
        (
            "--enforce-eager", "--compilation-config", "--optimization-level", "--attention-config", "--kernel-config",
            "--all2all-backend", "--disable-custom-all-reduce", "--enable-dbo", "--ubatch-size", "--enable-eplb",
            "--eplb-config", "--dp-sync-interval", "--dbo-decode-token-threshold", "--dbo-prefill-token-threshold",
            "--gdn-prefill-backend", "--kda-prefill-backend", "--kda-decode-backend", "--disable-cascade-attn",
            "--prefix-caching-hash-algo", "--stream-interval", "--enable-flashinfer-autotune", "--enable-hc-sp",
            "--enable-batch-sharded-sampling", "--enable-shm-tensor-arena", "--disable-nccl-for-dp-synchronization",
            "--expert-placement-strategy", "--dcp-comm-backend", "--dcp-q-replicate",
        ),
        _TIMING,
    ),
    **dict.fromkeys(
        (
            "--dtype", "--quantization", "--quantization-config", "--enable-sleep-mode", "--enable-cumem-allocator",
            "--kv-cache-dtype-skip-layers", "--calculate-kv-scales", "--mamba-cache-dtype", "--mamba-ssm-cache-dtype",
            "--allow-deprecated-quantization", "--enable-ep-weight-filter",
        ),
        _MEMORY,
    ),
    **dict.fromkeys(("--disable-log-stats", "--enable-log-requests", "--aggregate-engine-logging"),
                    "logging and metrics"),
    **dict.fromkeys(("--profiler-config", "--kv-events-config", "--watchdog-config"), "logging and metrics"),
    **dict.fromkeys(
        ("--api-server-count", "--renderer-num-workers"),
        "time before the scheduler, which a section frontend of the config simulates",
    ),
    **dict.fromkeys(("--structured-outputs-config", "--reasoning-config"), "serving front end"),
}  # fmt: skip


def without_effect(flag: Flag) -> str:
    """Of what kind a flag is that changes nothing here."""
    return _OWN.get(flag.name) or _GROUPS.get(flag.group, "other")
