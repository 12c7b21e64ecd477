"""The model, the GPUs it runs on, the vLLM engine, and how long its steps take."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, Tag, model_validator

from kvsim.checked import Component, Misfit
from kvsim.config.custom import BY_KIND, CUSTOM, CustomStepTime
from kvsim.config.fields import Count, Text
from kvsim.config.gates import StructuredOutputConfig
from kvsim.config.host import HostConfig
from kvsim.config.speculative import SpeculativeConfig
from kvsim.units import Duration, Rate, Size


class ModelConfig(Component):
    """The model that is served. A plain name in YAML is short for ``{name: ...}``."""

    name: Text = Field(description="name of a model preset, or path of a HuggingFace config.json")
    weight_dtype: Literal["auto", "bf16", "fp8"] = Field(
        "auto", description="type of the weights; auto = as the model's config.json says"
    )
    kv_cache_dtype: Literal["auto", "bf16", "fp8"] = Field(
        "auto", description="vLLM's --kv-cache-dtype; auto = the model's type"
    )

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, value: object) -> object:
        return {"name": value} if isinstance(value, str) else value


class HardwareConfig(Component):
    """The GPUs of one engine and the links between them and the host."""

    gpu: Text = Field("h100-sxm", description="name of a GPU preset, or path of a GPU file")
    tensor_parallel_size: Count = Field(1, description="vLLM's --tensor-parallel-size")
    expert_parallel: bool = Field(False, description="vLLM's --enable-expert-parallel")
    link: Text | None = Field(
        None, description="link profile: a preset's name or a path; null = the preset for the GPU"
    )
    host_dram_bandwidth: Annotated[Rate, Field(gt=0)] | None = Field(
        None, description="DRAM bandwidth that all ranks share; null = the link profile's"
    )
    host: HostConfig = Field(default_factory=HostConfig, description="the host's memory")


class EngineConfig(Component):
    """One vLLM engine; names and meanings are those of `vllm serve`."""

    kind: Literal["auto", "fast", "reference"] = Field(
        "auto",
        description="reference = every step is executed; fast = quiet steps are jumped over, with the same results;"
        " auto = fast where it can do all that the run asks for",
    )
    vllm_version: Literal["0.33.0", "0.23.0"] = Field("0.33.0", description="release whose decisions are made")
    block_size: Annotated[int, Field(ge=1, le=65536)] | None = Field(
        None, description="vLLM's --block-size: tokens in a KV block; null = 16, or 64 for MLA models"
    )
    num_gpu_blocks_override: Count | None = Field(
        None, description="vLLM's --num-gpu-blocks-override; null = computed from memory"
    )
    gpu_memory_utilization: float = Field(
        0.92, gt=0, le=1, description="vLLM's --gpu-memory-utilization: part of GPU memory that vLLM may use"
    )
    kv_cache_memory_bytes: Annotated[Size, Field(gt=0)] | None = Field(
        None, description="vLLM's --kv-cache-memory-bytes, per GPU; null = from gpu_memory_utilization"
    )
    max_num_batched_tokens: Count | None = Field(
        None,
        description="vLLM's --max-num-batched-tokens: tokens in a step; null = vLLM's default for the GPU",
    )
    max_num_seqs: Count | None = Field(
        None, description="vLLM's --max-num-seqs: running requests; null = vLLM's default for the GPU"
    )
    max_model_len: Count | None = Field(
        None, description="vLLM's --max-model-len: tokens of one request; null = the model's own"
    )
    scheduling_policy: Literal["fcfs", "priority"] = Field("fcfs", description="vLLM's --scheduling-policy")
    async_scheduling: bool = Field(
        False, description="vLLM's --async-scheduling, its default: decide a step while the last one is computed"
    )
    speculative: SpeculativeConfig | None = Field(None, description="speculative decoding; null = none")
    enable_chunked_prefill: bool = Field(True, description="vLLM's --enable-chunked-prefill")
    long_prefill_token_threshold: int = Field(
        0,
        ge=0,
        description="vLLM's --long-prefill-token-threshold: cap on one request's tokens in a step; 0 = none",
    )
    enable_prefix_caching: bool = Field(True, description="vLLM's --enable-prefix-caching")
    prefix_cache_retention_interval: Annotated[int, Field(ge=0)] | None = Field(
        0,
        description="vLLM's --prefix-cache-retention-interval: tokens between windows and states that stay;"
        " 0 = only where prompts end or other groups hold more; null = everywhere",
    )
    disable_hybrid_kv_cache_manager: bool | None = Field(
        None,
        description="vLLM's --disable-hybrid-kv-cache-manager: windows keep every token; null = as vLLM decides",
    )
    scheduler_reserve_full_isl: bool = Field(
        True, description="vLLM's --scheduler-reserve-full-isl: admit a prompt only if all of it fits"
    )
    data_parallel_size: Count = Field(
        1, description="vLLM's --data-parallel-size: ranks with an engine and a KV cache each, behind one load balancer"
    )
    max_loras: Count = Field(1, description="vLLM's --max-loras: LoRA adapters in one batch, where sessions have some")
    structured_output: StructuredOutputConfig = Field(
        default_factory=StructuredOutputConfig, description="requests whose output follows a grammar"
    )
    max_num_encoder_input_tokens: Count | None = Field(
        None, description="image and audio tokens that the encoder computes in a step; null = max_num_batched_tokens"
    )
    encoder_cache_size: Count | None = Field(
        None, description="image and audio tokens that the encoder cache holds; null = max_num_batched_tokens"
    )
    disable_chunked_mm_input: bool = Field(
        False, description="vLLM's --disable-chunked-mm-input: a chunk of a prompt holds an image whole or not at all"
    )
    encoder_time_per_token: Duration = Field(
        0, description="time of the encoder for each image or audio token, before the step's forward pass"
    )

    @model_validator(mode="after")
    def _fits(self) -> EngineConfig:
        for name, given in (("async_scheduling", self.async_scheduling), ("speculative", self.speculative is not None)):
            if given and self.vllm_version != "0.33.0":
                raise Misfit(name, f"is simulated for vllm_version 0.33.0, expected none with {self.vllm_version}")
        budget, key = self.max_num_batched_tokens, "max_num_batched_tokens"
        if budget is None:
            return self
        if self.max_num_seqs is not None and budget < self.max_num_seqs:
            raise Misfit(key, f"expected at least max_num_seqs ({self.max_num_seqs}), found {budget}")
        if not self.enable_chunked_prefill and self.max_model_len is not None and budget < self.max_model_len:
            raise Misfit(
                key,
                f"expected at least max_model_len ({self.max_model_len}) "
                f"because enable_chunked_prefill is false, found {budget}",
            )
        return self


class RooflineStepTime(Component):
    """Step times from the model's and the GPU's figures."""

    kind: Literal["roofline"] = Field("roofline", description="computed from the model and the GPU")
    scale: float = Field(
        1.0,
        gt=0,
        le=100,
        allow_inf_nan=False,
        description="factor on all of it: what your vLLM takes over what is predicted",
    )


class FixedStepTime(Component):
    """Step times that are linear in the tokens of the step."""

    kind: Literal["fixed"] = Field("fixed", description="a constant per step and per token")
    per_step: Duration = Field(description="time of a step without its tokens, such as 5ms")
    per_token: Duration = Field(description="time of each scheduled token, such as 50us")

    @model_validator(mode="after")
    def _fits(self) -> FixedStepTime:
        if not self.per_step and not self.per_token:
            raise Misfit("per_step", "expected more than 0 when per_token is 0, found 0: time would stand still")
        return self


StepTime = Annotated[
    Annotated[RooflineStepTime, Tag("roofline")]
    | Annotated[FixedStepTime, Tag("fixed")]
    | Annotated[CustomStepTime, Tag(CUSTOM)],
    BY_KIND,
]
