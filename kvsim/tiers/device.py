"""A storage device that several I/O streams share: reads, writes and their mix, in integer nanoseconds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from heapq import heappop, heappush
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
    """Chunks that one thread moves one after another; over when its kind has been served up to ``end``."""

    __slots__ = ("end", "kind", "num_chunks", "number", "on_done")

    def __init__(self, kind: _Kind, num_chunks: int, number: int, on_done: Callable[[], None]) -> None:
        self.kind, self.num_chunks, self.number, self.on_done = kind, num_chunks, number, on_done
        self.end = kind.served + num_chunks * kind.chunk_work

    def __lt__(self, other: Stream) -> bool:
        return (self.end, self.number) < (other.end, other.number)


class _Kind:
    """Streams of one direction and chunk size, which all get the same part of the device.

    ``served``: what each of them would have got if it had been there from the beginning, in device nanoseconds times
    `WHOLE`.
    """

    __slots__ = ("cap", "chunk_bytes", "chunk_work", "direction", "part", "rate", "served", "streams")

    def __init__(self, direction: IoDirection, chunk_bytes: int, cost: IoCost) -> None:
        self.direction = direction
        device_ns = cost.device_ns(chunk_bytes)
        self.chunk_bytes, self.chunk_work = chunk_bytes, device_ns * WHOLE
        self.cap = max(self.chunk_work // cost.alone_ns(chunk_bytes), 1)
        self.served = 0
        self.part = 0  # of the device, for each stream, in parts of WHOLE
        self.rate = 0  # what host memory leaves of it
        self.streams: list[Stream] = []  # heap, next to end first

    @property
    def bytes_per_s(self) -> int:
        """What all of them move with their parts of the device."""
        return len(self.streams) * (self.chunk_bytes * self.part * NS // self.chunk_work)

    def next_end_ns(self) -> int:
        """Time until the next one ends."""
        return max(-(-(self.streams[0].end - self.served) // self.rate), 0)


class StorageDevice:
    """Processor sharing with a cap per stream.

    Streams share the device's time evenly, whatever their direction: what reads take is missing to writes. A stream
    gets no more than it could use alone; what it leaves is for the others. While many streams are active the latency
    of one is hidden behind the transfers of others. The cost of a change grows with kinds of streams, not with streams.

    Args:
        costs: of a chunk, per direction.
        on_change: called at each instant at which streams have finished, after their own callbacks.
        memory: host memory, through which every byte goes once; all streams are slowed alike where it is short.
        on_written: called instead where only writes have; None = so is on_change.
    """

    def __init__(
        self,
        env: Clock,
        costs: dict[IoDirection, IoCost],
        on_change: Callable[[], None],
        memory: HostMemory | None = None,
        on_written: Callable[[], None] | None = None,
    ) -> None:
        self._env, self._costs = env, costs
        self._on_change, self._on_written = on_change, on_written or on_change
        self._memory = memory or HostMemory(None)
        self._memory_user = self._memory.join(self._advance, self._wake_at_next_end)
        self._kinds: dict[tuple[IoDirection, int], _Kind] = {}
        self._by_cap: list[_Kind] = []
        self._num_streams = 0  # so far
        self._updated_ns = 0
        self._plan = 0  # number of the latest wake-up; older ones are void
        self._is_waking = False  # streams have ended, and those who are told may start others
        self._used = 0  # device nanoseconds spent, times WHOLE

    def start(self, direction: IoDirection, num_chunks: int, chunk_bytes: int, on_done: Callable[[], None]) -> Stream:
        """One stream more, from now on; ``on_done`` is called when its last chunk has been moved."""
        kind = self._kinds.get((direction, chunk_bytes))
        if kind is None:
            kind = self._kinds[direction, chunk_bytes] = _Kind(direction, chunk_bytes, self._costs[direction])
            self._by_cap = sorted(self._kinds.values(), key=attrgetter("cap"))
        self._advance()
        stream = Stream(kind, num_chunks, self._num_streams, on_done)
        self._num_streams += 1
        heappush(kind.streams, stream)
        if not self._is_waking:
            self._share()
        return stream

    def chunks_done(self, stream: Stream) -> int:
        """Chunks that this stream has moved by now."""
        self._advance()
        return stream.num_chunks - -(-max(stream.end - stream.kind.served, 0) // stream.kind.chunk_work)

    def busy_ns(self) -> int:
        """Time that the whole device has been used for, up to now."""
        self._advance()
        return self._used // WHOLE

    def _advance(self) -> None:
        elapsed = self._env.now - self._updated_ns
        if elapsed:
            for kind in self._by_cap:
                if kind.streams:
                    kind.served += elapsed * kind.rate
                    self._used += elapsed * kind.rate * len(kind.streams)
            self._updated_ns = self._env.now

    def _share(self) -> None:
        """Water filling: the smallest caps first, each gets its cap or an even part of what is left."""
        left, waiting = WHOLE, sum([len(kind.streams) for kind in self._by_cap])
        for kind in self._by_cap:
            if kind.streams:
                kind.part = max(min(kind.cap, left // waiting), 1)
                left, waiting = left - kind.part * len(kind.streams), waiting - len(kind.streams)
        if self._memory.bytes_per_s is not None:
            self._memory.demand({self._memory_user: sum([kind.bytes_per_s for kind in self._by_cap])})
        self._wake_at_next_end()

    def _wake_at_next_end(self) -> None:
        share_ppm, next_ns = self._memory_user.share_ppm, -1
        for kind in self._by_cap:
            if kind.streams:
                kind.rate = max(kind.part * share_ppm // FULL_PPM, 1)
                end_ns = kind.next_end_ns()
                next_ns = end_ns if next_ns < 0 else min(next_ns, end_ns)
        self._plan += 1
        if next_ns >= 0:
            self._env.alarm(next_ns, partial(self._on_wake, self._plan))

    def _on_wake(self, plan: int) -> None:
        if plan != self._plan:
            return  # the rates have changed since
        self._advance()
        done: list[Stream] = []
        for kind in self._by_cap:
            while kind.streams and kind.streams[0].end <= kind.served:
                done.append(heappop(kind.streams))
        self._is_waking = True
        for stream in sorted(done, key=attrgetter("number")) if len(done) > 1 else done:
            stream.on_done()
        self._is_waking = False
        self._share()
        only_written = done and all(stream.kind.direction == "write" for stream in done)
        (self._on_written if only_written else self._on_change)()
