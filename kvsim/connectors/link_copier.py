"""Copies of connector jobs over a timed link."""

from __future__ import annotations

from collections.abc import Callable

from kvsim.connectors.base import CopyJob
from kvsim.hardware import CopyCost, DuplexLink, LinkDirection, Transfer

CopyTime = Callable[[CopyJob, LinkDirection], CopyCost]


class LinkCopier:
    """Loads go host to device, stores device to host, each direction first in first out (one stream each).

    Args:
        copy_time: what a job costs on the link.
        block_bytes: of one GPU block per direction, summed over all TP ranks.
    """

    def __init__(self, link: DuplexLink, copy_time: CopyTime, block_bytes: dict[LinkDirection, int]) -> None:
        self._link, self._copy_time, self._block_bytes = link, copy_time, block_bytes
        self._transfers: dict[CopyJob, Transfer] = {}

    def submit(self, job: CopyJob) -> None:
        """Queue the copy behind those of its direction."""
        direction: LinkDirection = "h2d" if job.direction == "load" else "d2h"
        blocks = len(job.gpu_blocks)
        cost = self._copy_time(job, direction)
        self._transfers[job] = self._link.submit(direction, cost, blocks * self._block_bytes[direction])

    def flush(self, job: CopyJob) -> None:
        """The link cannot hurry: the engine waits."""

    def is_done(self, job: CopyJob) -> bool:
        """Whether the last byte has arrived."""
        return self._transfers[job].is_done

    def forget(self, job: CopyJob) -> None:
        """The job was reported."""
        del self._transfers[job]
