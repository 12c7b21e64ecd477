"""What a replay and a probe write down: immutable records, one JSON file each, read back with the same checks.

Measuring, fitting and comparing are separate: the last two know these records and no device. All times are integers
in ns, those of a run relative to the start of its first step. Every file says on which device it was measured.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from hwreplay.records import from_json, read_json, to_json, write_json
from kvsim.errors import UserError

RUN_FORMAT = "hwreplay-run"
PROBE_FORMAT = "hwreplay-probe"
VERSION = 1

MachineKind = Literal["host", "cuda"]
"""host = threads copy between two regions of host memory, no GPU; cuda = a GPU."""

Way = Literal["dma_batch", "dma_loop", "kernel", "pageable"]
"""The section of a link profile that a backend measures."""

JobDirection = Literal["store", "load", "write", "read"]
"""store = GPU to host, load = host to GPU, write = host to file, read = file to host."""


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What it was measured on. Texts are empty where there is no such thing."""

    kind: MachineKind
    device: str  # name of the GPU, or of the processor
    driver: str
    cuda: str
    torch: str
    python: str
    cpu: str
    kernel: str
    date: str  # of the measurement, such as 2026-11-29
    cpus: int = 0  # that this process may use
    memory_bytes: int = 0  # of the GPU, or of the host

    @property
    def label(self) -> str:
        """The device's name for titles; never to be mistaken for a GPU where there was none."""
        return self.device if self.kind == "cuda" else f"{self.device} (host threads, no GPU)"


@dataclass(frozen=True, slots=True)
class ScheduleRef:
    """Which schedule was replayed."""

    path: str
    sha256: str
    run: str
    link: str  # the link profile that predicted the times
    scaled: float = 1.0  # bytes of a block as replayed, over those of the schedule


@dataclass(frozen=True, slots=True)
class LayoutRecord:
    """The layout that was replayed; fields as in the schedule's header."""

    kind: str
    layers: int
    kv_heads: int
    head_size: int
    dtype: str
    block_tokens: int
    pieces: int
    piece_bytes: int


@dataclass(frozen=True, slots=True)
class StepResult:
    """One forward pass. Where it took no time (compute_ns 0), start and end are when the engine passed it."""

    step: int
    start_ns: int
    end_ns: int
    compute_ns: int  # asked for: of the undisturbed forward pass
    compute_measured_ns: int  # what it took while copies ran beside it


@dataclass(frozen=True, slots=True)
class JobResult:
    """One copy job."""

    job: int
    direction: JobDirection
    descriptors: int
    descriptor_bytes: int
    bytes: int
    submit_ns: int  # time that the submit call took on the host
    submitted_ns: int  # when that call began
    started_ns: int  # when the copy began on its stream
    finished_ns: int  # when its last byte had moved
    noticed_ns: int  # when polling saw that


@dataclass(frozen=True, slots=True)
class WrongByte:
    """The first byte that is not what it should be."""

    job: int | None  # that last wrote the block, None if only a forward pass did
    side: Literal["gpu", "host", "file"]
    block: int
    content: int
    offset: int  # within the block
    found: int
    expected: int


@dataclass(frozen=True, slots=True)
class Integrity:
    """What was verified after the last job."""

    verified_blocks: int
    verified_bytes: int
    first_wrong: WrongByte | None
    witnessed_words: int = 0  # kept from all copies as soon as each was done, and right


@dataclass(frozen=True, slots=True)
class RunResult:
    """One replay of one schedule by one backend."""

    device: DeviceInfo
    backend: str
    way: Way
    schedule: ScheduleRef
    layout: LayoutRecord
    started: str  # ISO date and time
    repeat: int  # which repetition of the same command, from 0
    steps: tuple[StepResult, ...]
    jobs: tuple[JobResult, ...]
    integrity: Integrity
    makespan_ns: int  # from the start of the first step to the end of the last step or job
    calibration: dict[str, int] = field(default_factory=dict)
    notes: tuple[str, ...] = ()  # what a reader should know, such as a file system that refused O_DIRECT


@dataclass(frozen=True, slots=True)
class Spread:
    """Several measurements of one time, in ns."""

    median: int
    p10: int
    p90: int
    n: int


