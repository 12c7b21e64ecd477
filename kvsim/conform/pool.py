"""Work in processes whose hash seed is fixed: the order of a set of strings depends on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from typing import Any, TypeVar

T = TypeVar("T")
R = TypeVar("R")


def run_all(
    task: Callable[[T], R],
    jobs: Sequence[T],
    *,
    hash_seed: int,
    processes: int,
    initializer: Callable[..., object] | None = None,
    initargs: tuple[Any, ...] = (),
) -> Iterator[R]:
    """The result of each job, in the order of the jobs. The processes start afresh, with that PYTHONHASHSEED."""
    with (
        _hash_seed(hash_seed),
        ProcessPoolExecutor(
            max(1, min(processes, len(jobs))), get_context("spawn"), initializer=initializer, initargs=initargs
        ) as pool,
    ):
        futures = [pool.submit(task, job) for job in jobs]
        try:
            for future in futures:
                yield future.result()
        except BaseException:  # an interrupt, too: nobody waits for what is still running
            pool.shutdown(wait=False, cancel_futures=True)
            for child in active_children():
                child.terminate()
            raise


@contextmanager
def _hash_seed(value: int) -> Iterator[None]:
    """What child processes inherit; this process keeps its own."""
    before = os.environ.get("PYTHONHASHSEED")
    os.environ["PYTHONHASHSEED"] = str(value)
    try:
        yield
    finally:
        if before is None:
            del os.environ["PYTHONHASHSEED"]
        else:
            os.environ["PYTHONHASHSEED"] = before
