"""Host memory of a config: is there enough, does it get pinned, and how long until it is ready?"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from kvsim.config import (
    Connector,
    LMCacheConnectorConfig,
    LMCacheMPConnectorConfig,
    OffloadingConnectorConfig,
    RunConfig,
    SimpleCPUConnectorConfig,
)
from kvsim.errors import UserError
from kvsim.host_region import HostFigures, HostRegion
from kvsim.profile import load_host
from kvsim.releases import Release

NS = 10**9
GIB = 2**30


@dataclass(frozen=True, slots=True)
class HostPlan:
    """What a config means for the host.

    Attributes:
        region: memory for KV; None without a connector.
        pinned: copies need no staging.
        remote: the memory belongs to another socket than the GPU.
        startup_ns: time until the engine serves.
        notes, cautions: for the user.
    """

    region: HostRegion | None = None
    pinned: bool = True
    remote: bool = False
    startup_ns: int = 0
    notes: tuple[str, ...] = field(default=())
    cautions: tuple[str, ...] = field(default=())


def cpu_chunks(
    connector: Connector, block_bytes: int, ranks: int, copies: int, alignment: int, chunk: int
) -> tuple[int, int]:
    """(bytes of a chunk in CPU memory, chunks that fit); vLLM: cpu_bytes_to_use is the total over all ranks."""
    if isinstance(connector, OffloadingConnectorConfig):
        key, available = "cpu_bytes_to_use", connector.cpu_bytes_to_use
        chunk_bytes = -(-block_bytes * connector.block_size_factor // alignment) * alignment * copies
        least = 1
    elif isinstance(connector, SimpleCPUConnectorConfig):
        key, available = "cpu_bytes_to_use", connector.cpu_bytes_to_use
        if connector.cpu_bytes_to_use_per_rank is not None:
            key, available = "cpu_bytes_to_use_per_rank", connector.cpu_bytes_to_use_per_rank * ranks
        chunk_bytes = block_bytes * ranks
        least = 2  # its block 0 is a null block
    elif isinstance(connector, LMCacheConnectorConfig):
        key, available, least = "max_local_cpu_size", connector.max_local_cpu_size * copies, 1
        chunk_bytes = block_bytes * chunk * copies
    elif isinstance(connector, LMCacheMPConnectorConfig):
        key, available, least = "l1_size", connector.l1_size, 1
        chunk_bytes = block_bytes * chunk * copies
    else:
        return 0, 0
    chunks = available // chunk_bytes
    if chunks < least:
        raise UserError(
            f"connector.{key}: {available} B on all ranks: one offloaded block of all ranks takes {chunk_bytes} B,"
            f" expected room for at least {'one' if least == 1 else 'two'}"
        )
    return chunk_bytes, chunks


class CpuRoom(Protocol):
    """Sizes of KV in CPU memory, all ranks (`kvsim.resolve.KVSizes`)."""

    @property
    def ranks(self) -> int:
        """Of the engine."""
        ...

    @property
    def cpu_copies(self) -> int:
        """How many of them keep their own copy."""
        ...

    @property
    def num_cpu_chunks(self) -> int:
        """That fit."""
        ...

    @property
    def cpu_chunk_bytes(self) -> int:
        """Of one of them."""
        ...


def plan_host(config: RunConfig, release: Release, sizes: CpuRoom, pieces: int) -> HostPlan:
    """The plan of a config.

    Args:
        config: the run.
        release: which vLLM.
        sizes: of KV in CPU memory.
        pieces: tensors of a block on one rank.

    Raises:
        UserError: the host has not enough memory.
    """
    connector, wanted = config.connector, config.hardware.host
    if not isinstance(connector, OffloadingConnectorConfig | SimpleCPUConnectorConfig):
        return HostPlan()
    simple = isinstance(connector, SimpleCPUConnectorConfig)
    figures = load_host()
    # vLLM 0.23.0 and 0.33.0 kv_offload/tiering/spec.py: with tiers the region is shared with them, one file
    tiers = isinstance(connector, OffloadingConnectorConfig) and bool(connector.tiers)
    region = HostRegion(
        kind="registered_tensors" if simple else "shared_map" if tiers else release.offloading_region,
        rows=sizes.num_cpu_chunks,
        row_bytes=sizes.cpu_chunk_bytes,
        ranks=sizes.ranks,
        copies=sizes.cpu_copies,
        tensors=pieces,
        in_chunks=release.pins_in_chunks,
        files=1 if tiers else release.region_files,
        host=HostFigures(
            pin_ns_per_gb=figures.pin.used,
            populate_bytes_per_s=figures.populate.used,
            populate_file_bytes_per_s=figures.populate_one_file.used,
            largest_registration_bytes=figures.largest_registration.used,
        ),
    )
    pinned = wanted.pinned and region.can_be_pinned
    startup_ns = region.populate_ns + (region.pin_ns if pinned else 0)
    notes, cautions = [_readiness(region, pinned)], []
    if region.resident_bytes > region.total_bytes:
        notes.append(
            f"torch rounds pinned tensors up to powers of two: {_gib(region.total_bytes)} of KV take"
            f" {_gib(region.resident_bytes)} of host memory"
        )
    if wanted.memory is not None:
        cautions += _check_room(region, config.engine.data_parallel_size, wanted.memory, figures.shm_part.used)
    if not pinned:
        cautions.append(_why_not_pinned(region, config.engine.vllm_version, wanted_pinned=wanted.pinned))
    return HostPlan(
        region, pinned, wanted.numa == "remote", startup_ns if wanted.startup else 0, tuple(notes), tuple(cautions)
    )


def _readiness(region: HostRegion, pinned: bool) -> str:
    parts = []
    if region.populate_ns:
        parts.append(f"populating {_gib(region.total_bytes)} of host memory takes about {_seconds(region.populate_ns)}")
    if pinned:
        parts.append(f"pinning {_gib(region.registered_bytes)} per rank takes about {_seconds(region.pin_ns)}")
    return f"start-up: {', '.join(parts)} (hardware.host.startup: true makes requests wait for it)"


def _check_room(region: HostRegion, engines: int, memory: int, shm_part: float) -> list[str]:
    """As vLLM 0.33.0 shared_offload_region.py, which does not start without room in /dev/shm (check_shm_free_space)."""
    # each data-parallel rank has a region of its own
    resident_bytes, total_bytes = engines * region.resident_bytes, engines * region.total_bytes
    if resident_bytes > memory:
        raise UserError(
            f"connector.cpu_bytes_to_use: KV takes {_gib(resident_bytes)} of host memory,"
            f" expected at most hardware.host.memory, {_gib(memory)}"
        )
    if region.kind != "shared_map" or total_bytes <= shm_part * memory:
        return []
    caution = (
        f"vLLM would refuse to start if /dev/shm has its default size: {_gib(total_bytes)} of KV are more than"
        f" half of {_gib(memory)}. Enlarge it (--shm-size, or mount -o remount,size=)."
    )
    return [caution]


def _why_not_pinned(region: HostRegion, version: str, *, wanted_pinned: bool) -> str:
    reason = "hardware.host.pinned is false"
    if wanted_pinned:
        limit = _gib(region.host.largest_registration_bytes)
        reason = f"{_gib(region.largest_registration_bytes)} in one registration are not less than {limit}"
    if region.kind == "registered_tensors":
        return f"Host memory cannot be pinned ({reason}): SimpleCPUOffloadConnector would end with an error."
    if region.kind == "pinned_tensors":
        return (
            f"Host memory is not pinned ({reason}): copies are staged, and vLLM {version} would crash where it loads by"
            " a kernel."
        )
    return (
        f"Host memory is not pinned ({reason}): vLLM {version} logs a warning and copies are staged; that staged loads"
        " also hold up the host is not simulated."
    )


def _gib(num_bytes: int) -> str:
    return f"{num_bytes / GIB:,.4g} GiB"


def _seconds(ns: int) -> str:
    return f"{ns / NS:.2g} s" if ns < 10 * NS else f"{ns / NS:,.0f} s"
