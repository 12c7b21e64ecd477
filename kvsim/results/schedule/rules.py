"""What must hold of each record of a schedule, whatever the others copy: ranges, lengths, numbers that rise."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NoReturn

from kvsim.results.schedule.records import DTYPE_BYTES, Header, Job, Layout, Pairs, Side, Step

MOST = 2**63 - 1  # times, bytes, contents and numbers


class BrokenRuleError(Exception):
    """A record cannot be: field, value and what was expected. Whoever knows the place puts it in front."""


class Rules:
    """Takes the steps of one schedule in order and objects to the first that cannot be.

    Args:
        header: checked at once.

    Raises:
        BrokenRuleError: here and in `take`.
    """

    def __init__(self, header: Header) -> None:
        _check_header(header)
        self._header = header
        self._jobs: set[int] = set()
        self._last_job = self._last_step = -1
        self._last_start_ns = 0
        self._most: dict[Side, int] = {"gpu": header.gpu_blocks - 1, "host": header.host_blocks - 1, "files": MOST}

    def take(self, step: Step) -> None:
        """The next step."""
        if not self._last_step < step.step <= MOST:
            _fail("step", step.step, f"a number above {self._last_step}, that of the step before")
        self._last_step = step.step
        _in_range("start_ns", step.start_ns, self._last_start_ns, MOST, "steps start one after another")
        self._last_start_ns = step.start_ns
        if step.not_before_ns is not None:
            _in_range("not_before_ns", step.not_before_ns, 0, step.start_ns, "not later than start_ns")
        _in_range("compute_ns", step.compute_ns, 0, MOST)
        _in_range("end_ns", step.end_ns, step.start_ns, MOST, "not before start_ns")
        self._pairs("writes", step.writes, "gpu")
        for job in step.jobs:
            try:
                self._job(job)
            except BrokenRuleError as error:
                raise BrokenRuleError(f"job {job.job}: {error}") from None
        self._known("after", step.after)

    def _job(self, job: Job) -> None:
        if not self._last_job < job.job <= MOST:
            _fail("job", job.job, f"a number above {self._last_job}, that of the job before")
        count = len(job.source)
        if not count:
            _fail("source", "empty", "one block or more")
        for name, found in (("destination", job.destination), ("contents", job.contents)):
            if len(found) != count:
                _fail(name, f"of length {len(found)}", f"{count} as in source")
        _ids("source", job.source, self._most[job.source_side])
        _ids("destination", job.destination, self._most[job.destination_side])
        _ids("contents", job.contents, MOST)
        if len(set(job.destination)) < count:
            twice = next(block for i, block in enumerate(job.destination) if block in job.destination[:i])
            _fail("destination", f"{twice} twice", "distinct ids")
        self._known("after", job.after)
        expected = count * self._header.layout.block_bytes
        if job.bytes != expected:
            _fail("bytes", job.bytes, f"{expected} ({count} blocks of {self._header.layout.block_bytes} bytes)")
        _in_range("submitted_ns", job.submitted_ns, 0, MOST)
        started = job.submitted_ns
        if job.started_ns is not None:
            _in_range("started_ns", job.started_ns, started, MOST, "not before submitted_ns")
            started = job.started_ns
        _in_range("finished_ns", job.finished_ns, started, MOST, "not before it was started")
        self._last_job = job.job
        self._jobs.add(job.job)

    def _known(self, name: str, jobs: Sequence[int]) -> None:
        for place, job in enumerate(jobs):
            if job not in self._jobs:
                _fail(f"{name}[{place}]", job, "the number of an earlier job")

    def _pairs(self, name: str, pairs: Pairs, side: Side) -> None:
        check_pairs(name, pairs, self._most[side])


def check_pairs(name: str, pairs: Pairs, most: int) -> None:
    """Raise BrokenRuleError unless ids are distinct and from 0 to ``most``, contents not negative."""
    flat = tuple(chain.from_iterable(pairs))
    ids = flat[::2]
    _ids(name, ids, most)
    _ids(name, flat[1::2], MOST)
    if len(set(ids)) < len(ids):
        twice = next(block for i, block in enumerate(ids) if block in ids[:i])
        _fail(name, f"{twice} twice", "distinct ids")


def layout_bytes(layout: Layout) -> tuple[int, int]:
    """Pieces of a block and bytes of a piece, as kind, layers, heads and tokens give them."""
    latent = layout.block_tokens * layout.kv_heads * layout.head_size * DTYPE_BYTES[layout.dtype]
    if layout.kind == "mla":
        whole = layout.layers * latent
        return (1, whole) if layout.pieces == 1 else (layout.layers, latent)
    if layout.kind == "cross_layer":
        return 1, 2 * layout.layers * latent
    return (layout.layers, 2 * latent) if layout.kind == "per_layer_kv" else (2 * layout.layers, latent)


def _check_header(header: Header) -> None:
    layout = header.layout
    for name in ("layers", "kv_heads", "head_size", "block_tokens", "pieces", "piece_bytes"):
        _in_range(f"layout.{name}", getattr(layout, name), 1, 2**40)
    if layout.dtype not in DTYPE_BYTES:
        _fail("layout.dtype", layout.dtype, f"one of {', '.join(DTYPE_BYTES)}")
    pieces, piece_bytes = layout_bytes(layout)
    if layout.pieces != pieces:
        _fail("layout.pieces", layout.pieces, f"{pieces} with {layout.kind} and {layout.layers} layers")
    if layout.piece_bytes != piece_bytes:
        _fail("layout.piece_bytes", layout.piece_bytes, f"{piece_bytes}, as layers, heads, tokens and dtype give it")
    _in_range("gpu_blocks", header.gpu_blocks, 1, 2**40)
    _in_range("host_blocks", header.host_blocks, 0, 2**40)
    _in_range("tensor_parallel_size", header.tensor_parallel_size, 1, 2**16)
    _in_range("rank", header.rank, 0, header.tensor_parallel_size - 1)
    if header.initial is not None:
        check_pairs("initial.gpu", header.initial.gpu, header.gpu_blocks - 1)
        check_pairs("initial.host", header.initial.host, header.host_blocks - 1)
        check_pairs("initial.files", header.initial.files, MOST)


def _ids(name: str, ids: Sequence[int], most: int) -> None:
    if ids and not (min(ids) >= 0 and max(ids) <= most):
        place = next(i for i, each in enumerate(ids) if not 0 <= each <= most)
        _fail(f"{name}[{place}]", ids[place], f"0 to {most}")


def _in_range(name: str, value: int, low: int, high: int, why: str = "") -> None:
    if not low <= value <= high:
        _fail(name, value, f"{low} to {high}{f' ({why})' if why else ''}")


def _fail(name: str, value: object, expected: str) -> NoReturn:
    raise BrokenRuleError(f"{name} is {value}, expected {expected}")
