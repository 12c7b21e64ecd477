"""Where the turns of a trace come in: each is entered with a record, whoever is going to serve it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import simpy

from kvsim.clock import Clock
from kvsim.results.records import RequestRecord
from kvsim.trace.session import Session, Turn, turn_name


def name_of_turn(request_id: str) -> str:
    """The turn (see `turn_name`) that a request of this id is."""
    return request_id.partition(":")[2]


class Reception:
    """The records of all requests, in order of arrival, and the tenants that their sessions belong to.

    Args:
        records: grows.
        on_ended: called once for every request that has ended, whichever way.
        tenants: their names; none = all sessions are of one.
        tenant_of: number of the tenant of each session, by its name.
    """

    def __init__(
        self,
        clock: Clock,
        records: list[RequestRecord],
        on_ended: Callable[[], None],
        tenants: Sequence[str] = (),
        tenant_of: Mapping[str, int] | None = None,
    ) -> None:
        self._clock, self.records, self._on_ended = clock, records, on_ended
        self._tenants, self._tenant_of = tenants, tenant_of or {}

    @property
    def num_salts(self) -> int:
        """Tenants, who share no blocks; 0 = there are none."""
        return len(self._tenants)

    def salt_of(self, session: Session) -> int:
        """Number of a session's tenant; 0 without tenants."""
        return self._tenant_of[session.name] if self._tenants else 0

    def enter(
        self, session: Session, stream: str, index: int, turn: Turn, *, rank: int = 0, instance: str = ""
    ) -> RequestRecord:
        """A turn arrives now, to be served by this rank of this instance."""
        number = len(self.records)
        entry = RequestRecord(
            request_id=f"{number:06d}:{turn_name(session.name, stream, index)}",
            session=session.name,
            stream=stream,
            turn=index,
            arrival_ns=self._clock.now,
            prompt_tokens=turn.input_tokens,
            rank=rank,
            instance=instance,
        )
        if self._tenants:
            entry.tenant = self._tenants[self._tenant_of[session.name]]
        self.records.append(entry)
        return entry

    def refuse(self, entry: RequestRecord, status: str, reason: str) -> simpy.Event:
        """Nobody will serve it; the event has fired."""
        entry.status, entry.reason = status, reason
        self.ended()
        return self._clock.event().succeed()

    def ended(self) -> None:
        """A request has ended, and whoever counts them hears of it."""
        self._on_ended()

    def told(self, ended: simpy.Event) -> simpy.Event:
        """The same event; when it fires, a request has ended."""
        assert ended.callbacks is not None
        ended.callbacks.append(lambda _event: self.ended())
        return ended
