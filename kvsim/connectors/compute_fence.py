"""Copies that wait for the GPU: with steps in flight, what is submitted now may have to follow a forward pass."""

from __future__ import annotations

from collections import deque

from kvsim.clock import Clock
from kvsim.connectors.base import Copier, CopyJob, Direction

# Which directions wait for the compute stream: see `FencedCopier`.
COPIES_WAIT: frozenset[Direction] = frozenset({"load", "store"})
STORES_WAIT: frozenset[Direction] = frozenset({"store"})


class LaunchQueue:
    """Forward passes in flight, one after another; ``free_at_ns`` is when the last one launched ends.

    The end of a pass is known when it is launched: nothing slows it down (`kvsim.compute.ComputeStream` can be slowed,
    but has one pass at a time).
    """

    def __init__(self) -> None:
        self.free_at_ns = 0

    def launch(self, now_ns: int, duration_ns: int) -> int:
        """Queue a forward pass; the instant at which it ends."""
        self.free_at_ns = max(self.free_at_ns, now_ns) + duration_ns
        return self.free_at_ns


class FencedCopier:
    """Holds copies back until every forward pass that was launched before them is over.

    Rules: vLLM 0.33.0 v1/kv_offload/cpu/gpu_worker.py (OffloadingConnector: a transfer of either direction waits for
    the compute stream), v1/simple_kv_offload/worker.py (stores wait, loads do not).

    Args:
        copier: what moves the bytes.
        fenced: the directions that wait.
    """

    def __init__(self, copier: Copier, clock: Clock, compute: LaunchQueue, fenced: frozenset[Direction]) -> None:
        self._copier, self._clock, self._compute, self._fenced = copier, clock, compute, fenced
        self._held: deque[CopyJob] = deque()  # in order of submission, which is that of their fences

    def submit(self, job: CopyJob) -> None:
        """Submit it now, or when the compute stream has come so far."""
        wait_ns = self._compute.free_at_ns - self._clock.now
        if job.direction not in self._fenced or (wait_ns <= 0 and not self._held):
            self._copier.submit(job)
            return
        self._held.append(job)
        passed = self._clock.at(max(wait_ns, 0), priority=1)  # as early as the end of a copy
        assert passed.callbacks is not None
        passed.callbacks.append(lambda _event: self._copier.submit(self._held.popleft()))

    def flush(self, job: CopyJob) -> None:
        """See `Copier`; a copy that is held back cannot hurry."""
        if job not in self._held:
            self._copier.flush(job)

    def is_done(self, job: CopyJob) -> bool:
        """Whether it has been submitted and is complete."""
        return job not in self._held and self._copier.is_done(job)

    def forget(self, job: CopyJob) -> None:
        """See `Copier`."""
        self._copier.forget(job)
