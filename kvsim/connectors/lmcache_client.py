"""An engine's view of an LMCache server: lookups, stores and loads, while the server is there and while it is not."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvsim.clock import Clock
from kvsim.hardware import Transfer
from kvsim.offload.lmcache_server import LMCacheServer
from kvsim.offload.server_health import Outage
from kvsim.request import Request

Op = Callable[[int], Transfer]  # so many chunks -> their copy, started


class Alarm:
    """Wakes the engine later."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.on_ring: Callable[[], None] = lambda: None

    def after(self, delay_ns: int) -> None:
        """Ring once, so much later."""
        event = self._clock.timeout(delay_ns)
        assert event.callbacks is not None
        event.callbacks.append(lambda _event: self.on_ring())


class NodeAlarm(Alarm):
    """Wakes all engines of a node: their server has changed."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.members: list[Alarm] = []
        self.on_ring = self.ring

    def ring(self) -> None:
        """Now."""
        for member in self.members:
            member.on_ring()


@dataclass(slots=True)
class Lookup:
    """Asked once; ready when its time has come and what it wants from L2 has been read."""

    chunks: int
    ready_ns: int
    fetch: list[int]
    reading: Transfer | None = None


class LMCacheClient:
    """Everything goes through here, so that restarts of the server take effect before anything that follows them.

    Engines of one node share it: their heartbeats are in step, so that all of them see the same server.

    While the server is gone nothing is answered, until it is back or the client has noticed (`Outage.answered_ns`);
    all of that has then failed. While the client knows that it is gone, nothing is asked: lookups find nothing, stores
    are dropped. From its return until the client has registered again, the server finds nothing and takes nothing.

    Args:
        lookup_ns: from asking to the answer.
        outages: in order of time.
        read_below: reads chunks from L2, if there is one.
        write_below: writes chunks to L2.
    """

    def __init__(
        self,
        clock: Clock,
        alarm: Alarm,
        server: LMCacheServer,
        *,
        lookup_ns: int,
        outages: Sequence[Outage] = (),
        read_below: Op | None = None,
        write_below: Op | None = None,
    ) -> None:
        self._clock, self._alarm, self.server, self._lookup_ns = clock, alarm, server, lookup_ns
        self._outages = list(outages)
        self._downs = [outage.restart.down_ns for outage in outages]
        self._restarted = 0  # outages that have taken effect
        self._read_below, self._write_below = read_below, write_below
        self._reading: list[Lookup] = []
        self._writing: list[tuple[Transfer, list[int]]] = []  # to L2
        self.num_lost = 0  # loads and stores that the server lost

    # -- the state of things
    def sync(self) -> int:
        """Apply what has happened up to now, which is returned."""
        now = self._clock.now
        while self._restarted < len(self._outages) and self._downs[self._restarted] <= now:
            restart = self._outages[self._restarted].restart
            self._collect(restart.down_ns)
            self.server.advance(restart.down_ns)
            self.server.restart(keep_cache=restart.keep_cache)
            self._reading, self._writing = [], []
            self._restarted += 1
        self._collect(now)
        self.server.advance(now)
        return now

    def _collect(self, until_ns: int) -> None:
        """Reads and writes of L2 that are over."""
        for lookup in [each for each in self._reading if _is_over(each.reading, until_ns)]:
            self._reading.remove(lookup)
            self.server.finish_write(lookup.fetch)
        while self._writing and _is_over(self._writing[0][0], until_ns):
            self.server.finish_write_below(self._writing.pop(0)[1])

    def outage(self, now: int) -> Outage | None:
        """The latest restart that has begun."""
        begun = bisect_right(self._downs, now)
        return self._outages[begun - 1] if begun else None

    def answers_at(self, now: int) -> int | None:
        """None: the server works for us. Otherwise it fails what is asked now, at the time given."""
        outage = self.outage(now)
        if outage is None or (outage.recovered_ns is not None and outage.recovered_ns <= now):
            return None
        return max(now, outage.answered_ns)

    # -- lookups
    def lookup(self, keys: Sequence[int], owner: Request) -> Lookup:
        """Ask; chunks that are found are locked until `unlock`."""
        now = self.sync()
        fails_ns = self.answers_at(now)
        if fails_ns is not None:
            found = Lookup(0, fails_ns, [])
        else:
            chunks, fetch = self.server.lookup(keys, owner)
            found = Lookup(chunks, now + self._lookup_ns, fetch)
            if fetch:
                assert self._read_below is not None
                found.reading = self._read_below(len(fetch))
                self._reading.append(found)
        if found.ready_ns > now:
            self._alarm.after(found.ready_ns - now)
        return found

    def is_ready(self, lookup: Lookup) -> bool:
        """Whether the answer is here."""
        now = self.sync()
        return lookup.ready_ns <= now and (lookup.reading is None or lookup.reading.is_done)

    def unlock(self, owner: Request) -> None:
        """What the lookup has locked is free again."""
        self.sync()
        self.server.unlock(owner)

    # -- copies
    def reserve(self, keys: Sequence[int]) -> list[int]:
        """Chunks that the server is going to take now."""
        self.sync()
        return self.server.reserve(keys)

    def stored(self, keys: Sequence[int]) -> None:
        """Their bytes have arrived: they can be found, and go on to L2."""
        self.sync()
        down = self.server.finish_write(keys)
        if down:
            assert self._write_below is not None
            self._writing.append((self._write_below(len(down)), down))

    def fate(self, submitted_ns: int, copy: Transfer) -> tuple[bool, bool]:
        """(over, lost) of a copy that was submitted to a working server."""
        now = self.sync()
        after = bisect_right(self._downs, submitted_ns)
        if after < len(self._downs) and self._downs[after] <= now:
            outage = self._outages[after]
            if not _is_over(copy, outage.restart.down_ns):
                if outage.answered_ns > now:
                    self._alarm.after(outage.answered_ns - now)
                return outage.answered_ns <= now, True
        return copy.is_done, False

    def wake_at(self, time_ns: int) -> None:
        """Something will be over then."""
        now = self._clock.now
        if time_ns > now:
            self._alarm.after(time_ns - now)


def _is_over(copy: Transfer | None, at_ns: int) -> bool:
    return copy is None or 0 <= copy.finished_ns <= at_ns
