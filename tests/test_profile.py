"""Link profiles: literal times at and between grid points, and profiles that are refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import UserError
from kvsim.profile import LinkProfile, Pieces, default_link, dump_link, link_names, load_link

KIB = 1024
MINIMAL = """\
name: mine
kind: measured
device: test
driver: none
date: 2026-11-29
method: by hand
h2d:
  path: dma_batch
  submit: {value: 2us, source: by hand}
  peak: {value: 32GB/s, source: by hand}
  grid:
    counts: [1, 100, 10000]
    gb_per_s:
      1KiB: [1, 2, 4]
      4KiB: [4, 8, 16]
      16KiB: [2, 2, 2]
    source: by hand
d2h:
  path: dma_batch
  submit: {value: 1us, source: by hand}
  peak: {value: 10GB/s, source: by hand}
  per_descriptor: {value: null, assumed: 500ns, source: by hand}
duplex:
  total: {value: 21GB/s, source: by hand}
compute_slowdown: {value: 1.05, source: by hand}
host_dram: {value: 200GB/s, source: by hand}
numa: none
"""


def make(tmp_path: Path, text: str = MINIMAL) -> LinkProfile:
    """Load a profile from its text."""
    file = tmp_path / "mine.profile.yaml"
    file.write_text(text)
    return load_link(file)


@pytest.mark.parametrize(
    ("descriptor_bytes", "count", "time_ns"),
    [
        (1024, 1, 2_000 + 1_024),  # a grid point: 1024 B at 1 GB/s
        (1024, 100, 2_000 + 51_200),
        (4096, 10_000, 2_000 + 2_560_000),
        (1024, 10, 2_000 + 7_241),  # half-way between 1 and 100 on a log scale: 1024 / sqrt(2) ns each
        (2048, 100, 2_000 + 51_200),  # half-way between two sizes that take the same time each
        (8192, 1, 2_000 + 2_896),  # half-way between 1,024 and 8,192 ns: sqrt(1024 * 8192) = 2,896.3
        (16, 1, 2_000 + 1_024),  # smaller than the grid: the time of the smallest
        (1024, 20_000, 2_000 + 5_120_000),  # more than the grid: each takes as long as with 10,000
        (2**20, 1, 2_000 + 32_768),  # larger than the grid: at the peak
    ],
)  # fmt: skip
def test_a_copy_takes_submit_time_and_the_grid_time(
    tmp_path: Path, descriptor_bytes: int, count: int, time_ns: int
) -> None:
    """Times per descriptor are interpolated on log scales, and constant outside the grid."""
    assert make(tmp_path).copy_ns("h2d", descriptor_bytes, count) == time_ns


@pytest.mark.parametrize(
    ("descriptor_bytes", "count", "time_ns"),
    [(1000, 1, 1_000 + 500), (1000, 10, 1_000 + 5_000), (10_000, 10, 1_000 + 10_000), (3, 0, 0)],
)
def test_without_a_grid_descriptors_have_a_shortest_time(
    tmp_path: Path, descriptor_bytes: int, count: int, time_ns: int
) -> None:
    """The slower of the peak rate and the time per descriptor holds; no descriptors take no time at all."""
    assert make(tmp_path).copy_ns("d2h", descriptor_bytes, count) == time_ns


def test_small_descriptors_are_slower_than_larger_ones_on_hopper() -> None:
    """The cliff of batched copies is kept: 24 KiB descriptors take 5.5 times as long as 28 KiB ones."""
    link = load_link("pcie5-h100")
    assert link.copy_ns("h2d", 24 * KIB, 100_000) == 4_000 + 356_173_913  # 24,576 B * 100,000 at 6.9 GB/s
    assert link.copy_ns("h2d", 28 * KIB, 100_000) == 4_000 + 65_015_873  # 28,672 B * 100,000 at 44.1 GB/s
    assert link.copy_ns("h2d", 64 * KIB, 100_000) == 4_000 + 126_517_375  # the peak, 51.8 GB/s


@settings(deadline=None, derandomize=True)
@given(
    st.sampled_from(link_names()),
    st.sampled_from(["h2d", "d2h"]),
    st.integers(1, 2**23),
    st.integers(0, 300_000),
)
def test_copies_are_never_faster_than_the_peak_and_more_never_take_less(
    name: str, direction: str, descriptor_bytes: int, count: int
) -> None:
    """For every shipped link the time rises with the count and respects the peak rate."""
    link = load_link(name)
    side = link.h2d if direction == "h2d" else link.d2h
    time_ns = link.copy_ns(direction, descriptor_bytes, count)  # type: ignore[arg-type]
    assert time_ns <= link.copy_ns(direction, descriptor_bytes, count + 1)  # type: ignore[arg-type]
    if side is not None:
        assert time_ns * side.peak.used >= count * descriptor_bytes * 10**9


WAYS = """\
dma_loop:
  per_call: {value: 6us, source: by hand}
