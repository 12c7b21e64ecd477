# ruff: noqa: INP001 - scripts, run by path
"""Measured TPOTs of vLLM servers (`silicon_sample.csv` of aiconfigurator-core) and our prediction of each.

The file is third-party data (Apache-2.0) and is not in this repository; :func:`find_csv` takes it out of the
wheel. Most of its rows come from InferenceX, whose public scripts say what the file does not: prompts and
outputs uniform between 0.8 and 1.0 of the nominal length, 8,192 batched tokens, ten requests per client slot,
prefix caching off, and an fp8 KV cache for Llama-3.1-70B. The Qwen3-32B rows come from elsewhere; their
lengths are taken as nominal. Two models are left out because their rows cannot be explained: Llama-3.1-8B-FP8
(would need 76 % of the fp8 peak in prefill alone) and Qwen3-235B-A22B-FP8 (some rows say one GPU, which its
weights do not fit).
"""

from __future__ import annotations

import csv
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kvsim.errors import UserError
from kvsim.steptime.gpu import Host, load_gpu
from kvsim.steptime.hf_quantization import FP8
from kvsim.steptime.model import load_model
from kvsim.steptime.roofline import Roofline

PACKAGE = "aiconfigurator-core==0.12.0"
_MEMBER = "aiconfigurator_core/systems/silicon_sample.csv"
_STEP_TOKENS = 8192
KERNELS_ONLY = Host(slack=1.0, step_us=0.0, request_us=0.0)

# model_path in the file: preset, kv dtype, mean length as a fraction of the nominal one, largest TTFT kept
# (ms). A larger TTFT means that requests queued for KV space, which a steady-state TPOT does not describe.
_MODELS = {
    "Qwen/Qwen3-32B": ("qwen3-32b", "auto", 1.0, 1600.0),
    "meta-llama/Llama-3.1-70B": ("llama-3.1-70b", "fp8", 0.9, 5000.0),
    "openai/gpt-oss-120b": ("gpt-oss-120b", "auto", 0.9, 5000.0),
    "MiniMaxAI/MiniMax-M2.5": ("minimax-m2", "auto", 0.9, 5000.0),
    "moonshotai/Kimi-K2.5": ("kimi-k2.5", "auto", 0.9, 5000.0),
}
_PRECISIONS = {  # checkpoints that the kernels above were fitted for, or nearly
    "Qwen/Qwen3-32B": {""},
    "meta-llama/Llama-3.1-70B": {"fp8"},
    "openai/gpt-oss-120b": {"fp4"},
    "MiniMaxAI/MiniMax-M2.5": {"fp8"},
    "moonshotai/Kimi-K2.5": {"int4"},
}
_FITTED_GPUS = {"h100_sxm", "h200_sxm", "b200_sxm"}
_MODELS_IN_FIT = {"Qwen3-32B", "Llama-3.1-70B", "gpt-oss-120b"}


@dataclass(frozen=True, slots=True)
class Row:
    """One measured server at one concurrency, with the parts of its predicted TPOT.

    Attributes:
        model, gpu, tp, ep: what ran.
        prompt_tokens, output_tokens: nominal lengths.
        concurrency: requests in flight.
        since_0_14: measured with vLLM 0.14 or newer (0.15 to 0.19 in the file); rows without a version are
            dated 2025-10 to 2025-12.
        ttft_ms, tpot_ms: measured.
        kernel_ms: kernel time per output token, our roofline without any host time.
        requests: scheduled requests per output token (host time per request is paid that often).
    """

    model: str
    gpu: str
    tp: int
    ep: int
    prompt_tokens: int
    output_tokens: int
    concurrency: int
    since_0_14: bool
    ttft_ms: float
    tpot_ms: float
    kernel_ms: float
    requests: float

    @property
    def group(self) -> str:
        """Model and GPU."""
        return f"{self.model} {self.gpu.removesuffix('-sxm')}"

    @property
    def in_fit(self) -> bool:
        """The host times are fitted on it; gpt-oss on B200 runs kernels that no table has."""
        return self.model in _MODELS_IN_FIT and not (self.model == "gpt-oss-120b" and self.gpu == "b200-sxm")


