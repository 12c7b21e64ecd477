"""Command lines as people posted them, with what is in them: vLLM 0.23.0 and 0.33.0, checked by their real parsers.

Paths, hosts and addresses are changed. What stands in ``not_simulated`` is what keeps a line from becoming a config.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

GIB = 2**30
BOTH = ("0.33.0", "0.23.0")


@dataclass(frozen=True)
class Posted:
    """A line and what is to be found in it.

    Attributes:
        text: as posted.
        gpu: preset closest to the hardware that the post names.
        model: as named.
        ranks: tensor, pipeline, data; None = unresolved.
        transfer: fields of what is offloaded; None = nothing is.
        budget: max_num_batched_tokens by release; one number = of both.
        seqs: max_num_seqs likewise.
        length: max_model_len; "auto"; None = the model's.
        refused: parts of what the parser refuses, of both releases.
        notes: parts of notes.
        not_simulated: parts of why not.
        fails: parts of why the engine of a release does not start.
        sections: keys of the config's sections, dotted.
    """

    text: str
    gpu: str
    model: str
    ranks: tuple[int | None, int | None, int | None]
    transfer: dict[str, Any] | None
    budget: int | dict[str, int]
    seqs: int
    length: int | str | None
    refused: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    not_simulated: tuple[str, ...] = ()
    fails: dict[str, tuple[str, ...]] = field(default_factory=dict)
    sections: dict[str, Any] = field(default_factory=dict)
    gpus: int | None = None
    expert: bool = False


LINES = {
    "kvcached#267": Posted(
        r"""vllm serve Qwen/Qwen2-1.5B \
