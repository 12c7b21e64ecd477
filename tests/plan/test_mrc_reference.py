"""Curves of real traces against reference figures, which were computed block by block with sets.

The reference calls a block a hit only if a cache of that size still holds the whole prompt that used it last. Ours also
counts the beginning of a prompt whose end has gone. So ours is never lower, and never higher than the reference at a
size larger by the largest prompt: that is the tolerance.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from prompt_worlds import lru_hits

from kvsim.plan.mrc import miss_ratio_curve
from kvsim.plan.opt import Optimum
from kvsim.plan.prompts import Order, Prompts, prompts_of
from kvsim.trace.read import read_trace
from kvsim.trace.reuse import find_reuses, reuse_distances
from kvsim.trace.stats import LLAMA_70B_KV_BYTES


def _reference(root: Path, section: str, line: str) -> dict[int, float]:
    """LRU hit rates of the reference: size in GB -> rate with four digits."""
    body = (root / "STATS.txt").read_text().split(f"== {section}\n")[1].split("\n== ")[0]
    (found,) = (each for each in body.splitlines() if each.startswith(f"  {line}") and "LRU@C" in each)
    return {int(size): float(rate) for size, rate in re.findall(r"(\d+)GB=([\d.]+)", found)}


def _agrees(prompts: Prompts, reference: dict[int, float]) -> None:
    reuses, whole = find_reuses(prompts.runs), reuse_distances(prompts.runs)
    curve, best = miss_ratio_curve(prompts, reuses), Optimum(reuses)
    largest = max(reuses.used_blocks)
    assert len(reference) >= 8
    for size_gb, rate in reference.items():
        blocks = int(size_gb / (prompts.block_tokens * LLAMA_70B_KV_BYTES / 1e9))
        assert round(whole.hit_rate(blocks), 4) == rate, size_gb
        assert rate - 0.00005 <= curve.hit_rate(blocks) <= whole.hit_rate(blocks + largest), size_gb
        assert curve.hits(blocks) <= best.hits(blocks) <= best.hits(blocks, bypass=True) <= curve.corner_hits[-1]
    assert curve.corner_hits[-1] == reuses.uses - reuses.first_uses


@pytest.mark.parametrize(
    ("order", "line"), [("sequential", "sessions one after another"), ("closed-loop", "interleaved (closed loop")]
)
def test_recorded_sessions(shared_traces: Path, order: Order, line: str) -> None:
    """Both orders of the 60 sessions agree with the reference at every size."""
    prompts = prompts_of(read_trace([shared_traces / "kv-cache-tester"]), order)
    _agrees(prompts, _reference(shared_traces, "kv-cache-tester", line))


@pytest.mark.parametrize("name", ["conversation_trace", "synthetic_trace"])
def test_mooncake_by_time_stamp(shared_traces: Path, name: str) -> None:
    """The Mooncake traces agree with the reference at every size."""
    prompts = prompts_of(read_trace([shared_traces / "mooncake" / f"{name}.jsonl.gz"]), "recorded")
    _agrees(prompts, _reference(shared_traces, f"mooncake/{name}.jsonl.gz", "by timestamp"))


def test_real_trace_equals_block_by_block(shared_traces: Path) -> None:
    """On a real trace the curve is that of an LRU cache of single blocks, to the block."""
    prompts = prompts_of(read_trace([shared_traces / "mooncake" / "synthetic_trace.jsonl.gz"]))
    blocks = [[(segment, at) for segment, end in runs for at in range(end)] for runs in prompts.runs]
    curve = miss_ratio_curve(prompts)
    for capacity in (300, 5_000):
        assert curve.hits(capacity) == sum(lru_hits(blocks, capacity))


def test_our_own_sample_has_these_figures() -> None:
    """The sample in the repository, whose blocks are single tokens: LRU, the optimum and the knees, to the token."""
    sample = Path(__file__).resolve().parents[2] / "traces" / "swe-bench-like-60.jsonl.gz"
    prompts = prompts_of(read_trace([sample]))
    reuses = find_reuses(prompts.runs)
    curve, best = miss_ratio_curve(prompts, reuses), Optimum(reuses)
    sizes = (152_587, 305_175, 610_351)
    assert (curve.uses, curve.first_uses, curve.full_blocks) == (112_467_040, 6_073_752, 963_190)
    assert [curve.hits(size) for size in sizes] == [22_892_979, 46_966_388, 99_062_951]
    assert [best.hits(size) for size in sizes] == [40_575_378, 76_925_012, 104_367_317]
    assert [best.hits(size, bypass=True) for size in sizes] == [54_306_230, 81_364_423, 104_456_797]
    assert [knee.blocks for knee in curve.knees()] == [8_000, 563_408]
