"""Two groups of I/O threads over two queues, as in vLLM's file system tier."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kvsim.tiers.device import IoDirection

Task = Callable[[], None]


class ThreadPool:
    """Read threads take reads first, write threads writes first; either helps out when its own queue is empty.

    A task is started when a thread takes it and tells the pool when it is over (`release`). Idle threads are woken in
    the order in which they fell asleep, whatever their group, as Python's condition variables do it.
    Rule: vLLM 0.33.0 v1/kv_offload/tiering/fs/thread_pool.py.
    """

    def __init__(self, num_read_threads: int, num_write_threads: int) -> None:
        self.num_threads = num_read_threads + num_write_threads
        self._queues: dict[IoDirection, deque[Callable[[Task], None]]] = {"read": deque(), "write": deque()}
        readers: list[IoDirection] = ["read"] * num_read_threads
        writers: list[IoDirection] = ["write"] * num_write_threads
        self._idle = deque(readers + writers)

    def enqueue(self, direction: IoDirection, task: Callable[[Task], None]) -> None:
        """``task`` is called when a thread takes it, with what it must call when it is over."""
        if self._idle:
            self._take(self._idle.popleft(), task)
        else:
            self._queues[direction].append(task)

    def _take(self, thread: IoDirection, task: Callable[[Task], None]) -> None:
        task(lambda: self._next(thread))

    def _next(self, thread: IoDirection) -> None:
        own = self._queues[thread]
        queue = own or self._queues["write" if thread == "read" else "read"]
        if queue:
            self._take(thread, queue.popleft())
        else:
            self._idle.append(thread)


class FifoPool(ThreadPool):
    """Threads that take whatever comes first, as the executor under NIXL's object store plugin."""

    def __init__(self, num_threads: int) -> None:
        super().__init__(num_threads, 0)

    def enqueue(self, direction: IoDirection, task: Callable[[Task], None]) -> None:
        """One queue for both directions."""
        super().enqueue("read", task)
