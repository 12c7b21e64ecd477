"""What flags mean together: defaults by release and GPU, what would not start, what is not simulated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import UserError
from kvsim.vllm_line import CommandLine, parse_command_line

GIB = 2**30
LLAMA = "vllm serve meta-llama/Llama-3.1-8B-Instruct"


def parse(flags: str, version: str = "0.33.0", gpu: str = "h100-sxm") -> CommandLine:
    """A line about Llama-3.1-8B."""
    return parse_command_line(f"{LLAMA} {flags}", version, gpu)


def transfer(name: str, role: str = "kv_both", **extra: Any) -> str:
    """A --kv-transfer-config in quotes."""
    config = {"kv_connector": name, "kv_role": role, "kv_connector_extra_config": extra}
    return f"--kv-transfer-config '{json.dumps(config)}'"


@pytest.mark.parametrize(
    ("gpu", "version", "expected"),
    [
        ("b200", "0.33.0", (16_384, 1024)), ("b200", "0.23.0", (8192, 1024)), ("b300", "0.33.0", (16_384, 1024)),
        ("h200-sxm", "0.33.0", (8192, 1024)), ("h100-sxm", "0.23.0", (8192, 1024)), ("a100-sxm", "0.33.0", (2048, 256)),
        ("l40s", "0.33.0", (2048, 256)), ("rtx-4090", "0.23.0", (2048, 256)), ("rtx-pro-6000", "0.33.0", (8192, 1024)),
    ],
)  # fmt: skip
def test_default_limits(gpu: str, version: str, expected: tuple[int, int]) -> None:
    """Budget and running requests that nobody gives are those of the GPU's memory."""
    found = parse("", version, gpu)
    assert (found.max_num_batched_tokens, found.max_num_seqs) == expected
    assert not found.problems


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ("--performance-mode throughput", (16_384, 2048)),
        ("--performance-mode throughput --max-num-seqs 100", (16_384, 100)),
        ("--max-num-batched-tokens 512", (512, 512)),
        ("--max-num-seqs 2 --max-model-len 100", (200, 2)),
        ("--no-enable-chunked-prefill --max-model-len 10000", (10_000, 1024)),
        ("--max-num-seqs 512 --max-num-batched-tokens 512", (512, 512)),
        ("-dp 2 -ep --all2all-backend deepep_low_latency", (256, 256)),
    ],
)
def test_limits_that_depend_on_each_other(flags: str, expected: tuple[int, int]) -> None:
    """A default gives way to what is given: table 1a of the rules."""
    found = parse(flags)
    assert (found.max_num_batched_tokens, found.max_num_seqs) == expected
    assert not found.problems


FAILS: dict[str, tuple[str, str]] = {
    "budget": ("--max-num-batched-tokens 64 --max-num-seqs 65", "--max-num-batched-tokens 64: expected at least --max"),
    "unchunked": ("--no-enable-chunked-prefill --max-num-batched-tokens 8 --max-num-seqs 1", "without chunked prefill"),
    "zero": ("-tp 0", "--tensor-parallel-size: expected at least 1, found 0"),
    "share": ("--gpu-memory-utilization 1.5", "--gpu-memory-utilization: expected more than 0, at most 1, found 1.5"),
    "nan": ("--gpu-memory-utilization nan", "--gpu-memory-utilization: expected more than 0, at most 1, found nan"),
    "length": ("--max-model-len -5", "--max-model-len: expected at least 1, or auto, found -5"),
    "size": ("--kv-offloading-size -1", "--kv-offloading-size: expected more than 0, found -1"),
    "endless": ("--kv-offloading-size inf", "--kv-offloading-size: expected more than 0, found inf"),
    "dtype": ("--kv-cache-dtype fp8_e4m4", "--kv-cache-dtype: 'fp8_e4m4' is none, did you mean fp8_e4m3?"),
    "context": ("-tp 4 -dcp 3", "--decode-context-parallel-size: expected a divisor of --tensor-parallel-size (4)"),
    "connector": (transfer("OfloadingConnector"), "has none, and kv_connector_module_path is not given, did you"),
    "old name": (transfer("SharedStorageConnector"), "has none of that name any more, ExampleConnector took"),
    "one release": (transfer("P2pNcclConnector"), "vLLM 0.33.0 has none, vLLM 0.23.0 has"),
    "hybrid": (
        f"--no-disable-hybrid-kv-cache-manager {transfer('LMCacheConnectorV1')}",
        "the hybrid KV cache manager is asked for, and LMCacheConnectorV1 cannot",
    ),
    "drafter": ("-sc '{\"method\":\"egle\",\"num_speculative_tokens\":1}'", "has none of that name, did you mean eag"),
    "drafts": ("-sc '{\"method\":\"ngram\",\"num_speculative_tokens\":0}'", "num_speculative_tokens: expected a whole"),
    "heads": ("-tp 3", "--tensor-parallel-size: 3: the 32 attention heads of llama-3.1-8b are not divisible by it"),
    "length of the model": ("--max-model-len 131073", "--max-model-len: expected at most the 131,072 tokens of llama"),
    "weights": (
        "--gpu-memory-utilization 0.1",
        "15.0 GiB of weights of llama-3.1-8b on each GPU, expected less than 7.9 GiB (0.1 of h100-sxm)",
    ),
    "twice": ("--spec-method ngram -sc '{\"method\":\"ngram\"}'", "--spec-method and method of --speculative-config"),
}  # fmt: skip


