"""The roofline: agreement of its two methods, agreement with known values, and what must grow with what."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import UserError
from kvsim.steptime.fixed import FixedStep
from kvsim.steptime.gpu import Host, load_gpu
from kvsim.steptime.model import load_model
from kvsim.steptime.roofline import Roofline, floor_sum

FIRST_FIT = Host(slack=1.03, step_us=0.0, request_us=30.0)
MODELS = [
    ("llama-3.1-8b", "h100", 1),
    ("llama-3.1-70b", "h200", 4),
    ("qwen3-235b-a22b", "b200", 8),
    ("gpt-oss-120b", "h200", 1),
    ("gemma-3-27b", "a100", 2),
    ("deepseek-v3", "h200", 8),
    ("qwen3-next-80b-a3b", "gb200", 2),
    ("gpt-oss-20b", "rtx-4090", 1),
]
STEPS = {name: Roofline(load_model(name), load_gpu(gpu), tp) for name, gpu, tp in MODELS}


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(sorted(STEPS)),
    decode=st.lists(st.integers(1, 3000) | st.integers(1, 200_000), max_size=40),
    k=st.integers(0, 400),
)
def test_a_window_is_exactly_the_sum_of_its_steps(name: str, decode: list[int], k: int) -> None:
    """window_ns equals the sum of k rounded steps to the nanosecond, sliding windows and MLA included."""
    step_time = STEPS[name]
    steps = sum(step_time.step_ns([], [c + i for c in decode]) for i in range(k))
    assert step_time.window_ns(decode, k) == steps


@pytest.mark.parametrize("name", sorted(STEPS))
def test_a_window_may_be_split_anywhere(name: str) -> None:
    """A long window equals its two halves, requests fill their sliding window on either side of it."""
    step_time = STEPS[name]
    decode = [1, 100, 127, 128, 129, 900, 1023, 1024, 5000, 70_000]
    whole = step_time.window_ns(decode, 3000)
    assert whole == step_time.window_ns(decode, 1100) + step_time.window_ns([c + 1100 for c in decode], 1900)


@settings(max_examples=200, deadline=None)
@given(n=st.integers(0, 60), m=st.integers(1, 1 << 44), a=st.integers(0, 1 << 50), b=st.integers(0, 1 << 50))
def test_floor_sum_counts_what_a_loop_counts(n: int, m: int, a: int, b: int) -> None:
    """The logarithmic sum of floors equals the plain sum."""
    assert floor_sum(n, m, a, b) == sum((a * i + b) // m for i in range(n))


@pytest.mark.parametrize(
    ("model", "gpu", "tp", "prefill", "decode", "expected_ns"),
    [
        ("llama-3.1-8b", "h100-sxm", 1, [], [1000] * 64, 11463233.6),
        ("llama-3.1-8b", "rtx-pro-6000", 2, [(2048, 4096)], [777] * 10, 89657472.5),
        ("llama-3.1-70b", "h200-sxm", 4, [], [5000] * 32, 17760247.9),
        ("llama-3.1-70b", "a100-sxm", 8, [(8192, 0)], [], 947723189.6),
        ("qwen3-32b", "h100-sxm", 2, [(500, 1000), (3000, 0)], [2000] * 20, 199321317.9),
        ("qwen3-30b-a3b", "l40s", 1, [], [3000] * 16, 60914374.4),
        ("qwen3-235b-a22b", "b200", 8, [(1000, 30000)], [1500] * 64, 42633845.4),
        ("gpt-oss-120b", "h200-sxm", 1, [], [100, 2000, 30000], 6097763.3),
        ("gpt-oss-20b", "gb200", 1, [(4000, 0)], [50] * 8, 44891573.8),
        ("deepseek-v3", "h200-sxm", 8, [], [4000] * 32, 21704615.0),
        ("deepseek-v3", "b200", 8, [(2000, 10000)], [4000] * 32, 61290912.1),
    ],
)
def test_steps_keep_the_values_that_the_constants_were_fitted_with(
    model: str, gpu: str, tp: int, prefill: list[tuple[int, int]], decode: list[int], expected_ns: float
) -> None:
    """Fixed point agrees with the float evaluation of the fitted form to one part in a million."""
    step_time = Roofline(load_model(model), load_gpu(gpu).with_host(FIRST_FIT), tp)
    assert step_time.step_ns(prefill, decode) == pytest.approx(expected_ns, rel=1e-6)


def test_literal_times_of_the_default_constants() -> None:
    """Shipped constants give these nanoseconds: a change of any of them must be meant."""
    llama, oss = STEPS["llama-3.1-8b"], STEPS["gpt-oss-120b"]
    assert llama.step_ns([], [1000] * 64) == 10_631_275
    assert llama.step_ns([(2048, 0)], [1000] * 8) == 46_698_803
    assert oss.step_ns([], [100, 2000, 30000]) == 6_039_780
    assert oss.window_ns([100, 2000, 30000], 1000) == 6_053_360_946


def test_an_empty_step_takes_no_time() -> None:
    """No request, no time."""
    assert STEPS["llama-3.1-8b"].step_ns([], []) == 0
    assert STEPS["llama-3.1-8b"].window_ns([], 100) == 0
    assert STEPS["llama-3.1-8b"].window_ns([100], 0) == 0


@pytest.mark.parametrize("name", sorted(STEPS))
def test_more_work_takes_longer(name: str) -> None:
    """Longer contexts, more requests, longer chunks and longer prefixes never make a step shorter."""
    t = STEPS[name]
    assert t.step_ns([], [5000] * 8) > t.step_ns([], [4000] * 8) > t.step_ns([], [4000] * 7)
    assert t.step_ns([(2000, 0)], [4000] * 8) > t.step_ns([(1000, 0)], [4000] * 8) > t.step_ns([], [4000] * 8)
    assert t.step_ns([(1000, 9000)], []) > t.step_ns([(1000, 0)], [])


def test_sliding_layers_stop_growing_at_their_window() -> None:
    """Beyond the window only the global layers of gpt-oss read more: the slope halves at 128 tokens."""
    t = STEPS["gpt-oss-120b"]
    below = t.step_ns([], [100] * 1000) - t.step_ns([], [60] * 1000)
    above = t.step_ns([], [1040] * 1000) - t.step_ns([], [1000] * 1000)
    assert below == pytest.approx(2 * above, abs=2)


def test_an_fp8_cache_halves_the_time_per_context_token() -> None:
    """KV bytes are what decode attention costs."""
    gpu = load_gpu("h100")
    slopes = []
    for dtype in ("bf16", "fp8"):
        t = Roofline(load_model("llama-3.1-8b", dtype), gpu)
        slopes.append(t.step_ns([], [100_000]) - t.step_ns([], [50_000]))
    assert slopes[0] == pytest.approx(2 * slopes[1], abs=2)


def test_tensor_parallel_ranks_share_weights_but_pay_all_reduces() -> None:
    """A batch of one gets faster with ranks on NVLink, less than proportionally; PCIe costs more."""
    model = load_model("llama-3.1-70b")
    one, two, eight = (Roofline(model, load_gpu("h200"), tp).step_ns([], [1000]) for tp in (1, 2, 8))
    assert one / 2 < two < one
    assert one / 8 < eight < two
    nvlink = load_gpu("h100")
    pcie = replace(nvlink, eff=replace(nvlink.eff, ar_gb_per_s_tp2=38.0))
    prompt = [(4096, 0)]
    assert Roofline(model, pcie, 2).step_ns(prompt, []) > Roofline(model, nvlink, 2).step_ns(prompt, [])


def test_expert_parallel_ranks_move_the_same_bytes() -> None:
    """Whole experts per rank or slices of all experts: the same average time, no imbalance is modelled."""
    model, gpu = load_model("qwen3-235b-a22b"), load_gpu("h200")
    assert Roofline(model, gpu, 8, 8).step_ns([], [500] * 16) == Roofline(model, gpu, 8).step_ns([], [500] * 16)
    with pytest.raises(UserError, match="expert_parallel_size: 3"):
        Roofline(model, gpu, 8, 3)
    with pytest.raises(UserError, match="expert_parallel_size: 2"):
        Roofline(load_model("llama-3.1-8b"), gpu, 2, 2)


def test_a_factor_scales_every_step() -> None:
    """Host time included, to the nanosecond; windows stay sums of steps."""
    model, gpu = load_model("llama-3.1-8b"), load_gpu("h100")
    plain, slower = Roofline(model, gpu), Roofline(model, gpu, factor=1.5)
    for prefill, decode in (([], [500, 9_000]), ([(2_048, 4_096)], []), ([(512, 0)], [70_000])):
        assert abs(slower.step_ns(prefill, decode) - 1.5 * plain.step_ns(prefill, decode)) <= 2
    steps = [slower.step_ns([], [500 + i, 9_000 + i]) for i in range(40)]
    assert slower.window_ns([500, 9_000], 40) == sum(steps)


def test_heads_must_divide_by_the_ranks() -> None:
    """28 query heads cannot be cut into 8; the message says so."""
    with pytest.raises(UserError, match=r"28 attention heads of qwen2\.5-7b are not divisible"):
        Roofline(load_model("qwen2.5-7b"), load_gpu("h100"), 8)


def test_a_fixed_step_adds_its_two_constants() -> None:
    """FixedStep(1000, 10): 1000 per step and 10 per token, in closed form too."""
    t = FixedStep(per_step_ns=1000, per_token_ns=10)
    assert t.step_ns([(100, 5)], [7, 8]) == 1000 + 10 * 102
    assert t.step_ns([], []) == 0
    assert t.window_ns([7, 8], 3) == 3 * 1020
