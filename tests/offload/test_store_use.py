"""StoreUse: which stores have been worth it."""

from __future__ import annotations

from typing import Any

import pytest
from worlds import MS, TraceBuilder, config, run, summary

from kvsim.offload.store_use import StoreUse


def test_stores_are_used_by_the_first_load_only() -> None:
    """Of four chunks one is loaded twice: three were stored for nothing."""
    use = StoreUse()
    use.stored([1, 2, 3, 4])
    use.loaded([2])
    use.loaded([2])
    assert (use.num_stored, use.num_unused) == (4, 3)


def test_a_chunk_that_is_stored_again_counts_again() -> None:
    """Stored, evicted unread and stored once more: one of two was for nothing; used and stored again: one more."""
    use = StoreUse()
    use.stored([1])
    use.stored([1])
    use.loaded([1])
    assert (use.num_stored, use.num_unused) == (2, 1)
    use.stored([1])
    assert (use.num_stored, use.num_unused) == (3, 2)


def test_loads_of_what_was_never_stored_count_nothing() -> None:
    """Chunks that others have put into the tier are not our stores."""
    use = StoreUse()
    use.loaded([7, 8])
    assert (use.num_stored, use.num_unused) == (0, 0)


@pytest.mark.parametrize(
    ("model", "connector", "blocks"),
    [
        ("llama-3.1-8b", {"kind": "offloading", "cpu_bytes_to_use": "4GiB"}, (51, 30)),  # 21 loaded, 4 still on the GPU
        (
            "gpt-oss-20b",
            {"kind": "offloading", "cpu_bytes_to_use": "4GiB"},
            (68, 36),
        ),  # 24 of full attention, 8 of the window
        ("llama-3.1-8b", {"kind": "simple_cpu", "cpu_bytes_to_use": "4GiB"}, (51, 26)),
    ],
)
def test_every_connector_counts(model: str, connector: dict[str, Any], blocks: tuple[int, int]) -> None:
    """A prompt of 25 blocks that leaves the GPU for another one is loaded when it returns; the other never is."""
    builder = TraceBuilder(outputs_return=False)
    builder.session("a", [(400, 1, 0), (16, 1, 500 * MS)])
    builder.session("rival", [(400, 1, 0)], start_ns=200 * MS)
    engine = {"num_gpu_blocks_override": 59 if model == "gpt-oss-20b" else 30}
    _, record = run(builder.build(), config(model={"name": model}, engine=engine, connector=connector))
    transfers = summary(record)["transfers"]
    assert record.totals.load_jobs == 1
    assert (transfers["stored_blocks"], transfers["unused_stored_blocks"]) == blocks