@pytest.mark.parametrize("name", FAILS)
def test_what_would_not_start(name: str) -> None:
    """What the parser takes and the engine then refuses is told apart from what the parser refuses."""
    flags, expected = FAILS[name]
    found = parse(flags)
    assert found.refusals == ()
    assert any(expected in text for text in found.start_failures), found.start_failures
    with pytest.raises(UserError, match=r"^vLLM 0.33.0 would not start: "):
        found.checked_sections()


@pytest.mark.parametrize(
    "line",
    [
        f"{LLAMA} --max-model-len 131072",
        f"VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 {LLAMA} --max-model-len 131073",
        f"""{LLAMA} --max-model-len 262144 --hf-overrides '{{"rope_parameters":{{"rope_type":"yarn","factor":2}}}}'""",
        f"{LLAMA} --gpu-memory-utilization 0.1 --num-gpu-blocks-override 100",
        "vllm serve meta-llama/Llama-3.1-70B -tp 2",
        "vllm serve meta-llama/Llama-3.1-70B --quantization fp8",
        "vllm serve meta-llama/Llama-3.1-70B --quantization bitsandbytes",
        "vllm serve Qwen/Qwen3-235B-A22B -dp 8 -ep",
    ],
)
def test_models_that_fit(line: str) -> None:
    """What rope scaling, a variable, types of weights and more ranks allow is no failure."""
    found = parse_command_line(line, "0.33.0", "h100-sxm")
    assert found.start_failures == ()
    assert not any("ALLOW_LONG" in note for note in found.notes)


def test_a_folder_that_is_only_a_name() -> None:
    """The config.json of a folder that is not here may have rope scaling or smaller weights: that is a note."""
    found = parse_command_line("vllm serve /models/Qwen3-8B --max-model-len 60000", "0.33.0", "h100-sxm")
    assert not found.problems
    assert any("unless the model's own config says otherwise: --max-model-len" in note for note in found.notes)


def test_devices_and_allocator() -> None:
    """Too few visible GPUs, and an allocator that connectors cannot do with."""
    few = parse_command_line(f"CUDA_VISIBLE_DEVICES=0,1 {LLAMA} -tp 4", "0.33.0", "h100-sxm")
    assert few.start_failures == ("CUDA_VISIBLE_DEVICES=0,1 shows 2 GPUs, expected 4",)
    assert not parse_command_line(f"CUDA_VISIBLE_DEVICES=0,1 {LLAMA} -tp 2", "0.33.0", "h100-sxm").start_failures
    line = f"PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True {LLAMA}"
    assert not parse_command_line(line, "0.33.0", "h100-sxm").start_failures
    (text,) = parse_command_line(f"{line} --kv-offloading-size 4", "0.33.0", "h100-sxm").start_failures
    assert text == "a KV connector with expandable_segments:True in PYTORCH_CUDA_ALLOC_CONF"


