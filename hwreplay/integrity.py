"""What every block must hold after a replay, and whether it does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

from hwreplay import pattern
from hwreplay.layout import Bytes, PagedMemory
from hwreplay.machine import Memory
from hwreplay.result import Integrity, WrongByte
from kvsim.results.schedule import Schedule, Side, in_order

_TOGETHER_BYTES = 64 * 2**20  # read at once
_NAMES: dict[Side, Literal["gpu", "host", "file"]] = {"gpu": "gpu", "host": "host", "files": "file"}


@dataclass(frozen=True, slots=True)
class Held:
    """What a block should hold, and which job brought it; None if a forward pass did.

    ``origin``: of what the tails of its pieces hold, as `pattern.ORIGINS` counts.
    """

    content: int
    job: int | None
    origin: int


@dataclass(slots=True)
class Expected:
    """What every block that anybody wrote holds at the end."""

    gpu: dict[int, Held] = field(default_factory=dict)
    host: dict[int, Held] = field(default_factory=dict)
    files: dict[int, Held] = field(default_factory=dict)

    def of(self, side: Side) -> dict[int, Held]:
        """The blocks of a side."""
        held: dict[int, Held] = getattr(self, side)
        return held


def expected_state(schedule: Schedule) -> Expected:
    """Both pools and all files after the last job, in the order of the steps.

    Every other order that the schedule allows ends the same: whoever touches a block that another one writes is ordered
    before or behind it (`kvsim.results.schedule.check`).
    """
    expected = Expected()
    for step in schedule.steps:
        for job in in_order(step):
            if job is None:  # which leaves the tails alone
                for block, content in step.writes:
                    expected.gpu[block] = Held(content, None, _origin(expected, "gpu", block))
                continue
            target = expected.of(job.destination_side)
            origins = [_origin(expected, job.source_side, block) for block in job.source]
            for block, content, origin in zip(job.destination, job.contents, origins, strict=True):
                target[block] = Held(content, job.job, origin)
    return expected


def _origin(expected: Expected, side: Side, block: int) -> int:
    held = expected.of(side).get(block)
    return pattern.ORIGINS[side] + block if held is None else held.origin


def verify(
    expected: Expected,
    gpu: tuple[Memory, PagedMemory],
    host: tuple[Memory, PagedMemory],
    read_file: Callable[[int], Bytes] | None,
    head: int,
    salt: int,
) -> Integrity:
    """Compare every byte that should have been written; stops at the first that is wrong.

    Args:
        expected: from `expected_state`.
        gpu: memory of that side and how its blocks lie.
        host: the same.
        read_file: the bytes of a file; None if there is no file tier.
        head: bytes of each piece that forward passes write.
        salt: number of the replay, as the patterns were written.
    """
    blocks = size = 0
    for side, found in _everything(expected, gpu, host, read_file):
        held = expected.of(side)
        for block, view in found:
            wrong = pattern.check_block(view, head, held[block].content, held[block].origin, salt)
            if wrong is not None:
                first = WrongByte(
                    job=held[block].job,
                    side=_NAMES[side],
                    block=block,
                    content=held[block].content,
                    offset=wrong.offset,
                    found=wrong.found,
                    expected=wrong.expected,
                )
                return Integrity(blocks, size, first)
            blocks += 1
            size += view.size
    return Integrity(blocks, size, None)


def _everything(
    expected: Expected,
    gpu: tuple[Memory, PagedMemory],
    host: tuple[Memory, PagedMemory],
    read_file: Callable[[int], Bytes] | None,
) -> Iterator[tuple[Side, Iterator[tuple[int, Bytes]]]]:
    yield "gpu", _blocks(*gpu, sorted(expected.gpu))
    yield "host", _blocks(*host, sorted(expected.host))
    if read_file is not None:
        pieces, piece_bytes = host[1].pieces, host[1].piece_bytes
        yield "files", ((each, read_file(each).reshape(pieces, piece_bytes)) for each in sorted(expected.files))


def _blocks(memory: Memory, paged: PagedMemory, blocks: list[int]) -> Iterator[tuple[int, Bytes]]:
    """Blocks as ``[pieces, piece_bytes]``, some at a time: what a device holds is fetched first."""
    together = max(1, _TOGETHER_BYTES // paged.block_bytes)
    for start in range(0, len(blocks), together):
        some = blocks[start : start + together]
        fetched = memory.blocks(paged, some)
        for place, block in enumerate(some):
            yield block, fetched[:, place]
