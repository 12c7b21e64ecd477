"""A storage device that several I/O streams share: reads, writes and their mix, in integer nanoseconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import Literal

from kvsim.clock import Clock
from kvsim.host_memory import FULL_PPM, HostMemory

WHOLE = 10**9  # the whole device; shares of it are in these parts, so that rounding stays below a nanosecond per second
NS = 10**9

IoDirection = Literal["read", "write"]


@dataclass(frozen=True, slots=True)
class IoCost:
    """What one direction of a device costs.

    Attributes:
        bytes_per_s: of the whole device.
        stream_bytes_per_s: that one thread or connection can reach.
        latency_ns: before the first byte of every chunk; it occupies the stream, not the device.
        iops: operations of ``op_bytes`` that the whole device takes per second; 0 = no limit.
        op_bytes: bytes of one operation; a chunk is at least one.
    """

    bytes_per_s: int
    stream_bytes_per_s: int
    latency_ns: int
    iops: int = 0
    op_bytes: int = 128 * 1024

    def device_ns(self, num_bytes: int) -> int:
        """Time of the whole device for one chunk."""
        moving = -(-num_bytes * NS // self.bytes_per_s)
        operations = -(-num_bytes // self.op_bytes)
        return max(moving, -(-operations * NS // self.iops) if self.iops else 0, 1)

    def alone_ns(self, num_bytes: int) -> int:
        """Time of one stream for one chunk when nobody else is there."""
        return self.latency_ns + max(self.device_ns(num_bytes), -(-num_bytes * NS // self.stream_bytes_per_s))


class Stream:
    """Chunks that one thread moves one after another. ``work``: what is left, in device nanoseconds times `WHOLE`."""

    __slots__ = ("cap", "chunk_bytes", "chunk_work", "num_chunks", "on_done", "part", "rate", "work")

    def __init__(
        self, num_chunks: int, chunk_bytes: int, device_ns: int, alone_ns: int, on_done: Callable[[], None]
    ) -> None:
        self.num_chunks, self.chunk_bytes, self.on_done = num_chunks, chunk_bytes, on_done
        self.chunk_work = device_ns * WHOLE
        self.work = num_chunks * self.chunk_work
        self.cap = max(device_ns * WHOLE // alone_ns, 1)
        self.part = 0  # of the device, in parts of WHOLE
        self.rate = 0  # what host memory leaves of it

    @property
    def bytes_per_s(self) -> int:
        """What it moves with its part of the device."""
        return self.chunk_bytes * self.part * NS // self.chunk_work


class StorageDevice:
    """Processor sharing with a cap per stream.

    Streams share the device's time evenly, whatever their direction: what reads take is missing to writes. A stream
    gets no more than it could use alone; what it leaves is for the others. While many streams are active the latency
    of one is hidden behind the transfers of others.

    Args:
        costs: of a chunk, per direction.
        on_change: called at each instant at which streams have finished, after their own callbacks.
        memory: host memory, through which every byte goes once; all streams are slowed alike where it is short.
    """

    def __init__(
        self,
        env: Clock,
        costs: dict[IoDirection, IoCost],
        on_change: Callable[[], None],
        memory: HostMemory | None = None,
    ) -> None:
        self._env, self._costs, self._on_change = env, costs, on_change
        self._memory = memory or HostMemory(None)
        self._memory_user = self._memory.join(self._advance, self._wake_at_next_end)
        self._active: list[Stream] = []
        self._updated_ns = 0
        self._plan = 0  # number of the latest wake-up; older ones are void
        self._used = 0  # device nanoseconds spent, times WHOLE

    def start(self, direction: IoDirection, num_chunks: int, chunk_bytes: int, on_done: Callable[[], None]) -> Stream:
        """One stream more, from now on; ``on_done`` is called when its last chunk has been moved."""
        cost = self._costs[direction]
        stream = Stream(num_chunks, chunk_bytes, cost.device_ns(chunk_bytes), cost.alone_ns(chunk_bytes), on_done)
        self._advance()
        self._active.append(stream)
        self._share()
        return stream

    def chunks_done(self, stream: Stream) -> int:
        """Chunks that this stream has moved by now."""
        self._advance()
        return stream.num_chunks - -(-max(stream.work, 0) // stream.chunk_work)

    def busy_ns(self) -> int:
        """Time that the whole device has been used for, up to now."""
        self._advance()
        return self._used // WHOLE

    def _advance(self) -> None:
        elapsed = self._env.now - self._updated_ns
        if elapsed:
            for stream in self._active:
                stream.work -= elapsed * stream.rate
                self._used += elapsed * stream.rate
            self._updated_ns = self._env.now

    def _share(self) -> None:
        """Water filling: the smallest caps first, each gets its cap or an even part of what is left."""
        left, waiting = WHOLE, len(self._active)
        for stream in sorted(self._active, key=attrgetter("cap")):
            stream.part = max(min(stream.cap, left // waiting), 1)
            left, waiting = left - stream.part, waiting - 1
        self._memory.demand({self._memory_user: sum(stream.bytes_per_s for stream in self._active)})
        self._wake_at_next_end()

    def _wake_at_next_end(self) -> None:
        for stream in self._active:
            stream.rate = max(stream.part * self._memory_user.share_ppm // FULL_PPM, 1)
        self._plan += 1
        if self._active:
            plan = self._plan
            delay = min(-(-max(stream.work, 0) // stream.rate) for stream in self._active)
            timeout = self._env.timeout(delay)
            assert timeout.callbacks is not None
            timeout.callbacks.append(lambda _event: self._on_wake(plan))

    def _on_wake(self, plan: int) -> None:
        if plan != self._plan:
            return  # the rates have changed since
        self._advance()
        done = [stream for stream in self._active if stream.work <= 0]
        self._active = [stream for stream in self._active if stream.work > 0]
        self._share()
        for stream in done:
            stream.on_done()
        self._on_change()