NOT_SIMULATED: dict[str, tuple[str, str]] = {
    "pipeline": ("-pp 2", "pipeline parallelism (2 ranks)"),
    "context": ("-tp 4 -dcp 2", "decode context parallelism (2 ranks)"),
    "watermark": ("--watermark 0.1", "--watermark 0.1: blocks that stay free when requests are admitted"),
    "weights": ("--cpu-offload-gb 30", "--cpu-offload-gb 30.0: weights (not KV) in CPU memory"),
    "pooling": ("--runner pooling", "--runner pooling: pooling"),
    "dtype": ("--kv-cache-dtype nvfp4", "--kv-cache-dtype nvfp4, expected one of auto, bfloat16, float16, fp8"),
    "overrides": ("--hf-overrides '{\"num_hidden_layers\": 2}'", "--hf-overrides: another model config, expected"),
    "drafter": ("-sc '{\"method\":\"suffix\",\"num_speculative_tokens\":2}'", "speculative decoding by suffix, exp"),
    "connector": (transfer("HiSparseConnector"), "kv_connector HiSparseConnector is not simulated"),
    "extra key": (transfer("OffloadingConnector", cpu_bytes_to_us=1), "unknown key kv_connector_extra_config.cpu_b"),
    "scheduler": ("--scheduler-cls my.Scheduler", "--scheduler-cls my.Scheduler: a scheduler of your own"),
    "LMCache's file": (
        transfer("LMCacheConnectorV1"), "LMCACHE_CONFIG_FILE nowhere.yaml: No such file or directory: it says",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_SIMULATED)
def test_what_is_not_simulated(name: str) -> None:
    """What would change decisions and has no counterpart is never dropped in silence."""
    flags, expected = NOT_SIMULATED[name]
    found = parse_command_line(f"LMCACHE_CONFIG_FILE=nowhere.yaml {LLAMA} {flags}", "0.33.0", "h100-sxm")
    assert (found.refusals, found.start_failures) == ((), ())
    assert any(expected in text for text in found.not_simulated), found.not_simulated
    with pytest.raises(UserError, match=r"^not simulated: "):
        found.checked_sections()


def test_values_that_change_nothing() -> None:
    """Flags of that kind at vLLM's defaults are no obstacle."""
    flags = "--watermark 0 --cpu-offload-gb 0 --runner generate --prefill-schedule-interval 1 --convert none"
    assert parse(flags).problems == []


def test_ignored_flags_are_named_by_kind() -> None:
    """Each flag without effect is named once, with those of its kind."""
    notes = parse("--port 1 --host x --otlp-traces-endpoint y --load-format dummy --enforce-eager --seed 1").notes
    assert [note for note in notes if note.startswith("without effect")] == [
        "without effect, serving front end: --port, --host",
        "without effect, logging and metrics: --otlp-traces-endpoint",
        "without effect, loading of weights: --load-format",
        "without effect, timing that the step model does not know: --enforce-eager",
        "without effect, model files and API: --seed",
    ]


def test_async_scheduling() -> None:
    """On by default, as far as the release's drafters allow; simulated where it is asked for and can be."""
    assert parse("").async_scheduling
    assert not parse("--no-async-scheduling").async_scheduling
    assert not parse("--runner pooling").async_scheduling
    suffix = '-sc \'{"method":"suffix","num_speculative_tokens":2}\''
    assert parse(suffix).async_scheduling
    assert not parse(suffix, "0.23.0").async_scheduling
    assert parse('-sc \'{"method":"qwen3_next_mtp","num_speculative_tokens":2}\'', "0.23.0").async_scheduling
    assert "async_scheduling" not in parse("").sections["engine"]
    assert parse("--async-scheduling").sections["engine"]["async_scheduling"] is True
    lmcache = parse(f"--async-scheduling {transfer('LMCacheConnectorV1')}")
    assert "async_scheduling" not in lmcache.sections["engine"]
    assert "--async-scheduling is not simulated with LMCacheConnectorV1: left out" in lmcache.notes


SECTIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "engine": (
        """--block-size 32 --num-gpu-blocks-override 999 --kv-cache-memory-bytes 5g --scheduling-policy priority
        --long-prefill-token-threshold 7 --no-scheduler-reserve-full-isl --prefix-cache-retention-interval None""",
        "0.33.0",
        {"block_size": 32, "num_gpu_blocks_override": 999, "kv_cache_memory_bytes": "5000000000B",
         "scheduling_policy": "priority", "long_prefill_token_threshold": 7, "scheduler_reserve_full_isl": False,
         "prefix_cache_retention_interval": None},
    ),
    "threshold by length": (
        "--max-num-partial-prefills 4 --max-model-len 10000", "0.23.0",
        {"long_prefill_token_threshold": 400, "max_model_len": 10_000},
    ),
    "LoRA": ("--enable-lora --max-loras 3", "0.33.0", {"max_loras": 3}),
    "no LoRA": ("--max-loras 3", "0.33.0", {}),
    "backend": ("--attention-backend FLASHINFER_MLA", "0.33.0", {"block_size": 32}),
    "backend, dotted": ("-ac.backend=CUTLASS_MLA", "0.33.0", {"block_size": 128}),
    "drafts": ("--spec-method ngram --spec-tokens 5", "0.33.0",
               {"speculative": {"method": "ngram", "num_speculative_tokens": 5}}),
    "drafter by name": ("--spec-model yuhuili/EAGLE3-LLaMA3.1 --spec-tokens 2", "0.33.0",
                        {"speculative": {"method": "eagle", "num_speculative_tokens": 2}}),
}  # fmt: skip


