"""The copies of a run as records: what was copied from where to where, when, and after what.

One `Schedule` = one `Header` and the steps of the engine in order; each step has one forward pass (perhaps of no time)
and the jobs that were submitted in it. traces/SCHEDULE.md is the page about the format.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

FORMAT = "kvsim-schedule"
VERSION = 1

Side = Literal["gpu", "host", "files"]
Direction = Literal["store", "load", "write", "read"]
Behind = Literal["previous", "this"]
LayoutKind = Literal["cross_layer", "per_layer_kv", "per_layer", "mla"]
WayName = Literal["dma_batch", "dma_loop", "kernel", "pageable", "instant"]

SIDES: tuple[Side, ...] = get_args(Side)
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
LAYOUT_KINDS: tuple[LayoutKind, ...] = get_args(LayoutKind)
WAY_NAMES: tuple[WayName, ...] = get_args(WayName)

FROM_TO: dict[Direction, tuple[Side, Side]] = {
    "store": ("gpu", "host"),
    "load": ("host", "gpu"),
    "write": ("host", "files"),
    "read": ("files", "host"),
}
"""Where a job reads and where it writes."""

DTYPE_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4, "fp8": 1, "int8": 1, "uint8": 1}
"""Bytes of one element of the KV cache."""

Pairs = tuple[tuple[int, int], ...]  # (block or file, content)


@dataclass(frozen=True, slots=True)
class Layout:
    """What a block is on one rank: ``pieces`` contiguous pieces of ``piece_bytes`` each.

    Attributes:
        kind: ``cross_layer`` = one piece of all layers; ``per_layer_kv`` = a piece per layer, K and V side by side;
            ``per_layer`` = K and V of each layer apart; ``mla`` = one latent per layer (or one piece of all layers).
        layers: of the model that keep KV.
        kv_heads: of this rank.
        head_size: elements of one head; with ``mla`` those of the latent (bytes where ``dtype`` is uint8).
        dtype: one of `DTYPE_BYTES`.
        block_tokens: tokens of a block.
        pieces: of a block.
        piece_bytes: of a piece.
    """

    kind: LayoutKind
    layers: int
    kv_heads: int
    head_size: int
    dtype: str
    block_tokens: int
    pieces: int
    piece_bytes: int

    @property
    def block_bytes(self) -> int:
        """Bytes of one block on this rank."""
        return self.pieces * self.piece_bytes


@dataclass(frozen=True, slots=True)
class Way:
    """How the simulation took the copies of each direction to be made; ``instant`` = they take no time."""

    load: WayName
    store: WayName


@dataclass(frozen=True, slots=True)
class Initial:
    """What lies on each side before the first step: (block or file, content) of what is read and not written before."""

    gpu: Pairs = ()
    host: Pairs = ()
    files: Pairs = ()

    def of(self, side: Side) -> Pairs:
        """The pairs of a side."""
        pairs: Pairs = getattr(self, side)
        return pairs


@dataclass(frozen=True, slots=True)
class Header:
    """What all steps have in common.

    Attributes:
        run: name of the run.
        kvsim: version that wrote it.
        digest: of the run's results.
        model, vllm_version, gpu: as in the run's config.
        link: name of the link profile that predicted the times.
        rank: whose copies these are.
        tensor_parallel_size: ranks, which all copy the same blocks, each its own shard.
        layout: of a block on this rank.
        gpu_blocks, host_blocks: sizes of both pools; ids are 0 <= id < size.
        way: how the copies were taken to be made.
        filter: what was left out or changed; None = nothing.
        initial: what was there before the first step; None = nothing.
    """

    run: str
    kvsim: str
    digest: str
    model: str
    vllm_version: str
    gpu: str
    link: str
    rank: int
    tensor_parallel_size: int
    layout: Layout
    gpu_blocks: int
    host_blocks: int
    way: Way
    filter: Mapping[str, Any] | None = None
    initial: Initial | None = None


@dataclass(frozen=True, slots=True)
class Job:
    """One copy of some blocks. It may run as soon as all that it has to wait for is complete.

    Jobs of direction ``store`` run one after another in the order of their numbers, and so do those of ``load``; jobs
    of files (``write``, ``read``) only wait for what ``after`` says.

    Attributes:
        job: number, unique, rising in the order of submission.
        direction: ``store`` GPU to host, ``load`` host to GPU, ``write`` host to file, ``read`` file to host.
        request: whose it is, if it is of one request.
        source, destination: blocks (or files), the first to the first and so on; destinations are distinct.
        contents: what each source holds when it is read, and each destination afterwards.
        behind: waits for the forward pass of the step before (``previous``) or of its own step (``this``).
        after: jobs to wait for, beside what the order of its direction and ``behind`` imply.
        bytes: on this rank.
        submitted_ns, started_ns, finished_ns: simulated; ``started_ns`` is None where nobody knows.
    """

    job: int
    direction: Direction
    request: str | None
    source: tuple[int, ...]
    destination: tuple[int, ...]
    contents: tuple[int, ...]
    behind: Behind | None
    after: tuple[int, ...]
    bytes: int
    submitted_ns: int
    started_ns: int | None
    finished_ns: int

    @property
    def source_side(self) -> Side:
        """Where it reads."""
        return FROM_TO[self.direction][0]

    @property
    def destination_side(self) -> Side:
        """Where it writes."""
        return FROM_TO[self.direction][1]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the engine. Forward passes run one after another, each after those of the steps before.

    Attributes:
        step: number, rising; steps in which nothing happens are left out.
        start_ns: simulated time at which it was decided.
        not_before_ns: set if the engine was idle before, for lack of requests: nothing of this step was there earlier.
        compute_ns: of the forward pass when nothing slows it down; 0 = no forward pass.
        end_ns: simulated end of the forward pass (of the step, if there is none).
        after: jobs that must be complete before the forward pass starts, beside what the order of directions implies.
        writes: (GPU block, content) of what the forward pass has filled when it ends.
        jobs: submitted in this step, in order.
    """

    step: int
    start_ns: int
    not_before_ns: int | None
    compute_ns: int
    end_ns: int
    after: tuple[int, ...]
    writes: Pairs
    jobs: tuple[Job, ...]


@dataclass(frozen=True, slots=True)
class Schedule:
    """All copies of a run, or of a part of it."""

    header: Header
    steps: Sequence[Step]

    @property
    def bytes(self) -> int:
        """Moved by all jobs together, on this rank."""
        return sum(job.bytes for step in self.steps for job in step.jobs)

    @property
    def num_jobs(self) -> int:
        """Jobs of all steps."""
        return sum(len(step.jobs) for step in self.steps)
