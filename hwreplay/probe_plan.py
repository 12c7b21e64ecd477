"""What a probe measures: backends, sizes, numbers, and how much memory and how many files it may use for that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hwreplay.backends import all_backends, backend
from hwreplay.backends.base import Backend
from kvsim.errors import UserError

KIB, MIB = 2**10, 2**20


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured; sizes in bytes, coarse ones are measured first."""

    coarse_sizes: Sequence[int]
    sizes: Sequence[int]
    counts: Sequence[int]
    duplex_sizes: Sequence[int]
    overlap_size: int
    region_bytes: int
    registrations: Sequence[int]
    file_sizes: Sequence[int]
    file_threads: Sequence[int]
    file_total: int


PLANS: dict[str, Plan] = {
    "quick": Plan(
        coarse_sizes=[size * KIB for size in (4, 64, 2048)],
        sizes=[size * KIB for size in (4, 16, 24, 28, 64, 256, 2048)],
        counts=(1, 16, 256, 4096),
        duplex_sizes=(64 * KIB, 2 * MIB),
        overlap_size=64 * KIB,
        region_bytes=512 * MIB,
        registrations=(64 * MIB, 256 * MIB),
        file_sizes=(2 * MIB,),
        file_threads=(1, 16),
        file_total=64 * MIB,
    ),
    "full": Plan(
        coarse_sizes=[size * KIB for size in (1, 4, 16, 28, 64, 256, 2048)],
        sizes=[size * KIB for size in (1, 2, 4, 8, 16, 20, 24, 28, 32, 64, 128, 256, 512, 1024, 2048, 4096)],
        counts=(1, 4, 16, 64, 256, 1024, 4096, 16384),
        duplex_sizes=[size * KIB for size in (4, 16, 64, 256, 2048)],
        overlap_size=64 * KIB,
        region_bytes=1024 * MIB,
        registrations=(64 * MIB, 256 * MIB, 1024 * MIB, 4096 * MIB),
        file_sizes=(256 * KIB, 2 * MIB, 8 * MIB),
        file_threads=(1, 4, 16),
        file_total=256 * MIB,
    ),
}
"""By mode."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """Backends of one machine, and why others were not taken."""

    backends: Sequence[Backend]
    notes: tuple[str, ...] = ()


def chosen_backends(keys: Sequence[str] | None) -> Chosen:
    """The backends that can be probed together: those of the GPU if there is one, else the host's.

    Raises:
        UserError: one that was asked for is not there, or they belong to different machines.
    """
    if keys:
        asked = [backend(key) for key in dict.fromkeys(keys)]
        for each in asked:
            if (why := each.available()) is not None:
                raise UserError(f"--backend {each.key}: cannot be had here: {why}")
        if len({each.machine for each in asked}) > 1:
            raise UserError(f"--backend: {', '.join(keys)} run on different machines, expected one probe for each")
        return Chosen(asked)
    found = [(each, each.available()) for each in all_backends()]
    here = [each for each, why in found if why is None]
    kind = "cuda" if any(each.machine == "cuda" for each in here) else "host"
    notes = tuple(f"{each.key} was not measured: {why}" for each, why in found if why is not None)
    return Chosen([each for each in here if each.machine == kind], notes)