kernel:
  launch: {value: 10us, source: by hand}
  h2d_peak: {value: 20GB/s, source: by hand}
  d2h_peak: {value: 25GB/s, source: by hand}
  in_flight: {value: 8KiB, source: by hand}
  round_trip: {value: 1us, source: by hand}
  total: {value: 30GB/s, source: by hand}
  compute_slowdown: {value: 1.25, source: by hand}
pageable:
  rate: {value: 4GB/s, source: by hand}
  per_call: {value: 8us, source: by hand}
remote:
  h2d: {value: 0.5, source: by hand}
  d2h: {value: 1.0, source: by hand}
"""


@pytest.mark.parametrize(
    ("way", "batch", "time_ns"),
    [
        # 1,024 B at 32 GB/s take 32 ns, a call 6 us; 320,000 B take 10 us
        ("dma_loop", [(1024, 10)], 60_000),
        ("dma_loop", [(1024, 2), (320_000, 3)], 2 * 6_000 + 3 * 10_000),
        # 12 programs x 8 KiB in 1 us are 98 GB/s: the peak of 20 GB/s holds; 16 x 16,384 B take 13,108 ns
        ("kernel", [(16_384, 16)], 10_000 + 13_108),
        # 12 programs x 1 KiB in 1 us: 12.288 GB/s; 96 x 1,024 B take 8 us
        ("kernel", [(1024, 96)], 10_000 + 8_000),
        # two programs only: 2 x 1 KiB a us
        ("kernel", [(1024, 2)], 10_000 + 1_000),
        # 8,000 B at 4 GB/s are 2 us, a staged copy takes 8 us; 40,000 B take 10 us
        ("pageable", [(8_000, 5), (40_000, 2)], 5 * 8_000 + 2 * 10_000),
        # unequal descriptors of one batched call: each takes the time of its size in a call of 100: 512 ns and 8,192
        ("dma_batch", [(1024, 60), (16_384, 40)], 2_000 + 60 * 512 + 40 * 8_192),
    ],
)  # fmt: skip
def test_each_way_has_its_own_time(tmp_path: Path, way: str, batch: list[tuple[int, int]], time_ns: int) -> None:
    """Loops pay per call, kernels per round trip, staged copies per piece; unequal pieces are added one by one."""
    link = make(tmp_path, MINIMAL + WAYS)
    assert link.batch_ns(way, "h2d", tuple(Pieces(*pieces) for pieces in batch)) == time_ns  # type: ignore[arg-type]


def test_memory_of_the_other_socket_lowers_the_peak_only(tmp_path: Path) -> None:
    """Half the peak doubles the time of large copies, and leaves that of slow small ones alone."""
    link = make(tmp_path, MINIMAL + WAYS)
    large, small = (Pieces(2**20, 1),), (Pieces(1024, 100),)
    assert link.batch_ns("dma_batch", "h2d", large, remote=True) == 2_000 + 65_536
    assert link.batch_ns("dma_batch", "h2d", small, remote=True) == link.batch_ns("dma_batch", "h2d", small)
    assert link.batch_ns("dma_batch", "d2h", large, remote=True) == link.batch_ns("dma_batch", "d2h", large)


def test_each_way_shares_and_slows_as_its_section_says(tmp_path: Path) -> None:
    """A kernel halves its own total between directions, and slows compute by its own factor."""
    link = make(tmp_path, MINIMAL + WAYS)
    assert (link.shared_ppm("kernel", "h2d"), link.shared_ppm("kernel", "d2h")) == (750_000, 600_000)
    assert link.shared_ppm("dma_loop", "h2d") == link.shared_ppm("dma_batch", "h2d") == 328_125
    assert (link.slowdown_ppm("kernel"), link.slowdown_ppm("dma_loop")) == (1_250_000, 1_050_000)


def test_a_profile_need_not_know_every_way(tmp_path: Path) -> None:
    """Sections are optional; a link that takes no time knows all ways."""
    link = make(tmp_path)
    assert [link.has(way) for way in ("dma_batch", "dma_loop", "kernel", "pageable")] == [True, False, False, False]
    instant = load_link("instant")
    assert instant.has("kernel")
    assert instant.batch_ns("kernel", "h2d", (Pieces(16_384, 100),)) == 0


def test_the_kernel_overtakes_dma_where_it_was_seen_to_on_h100() -> None:
    """vllm-project/vllm#57343: at 28 KiB between 64 and 256 descriptors, at 8 KiB between 16 and 64."""
    link = load_link("pcie5-h100")

    def kernel_wins(descriptor_bytes: int, number: int) -> bool:
        batch = (Pieces(descriptor_bytes, number),)
        return link.batch_ns("kernel", "h2d", batch) < link.batch_ns("dma_batch", "h2d", batch)

    assert [kernel_wins(28 * KIB, 64), kernel_wins(28 * KIB, 256)] == [False, True]
    assert [kernel_wins(8 * KIB, 16), kernel_wins(8 * KIB, 64)] == [False, True]


