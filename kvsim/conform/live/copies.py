"""Copies that take a fixed number of steps, in the place of the copy engines of vLLM's connectors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

Log = list[list[Any]]


class StepClock:
    """The number of the step being executed. One for the whole process: vLLM makes some objects by itself."""

    step = 0


CLOCK = StepClock()


class Failures:
    """Loads of which single blocks do not arrive: [number of the load, place among its blocks].

    vLLM's own workers assert that copies succeed. Here they do, as far as the connector knows, and the blocks are
    reported to the scheduler as other connectors report them.
    """

    def __init__(self, planned: Sequence[Sequence[int]]) -> None:
        self._planned = planned
        self.num_loads = 0
        self._pending: list[tuple[Callable[[], bool], set[int]]] = []

    def on_load(self, blocks: Sequence[int], is_done: Callable[[], bool]) -> None:
        """A load into these GPU blocks has been submitted."""
        lost = {blocks[place % len(blocks)] for number, place in self._planned if number == self.num_loads}
        self.num_loads += 1
        if lost:
            self._pending.append((is_done, lost))

    def take(self) -> set[int]:
        """GPU blocks of the loads that are done now."""
        lost = set()
        for pair in [pair for pair in self._pending if pair[0]()]:
            self._pending.remove(pair)
            lost |= pair[1]
        return lost


class Lanes:
    """When a copy is ready: submitted in step s, in step s + delay, but not before the one ahead of it."""

    def __init__(self, load_delay: int, store_delay: int) -> None:
        self._delay = {"load": load_delay, "store": store_delay}
        self._last = {"load": -1, "store": -1}

    def submit(self, kind: str) -> int:
        """The step in which the copy submitted now will be ready."""
        ready = max(self._last[kind], CLOCK.step + self._delay[kind])
        self._last[kind] = ready
        return ready


class OffloadingCopies:
    """Stands in for the `worker` below OffloadingConnectorWorker.

    Args:
        result: makes vLLM's result of a job from its id.
        log: told of each copy, and of each wait for one.
    """

    def __init__(self, lanes: Lanes, result: Callable[[int], Any], log: Log, failures: Failures | None = None) -> None:
        self._lanes, self._result, self._log, self._failures = lanes, result, log, failures
        self._ready: dict[int, int] = {}  # job -> step

    def transfer_async(self, job_id: int, spec: tuple[Any, Any]) -> bool:
        """Releases before 0.33: the direction is told by the source's class."""
        source, destination = spec
        kind = "store" if type(source).__name__.startswith("GPU") else "load"
        return self._submit(job_id, kind, source, destination)

    def submit_store(self, job_id: int, source: Any, destination: Any) -> bool:
        """GPU to CPU."""
        return self._submit(job_id, "store", source, destination)

    def submit_load(self, job_id: int, source: Any, destination: Any, **_options: Any) -> bool:
        """CPU to GPU."""
        return self._submit(job_id, "load", source, destination)

    def _submit(self, job_id: int, kind: str, source: Any, destination: Any) -> bool:
        self._ready[job_id] = self._lanes.submit(kind)
        if kind == "load" and self._failures is not None:
            self._failures.on_load(_block_ids(destination) or [], lambda: job_id not in self._ready)
        self._log.append([kind, job_id, _block_ids(source), _block_ids(destination)])
        return True

    def wait(self, job_ids: Collection[int]) -> None:
        """Done at once."""
        for job_id in job_ids:
            if job_id in self._ready:
                self._ready[job_id] = CLOCK.step
                self._log.append(["wait", job_id])

    def get_finished(self) -> list[Any]:
        """Results of what is ready."""
        done = [job_id for job_id, ready in self._ready.items() if ready <= CLOCK.step]
        for job_id in done:
            del self._ready[job_id]
        return [self._result(job_id) for job_id in done]

    def shutdown(self) -> None:
        """Nothing to release."""


class ReadyAt:
    """Stands in for a CUDA event."""

    def __init__(self, step: int) -> None:
        self._step = step

    def query(self) -> bool:
        """Whether its step has come."""
        return self._step <= CLOCK.step

    def synchronize(self) -> None:
        """Done at once."""
        self._step = CLOCK.step

    def record(self, *_args: Any) -> None:
        """Steps need no marks."""

    def wait(self, *_args: Any) -> None:
        """Steps come in order anyway."""


class SimpleCopies:
    """Stands in for the copy back end below SimpleCPUOffloadWorker."""

    def __init__(self, lanes: Lanes, log: Log, failures: Failures | None = None) -> None:
        self._lanes, self._log, self._failures = lanes, log, failures

    def launch_copy(
        self,
        source: Sequence[int],
        destination: Sequence[int],
        is_store: bool,
        event_idx: int,
        events_list: list[Any],
        **_options: Any,
    ) -> None:
        """Start a copy and append its event."""
        kind = "store" if is_store else "load"
        event = ReadyAt(self._lanes.submit(kind))
        events_list.append((event_idx, event))
        if kind == "load" and self._failures is not None:
            self._failures.on_load(destination, event.query)
        self._log.append([kind, event_idx, list(source), list(destination)])

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_kwargs: None


def _block_ids(spec: Any) -> list[int] | None:
    ids = getattr(spec, "block_ids", None)
    if ids is None:
        ids = getattr(spec, "chunk_ids", None)
    return None if ids is None else [int(number) for number in ids]
