"""Where the turns of one server come in: through its API servers, if their time counts, to an engine."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import simpy

from kvsim.clock import Clock
from kvsim.faults.clients import Clients
from kvsim.frontend import Frontend, Visit
from kvsim.handoff import Handoff, RemoteBlocks
from kvsim.reception import Reception
from kvsim.results.records import FaultTotals, RequestRecord
from kvsim.trace.session import Session, Turn

Refusal = tuple[str, str]  # status and reason
DIED, WAS_DOWN = "the engine died", "the engine was down"


@dataclass(eq=False, slots=True)
class Guest:
    """A turn, or its prefill or decode, that has come to a server.

    Attributes:
        number: of the turn in order of arrival.
        arrival_ns: what vLLM calls its arrival time: before it is tokenized.
        ended: fires when it is over, if it goes through a frontend.
        visit: there.
        served_by: the rank whose engine has it, and the request that it has become.
    """

    entry: RequestRecord
    number: int
    session: Session
    turn: Turn
    arrival_ns: int
    handoff: Handoff | None = None
    ended: simpy.Event | None = None
    visit: Visit | None = None
    served_by: tuple[Rank, Any] | None = None

    @property
    def max_tokens(self) -> int:
        """To generate. vLLM's proxies (nixl_integration/toy_proxy_server.py): a prefill makes one token."""
        is_prefill = self.handoff is not None and self.handoff.role == "prefill"
        return 1 if is_prefill else self.turn.output_tokens


class Rank(Protocol):
    """Who has a request in the end."""

    def abort(self, request: Any, reason: str) -> None:
        """Its client has gone."""
        ...


class Host(Protocol):
    """Whoever lets guests in: a server's only rank, or its load balancer."""

    @property
    def is_dead(self) -> bool:
        """Nobody is there."""
        ...

    def admit(self, guest: Guest) -> simpy.Event | Refusal:
        """To an engine, now: an event that fires, with the request, when it has ended; or why not."""
        ...

    def answer_to(self, request_id: str) -> RemoteBlocks | None:
        """See `kvsim.connectors.base.KVConnector.answer_to`."""
        ...


class Door:
    """Enters the turns that come to a server, and leads them to its engine.

    Args:
        clients: those who may give requests up.
        frontend: None = what comes before the engine takes no time.
        faults: counts those who gave up before an engine heard of them.
        name: of the server in a cluster.
    """

    def __init__(
        self,
        clock: Clock,
        reception: Reception,
        clients: Clients | None,
        host: Host,
        frontend: Frontend | None,
        faults: FaultTotals,
        name: str = "",
    ) -> None:
        self._clock, self._reception, self._clients, self._host = clock, reception, clients, host
        self._frontend, self._faults, self._name = frontend, faults, name
        self._inside: dict[Guest, None] = {}  # the frontend

    def submit(self, session: Session, stream: str, index: int, turn: Turn) -> simpy.Event:
        """One turn of a session arrives; the event fires when it has ended."""
        entry = self._reception.enter(session, stream, index, turn, instance=self._name)
        guest = Guest(entry, len(self._reception.records) - 1, session, turn, self._clock.now)
        started = self._start(guest)
        if isinstance(started, tuple):
            return self._reception.refuse(entry, *started)
        ended = self._reception.told(started)
        if self._clients is not None:
            self._clients.watch(guest.number, ended, partial(self._give_up, guest))
        return ended

    def serve(self, entry: RequestRecord, session: Session, turn: Turn, handoff: Handoff) -> simpy.Event | Refusal:
        """One part of a turn whose prefill and decode are apart arrives; whoever sends it keeps its record.

        Returns:
            An event that fires when it has ended, with the request, or with status and reason if it never reached an
            engine; or status and reason, if it is refused at once.
        """
        number = len(self._reception.records) - 1
        return self._start(Guest(entry, number, session, turn, self._clock.now, handoff))

    def lose(self) -> None:
        """The server has died."""
        if self._frontend is not None:
            self._frontend.lose()
            for guest in list(self._inside):
                self._turn_away(guest, "failed", DIED)

    def settle(self) -> None:
        """The simulation is over: whoever is still in the frontend will be there for ever."""
        for guest in self._inside:
            guest.entry.reason = "in the frontend"
            self._note_time(guest)

    # -- inside
    def _start(self, guest: Guest) -> simpy.Event | Refusal:
        if self._frontend is None:
            return self._host.admit(guest)
        if self._host.is_dead:
            return "failed", WAS_DOWN
        if guest.handoff is not None and guest.handoff.role == "prefill":
            guest.handoff.answer = self._host.answer_to(guest.entry.request_id)
        guest.ended = self._clock.event()
        self._inside[guest] = None
        guest.visit = self._frontend.enter(guest.turn.input_tokens, partial(self._is_through, guest))
        return guest.ended

    def _is_through(self, guest: Guest) -> None:
        del self._inside[guest]
        self._note_time(guest)
        started, ended = self._host.admit(guest), guest.ended
        assert ended is not None
        if isinstance(started, tuple):
            guest.entry.status, guest.entry.reason = started
            ended.succeed(started)
            return
        assert started.callbacks is not None

        def tell(event: simpy.Event) -> None:
            ended.succeed(event.value)

        started.callbacks.append(tell)

    def _give_up(self, guest: Guest, reason: str) -> None:
        """Its client has gone."""
        if guest.served_by is not None:
            rank, request = guest.served_by
            rank.abort(request, reason)
        elif guest in self._inside:
            assert self._frontend is not None
            assert guest.visit is not None
            self._frontend.leave(guest.visit)
            self._faults.client_aborts += 1
            self._turn_away(guest, "aborted", reason)

    def _turn_away(self, guest: Guest, status: str, reason: str) -> None:
        """It leaves the frontend, and no engine has heard of it."""
        del self._inside[guest]
        self._note_time(guest)
        guest.entry.status, guest.entry.reason, guest.entry.finish_ns = status, reason, self._clock.now
        assert guest.ended is not None
        guest.ended.succeed((status, reason))

    def _note_time(self, guest: Guest) -> None:
        spent_ns = self._clock.now - guest.arrival_ns
        if guest.handoff is not None and guest.handoff.role == "decode":
            guest.entry.decode_frontend_ns = spent_ns
        else:
            guest.entry.frontend_ns = spent_ns
