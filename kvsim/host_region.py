"""The region in host memory that holds KV: how vLLM allocates it, whether it gets pinned, and how long that takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

NS = 10**9
GB = 10**9
# vLLM 0.33.0 kv_offload/cpu/gpu_worker.py (pin_mmap_region): registrations of at most 64 GiB, in whole rows; only a
# rank's own slots if that spares 3 MiB of a row or more.
REGISTRATION_BYTES = 64 * 2**30
MIN_SPARED_BYTES = 3 * 2**20
MIN_FILE_BYTES = 2**30  # vLLM 0.33.0 kv_offload/cpu/shared_offload_region.py: a region's files are not smaller

RegionKind = Literal["shared_map", "pinned_tensors", "registered_tensors"]
"""How memory is got:

shared_map: one file in /dev/shm that all ranks map (0.33.0 OffloadingConnector; tiers in both releases).
pinned_tensors: torch's pinned memory, a tensor per piece of a block and rank (0.23.0 OffloadingConnector).
registered_tensors: plain memory, then registered, a tensor per layer and rank (SimpleCPUOffloadConnector).
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFigures:
    """What a host needs to make memory ready (kvsim/presets/host.yaml says where the numbers come from)."""

    pin_ns_per_gb: int
    populate_bytes_per_s: int  # one thread
    populate_file_bytes_per_s: int  # any number of threads on one file
    largest_registration_bytes: int  # so much in one call fails, or more


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRegion:
    """Memory for KV.

    Attributes:
        kind: how it is got.
        rows: chunks of a region that is shared, or blocks of each tensor.
        row_bytes: a chunk of all ranks, or a block of all tensors of all ranks.
        ranks: processes that take part.
        copies: how many of them have a slot of their own in a row.
        tensors: of one rank, for kinds that have tensors.
        in_chunks: a shared region is registered in pieces of at most 64 GiB, not at once.
        files: at most so many files make up a shared region.
        host: the figures.
    """

    kind: RegionKind
    rows: int
    row_bytes: int
    ranks: int
    copies: int
    tensors: int
    in_chunks: bool
    files: int
    host: HostFigures

    @property
    def total_bytes(self) -> int:
        """Bytes that hold KV, all ranks."""
        return self.rows * self.row_bytes

    @property
    def tensor_bytes(self) -> int:
        """One tensor of one rank, as large as it was asked for."""
        return -(-self.total_bytes // (self.ranks * self.tensors))

    @property
    def resident_bytes(self) -> int:
        """Bytes that are taken from the host: torch rounds pinned memory up to a power of two, tensor by tensor."""
        if self.kind == "pinned_tensors":
            return self.ranks * self.tensors * (1 << (self.tensor_bytes - 1).bit_length())
        return self.total_bytes

    @property
    def largest_registration_bytes(self) -> int:
        """The most that one call registers."""
        if self.kind == "shared_map":
            return (
                max(self.row_bytes, min(self.total_bytes, REGISTRATION_BYTES)) if self.in_chunks else self.total_bytes
            )
        return self.resident_bytes // (self.ranks * self.tensors)

    @property
    def can_be_pinned(self) -> bool:
        """Whether the driver accepts what is registered in one call (of torch's own allocations no limit is known)."""
        return self.kind == "pinned_tensors" or self.largest_registration_bytes < self.host.largest_registration_bytes

    @property
    def registered_bytes(self) -> int:
        """Bytes that one rank registers: all of a shared region, unless its own slots are much less."""
        if self.kind != "shared_map":
            return self.resident_bytes // self.ranks
        slot_bytes = self.row_bytes // self.copies
        spares = self.in_chunks and self.row_bytes - slot_bytes >= MIN_SPARED_BYTES
        return self.rows * slot_bytes if spares else self.total_bytes

    @property
    def pin_ns(self) -> int:
        """Time to register; ranks are taken to register beside each other."""
        return self.registered_bytes * self.host.pin_ns_per_gb // GB

    @property
    def populate_ns(self) -> int:
        """Time to fault all pages in, a thread per rank; torch's pinned memory is populated while it is pinned."""
        if self.kind == "pinned_tensors":
            return 0
        rate = self.host.populate_bytes_per_s * self.ranks
        if self.kind == "shared_map":
            files = max(1, min(self.files, self.total_bytes // MIN_FILE_BYTES))
            rate = min(rate, self.host.populate_file_bytes_per_s * files)
        return self.total_bytes * NS // rate