def test_both_directions_share_the_link(tmp_path: Path) -> None:
    """Equal halves of the total unless the profile says otherwise, and no direction above its own peak."""
    assert make(tmp_path).bidirectional_share() == (328_125, 1_000_000)  # 10.5 of 32 and 10.5 of 10 GB/s
    assert load_link("pcie5-h100").bidirectional_share() == (805_019, 834_000)  # 41.7 of 51.8 and of 50 GB/s
    assert load_link("pcie4-a100").bidirectional_share() == (440_640, 999_360)  # 11 and 25 of 25 GB/s


def test_the_instant_link_takes_no_time() -> None:
    """The upper bound of offloading: no copy time, no contention, no slow-down."""
    link = load_link("instant")
    assert link.copy_ns("h2d", 2**21, 10_000) == link.copy_ns("d2h", 1, 1) == 0
    assert link.bidirectional_share() == (1_000_000, 1_000_000)
    assert link.slowdown_ppm("kernel") == link.slowdown_ppm("dma_batch") == 1_000_000
    assert link.host_dram_bytes_per_s is None


@pytest.mark.parametrize("name", link_names())
def test_shipped_links_carry_their_file_name_and_survive_a_round_trip(name: str, tmp_path: Path) -> None:
    """The name inside is the name outside, and written profiles read back equal."""
    link = load_link(name)
    assert (link.name, link.kind) == (name, "shipped")
    assert make(tmp_path, dump_link(link)) == link


def test_every_gpu_preset_has_a_link() -> None:
    """The nine GPUs have a shipped link; H200 says that all of it is assumed."""
    gpus = "a100-sxm b200 gb200 gh200 h100-sxm h200-sxm l40s rtx-4090 rtx-pro-6000"
    assert [load_link(default_link(gpu)).name for gpu in gpus.split()] == [
        "pcie4-a100", "pcie5-b200", "c2c-gb200", "c2c-gh200", "pcie5-h100", "pcie5-h200", "pcie4-a100",
        "pcie4-rtx-4090", "pcie5-rtx-pro-6000",
    ]  # fmt: skip
    with pytest.raises(UserError, match=r"GPU 'tpu' has no link of its own: set hardware.link"):
        default_link("tpu")


