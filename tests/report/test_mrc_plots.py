"""What the plots of `kvsim mrc` draw."""

from __future__ import annotations

import numpy as np
import pytest

from kvsim.report.curves import MOST_POINTS
from kvsim.report.mrc_plots import miss_ratio_plot, tenants_plot
from kvsim.report.style import as_svg

GB = 10**9
LRU = [(GB, 0.0), (10 * GB, 0.5), (20 * GB, 0.9)]


def test_curves_knees_and_windows() -> None:
    """One line each for LRU and the optima, a named dot per knee, and stairs per window, gaps at zero."""
    drawn = miss_ratio_plot(
        "Title",
        lru=LRU,
        optimum=[(10 * GB, 0.7)],
        bypass=[(10 * GB, 0.8)],
        knees=[(10 * GB, 0.5), (12 * GB, 0.6)],
        max_hit_rate=0.9,
        working_set={60: ([0, 120], [3 * GB, 5 * GB]), 300: ([0], [6 * GB])},
    )
    upper, lower = drawn.axes
    lines = {line.get_label(): line for line in upper.lines}
    assert [tuple(lines["LRU"].get_data()[place]) for place in (0, 1)] == [(GB, 10 * GB, 20 * GB), (0.0, 0.5, 0.9)]
    assert tuple(lines["Optimum (Belady)"].get_ydata()) == (0.7,)
    assert tuple(lines["Optimum that may decline"].get_ydata()) == (0.8,)
    texts = [text.get_text() for text in upper.texts]
    assert texts == ["most: 90.0 %", "10.0 GB\n50.0 %", "12.0 GB\n60.0 %"]
    assert [text.get_horizontalalignment() for text in upper.texts[1:]] == ["left", "right"]
    assert (upper.get_xscale(), upper.get_ylim()) == ("log", (0.0, 1.0))
    minute, five = (patch.get_data() for patch in lower.patches)
    assert (minute.values.tolist(), minute.edges.tolist()) == ([3.0, 0.0, 5.0], [0.0, 1.0, 2.0, 3.0])
    assert (five.values.tolist(), five.edges.tolist()) == ([6.0], [0.0, 5.0])
    assert lower.get_ylabel() == "Distinct KV (GB)"


def test_many_windows_keep_their_peaks() -> None:
    """More windows than can be drawn are joined, and each joined one shows its largest."""
    count = 3 * MOST_POINTS
    touched = [GB] * count
    touched[100] = 7 * GB
    drawn = miss_ratio_plot(
        "t", lru=LRU, max_hit_rate=0.9, working_set={60: ([60 * at for at in range(count)], touched)}
    )
    stairs = drawn.axes[1].patches[0].get_data()
    assert len(stairs.values) == MOST_POINTS
    assert (float(np.max(stairs.values)), int(np.argmax(stairs.values))) == (7.0, 33)
    assert stairs.edges[-1] == pytest.approx(count / 60)


def test_an_order_without_times_has_one_panel() -> None:
    """Without windows only the curve is drawn; where nothing hits, a sentence says so."""
    assert len(miss_ratio_plot("t", lru=LRU, max_hit_rate=0.9, working_set={}).axes) == 1
    nothing = miss_ratio_plot("t", lru=[(GB, 0.0)], max_hit_rate=0.0, working_set={})
    assert "No block is used twice" in as_svg(nothing)


def test_low_rates_have_a_shorter_axis() -> None:
    """The axis ends at a whole tenth above the highest rate."""
    drawn = miss_ratio_plot("t", lru=[(GB, 0.3)], max_hit_rate=0.3, working_set={})
    assert drawn.axes[0].get_ylim() == (0.0, 0.4)


def test_tenants_have_a_colour_each_and_the_first_six_are_drawn() -> None:
    """Shared is solid and alone dotted, in the tenant's colour; the rest is counted."""
    tenants = [(f"tenant {number}", LRU, [(GB, 0.1), (20 * GB, 0.9)]) for number in range(8)]
    (axes,) = tenants_plot("t", tenants).axes
    drawn = [line for line in axes.lines if len(line.get_xdata())]
    assert len(drawn) == 12
    assert [line.get_linestyle() for line in drawn[:2]] == ["-", ":"]
    assert len({line.get_color() for line in drawn}) == 6
    assert [text.get_text() for text in axes.texts] == ["the first 6 of 8 tenants"]
