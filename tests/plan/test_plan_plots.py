"""The plot of a plan's points."""

from __future__ import annotations

import pandas as pd
import pytest

from kvsim.report.plan_plots import BEST, LABEL, MEETS, PARETO, USD, against, pareto


@pytest.mark.parametrize("ttft_s", [[4.5, 3.1, 2.2], [40.0, 12.0, 11.0], [90.0, 8.0, 0.5]])
def test_the_plot_can_be_read(ttft_s: list[float]) -> None:
    """The axis has two labels or more within it, names end within the plot, and the legend's limit has a unit."""
    table = pd.DataFrame(
        {
            USD: [1.0, 2.0, 3.0], "slo.ttft_p90_s": ttft_s, MEETS: [False, False, True], PARETO: True,
            BEST: [False, False, True], LABEL: [f"replicas {count}, cpu 192GiB" for count in (1, 2, 3)],
        }
    )  # fmt: skip
    drawn = pareto(table, against("ttft_p90", 10e9))
    drawn.canvas.draw()
    axes = drawn.axes[0]
    low, high = axes.get_ylim()
    assert sum(low <= value <= high for value in axes.get_yticks()) >= 2
    assert not [label for label in axes.yaxis.get_minorticklabels() if label.get_text()]
    assert [text for text in axes.texts if text.get_window_extent().x1 > axes.bbox.x1] == []
    legend = axes.get_legend()
    assert legend is not None
    assert "limit 10.0 s" in [text.get_text() for text in legend.get_texts()]