def test_what_was_assumed_is_listed() -> None:
    """A report can say which inputs nobody measured."""
    link = load_link("pcie5-h100")
    assumed = [line.split(":")[0] for line in link.assumptions(without={"dma_loop", "kernel", "pageable", "remote"})]
    assert assumed == ["h2d.submit", "d2h.submit", "d2h.per_descriptor", "compute_slowdown", "host_dram"]
    kernel = [line.split(":")[0] for line in link.assumptions() if line.startswith("kernel")]
    assert kernel == ["kernel.launch", "kernel.round_trip", "kernel.compute_slowdown"]
    assert load_link("pcie5-h200").assumptions()[2].startswith("h2d.grid: unmeasured on H200, as pcie5-h100")


def test_an_unknown_link_names_the_closest(tmp_path: Path) -> None:
    """A misspelt name gets a suggestion and the list; a missing file its path."""
    with pytest.raises(UserError, match=r"link 'pcie5-h10': no such profile, did you mean pcie5-h100\? .*c2c-gh200"):
        load_link("pcie5-h10")
    with pytest.raises(UserError, match=r"absent\.yaml: no such file"):
        load_link(tmp_path / "absent.yaml")


@pytest.mark.parametrize(
    ("before", "after", "problem"),
    [
        ("{value: 2us, source: by hand}", "{value: 2us}", ":9: h2d.submit.source is missing"),
        ("{value: 2us, source", "{value: 2us, assumed: 3us, source", ":9: h2d.submit.value: expected either"),
        ("{value: 2us, source", "{value: null, source", ":9: h2d.submit.value: expected either"),
        ("value: 2us", "value: 2", ":9: h2d.submit.value: expected a time with its unit"),
        ("32GB/s", "8GB/s", ":10: h2d.peak: expected at least the grid's fastest rate, 16.0GB/s"),
        ("[1, 100, 10000]", "[1, 10000, 100]", ":12: h2d.grid.counts: expected rising counts"),
        ("[4, 8, 16]", "[4, 8]", ":13: h2d.grid.gb_per_s: expected 3 rates for 4096 bytes"),
        ("[4, 8, 16]", "[4, 8, -1]", ":15: h2d.grid.gb_per_s.4KiB.2: expected more than 0, found -1"),
        ("[4, 8, 16]", "[0.01, 8, 16]", ":13: h2d.grid.gb_per_s: more descriptors of 4096 bytes"),
        ("      4KiB: [4", "      4K: [4", ":15: h2d.grid.gb_per_s.4K: expected a size with its unit"),
        ("  grid:", "  gird:", ":11: unknown key h2d.gird, did you mean grid? (in h2d)"),
        ("  per_descriptor: {value: null, assumed: 500ns, source: by hand}\n", "", "d2h.grid: expected"),
        ("kind: measured", "kind: guessed", ":2: kind: expected one of shipped, measured, host, found 'guessed'"),
        ("2026-11-29", "29.11.2026", ":5: date: expected a date such as 2026-11-29, found '29.11.2026'"),
        ("value: 1.05", "value: 0.9", ":25: compute_slowdown.value: expected at least 1, found 0.9"),
        ("numa: none\n", "", ": numa is missing"),
    ],
)  # fmt: skip
def test_a_malformed_profile_is_refused_in_one_line(tmp_path: Path, before: str, after: str, problem: str) -> None:
    """The message names file, line and key, as for configs."""
    assert before in MINIMAL
    with pytest.raises(UserError) as caught:
        make(tmp_path, MINIMAL.replace(before, after, 1))
    assert str(caught.value).startswith(f"{tmp_path}/mine.profile.yaml")
    assert problem in str(caught.value)
    assert "\n" not in str(caught.value)
