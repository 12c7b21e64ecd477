"""Copies of connector jobs over a timed link."""

from __future__ import annotations

from collections.abc import Callable

from kvsim.compute import ComputeStream
from kvsim.connectors.base import CopyJob
from kvsim.hardware import CopyCost, DuplexLink, LinkDirection, Transfer

CopyTime = Callable[[CopyJob, LinkDirection], CopyCost]


class LinkCopier:
    """Loads go host to device, stores device to host, each direction first in first out (one stream each).

    Args:
        copy_time: what a job costs on the link.
        block_bytes: of one GPU block per direction, summed over all TP ranks.
        behind: loads wait for the forward pass on this stream that is launched in the step that submits them.
    """

    def __init__(
        self,
        link: DuplexLink,
        copy_time: CopyTime,
        block_bytes: dict[LinkDirection, int],
        behind: ComputeStream | None = None,
    ) -> None:
        self._link, self._copy_time, self._block_bytes, self._behind = link, copy_time, block_bytes, behind
        self._transfers: dict[CopyJob, Transfer | None] = {}  # None = not on the link so far

    def submit(self, job: CopyJob) -> None:
        """Queue the copy behind those of its direction."""
        self._transfers[job] = None
        if self._behind is not None and job.direction == "load":
            self._behind.after_launched(lambda: self._launch(job))
        else:
            self._launch(job)

    def _launch(self, job: CopyJob) -> None:
        if job not in self._transfers:
            return  # closed meanwhile
        direction: LinkDirection = "h2d" if job.direction == "load" else "d2h"
        blocks = len(job.gpu_blocks)
        cost = self._copy_time(job, direction)
        transfer = self._transfers[job] = self._link.submit(direction, cost, blocks * self._block_bytes[direction])
        transfer.job = job

    def close(self) -> None:
        """Its engine is gone: what is not on the link so far never will be."""
        self._transfers = {}

    def flush(self, job: CopyJob) -> None:
        """The link cannot hurry: the engine waits."""

    def is_done(self, job: CopyJob) -> bool:
        """Whether the last byte has arrived."""
        transfer = self._transfers[job]
        return transfer is not None and transfer.is_done

    def transfer(self, job: CopyJob) -> Transfer | None:
        """What it is on the link, until it is forgotten; None = not there so far."""
        return self._transfers.get(job)

    def forget(self, job: CopyJob) -> None:
        """The job was reported."""
        del self._transfers[job]