def find_csv(data: Path, *, download: bool = True) -> Path:
    """`silicon_sample.csv` in the folder ``data``, downloaded into it if need be."""
    path = data / "silicon_sample.csv"
    if path.is_file():
        return path
    if not download:
        raise UserError(f"silicon sample: {path}: no such file")
    data.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(data), PACKAGE]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - fixed arguments
    wheels = sorted(data.glob("aiconfigurator_core-*.whl"))
    if done.returncode or not wheels:
        raise UserError(f"silicon sample: pip download {PACKAGE} failed: {' '.join(done.stderr.split())[-200:]}")
    with zipfile.ZipFile(wheels[-1]) as wheel:
        path.write_bytes(wheel.read(_MEMBER))
    return path


def read_rows(path: Path, *, as_facts: bool = False) -> list[Row]:
    """The rows that are kept, in file order, without repetitions.

    Kept: vLLM, aggregated serving, one engine (no data-parallel attention), fitted GPUs, a known precision,
    TTFT below the model's limit, concurrency up to 128, outputs up to 1,024 tokens.

    Args:
        path: the csv file.
        as_facts: lengths at 0.9 of nominal and a bf16 KV cache for every row, which is what one must assume
            from the file alone.
    """
    rows: dict[tuple[object, ...], Row] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for raw in csv.DictReader(file):
            row = _row(raw, as_facts=as_facts)
            if row is not None:
                key = (
                    row.group,
                    row.tp,
                    row.ep,
                    row.prompt_tokens,
                    row.output_tokens,
                    row.concurrency,
                    row.tpot_ms,
                )
                rows.setdefault(key, row)
    return list(rows.values())


def _row(raw: dict[str, str], *, as_facts: bool) -> Row | None:
    path, system = raw["model_path"], raw["system"]
    if raw["backend"] != "vllm" or raw["mode"] != "agg" or path not in _MODELS or system not in _FITTED_GPUS:
        return None
    if raw["precision"] not in _PRECISIONS[path] or float(raw["attention_dp_size"] or 1) != 1:
        return None
    preset, kv_dtype, length, largest_ttft = _MODELS[path]
    prompt, output = int(raw["isl"]), int(raw["osl"])
    concurrency, tp, ep = (
        int(float(raw["batch_size"])),
        int(float(raw["tp_size"])),
        int(float(raw["moe_ep_size"])),
    )
    ttft = float(raw["silicon_ttft_ms"])
    if ttft >= largest_ttft or concurrency > 128 or output > 1024:
        return None
    if as_facts:
        kv_dtype, length = "auto", 0.9
    gpu = system.replace("_", "-")
    step_time = kernels(preset, kv_dtype, raw["precision"], gpu, tp, max(ep, 1))
    kernel_ns, requests = tpot_parts(step_time, concurrency, round(prompt * length), round(output * length))
    version = raw["backend_version"].split(".")
    return Row(
        path.rsplit("/", 1)[-1],
        gpu,
        tp,
        ep,
        prompt,
        output,
        concurrency,
        len(version) > 1 and version[1].isdigit() and int(version[1]) >= 14,
        ttft,
        float(raw["silicon_tpot_ms"]),
        kernel_ns / 1e6,
        requests,
    )


@cache
def kernels(preset: str, kv_dtype: str, precision: str, gpu: str, tp: int, ep: int) -> Roofline:
    """Roofline without host time. Llama-3.1-70B carries its fp8 weights in ``precision``, not in its name."""
    model = load_model(preset, kv_dtype)
    if precision == "fp8" and model.quantization.name == "none":
        model = model.with_quantization(FP8)
    return Roofline(model, load_gpu(gpu).with_host(KERNELS_ONLY), tp, ep)


def tpot_parts(step_time: Roofline, concurrency: int, prompt: int, output: int) -> tuple[float, float]:
    """Kernel nanoseconds and scheduled requests per output token in a steady closed loop.

    While a request decodes its ``output`` tokens, each of the other ``concurrency - 1`` requests finishes
    once on average, and the prompt of its successor is computed in steps that all decoding requests share:
    TPOT = step + (concurrency - 1) / output * (what a prompt adds to the steps that it shares).
    """
    context = prompt + output // 2
    others = [context] * (concurrency - 1)
    alone = step_time.step_ns((), others)
    added, shared_steps, done = 0, 0, 0
    while done < prompt:
        chunk = min(_STEP_TOKENS - len(others), prompt - done)
        added += step_time.step_ns([(chunk, done)], others) - alone
        done += chunk
        shared_steps += 1
    per_token = (concurrency - 1) / output
    step = step_time.step_ns((), [*others, context])
    return step + per_token * added, concurrency + per_token * shared_steps


def with_host(row: Row, host: Host) -> float:
    """Predicted TPOT in ms."""
    return host.slack * row.kernel_ms + (host.step_us + host.request_us * row.requests) / 1e3
