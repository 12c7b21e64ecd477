"""Work in processes whose hash seed is fixed: the order of a set of strings depends on it."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import active_children, get_context
from typing import Any, TypeVar

from kvsim.errors import UserError

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
) -> Generator[R, None, None]:
    """The result of each job, in the order of the jobs. The processes start afresh, with that PYTHONHASHSEED.

    Close the generator to stop early: what still runs is ended.

    Raises:
        UserError: a process was killed.
    """
    with (
        _hash_seed(hash_seed),
        ProcessPoolExecutor(
            max(1, min(processes, len(jobs))), get_context("spawn"), initializer=initializer, initargs=initargs
        ) as pool,
    ):
        others = set(active_children())
        try:
            futures = [pool.submit(task, job) for job in jobs]
            for future in futures:
                yield future.result()
        except BaseException as error:  # an interrupt or a consumer that leaves, too: nobody waits for what still runs
            pool.shutdown(wait=False, cancel_futures=True)
            for child in set(active_children()) - others:
                child.terminate()
            if isinstance(error, BrokenProcessPool):
                found = "a process was killed, most likely for want of memory"
                raise UserError(f"--jobs {processes}: {found}, expected a number that fits") from None
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
