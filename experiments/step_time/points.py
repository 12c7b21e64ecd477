# ruff: noqa: INP001 - scripts, run by path
"""Single published measurements: prefill times of gpt-oss-120b, and client-side TTFT at concurrency 4."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from silicon import Row, kernels

from kvsim.steptime.gpu import Host, host_times, load_gpu
from kvsim.steptime.model import load_model
from kvsim.steptime.roofline import Roofline

# llm-d blog, 2026-08-15: TTFT of recomputing prompts of gpt-oss-120b on an H200 (tensor parallelism not
# stated)
LLM_D_TTFT_MS = {2048: 78.0, 8192: 250.0, 16384: 510.0, 32768: 1173.0, 49152: 1988.0}
_STEP_TOKENS = 8192


def llm_d_prefill() -> list[tuple[int, float, float]]:
    """(prompt tokens, measured ms, predicted ms) at tensor parallelism 1, engine time only."""
    step_time = Roofline(load_model("gpt-oss-120b"), load_gpu("h200-sxm"))
    out = []
    for prompt, measured in LLM_D_TTFT_MS.items():
        starts = range(0, prompt, _STEP_TOKENS)
        total = sum(step_time.step_ns([(min(_STEP_TOKENS, prompt - s), s)], ()) for s in starts)
        out.append((prompt, measured, total / 1e6))
    return out


@dataclass(slots=True)
class _Client:
    prompt: int
    output: int
    sent_ns: int
    computed: int = 0
    generated: int = 0
    ttft_ns: list[int] = field(default_factory=list)


def closed_loop_ttft_ms(step_time: Roofline, row: Row) -> float:
    """Mean TTFT of a closed loop as InferenceX runs it: ten requests per slot, lengths uniform in 0.8 to 1.0.

    First come, first served, 8,192 tokens per step, no queueing for KV space, no client or network time.
    """
    rng = random.Random(0)
    lengths = deque(
        (
            rng.randint(int(0.8 * row.prompt_tokens), row.prompt_tokens),
            rng.randint(int(0.8 * row.output_tokens), row.output_tokens),
        )
        for _ in range(10 * row.concurrency)
    )
    waiting: deque[_Client] = deque()
    running: list[_Client] = []
    now, ttfts = 0, []
    for _ in range(row.concurrency):
        waiting.append(_Client(*lengths.popleft(), now))
    while waiting or running:
        chunks: list[tuple[_Client, int]] = []
        room = _STEP_TOKENS - len(running)
        for client in waiting:
            if room <= 0:
                break
            new = min(room, client.prompt - client.computed)
            chunks.append((client, new))
            room -= new
        contexts = [c.prompt + c.generated for c in running]
        steps = 1 if chunks else min(c.output - c.generated for c in running)
        now += (
            step_time.step_ns([(new, c.computed) for c, new in chunks], contexts)
            if chunks
            else step_time.window_ns(contexts, steps)
        )
        still = []
        for client in running:
            client.generated += steps
            if client.generated < client.output:
                still.append(client)
            elif lengths:
                waiting.append(_Client(*lengths.popleft(), now))
        for client, new in chunks:
            client.computed += new
            if client.computed == client.prompt:
                waiting.remove(client)
                client.generated = 1
                ttfts.append((now - client.sent_ns) / 1e6)
                still.append(client)
        running = still
    return float(np.mean(ttfts))


def client_ttft(rows: Sequence[Row]) -> dict[str, tuple[float, float, float]]:
    """Measured TTFT against the simulated one at concurrency 4, on H100 and H200.

    Returns:
        Per model: slope, offset (ms), and median error (%) of the line.
    """
    out = {}
    for model, preset, kv_dtype, precision in (
        ("Llama-3.1-70B", "llama-3.1-70b", "fp8", "fp8"),
        ("gpt-oss-120b", "gpt-oss-120b", "auto", "fp4"),
    ):
        chosen = [r for r in rows if r.model == model and r.concurrency == 4 and r.gpu in {"h100-sxm", "h200-sxm"}]
        if len(chosen) < 3:
            continue
        simulated = []
        for row in chosen:
            host: Host = host_times("since-0.14" if row.since_0_14 else "before-0.14")
            plain = kernels(preset, kv_dtype, precision, row.gpu, row.tp, row.ep)
            simulated.append(closed_loop_ttft_ms(Roofline(plain.model, plain.gpu.with_host(host), row.tp), row))
        measured = np.array([r.ttft_ms for r in chosen])
        slope, offset = np.polyfit(simulated, measured, 1)
        error = np.abs((slope * np.array(simulated) + offset) / measured - 1)
        out[model] = (float(slope), float(offset), float(100 * np.median(error)))
    return out