@pytest.mark.parametrize("name", SECTIONS)
def test_engine_section(name: str) -> None:
    """Flags become keys, and no others are set."""
    flags, version, expected = SECTIONS[name]
    found = parse(flags, version)
    assert found.problems == []
    assert found.sections["engine"] == {"vllm_version": version, **expected}


def test_recurrent_models_of_the_older_release() -> None:
    """0.23.0 has prefix caching off for models with recurrent layers, unless it is asked for."""
    line = "vllm serve Qwen/Qwen3-Next-80B-A3B-Instruct -tp 4"
    old = parse_command_line(line, "0.23.0", "h100-sxm")
    assert old.sections["engine"]["enable_prefix_caching"] is False
    assert "enable_prefix_caching" not in parse_command_line(line, "0.33.0", "h100-sxm").sections["engine"]
    asked = parse_command_line(f"{line} --enable-prefix-caching", "0.23.0", "h100-sxm")
    assert asked.sections["engine"]["enable_prefix_caching"] is True


def test_models() -> None:
    """A repository stays; a path is known by its last part, or by what clients call it; else it is asked for."""
    known = {
        "meta-llama/Llama-3.1-8B-Instruct": "meta-llama/Llama-3.1-8B-Instruct",
        "/models/Qwen/Qwen3-8B": "qwen3-8b",
        "/models/weights --served-model-name x qwen3-8b": "qwen3-8b",
    }
    for words, name in known.items():
        found = parse_command_line(f"vllm serve {words}", "0.33.0", "h100-sxm")
        assert (found.problems, found.sections["model"]["name"]) == ([], name)
    unknown = parse_command_line("vllm serve org/Qwen3-9B", "0.33.0", "h100-sxm").not_simulated[0]
    assert unknown.startswith("model: 'org/Qwen3-9B' is not known; closest: qwen3-")
    assert unknown.endswith("(--model-config)")
    assert parse_command_line("vllm serve", "0.33.0", "h100-sxm").model == "Qwen/Qwen3-0.6B"


def test_config_json(tmp_path: Path) -> None:
    """A model that is no preset is read from its config.json, given apart or lying in the line's folder."""
    config = {"model_type": "llama", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
              "num_key_value_heads": 2, "intermediate_size": 128, "vocab_size": 256, "max_position_embeddings": 4096,
              "tie_word_embeddings": False}  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    path = str(tmp_path / "config.json")
    for line, given in (("vllm serve org/mine", path), (f"vllm serve {tmp_path}", None)):
        found = parse_command_line(line, "0.33.0", "h100-sxm", model_config=given)
        assert (found.problems, found.sections["model"]["name"]) == ([], path)
        assert found.max_num_seqs == 1024
    with pytest.raises(UserError, match="no such file"):
        parse_command_line("vllm serve org/mine", "0.33.0", "h100-sxm", model_config=str(tmp_path / "no.json"))