@dataclass(frozen=True, slots=True)
class CopyCell:
    """One cell of the grid: a batch of equal descriptors in one direction, alone."""

    backend: str
    way: Way
    direction: Literal["h2d", "d2h"]
    pinned: bool
    scattered: bool  # descriptors lie apart on both sides; false = each follows the one before
    descriptor_bytes: int
    count: int
    link_ns: Spread  # everything enqueued behind a gate first: time of the copies alone
    job_ns: Spread  # from the submit call to the end, as a scheduler sees it
    submit_ns: Spread  # the submit call alone


@dataclass(frozen=True, slots=True)
class DuplexCell:
    """A batch of each direction, alone and while the other direction is busy all the time."""

    backend: str
    way: Way
    descriptor_bytes: int
    count: int
    h2d_alone_ns: Spread
    d2h_alone_ns: Spread
    h2d_both_ns: Spread
    d2h_both_ns: Spread


@dataclass(frozen=True, slots=True)
class OverlapCell:
    """Computing and copying, alone and at once; the copies last longer than the compute work they are beside."""

    backend: str
    way: Way
    direction: Literal["h2d", "d2h"]
    compute: Literal["gemm", "memory"]
    compute_alone_ns: Spread
    compute_both_ns: Spread
    copy_alone_ns: Spread
    copy_both_ns: Spread


@dataclass(frozen=True, slots=True)
class RegistrationCell:
    """Making one host region ready; register_ns is 0 where nothing is registered."""

    bytes: int
    populate_ns: int
    register_ns: int


@dataclass(frozen=True, slots=True)
class FileCell:
    """The file tier: whole files by so many threads."""

    direction: Literal["write", "read"]
    file_bytes: int
    threads: int
    bytes_per_s: int


@dataclass(frozen=True, slots=True)
class ProbeResult:
    """Everything that one probe measured."""

    device: DeviceInfo
    started: str  # ISO date and time
    mode: Literal["quick", "full"]
    copies: tuple[CopyCell, ...] = ()
    duplex: tuple[DuplexCell, ...] = ()
    overlap: tuple[OverlapCell, ...] = ()
    registration: tuple[RegistrationCell, ...] = ()
    files: tuple[FileCell, ...] = ()
    notes: tuple[str, ...] = ()  # backends that were not there and why, cells left out for lack of time


def spread(values: Iterable[int]) -> Spread:
    """Median and 10th and 90th percentile (nearest rank) of at least one time."""
    ordered = sorted(values)
    if not ordered:
        raise ValueError("no measurement to summarise")
    last = len(ordered) - 1

    def rank(part: float) -> int:
        return ordered[round(part * last)]

    middle = (ordered[last // 2] + ordered[(last + 1) // 2]) // 2
    return Spread(median=middle, p10=rank(0.1), p90=rank(0.9), n=len(ordered))


def write_run(path: Path, result: RunResult) -> None:
    """Write one replay as JSON."""
    write_json(path, {"format": RUN_FORMAT, "version": VERSION, **to_json(result)})


def read_run(path: Path) -> RunResult:
    """Read what `write_run` wrote.

    Raises:
        UserError: names file, key, what was found and what was expected.
    """
    return from_json(RunResult, read_json(path, RUN_FORMAT, VERSION), str(path))


def write_probe(path: Path, result: ProbeResult) -> None:
    """Write one probe as JSON."""
    write_json(path, {"format": PROBE_FORMAT, "version": VERSION, **to_json(result)})


def read_probe(path: Path) -> ProbeResult:
    """Read what `write_probe` wrote.

    Raises:
        UserError: names file, key, what was found and what was expected.
    """
    return from_json(ProbeResult, read_json(path, PROBE_FORMAT, VERSION), str(path))


def format_of(path: Path) -> str:
    """``hwreplay-run``, ``hwreplay-probe`` or whatever the file says it is, "" if it does not.

    Raises:
        UserError: the file cannot be read.
    """
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            head = file.read(200)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    match = re.search(r'"format":\s*"([^"]*)"', head)
    return match[1] if match else ""
