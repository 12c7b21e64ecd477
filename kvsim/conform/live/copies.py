"""Copies that take a fixed number of steps, in the place of the copy engines of vLLM's connectors."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

Log = list[list[Any]]


class StepClock:
    """The number of the step being executed. One for the whole process: vLLM makes some objects by itself."""

    step = 0


CLOCK = StepClock()


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

    def __init__(self, lanes: Lanes, result: Callable[[int], Any], log: Log) -> None:
        self._lanes, self._result, self._log = lanes, result, log
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

    def __init__(self, lanes: Lanes, log: Log) -> None:
        self._lanes, self._log = lanes, log

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
        events_list.append((event_idx, ReadyAt(self._lanes.submit(kind))))
        self._log.append([kind, event_idx, list(source), list(destination)])

    def __getattr__(self, name: str) -> Any:
        return lambda *_args, **_kwargs: None


def _block_ids(spec: Any) -> list[int] | None:
    ids = getattr(spec, "block_ids", None)
    if ids is None:
        ids = getattr(spec, "chunk_ids", None)
    return None if ids is None else [int(number) for number in ids]
