"""First contact between two engines: metadata is fetched and memory regions are made known, one engine at a time."""

from __future__ import annotations

from collections.abc import Callable

from kvsim.connectors.exchange import Exchange
from kvsim.results.records import NetworkTotals

DEAD_SERVER_NS = 5 * 10**9  # vLLM 0.33.0 nixl/base_worker.py (_nixl_handshake): RCVTIMEO 5000 ms

OnDone = Callable[[bool], None]


class Handshakes:
    """Of one engine with the others.

    vLLM 0.33.0 nixl/base_worker.py (_ensure_handshake): in the background, by one thread, so one after the other; all
    who need the same engine wait for the same handshake.

    Args:
        duration_ns: of one that succeeds, or that finds another engine than it expected.
    """

    def __init__(self, exchange: Exchange, duration_ns: int, totals: NetworkTotals) -> None:
        self._exchange, self._duration_ns, self._totals = exchange, duration_ns, totals
        self._known: set[str] = set()  # never iterated
        self._waiting: dict[str, list[OnDone]] = {}
        self._free_ns = 0  # when the thread is through with what it has

    def is_done(self, engine_id: str) -> bool:
        """Whether the engine is known."""
        return engine_id in self._known

    def forget(self, engine_id: str) -> None:
        """A transfer from it has failed: if it is not there any more, others have to find out by a handshake."""
        if self._exchange.find(engine_id) is None:
            self._known.discard(engine_id)

    def begin(self, engine_id: str, on_done: OnDone) -> None:
        """Get to know an engine; told once whether it went well."""
        if engine_id in self._waiting:
            self._waiting[engine_id].append(on_done)
            return
        self._waiting[engine_id] = [on_done]
        clock = self._exchange.clock
        takes_ns = DEAD_SERVER_NS if self._exchange.is_down(engine_id) else self._duration_ns
        self._free_ns = max(self._free_ns, clock.now) + takes_ns
        clock.alarm(self._free_ns - clock.now, lambda: self._end(engine_id))

    def _end(self, engine_id: str) -> None:
        ok = self._exchange.find(engine_id) is not None
        if ok:
            self._known.add(engine_id)
            self._totals.handshakes += 1
        else:
            self._totals.failed_handshakes += 1
        for on_done in self._waiting.pop(engine_id):
            on_done(ok)
