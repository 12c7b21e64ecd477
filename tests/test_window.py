"""Quiet steps in a row: which one is under way, and what they lose to copies, against adding them up one by one."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from kvsim.steptime.drafting import WithDrafting
from kvsim.steptime.fixed import FixedStep
from kvsim.steptime.gpu import load_gpu
from kvsim.steptime.model import load_model
from kvsim.steptime.piecewise import PiecewiseDecode
from kvsim.steptime.roofline import Roofline
from kvsim.window import LONGEST_SLOWED, SlowedWindow, Window

DENSE = Roofline(load_model("llama-3.1-8b"), load_gpu("h100"))
SLIDING = Roofline(load_model("gpt-oss-20b"), load_gpu("h100"))
MODELS = (DENSE, SLIDING, WithDrafting(DENSE, 77), PiecewiseDecode(SLIDING, 13), FixedStep(1_000, 7))
models = st.sampled_from(MODELS)
decodes = st.lists(st.integers(1, 5_000), min_size=1, max_size=6)


@given(models, decodes, st.integers(1, 200))
def test_steps_add_up_to_their_window(model: Roofline, decode: list[int], steps: int) -> None:
    """The times of single steps are those of step_ns, and their sum is that of the window."""
    each = model.steps_ns(decode, steps)
    assert each == [model.step_ns((), [context + i for context in decode]) for i in range(steps)]
    assert sum(each) == model.window_ns(decode, steps)


@given(models, decodes, st.integers(1, 700), st.data())
def test_the_step_at_an_instant(model: Roofline, decode: list[int], steps: int, data: st.DataObject) -> None:
    """It is the first that has not ended before; at its end still that one; never one before ``first``."""
    started, held_up = data.draw(st.integers(0, 10**9)), data.draw(st.sampled_from([0, 30_000]))
    window = Window(model, decode, started, steps, held_up)
    ends = [end + i * held_up for i, end in enumerate(accumulate(model.steps_ns(decode, steps)))]
    first = data.draw(st.integers(1, steps))
    at_an_end = st.sampled_from(ends) | st.sampled_from([end + 1 for end in ends])
    elapsed = data.draw(st.integers(0, ends[-1] + 9) | at_an_end)
    expected = min(max(bisect_left(ends, elapsed) + 1, first), steps)
    assert window.step_at(started + elapsed, first) == expected
    assert [window.span_ns(step) for step in (0, 1, steps)] == [0, ends[0], ends[-1]]


@given(models, decodes, st.integers(1, 100), st.integers(1_000, 999_999), st.data())
def test_slowed_steps(model: Roofline, decode: list[int], steps: int, ppm: int, data: st.DataObject) -> None:
    """Each of them takes its time over the speed, rounded up, and so much more than alone is lost."""
    window, alone = SlowedWindow(model, decode, 5, steps, ppm), model.steps_ns(decode, steps)
    last = min(steps, LONGEST_SLOWED)
    assert window.last == last
    slowed = [-(-step_ns * 1_000_000 // ppm) for step_ns in alone[:last]]
    ends = list(accumulate(slowed))
    elapsed = data.draw(st.integers(0, ends[-1] + 9))
    assert window.step_at(5 + elapsed, 1) == min(bisect_left(ends, elapsed) + 1, last)
    first = data.draw(st.integers(1, last))
    assert window.lost_ns(first, last) == sum(slowed[first - 1 :]) - sum(alone[first - 1 : last])
    assert (window.span_ns(last), window.work_ns(last)) == (ends[-1], sum(alone[:last]))
