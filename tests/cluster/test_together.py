"""Instances taken together: totals, tiers and samples."""

from __future__ import annotations

from kvsim.cluster.together import add_series, add_tiers, add_totals
from kvsim.results.records import InstanceRecord, Sample, Series, TierSample, TierTotals, Totals

MS = 1_000_000


def sample(time_ns: int, running: int, busy_ns: int, *tiers: TierSample) -> Sample:
    """Other values are 0."""
    numbers = dict.fromkeys(Sample.__dataclass_fields__, 0) | {"time_ns": time_ns, "running": running}
    return Sample(**numbers | {"gpu_busy_ns": busy_ns, "tiers": tiers})  # type: ignore[arg-type]


def series(interval_ms: int, *samples: Sample) -> Series:
    """As an instance leaves it."""
    found = Series(100)
    found.interval_ns, found.samples = interval_ms * MS, list(samples)
    return found


def test_samples_are_step_functions() -> None:
    """On the coarsest grid, each instance's last sample; busy time is the mean over all, with or without samples."""
    one = series(10, sample(2 * MS, 1, 2 * MS), sample(11 * MS, 2, 10 * MS), sample(25 * MS, 0, 20 * MS))
    other = series(20, sample(21 * MS, 5, 1 * MS), sample(50 * MS, 0, 8 * MS))
    total = Series(100)
    add_series(total, [one, other])
    points = [(each.time_ns // MS, each.running, each.gpu_busy_ns // MS) for each in total.samples]
    assert points == [(20, 2, 5), (40, 5, 10), (50, 0, 14)]
    assert total.interval_ns == 20 * MS


def test_samples_of_tiers_are_added_by_name() -> None:
    """What two instances have in tiers of one name is one line."""

    def tier(time_ns: int, used: int, busy: int) -> TierSample:
        return TierSample(time_ns, "fs", used, 0, 0, 0, 0, busy, 0)

    one = series(10, sample(10 * MS, 0, 0, tier(10 * MS, 100, 40)))
    other = series(10, sample(5 * MS, 0, 0, tier(5 * MS, 30, 20)))
    total = Series(100)
    add_series(total, [one, other])
    (last,) = total.samples
    assert last.tiers == (tier(10 * MS, 130, 30),)


def test_blocks_of_different_sizes() -> None:
    """The mean size, so that the capacity in bytes is right."""
    small, large = (Totals(num_gpu_blocks=n, gpu_block_bytes=size, end_ns=7) for n, size in ((100, 16), (300, 32)))
    total = Totals()
    add_totals(total, [small, large])
    assert (total.num_gpu_blocks, total.gpu_block_bytes, total.end_ns) == (400, 28, 7)
    assert (total.num_cpu_blocks, total.cpu_block_bytes) == (0, 0)


def test_tiers_are_added_by_name() -> None:
    """Counts and capacities add up, busy time is a mean; without limit on one side there is none."""

    def instance(name: str, *tiers: TierTotals) -> InstanceRecord:
        return InstanceRecord(name, "g", "", Series(2), Totals(), list(tiers))

    def tier(name: str, capacity: int, read: int, busy: int) -> TierTotals:
        return TierTotals(name, "fs", "disk", 64, capacity_chunks=capacity, read_bytes=read, busy_ns=busy)

    found = add_tiers([instance("a", tier("x", 10, 5, 8), tier("y", 10, 1, 2)), instance("b", tier("x", 20, 6, 4))])
    assert found == [tier("x", 30, 11, 6), tier("y", 10, 1, 2)]
    assert add_tiers([instance("a", tier("x", 10, 5, 8)), instance("b", tier("x", 0, 0, 0))])[0].capacity_chunks == 0
