"""Host memory for KV: how it is got, pinned and populated, and what a config's host allows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from worlds import TraceBuilder

from kvsim.build import Simulation
from kvsim.config import RunConfig
from kvsim.connectors.base import CopyJob
from kvsim.copy_time import copy_time
from kvsim.errors import UserError
from kvsim.host_region import HostFigures, HostRegion
from kvsim.profile import load_host
from kvsim.resolve import Plan, resolve

GIB = 2**30
GB = 10**9
FIGURES = HostFigures(
    pin_ns_per_gb=100_000_000,  # 0.1 s
    populate_bytes_per_s=3 * GB,
    populate_file_bytes_per_s=7 * GB,
    largest_registration_bytes=512 * GIB,
)
SHARED = HostRegion(
    kind="shared_map",
    rows=1_000,
    row_bytes=2**20,
    ranks=1,
    copies=1,
    tensors=32,
    in_chunks=True,
    files=32,
    host=FIGURES,
)


def plan(model: str = "llama-3.1-8b", tp: int = 1, host: dict[str, Any] | None = None, **sections: Any) -> Plan:
    """The plan of a config with three requests."""
    builder = TraceBuilder()
    builder.session("s", [(400, 4, 0), (800, 4, 0), (1200, 4, 0)])
    hardware = {"gpu": "h100-sxm", "tensor_parallel_size": tp, "host": host or {}}
    parts: dict[str, Any] = {"trace": {"path": "unused"}, "model": {"name": model}, "hardware": hardware}
    return resolve(RunConfig.model_validate({**parts, **sections}), builder.build())


def cpu(size: str = "50GiB", **more: Any) -> dict[str, Any]:
    """An offloading connector."""
    return {"kind": "offloading", "cpu_bytes_to_use": size, **more}


def test_shipped_figures_name_their_sources() -> None:
    """The registration limit lies between the two sizes that were tried (vllm-project/vllm#51080)."""
    host = load_host()
    assert 549_700_000_000 < host.largest_registration.used < 549_900_000_000
    assert host.pin.used == 100_000_000
    assert "51080" in host.pin.source


def test_pinning_takes_a_tenth_of_a_second_per_gb() -> None:
    """vllm-project/vllm#51080: 549.0e9 bytes took 55.3 s; the model says 54.9."""
    assert replace(SHARED, rows=549_000, row_bytes=1_000_000).pin_ns == 54_900_000_000


@pytest.mark.parametrize(
    ("gib", "in_chunks", "can"),
    [(511, False, True), (512, False, False), (600, False, False), (512, True, True), (2048, True, True)],
)
def test_one_registration_of_512_gib_fails(gib: int, in_chunks: bool, can: bool) -> None:
    """As in vllm-project/vllm#51080: one call fails from 512 GiB on; 0.33.0 registers 64 GiB at a time."""
    assert replace(SHARED, rows=gib * 1024, in_chunks=in_chunks).can_be_pinned is can


def test_a_rank_registers_its_slots_if_that_spares_enough() -> None:
    """By 0.33.0's MIN_HOST_REGISTER_SAVED_BYTES: a quarter of rows of 5 MiB, but all of rows of 2 MiB."""
    large = replace(SHARED, row_bytes=5 * 2**20, ranks=4, copies=4)
    small = replace(SHARED, row_bytes=2 * 2**20, ranks=2, copies=2)
    assert (large.registered_bytes, small.registered_bytes) == (1_250 * 2**20, 2_000 * 2**20)


def test_torch_rounds_pinned_tensors_up() -> None:
    """100 GB in one tensor become 128 GiB; in 32 tensors of 3.125 GB each becomes 4 GiB (0.23.0)."""
    one = replace(SHARED, kind="pinned_tensors", rows=100_000, row_bytes=1_000_000, tensors=1)
    assert (one.total_bytes, one.resident_bytes) == (100 * GB, 128 * GIB)
    assert replace(one, tensors=32).resident_bytes == 128 * GIB
    assert replace(one, kind="registered_tensors").resident_bytes == 100 * GB  # SimpleCPU avoids it


@pytest.mark.parametrize(
    ("ranks", "files", "seconds"),
    [
        (1, 32, 14),  # one thread, 3 GB/s
        (4, 32, 3.5),  # four threads, 12 GB/s
        (4, 1, 6),  # all on one file: 7 GB/s
    ],
)
def test_pages_are_populated_by_a_thread_per_rank(ranks: int, files: int, seconds: float) -> None:
    """Threads add up, but not on one file."""
    region = replace(SHARED, rows=42_000, row_bytes=1_000_000, ranks=ranks, copies=ranks, files=files)
    assert region.populate_ns == seconds * GB


def test_start_up_is_told_and_costs_nothing_unless_asked_for() -> None:
    """50 GiB for one rank: 17 s to populate at 3.1 GB/s, 5.4 s to pin."""
    found = plan(connector=cpu())
    assert found.host.startup_ns == 0
    assert "start-up: populating 50 GiB of host memory takes about 17 s, pinning 50 GiB per rank takes about 5.4 s" in (
        " ".join(found.notes)
    )
    assert not any("start-up" in note for note in plan().notes)


def test_requests_wait_for_the_start_up() -> None:
    """With startup, the first request is scheduled when 1 GiB is populated and pinned, the rest follows as ever."""
    sections: dict[str, Any] = {"connector": cpu("1GiB"), "engine": {"num_gpu_blocks_override": 1_000}}
    plain = Simulation(plan(**sections)).run()
    late_plan = plan(host={"startup": True}, **sections)
    late = Simulation(late_plan).run()
    wait_ns = 2**30 * GB // 3_100_000_000 + 2**30 * 100_000_000 // GB
    assert late_plan.host.startup_ns == wait_ns
    assert late.requests[0].first_scheduled_ns == plain.requests[0].first_scheduled_ns + wait_ns
    assert late.requests[0].first_token_ns - plain.requests[0].first_token_ns == wait_ns
    assert late.requests[-1].finish_ns - plain.requests[-1].finish_ns == wait_ns


def test_memory_that_is_not_there_is_refused() -> None:
    """60 GiB of KV do not fit a host of 50 GiB; torch's rounding counts (0.23.0: 40 GiB take 64)."""
    complaint = (
        r"connector.cpu_bytes_to_use: KV takes 60 GiB of host memory, expected at most hardware.host.memory, 50 GiB"
    )
    with pytest.raises(UserError, match=complaint):
        plan(host={"memory": "50GiB"}, connector=cpu("60GiB"))
    with pytest.raises(UserError, match=r"KV takes 64 GiB of host memory"):
        plan(host={"memory": "50GiB"}, connector=cpu("40GiB"), engine={"vllm_version": "0.23.0"})
    assert plan(host={"memory": "50GiB"}, connector={"kind": "simple_cpu", "cpu_bytes_to_use": "40GiB"}).host.pinned
    with pytest.raises(UserError, match=r"KV takes 80 GiB of host memory"):
        plan(host={"memory": "50GiB"}, connector=cpu("20GiB"), engine={"data_parallel_size": 4})


def test_half_of_memory_is_what_dev_shm_holds() -> None:
    """As in sgl-project/sglang#14282: more than half of memory needs a larger tmpfs; 0.23.0's tensors use none."""
    told = [
        any("has its default size" in caution for caution in found.cautions)
        for found in (
            plan(host={"memory": "256GiB"}, connector=cpu("160GiB")),
            plan(host={"memory": "256GiB"}, connector=cpu("120GiB")),
            plan(host={"memory": "512GiB"}, connector=cpu("160GiB"), engine={"vllm_version": "0.23.0"}),
        )
    ]
    assert told == [True, False, False]


def test_memory_that_is_not_pinned_is_copied_in_stages() -> None:
    """Registration fails: 9.6 GB/s, no kernel, no batch; a caution says what vLLM would do."""
    found = plan(host={"pinned": False}, connector=cpu())
    cost = copy_time(found)(CopyJob(0, "load", [1, 2], [3, 4]), "h2d")
    assert cost.solo_ns == 64 * 6_827  # pieces of 64 KiB at 9.6 GB/s take 6.83 us each
    assert cost.slowdown_ppm == 1_000_000
    assert any("vLLM 0.33.0 logs a warning and copies are staged" in caution for caution in found.cautions)
    simple = plan(host={"pinned": False}, connector={"kind": "simple_cpu"})
    assert any("SimpleCPUOffloadConnector would end with an error" in caution for caution in simple.cautions)
    with pytest.raises(UserError, match="a kernel cannot read host memory that is not pinned"):
        plan(host={"pinned": False}, connector=cpu(), transfer={"kind": "profile", "path": "kernel"})


def test_memory_of_the_other_socket() -> None:
    """GB200: 115 instead of 330 GB/s to the other Grace's memory (pytorch/torchtitan#3519)."""

    def store_ns(numa: str) -> int:
        hardware = {"gpu": "gb200", "host": {"numa": numa}}
        found = plan(hardware=hardware, connector=cpu(kv_layout="cross_layer"))
        return copy_time(found)(CopyJob(0, "store", list(range(1000)), list(range(1000))), "d2h").solo_ns

    moved = 1_000 * 2 * 2**20
    assert store_ns("local") == 4_000 + -(-moved * GB // 330_000_000_000)
    assert store_ns("remote") == 4_000 + -(-moved * GB // 114_840_000_000)


def test_all_ranks_share_host_memory() -> None:
    """Llama-3.1-70B TP8 on H100: loads and stores of all ranks want more than 490 GB/s, and get just that."""
    found = plan("llama-3.1-70b", 8, connector=cpu(kv_layout="cross_layer"))
    simulation = Simulation(found)
    cost, memory = copy_time(found), simulation.servers[0].host_memory
    link = simulation.servers[0].books[0]._offload.link  # type: ignore[union-attr]
    blocks = list(range(10_000))
    for direction, kind in (("h2d", "load"), ("d2h", "store")):
        link.submit(direction, cost(CopyJob(0, kind, blocks, blocks), direction), 1)  # type: ignore[arg-type]
    wanted = [user.demand_bytes_per_s for user in memory._users]
    granted = sum(user.demand_bytes_per_s * user.share_ppm // 10**6 for user in memory._users)
    assert memory.bytes_per_s == 490 * GB
    assert sum(wanted) > 490 * GB
    assert granted == pytest.approx(490 * GB, rel=1e-5)


def test_tiers_share_one_file_with_cpu_memory() -> None:
    """With tiers 0.23.0 registers one shared region at once: 600 GiB stay unpinned (vllm-project/vllm#51080)."""
    tiers = [{"kind": "example"}]
    old = plan(connector=cpu("600GiB", tiers=tiers), engine={"vllm_version": "0.23.0"})
    assert old.host.region is not None
    assert (old.host.region.kind, old.host.region.files, old.host.pinned) == ("shared_map", 1, False)
    assert any("600 GiB in one registration are not less than 512 GiB" in caution for caution in old.cautions)
    assert plan(connector=cpu("500GiB", tiers=tiers), engine={"vllm_version": "0.23.0"}).host.pinned
    assert plan(connector=cpu("600GiB", tiers=tiers)).host.pinned  # 0.33.0: 64 GiB at a time
    assert plan(connector=cpu("600GiB"), engine={"vllm_version": "0.23.0"}).host.pinned  # torch's own tensors
