"""ThreadPool: which task a thread takes next."""

from __future__ import annotations

from collections.abc import Callable

from kvsim.tiers.device import IoDirection
from kvsim.tiers.thread_pool import FifoPool, Task, ThreadPool


class _Desk:
    """Starts of tasks in order, and a way to end them."""

    def __init__(self) -> None:
        self.started: list[str] = []
        self.ends: dict[str, Task] = {}

    def task(self, name: str) -> Callable[[Task], None]:
        """A task that stays until its end is called."""

        def start(release: Task) -> None:
            self.started.append(name)
            self.ends[name] = release

        return start


def _fill(pool: ThreadPool, desk: _Desk, names: str) -> None:
    ways: dict[str, IoDirection] = {"r": "read", "w": "write"}
    for number, name in enumerate(names):
        pool.enqueue(ways[name], desk.task(f"{name}{number}"))


def test_read_threads_take_reads_first_and_write_threads_writes() -> None:
    """With both queues full, each thread takes from its own; with its own empty it helps out."""
    pool, desk = ThreadPool(1, 1), _Desk()
    _fill(pool, desk, "ww" + "wwrr")  # both threads are writing
    assert desk.started == ["w0", "w1"]
    desk.ends["w0"]()  # the read thread
    assert desk.started[-1] == "r4"
    desk.ends["w1"]()  # the write thread
    assert desk.started[-1] == "w2"
    desk.ends["r4"]()
    assert desk.started[-1] == "r5"
    desk.ends["r5"]()
    assert desk.started[-1] == "w3"


def test_the_longest_idle_thread_wakes_first() -> None:
    """An idle write thread is woken for a read if it is its turn; later it prefers writes all the same."""
    pool, desk = ThreadPool(1, 1), _Desk()
    _fill(pool, desk, "w")  # by the read thread, first in line
    desk.ends["w0"]()  # now it stands behind the write thread
    _fill(pool, desk, "rrw")
    assert desk.started == ["w0", "r0", "r1"]
    desk.ends["r0"]()  # the write thread
    assert desk.started[-1] == "w2"


def test_one_queue_for_all() -> None:
    """An object store's threads take what comes first, read or write."""
    pool, desk = FifoPool(1), _Desk()
    _fill(pool, desk, "wwr")
    desk.ends["w0"]()
    assert desk.started == ["w0", "w1"]
