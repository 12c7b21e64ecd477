"""Plots: drawn for every kind of run, of the right size, true to the data, and the same bytes each time."""

from __future__ import annotations

import io
import re
import struct
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread
from run_builder import requests_of

from kvsim.errors import UserError
from kvsim.report import plots
from kvsim.report.curves import cdf, thin, windows
from kvsim.report.style import as_png, as_svg, line_style
from kvsim.results.run import Run


def png_size(data: bytes) -> tuple[int, int]:
    """Width and height in the header of a PNG."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", data[16:24])
    return width, height


def ink(drawn: Figure) -> float:
    """Share of the picture that is not paper."""
    pixels = imread(io.BytesIO(as_png(drawn)))[..., :3]
    return float((pixels.sum(axis=2) < 2.7).mean())


def test_files(tmp_path: Path, offload: Run) -> None:
    """Every plot of a run is written as PNG, 1,200 pixels wide, and as SVG."""
    written = plots.save_plots(offload, tmp_path / "plots")
    names = ["ttft_cdf", "e2e_cdf", "hit_rate", "kv_usage", "queues", "transfers"]
    assert [path.name for path in written] == [f"{name}.{kind}" for name in names for kind in ("png", "svg")]
    heights = {path.stem: png_size(path.read_bytes()) for path in written if path.suffix == ".png"}
    assert heights == {
        "ttft_cdf": (1200, 630),
        "e2e_cdf": (1200, 630),
        "hit_rate": (1200, 630),
        "kv_usage": (1200, 1020),
        "queues": (1200, 630),
        "transfers": (1200, 870),
    }
    svg = (tmp_path / "plots" / "kv_usage.svg").read_text()
    assert "KV memory on the GPU" in svg
    assert "Capacity, 128 GiB" in svg


@pytest.mark.parametrize("name", list(plots.PLOTS))
def test_drawn(name: str, offload: Run) -> None:
    """Every plot has a title, labelled axes with units, and more on it than an empty frame."""
    drawn = plots.PLOTS[name][0](offload)
    for axes in drawn.axes:
        assert axes.get_title(loc="left")
        assert axes.get_ylabel()
    assert drawn.axes[-1].get_xlabel()
    assert ink(drawn) > 0.01


@pytest.mark.parametrize("name", list(plots.PLOTS))
def test_nothing_to_draw(name: str, empty: Run) -> None:
    """A run without data gives a low picture with a sentence, not an empty frame."""
    drawn = plots.PLOTS[name][0](empty)
    assert [float(side) for side in drawn.get_size_inches()] == [8.0, 1.2]
    sentence = drawn.axes[0].texts[0].get_text()
    assert sentence.endswith(".")


def test_same_bytes(offload: Run, small: Run) -> None:
    """Drawing the same run twice gives the same SVG and PNG, without a date."""
    for draw in (plots.transfers, plots.kv_usage):
        first, second = draw(offload), draw(offload)
        assert as_svg(first) == as_svg(second)
        assert as_png(first) == as_png(second)
    one, two = (as_svg(plots.overlay([offload, small])) for _ in range(2))
    assert one == two
    assert not re.search(r"dc:date|Matplotlib v", one)


def test_overlay(baseline: Run, offload: Run, empty: Run) -> None:
    """The overlay shows TTFT, hit rates, throughput and P90 TTFT of all runs, and grows with their number."""
    drawn = plots.overlay([baseline, offload, empty])
    titles = [axes.get_title(loc="left") for axes in drawn.axes]
    assert titles == ["Time to first token (TTFT)", "Token hit rate", "Output tokens/s", "P90 TTFT"]
    assert [text.get_text() for text in drawn.axes[2].texts][2] == "n/a"
    assert [label.get_text() for label in drawn.axes[1].get_yticklabels()] == [
        "baseline",
        "cpu-128GiB",
        "empty",
    ]
    assert drawn.get_figheight() < plots.overlay([baseline] * 8).get_figheight()
    assert plots.overlay([empty, empty]).axes[0].texts[0].get_text() == "No request finished."


def test_line_styles_differ() -> None:
    """Twenty lines on one plot can all be told apart."""
    assert len({tuple(line_style(index).values()) for index in range(20)}) == 20


def test_cdf_is_exact(small: Run) -> None:
    """The distribution of a few requests has one step for each, in order."""
    points = cdf(small, "first_token_ns")
    assert points is not None
    assert points[0].tolist() == [100.0, 300.0, 500.0]
    assert points[1].tolist() == [1 / 3, 2 / 3, 1.0]


def test_cdf_of_many(small: Run) -> None:
    """Of many requests 400 points stay, the fastest and the slowest among them; zero is drawn as 1 us."""
    rows = [{"first_token_ns": index * 1000, "finish_ns": 10**9} for index in range(5000)]
    many = Run(small.path, "many", small.summary, requests_of(rows), small.series)
    points = cdf(many, "first_token_ns")
    assert points is not None
    assert len(points[0]) == 400
    assert (points[0][0], points[0][-1], points[1][-1]) == (0.001, 4.999, 1.0)


def test_windows(small: Run) -> None:
    """Growth over windows adds up to the growth over the run, on a clock that starts at the first arrival."""
    found = windows(small)
    assert found is not None
    edges, unit, growth = found
    assert (edges.tolist(), unit) == ([1.0, 10.0], "s")
    assert growth("prompt_tokens").tolist() == [2500.0]
    assert growth("time_ns").tolist() == [9e9]


def test_thin_keeps_peaks() -> None:
    """Thinning a long curve keeps its peak and its last sample."""
    x = np.arange(10_000, dtype=float)
    y = np.zeros(10_000)
    y[[5_003, 9_999]] = 7.0, 3.0
    few_x, few_y = thin(x, y)
    assert len(few_x) == len(few_y) == 401
    assert (few_y.max(), few_x[-1], few_y[-1]) == (7.0, 9999.0, 3.0)


def test_unwritable(tmp_path: Path, empty: Run) -> None:
    """A folder that cannot be made is a user's error that names it."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=r"file/plots: cannot write the plots: "):
        plots.save_plots(empty, tmp_path / "file" / "plots")
