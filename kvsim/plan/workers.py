"""Processes that run tasks side by side, here or on a cluster, through joblib."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal, TypeVar

import joblib

from kvsim.errors import UserError

Backend = Literal["loky", "dask", "ray"]
BACKENDS: tuple[Backend, ...] = ("loky", "dask", "ray")
CONNECT_S = 10
A = TypeVar("A")
B = TypeVar("B")


class WorkerDied(Exception):
    """A process ended in the middle of a task."""


@dataclass(frozen=True, slots=True)
class Workers:
    """Processes that are ready to work (see `connected`).

    Attributes:
        jobs: how many at a time; -1 = as many as there are.
        options: of `joblib.parallel_config`.
        deaths: exceptions that say that a process has ended.
        are_children: whether they are processes of ours.
    """

    jobs: int
    options: dict[str, Any]
    deaths: tuple[type[BaseException], ...]
    are_children: bool = False

    def map(self, function: Callable[[A], B], tasks: Iterable[A]) -> Iterator[B]:
        """The function's results, as they are ready. As many tasks are taken as there are processes, then one by one.

        Raises:
            WorkerDied: one has; nobody knows in which of the tasks that have no result yet.
        """
        return self._map(function, tasks, self.jobs)

    def alone(self, function: Callable[[A], B], task: A) -> B:
        """The function's result for a task, while nothing else is run, and never in this process.

        Raises:
            WorkerDied: it was this task.
        """
        return next(self._map(function, [task], 2 if self.are_children else self.jobs))

    def _map(self, function: Callable[[A], B], tasks: Iterable[A], jobs: int) -> Iterator[B]:
        with joblib.parallel_config(**self.options):
            parallel = joblib.Parallel(
                n_jobs=jobs, batch_size=1, pre_dispatch="n_jobs", return_as="generator_unordered"
            )
        try:
            yield from parallel(joblib.delayed(function)(task) for task in tasks)
        except self.deaths as error:
            raise WorkerDied(str(error)) from None


@contextmanager
def connected(jobs: int | None = None, backend: Backend = "loky", address: str | None = None) -> Iterator[Workers]:
    """Processes that run tasks.

    Args:
        jobs: at a time; None = one per CPU, or all that a cluster has. 1 = in this process.
        backend: loky = processes of this machine.
        address: of the cluster's scheduler, such as tcp://host:8786; None lets ray look for one itself.

    Raises:
        UserError: these do not fit together, the backend's package is missing, or the cluster cannot be reached.
    """
    if jobs is not None and jobs < 1:
        raise UserError(f"jobs: expected at least 1, found {jobs}")
    if backend == "loky":
        if address is not None:
            raise UserError(f"address: {address}: expected backend dask or ray with it, found loky")
        number = jobs or joblib.cpu_count()
        yield Workers(number, {"backend": "loky"}, (BrokenExecutor,), are_children=number > 1)
    elif backend == "dask":
        with _dask(jobs, address) as workers:
            yield workers
    else:
        with _ray(jobs, address) as workers:
            yield workers


@contextmanager
def _dask(jobs: int | None, address: str | None) -> Iterator[Workers]:
    if address is None:
        raise UserError("backend: dask: expected the address of its scheduler with it, such as tcp://localhost:8786")
    if jobs is not None:
        raise UserError(f"jobs: {jobs}: expected none with backend dask: its workers are all used")
    distributed = _package("distributed", "dask", "pip install 'kvsim[cluster]'")
    try:
        client = distributed.Client(address, timeout=CONNECT_S, set_as_default=False)
    except (OSError, ValueError) as error:
        raise UserError(f"address: no dask scheduler at {address} ({' '.join(str(error).split())})") from None
    with client:
        if not client.ncores():
            raise UserError(f"address: the dask scheduler at {address} has no workers, expected at least one")
        yield Workers(-1, {"backend": "dask", "client": client}, (distributed.KilledWorker,))


@contextmanager
def _ray(jobs: int | None, address: str | None) -> Iterator[Workers]:
    ray = _package("ray", "ray", "pip install ray")
    try:
        ray.init(address=address or "auto", log_to_driver=False)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(f"address: no ray cluster at {address or 'auto'} ({' '.join(str(error).split())})") from None
    import_module("ray.util.joblib").register_ray()
    try:
        yield Workers(jobs or -1, {"backend": "ray"}, (ray.exceptions.RayError,))
    finally:
        ray.shutdown()


def _package(name: str, backend: str, install: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        raise UserError(f"backend: {backend}: the package {name} is missing: {install}") from None
