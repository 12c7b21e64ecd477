"""Copies of connector jobs over a timed link."""

from __future__ import annotations

from collections.abc import Callable

from kvsim.connectors.base import CopyJob
from kvsim.hardware import DuplexLink, LinkDirection, Transfer

CopyTime = Callable[[CopyJob, LinkDirection], int]  # ns alone on the link


class LinkCopier:
    """Loads go host to device, stores device to host, each direction first in first out (one stream each).

    Args:
        copy_ns: time of a job alone on the link, submission included.
        block_bytes: of one GPU block per direction, summed over all TP ranks.
    """

    def __init__(self, link: DuplexLink, copy_ns: CopyTime, block_bytes: dict[LinkDirection, int]) -> None:
        self._link, self._copy_ns, self._block_bytes = link, copy_ns, block_bytes
        self._transfers: dict[CopyJob, Transfer] = {}

    def submit(self, job: CopyJob) -> None:
        """Queue the copy behind those of its direction."""
        direction: LinkDirection = "h2d" if job.direction == "load" else "d2h"
        blocks = len(job.gpu_blocks)
        solo_ns = self._copy_ns(job, direction)
        self._transfers[job] = self._link.submit(direction, solo_ns, blocks * self._block_bytes[direction])

    def flush(self, job: CopyJob) -> None:
        """The link cannot hurry: the engine waits."""

    def is_done(self, job: CopyJob) -> bool:
        """Whether the last byte has arrived."""
        return self._transfers[job].is_done

    def forget(self, job: CopyJob) -> None:
        """The job was reported."""
        del self._transfers[job]
