"""Copy streams between GPU and host, on SimPy, in integer nanoseconds."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from kvsim.clock import Clock
from kvsim.host_memory import HostMemory

LinkDirection = Literal["h2d", "d2h"]

NS = 10**9
SOLO_PPM = 1_000_000  # speed of a stream that has the link to itself, in parts per million


@dataclass(frozen=True, slots=True)
class CopyCost:
    """What a copy costs.

    Attributes:
        solo_ns: its time alone on the link, submission included.
        shared_ppm: its speed while the other direction is busy too, in parts per million of its speed alone.
        slowdown_ppm: a forward pass takes this many parts per million of its time while the copy runs.
        host_bytes: what it moves through host memory, for all ranks.
        host_bytes_per_s: host memory bandwidth that it takes when it runs alone.
    """

    solo_ns: int
    shared_ppm: int = SOLO_PPM
    slowdown_ppm: int = SOLO_PPM
    host_bytes: int = 0
    host_bytes_per_s: int = field(init=False)

    def __post_init__(self) -> None:
        per_s = self.host_bytes * NS // self.solo_ns if self.solo_ns else 0
        object.__setattr__(self, "host_bytes_per_s", per_s)


NO_COPY = CopyCost(0)


class Transfer:
    """A copy job on its way. ``work`` = nanoseconds alone on the link, times `SOLO_PPM`."""

    __slots__ = ("cost", "finished_ns", "is_done", "job", "num_bytes", "submitted_ns", "work")

    def __init__(self, cost: CopyCost, num_bytes: int, now_ns: int) -> None:
        self.work = cost.solo_ns * SOLO_PPM
        self.cost = cost
        self.num_bytes = num_bytes
        self.submitted_ns = now_ns
        self.finished_ns = -1
        self.is_done = False  # whether the last byte has arrived
        self.job: object = None  # what it is for, if whoever submitted it says so


class DuplexLink:
    """One copy stream per direction, each first in first out, over one link.

    While only one direction is busy it runs at full speed; while both are, each copy runs at its share. A transfer is a
    fluid: whenever the other direction starts or stops, or host memory grants another share, the rest of it is
    stretched or squeezed. All TP ranks move their shards at once over their own links, so one link stands for all of
    them; bytes are counted for all.

    Args:
        on_finish: called at each instant at which transfers have finished.
        on_slowdown: told by how much the running copies slow forward passes down, in parts per million of the time
            of an undisturbed one, whenever it changes.
        memory: host memory, if it has a limit.
        ranks: links that this one stands for.

    Attributes:
        num_slowing: copies that are queued and slow forward passes down while they run.
    """

    def __init__(
        self,
        env: Clock,
        on_finish: Callable[[], None] | None = None,
        on_slowdown: Callable[[int], None] | None = None,
        *,
        memory: HostMemory | None = None,
        ranks: int = 1,
    ) -> None:
        self._env, self.on_finish, self.on_slowdown = env, on_finish, on_slowdown
        self.listener: Callable[[LinkDirection, Transfer], None] | None = None  # hears of each copy that is over
        self._slowdown_ppm = SOLO_PPM
        self._memory = memory = memory or HostMemory(None)
        self._h2d_user = memory.join(self._advance, self._wake_at_next_finish, ranks)
        self._d2h_user = memory.join(self._advance, self._wake_at_next_finish, ranks)
        self._h2d: deque[Transfer] = deque()
        self._d2h: deque[Transfer] = deque()
        self._queues: dict[LinkDirection, deque[Transfer]] = {"h2d": self._h2d, "d2h": self._d2h}
        self._h2d_speed = self._d2h_speed = self._h2d_rate = self._d2h_rate = SOLO_PPM
        self.num_slowing = 0
        self._updated_ns = 0
        self._plan = 0  # number of the latest wake-up; older ones are void
        self.bytes: dict[LinkDirection, int] = {"h2d": 0, "d2h": 0}  # of finished transfers
        self._busy_ns: dict[LinkDirection, int] = {"h2d": 0, "d2h": 0}

    def submit(self, direction: LinkDirection, cost: CopyCost, num_bytes: int) -> Transfer:
        """Queue a copy behind those of its direction."""
        transfer = Transfer(cost, num_bytes, self._env.now)
        if cost.slowdown_ppm != SOLO_PPM:
            self.num_slowing += 1
        queue = self._queues[direction]
        if queue:
            queue.append(transfer)  # nothing changes before its turn comes
            return transfer
        self._advance()
        queue.append(transfer)
        self._heads_changed()
        return transfer

    def reset(self) -> None:
        """Nobody waits for what is queued any more: it is gone, and was not moved."""
        self._advance()
        for direction, queue in self._queues.items():
            if self.listener is not None:
                for transfer in queue:
                    self.listener(direction, transfer)
            queue.clear()
        self.num_slowing = 0
        self._heads_changed()

    def busy_ns(self, direction: LinkDirection) -> int:
        """Time during which this direction was moving bytes, up to now."""
        running = self._env.now - self._updated_ns if self._queues[direction] else 0
        return self._busy_ns[direction] + running

    @property
    def is_idle(self) -> bool:
        """Nothing queued in either direction."""
        return not self._h2d and not self._d2h

    def _advance(self) -> None:
        """Bring the heads of both queues up to now, at the rates that held since the last change."""
        now = self._env.now
        elapsed = now - self._updated_ns
        if elapsed:
            if self._h2d:
                self._h2d[0].work -= elapsed * self._h2d_rate
                self._busy_ns["h2d"] += elapsed
            if self._d2h:
                self._d2h[0].work -= elapsed * self._d2h_rate
                self._busy_ns["d2h"] += elapsed
            self._updated_ns = now

    def _retire(self) -> bool:
        retired = False
        for direction, queue in self._queues.items():
            while queue and queue[0].work <= 0:
                transfer = queue.popleft()
                transfer.finished_ns, transfer.is_done = self._env.now, True
                self.bytes[direction] += transfer.num_bytes
                if transfer.cost.slowdown_ppm != SOLO_PPM:
                    self.num_slowing -= 1
                if self.listener is not None:
                    self.listener(direction, transfer)
                retired = True
        return retired

    def _heads_changed(self) -> None:
        """Other copies than before are at the heads of the queues: see what follows."""
        h2d, d2h = self._h2d, self._d2h
        into, out = h2d[0].cost if h2d else NO_COPY, d2h[0].cost if d2h else NO_COPY
        # Speeds that the link gives them, in parts per million.
        self._h2d_speed, self._d2h_speed = (into.shared_ppm, out.shared_ppm) if h2d and d2h else (SOLO_PPM, SOLO_PPM)
        if self._memory.bytes_per_s is not None:
            self._memory.demand(
                {
                    self._h2d_user: into.host_bytes_per_s * self._h2d_speed // SOLO_PPM,
                    self._d2h_user: out.host_bytes_per_s * self._d2h_speed // SOLO_PPM,
                }
            )
        self._wake_at_next_finish()
        slowdown = max(into.slowdown_ppm, out.slowdown_ppm)
        if slowdown != self._slowdown_ppm:
            self._slowdown_ppm = slowdown
            if self.on_slowdown is not None:
                self.on_slowdown(slowdown)

    def _wake_at_next_finish(self) -> None:
        """From now on they go at what host memory leaves of their speeds."""
        self._plan += 1
        h2d, d2h = self._h2d, self._d2h
        next_ns = -1
        if h2d:
            rate = self._h2d_rate = self._h2d_speed * self._h2d_user.share_ppm // SOLO_PPM or 1
            next_ns = -(-h2d[0].work // rate)
        if d2h:
            rate = self._d2h_rate = self._d2h_speed * self._d2h_user.share_ppm // SOLO_PPM or 1
            end_ns = -(-d2h[0].work // rate)
            if not h2d or end_ns < next_ns:
                next_ns = end_ns
        if h2d or d2h:
            self._env.alarm(max(0, next_ns), partial(self._on_wake, self._plan))

    def _on_wake(self, plan: int) -> None:
        if plan != self._plan:
            return  # the rates have changed since
        self._advance()
        retired = self._retire()
        self._heads_changed()
        if retired and self.on_finish is not None:
            self.on_finish()