def test_sizes() -> None:
    """Totals are of one engine; LMCache and per-rank keys count for each rank; the shortcut overwrites."""
    multi = json.dumps({"kv_connector": "MultiConnector", "kv_role": "kv_both", "kv_connector_extra_config": {
        "connectors": [{"kv_connector": "SimpleCPUOffloadConnector", "kv_role": "kv_both"},
                       {"kv_connector": "NixlConnector", "kv_role": "kv_producer"}]}})  # fmt: skip
    cases = {
        "--kv-offloading-size 1.5": (3 * GIB // 2, 3 * GIB // 8),
        transfer("SimpleCPUOffloadConnector"): (8 * GIB, 2 * GIB),
        transfer("SimpleCPUOffloadConnector", cpu_bytes_to_use_per_rank=1000): (4000, 1000),
        transfer("LMCacheConnectorV1"): (20 * GIB, 5 * GIB),
        transfer("LMCacheConnectorV1", **{"lmcache.max_local_cpu_size": 2.5}): (10 * GIB, 5 * GIB // 2),
        transfer("LMCacheMPConnector"): (None, None),
        f"{transfer('NixlConnector')} --kv-offloading-size 4": (4 * GIB, GIB),
        f"--kv-transfer-config '{multi}'": (None, None),
    }
    for flags, expected in cases.items():
        found = parse(f"-tp 4 -dp 2 {flags}").transfer
        assert found is not None
        assert (found.cpu_bytes, found.cpu_bytes_per_rank) == expected, flags
    assert [child.connector for child in found.children] == ["SimpleCPUOffloadConnector", "NixlConnector"]
    assert found.children[0].cpu_bytes == 8 * GIB


def test_lmcache_settings() -> None:
    """LMCache's settings come from the connector's config, else from the exported environment."""
    line = f"export LMCACHE_CHUNK_SIZE=512 LMCACHE_MAX_LOCAL_CPU_SIZE=7 LMCACHE_SAVE_DECODE_CACHE=True\n{LLAMA} "
    found = parse_command_line(line + transfer("LMCacheConnectorV1", **{"lmcache.chunk_size": 128}), "0.33.0", "l40s")
    assert found.sections["connector"] == {
        "kind": "lmcache", "chunk_size": 128, "max_local_cpu_size": f"{7 * GIB}B", "save_decode_cache": True,
        "use_layerwise": False,
    }  # fmt: skip


def test_lmcache_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LMCache's file hides its environment variables."""
    (tmp_path / "lm.yaml").write_text("chunk_size: 64\nlocal_cpu: true\nmax_local_cpu_size: 32\n")
    monkeypatch.chdir(tmp_path)
    line = f"LMCACHE_CONFIG_FILE=lm.yaml LMCACHE_CHUNK_SIZE=512 {LLAMA} {transfer('LMCacheConnectorV1')}"
    found = parse_command_line(line, "0.33.0", "l40s")
    assert found.sections["connector"]["chunk_size"] == 64
    assert found.sections["connector"]["max_local_cpu_size"] == f"{32 * GIB}B"
    assert "LMCache ignores LMCACHE_CHUNK_SIZE, because LMCACHE_CONFIG_FILE is set" in found.notes


def test_shortcut_by_environment() -> None:
    """VLLM_USE_SIMPLE_KV_OFFLOAD chooses the other connector, if it is exported."""
    flags = f"{LLAMA} --kv-offloading-size 4"
    kinds = [
        parse_command_line(text, "0.33.0", "l40s").sections["connector"]["kind"]
        for text in (f"VLLM_USE_SIMPLE_KV_OFFLOAD=1 {flags}", f"VLLM_USE_SIMPLE_KV_OFFLOAD=1\n{flags}", flags)
    ]
    assert kinds == ["simple_cpu", "offloading", "offloading"]


def test_without_prefix_caching() -> None:
    """SimpleCPUOffloadConnector disables itself then; the other one works all the same."""
    simple = parse(f"--no-enable-prefix-caching {transfer('SimpleCPUOffloadConnector')}")
    assert "connector" not in simple.sections
    assert any("disables itself" in note for note in simple.notes)
    assert parse("--no-enable-prefix-caching --kv-offloading-size 4").sections["connector"]["kind"] == "offloading"


def test_version_and_gpu() -> None:
    """Of the image if it is one of the two, else the newer one, with a note; unknown ones are errors."""
    image = "docker run vllm/vllm-openai:{} meta-llama/Llama-3.1-8B"
    old = parse_command_line(image.format("v0.23.0"))
    assert (old.version, old.gpu) == ("0.23.0", "h100-sxm")
    assert old.notes[0] == "the line does not say which GPU: h100-sxm is assumed"
    other = parse_command_line(image.format("v0.28.0"), gpu="b200")
    assert (other.version, other.notes[0]) == (
        "0.33.0",
        "the image is vLLM 0.28.0: read as 0.33.0, of 0.33.0 and 0.23.0",
    )
    assert parse_command_line(image.format("v0.28.0"), "0.23.0").version == "0.23.0"
    with pytest.raises(UserError, match=r"vLLM version: expected one of 0.33.0, 0.23.0, found '0.1'"):
        parse_command_line(LLAMA, "0.1")
    with pytest.raises(UserError, match="gpu: 'h9000' is not known"):
        parse_command_line(LLAMA, gpu="h9000")


def test_how_many_problems() -> None:
    """The error names the first problem, and how many there are."""
    with pytest.raises(UserError, match=r"refuses the line: --swap-space.* \(and 2 more; kvsim from-vllm shows all\)"):
        parse("--swap-space 4 -pp 2 -tp 0").checked_sections()