--no-enable-prefix-caching \
--port 30000 \
--kv-offloading-size 4""",
        "l40s", "Qwen/Qwen2-1.5B", (1, 1, 1),
        {"connector": "OffloadingConnector", "role": "kv_both", "cpu_bytes": 4_294_967_296}, 2048, 256, None,
        notes=("prompts come from the connector alone", "serving front end: --port"),
        not_simulated=("'Qwen/Qwen2-1.5B' is not known",),
        sections={"engine.enable_prefix_caching": False, "connector.cpu_bytes_to_use": "4294967296B"}, gpus=1,
    ),
    "vllm#41515": Posted(
        """VLLM_SKIP_P2P_CHECK=1 CUDA_VISIBLE_DEVICES=0,1 NCCL_P2P_LEVEL=SYS vllm serve Qwen/Qwen3.6-27B-FP8 -tp 2 --reasoning-parser qwen3 --enable-prefix-caching --speculative-config '{"method": "mtp", "num_speculative_tokens": 3}' --enable-auto-tool-choice --tool-call-parser qwen3_coder --prefix-caching-hash-algo xxhash --kv-offloading-size 16 --max_num_batched_tokens 16384""",
        "h100-sxm", "Qwen/Qwen3.6-27B-FP8", (2, 1, 1),
        {"connector": "OffloadingConnector", "cpu_bytes": 16 * GIB, "cpu_bytes_per_rank": 8 * GIB}, 16384, 1024, None,
        sections={"engine.enable_prefix_caching": True, "engine.max_num_batched_tokens": 16384}, gpus=2,
    ),
    "vllm-ascend#9261": Posted(
        """vllm serve /models/Qwen/Qwen3-0.6B --kv_transfer_config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"num_cpu_blocks":500,"block_size":128,"spec_name":"NPUOffloadingSpec","spec_module_path": "vllm_ascend.kv_offload.npu"}}'""",
        "h100-sxm", "/models/Qwen/Qwen3-0.6B", (1, 1, 1),
        {"connector": "OffloadingConnector", "cpu_bytes": None, "cpu_tokens": 64_000}, 8192, 1024, None,
        not_simulated=("spec_name: expected CPUOffloadingSpec or TieringOffloadingSpec",),
        sections={"model.name": "qwen3-0.6b"}, gpus=1,
    ),
    "vllm#52656": Posted(
        """args: [/models/weights, --served-model-name, glm-5.2, --port, "8000", --tensor-parallel-size, "8", --max-model-len, "262144", --gpu-memory-utilization, "0.85", --kv-transfer-config, '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"spec_name":"TieringOffloadingSpec","cpu_bytes_to_use":68719476736,"blocks_per_chunk":4,"eviction_policy":"lru","secondary_tiers":[{"type":"fs","root_dir":"/kvcache"}]}}']""",
        "b300", "/models/weights", (8, 1, 1),
        {"connector": "OffloadingConnector", "cpu_bytes": 64 * GIB, "cpu_bytes_per_rank": 8 * GIB, "tiers": ("fs",)},
        {"0.33.0": 16384, "0.23.0": 8192}, 1024, 262_144,
        sections={"engine.gpu_memory_utilization": 0.85, "engine.max_model_len": 262_144}, gpus=8,
    ),
    "vllm#40112": Posted(
        """vllm serve /models/Qwen/Qwen3-8B --enable-auto-tool-choice --tool-call-parser hermes --reasoning-parser qwen3 --served-model-name my-model a-name b-name gpt-5 --kv-transfer-config '{
 "kv_connector":"MultiConnector","kv_role":"kv_both","kv_connector_extra_config": {"connectors": [
{"kv_connector": "OffloadingConnector","kv_role": "kv_both","kv_connector_extra_config": {"cpu_bytes_to_use": 64424509440}},
{"kv_connector": "OffloadingConnector","kv_role": "kv_both","kv_connector_extra_config": {"spec_name": "FileOffloadingSpec","storage_dir": "/mnt/files/","num_blocks": 64}}]}
}'""",
        "h100-sxm", "/models/Qwen/Qwen3-8B", (1, 1, 1), {"connector": "MultiConnector", "cpu_bytes": None},
        8192, 1024, None, not_simulated=("FileOffloadingSpec",), sections={"model.name": "qwen3-8b"}, gpus=1,
    ),
    "DeepSeek-V4-Flash, prefill": Posted(
        """docker run --gpus all --privileged --ipc=host -p 8000:8000 --network host -v ... -e VLLM_MOONCAKE_BOOTSTRAP_PORT=8998 -e CUDA_VISIBLE_DEVICES=0,1,2,3 vllm/vllm-openai:v0.25.0 deepseek-ai/DeepSeek-V4-Flash --trust-remote-code --kv-cache-dtype fp8 --block-size 256 --port 8000 --data-parallel-size 4 --enable-expert-parallel --tokenizer-mode deepseek_v4 --reasoning-parser deepseek_v4 --max-model-len auto --max-num-batched-tokens 16384 --max-num-seqs 8 --no-disable-hybrid-kv-cache-manager --disable-uvicorn-access-log --kv-transfer-config '{"kv_connector":"MooncakeConnector","kv_role":"kv_both","kv_load_failure_policy":"fail","kv_buffer_device":"cuda","kv_connector_extra_config":{"enforce_handshake_compat":false,"mooncake_protocol":"rdma"}}'""",
        "h200-sxm", "deepseek-ai/DeepSeek-V4-Flash", (1, 1, 4),
        {"connector": "MooncakeConnector", "role": "kv_both", "cpu_bytes": None}, 16384, 8, "auto",
        notes=("MooncakeConnector config, without effect in a simulation: enforce_handshake_compat",),
        not_simulated=("DeepSeek-V4-Flash' is not known",),
        sections={"engine.block_size": 256, "engine.disable_hybrid_kv_cache_manager": False,
                  "engine.data_parallel_size": 4}, gpus=4, expert=True,
    ),
    "DeepSeek-V4-Flash, decode": Posted(
        """docker run ... -e VLLM_NIXL_SIDE_CHANNEL_PORT=5558 -e CUDA_VISIBLE_DEVICES=4,5,6,7 vllm/vllm-openai:v0.25.0 deepseek-ai/DeepSeek-V4-Flash --kv-cache-dtype fp8 --block-size 256 --port 8001 --data-parallel-size 4 --enable-expert-parallel --max-model-len auto --max-num-seqs 512 --max-num-batched-tokens 512 --compilation-config '{"mode":0,"cudagraph_mode":"FULL_DECODE_ONLY","max_cudagraph_capture_size":512,"compile_ranges_endpoints":[512]}' --no-disable-hybrid-kv-cache-manager --kv-transfer-config '{"kv_connector":"NixlConnector","kv_role":"kv_both"}'""",
        "h200-sxm", "deepseek-ai/DeepSeek-V4-Flash", (1, 1, 4), {"connector": "NixlConnector", "role": "kv_both"},
        512, 512, "auto", notes=("kv_both is deprecated with NixlConnector",), gpus=4, expert=True,
        not_simulated=("is not known",), sections={"connector.kind": "nixl"},
    ),
    "Kimi-K2.6": Posted(
        r'''CPU_OFFLOAD_BYTES_PER_RANK=321854111744

vllm serve nvidia/Kimi-K2.6-NVFP4 \
 --tensor-parallel-size 4 --trust-remote-code --kv-cache-dtype fp8 --block-size 64 --gpu-memory-utilization 0.90 --attention-backend TOKENSPEED_MLA --attention-config '{"use_prefill_query_quantization":true}' --disable-hybrid-kv-cache-manager \
 --kv-transfer-config "{\"kv_connector\":\"SimpleCPUOffloadConnector\",\"kv_role\":\"kv_both\",\"kv_connector_extra_config\":{\"cpu_bytes_to_use_per_rank\":${CPU_OFFLOAD_BYTES_PER_RANK},\"lazy_offload\":false}}"''',
        "b300", "nvidia/Kimi-K2.6-NVFP4", (4, 1, 1),
        {"connector": "SimpleCPUOffloadConnector", "cpu_bytes": 1_287_416_446_976,
         "cpu_bytes_per_rank": 321_854_111_744}, {"0.33.0": 16384, "0.23.0": 8192}, 1024, None,
        sections={"connector.cpu_bytes_to_use_per_rank": "321854111744B", "connector.lazy_offload": False,
                  "engine.block_size": 64, "engine.disable_hybrid_kv_cache_manager": True}, gpus=4,
    ),
    "vllm#29304": Posted(
        r"""export VLLM_ALL2ALL_BACKEND=naive
export VLLM_USE_V1=1
MODEL_PATH=/models/deepseek-ai/DeepSeek-V3
vllm serve $MODEL_PATH \
 -tp 1 \
 -dp 8 \
 --enable-expert-parallel --port 20005 --block-size 1 --no-enable-prefix-caching --max-num-batched-tokens 4096 --distributed-executor-backend mp --gpu_memory_utilization 0.85 --max-model-len 4096 --enforce-eager --max_num_seqs 64\
 --no-enable-prefix-caching \
 --kv-transfer-config '{"kv_connector":"MoRIIOConnector","kv_role":"kv_producer","kv_connector_extra_config":{"proxy_ip":"10.0.0.1","proxy_ping_port":"36367","http_port":"20005"}}' \ """[:-1],
        "h200-sxm", "/models/deepseek-ai/DeepSeek-V3", (1, 1, 8),
        {"connector": "MoRIIOConnector", "role": "kv_producer", "cpu_bytes": None}, 4096, 64, 4096,
        notes=("does not read VLLM_USE_V1, VLLM_ALL2ALL_BACKEND any more",),
        sections={"model.name": "deepseek-v3", "engine.block_size": 1, "engine.data_parallel_size": 8,
                  "hardware.expert_parallel": True}, gpus=8, expert=True,
    ),
    "gpustack#3836": Posted(
        "vllm serve /models/openai/gpt-oss-120b --max-model-len 8192 --tensor-parallel-size 2 --pipeline-parallel-size 2 --distributed-executor-backend ray --max-model-len=32768 --tool-call-parser=openai --enable-auto-tool-choice --async-scheduling --host 0.0.0.0 --port 40044 --served-model-name gpt-oss-120b",
        "h100-sxm", "/models/openai/gpt-oss-120b", (2, 2, 1), None, 8192, 1024, 32_768,
        notes=("--max-model-len stands there more than once: the last one counts",),
        not_simulated=("pipeline parallelism (2 ranks)",),
        sections={"model.name": "gpt-oss-120b", "engine.max_model_len": 32_768}, gpus=4,
    ),
    "vllm#41834": Posted(
        """/models/deepseek-ai/DeepSeek-V4-Flash
--served-model-name DeepSeek-V4-Flash
--data-parallel-size 2
--gpu-memory-utilization 0.96

--kv-cache-dtype fp8
--max-model-len 256k
--max-num-seqs 16
--max-num-batched-tokens 8192
--enable-expert-parallel --enable-prefix-caching --enable-prompt-tokens-details --enable-chunked-prefill --enable-auto-tool-choice --tokenizer-mode deepseek_v4
--default-chat-template-kwargs '{"thinking": true}'
--speculative_config '{"method":"mtp","num_speculative_tokens":2}'
--compilation-config '{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]}'
--no-enforce-eager --trust-remote-code --host 0.0.0.0 --port 8000""",
        "rtx-pro-6000", "/models/deepseek-ai/DeepSeek-V4-Flash", (1, 1, 2), None, 8192, 16, 256_000, gpus=2, expert=True,
        sections={"engine.max_model_len": 256_000},
    ),
    "vllm#26206": Posted(
        "vllm serve --gpu-memory-utilization 0.96 --tensor-parallel-size 2 --max_num_seqs 1 --max-model-len 40000 Qwen/Qwen3-Next-80B-A3B-Instruct-FP8 --cpu-offload-gb 30",
        "l40s", "Qwen/Qwen3-Next-80B-A3B-Instruct-FP8", (2, 1, 1), None, 2048, 1, 40_000,
        not_simulated=("--cpu-offload-gb 30.0: weights (not KV) in CPU memory",), gpus=2,
    ),
    "dynamo#4580": Posted(
        """DYN_KVBM_CPU_CACHE_GB=2 DYN_KVBM_DISK_CACHE_GB=5 DYN_KVBM_METRICS=true DYN_KVBM_DISK_CACHE_DIR=/root/kvcache vllm serve Qwen/Qwen3-0.6B --enforce-eager --max-model-len 512 --gpu_memory_utilization 0.15 --kv-transfer-config '{"kv_connector":"DynamoConnector","kv_role":"kv_both","kv_connector_module_path":"kvbm.vllm_integration.connector"}'""",
        "h100-sxm", "Qwen/Qwen3-0.6B", (1, 1, 1),
        {"connector": "DynamoConnector", "cpu_bytes": 2 * 10**9, "disk_bytes": 5 * 10**9}, 8192, 1024, 512,
        not_simulated=("kv_connector_module_path 'kvbm.vllm_integration.connector' is code for vLLM",), gpus=1,
    ),
    "vllm#29817": Posted(
        r"""LMCACHE_CONFIG_FILE=lmcache_config.yaml vllm serve cpatonn/GLM-4.5-Air-AWQ-4bit \
 --pipeline-parallel-size 2 --tensor-parallel-size 2 --tokenizer-mode auto --max-model-len 128000 --enable-log-requests --kv-cache-dtype auto --enable-expert-parallel --tool-call-parser glm45 --reasoning-parser glm45 --host 0.0.0.0 --enable-auto-tool-choice --port 8002 --dtype float16 --max-num-seqs 32 --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1","kv_role":"kv_both"}' --kv-offloading-backend lmcache --kv-offloading-size 32 --swap-space 16""",
        "rtx-4090", "cpatonn/GLM-4.5-Air-AWQ-4bit", (2, 2, 1),
        {"connector": "LMCacheMPConnector", "role": "kv_both", "cpu_bytes": None}, 2048, 32, 128_000,
        refused=("--swap-space: vLLM", ),
        notes=("puts LMCacheMPConnector in the place of LMCacheConnectorV1", "the size of --kv-offloading-size is lost"),
        not_simulated=("pipeline parallelism (2 ranks)",), gpus=4, expert=True,
    ),
    "LMCache#1889": Posted(
        """GPU_NUM=4
SERVER_PORT=30000
MODEL_PATH="/models/Qwen/Qwen3-4B-Instruct-2507"
MAX_REQUESTS=128
LMCACHE_USE_EXPERIMENTAL=True
LMCACHE_CHUNK_SIZE=256
LMCACHE_LOCAL_CPU=False
LMCACHE_MAX_LOCAL_CPU_SIZE=0

vllm serve $MODEL_PATH --tensor-parallel-size $GPU_NUM --served-model-name Default --host $SERVER_IPV4 --port $SERVER_PORT --max-num-seqs $MAX_REQUESTS --kv-transfer-config '{"kv_connector":"LMCacheConnectorV1", "kv_role":"kv_both"}'""",
        "h100-sxm", "/models/Qwen/Qwen3-4B-Instruct-2507", (4, 1, 1),
        {"connector": "LMCacheConnectorV1", "cpu_bytes": 20 * GIB, "cpu_bytes_per_rank": 5 * GIB}, 8192, 128, None,
        notes=(("assigned but not exported, so vLLM does not see them: LMCACHE_USE_EXPERIMENTAL, LMCACHE_CHUNK_SIZE,"
               " LMCACHE_LOCAL_CPU, LMCACHE_MAX_LOCAL_CPU_SIZE"), "$SERVER_IPV4 of --host"),
        sections={"connector.kind": "lmcache", "model.name": "qwen3-4b-2507"}, gpus=4,
    ),
    "llm-d#1737": Posted(
        r"""... --enable-ep-weight-filter \
--tensor-parallel-size $TP_SIZE \
--data-parallel-size $((LWS_GROUP_SIZE * DP_SIZE_LOCAL)) \
--data-parallel-size-local $DP_SIZE_LOCAL \
--data-parallel-address ${LWS_LEADER_ADDRESS} \
--data-parallel-rpc-port 5555 \
--data-parallel-start-rank $START_RANK \
--kv_transfer_config '{"kv_connector":"NixlConnector",
 "kv_role":"kv_both",
 "kv_load_failure_policy":"fail"}' \
--moe-backend deep_gemm_mega_moe \
--max-model-len 9280 \ """[:-1],
        "h200-sxm", "Qwen/Qwen3-0.6B", (None, 1, None), {"connector": "NixlConnector", "role": "kv_both"},
        8192, 1024, 9280,
        refused=("--tensor-parallel-size: $TP_SIZE is not resolved",
                 "--data-parallel-size: $LWS_GROUP_SIZE, $DP_SIZE_LOCAL is not resolved"),
        notes=("$START_RANK of --data-parallel-start-rank",),
    ),
    "vllm#54914": Posted(
        r"""docker run ... vllm/vllm-openai:v0.28.0 /model/DeepSeek-V4-Pro \
 --tensor-parallel-size 8 --data-parallel-size 3 --nnodes 3 --max-model-len 1048576 --gpu-memory-utilization 0.85 --max-num-seqs 16 --enable-prefix-caching --enable-chunked-prefill --kv-cache-dtype fp8 --speculative-config '{"method":"dspark","num_speculative_tokens":7,"draft_sample_method":"greedy"}' --kv-transfer-config '{"kv_connector":"OffloadingConnector","kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use":549755813888,"blocks_per_chunk":4}}'""",
        "h100-sxm", "/model/DeepSeek-V4-Pro", (8, 1, 3),
        {"connector": "OffloadingConnector", "cpu_bytes": 512 * GIB, "cpu_bytes_per_rank": 64 * GIB}, 8192, 16, 1_048_576,
        not_simulated=("speculative decoding by dspark",),
        fails={"0.23.0": ("speculative method 'dspark': vLLM 0.23.0 has none of that name",)},
        sections={"engine.data_parallel_size": 3}, gpus=24,
    ),
}  # fmt: skip
