"""The front of a cluster: turns arrive, the router says where they go, and hears what becomes of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import simpy

from kvsim.clock import ROUTE_PRIORITY, Clock
from kvsim.cluster.desk import Desk
from kvsim.cluster.event_mail import EventMail
from kvsim.cluster.members import Happening, Member, Members
from kvsim.cluster.routers.base import Router
from kvsim.cluster.views import Answer, Prompt, TurnView
from kvsim.reception import Reception
from kvsim.results.records import RequestRecord
from kvsim.trace.session import Session, Trace, Turn

Place = tuple[int, int, int]  # of a turn in its trace: session, stream, turn
Scope = Callable[[Session, Turn], int]


@dataclass(slots=True)
class _Arrival:
    place: Place
    session: Session
    stream: str
    turn: Turn
    ended: simpy.Event


@dataclass(slots=True)
class _Flight:
    """A turn that was sent to an instance."""

    view: TurnView
    instance: int
    entry: RequestRecord
    turn: Turn
    ended: simpy.Event


class Front:
    """Takes the turns of a trace and passes them on.

    Whatever arrives at one instant is routed together, in the order of the trace, when all steps that end at this
    instant have ended and before any instance decides its next step. So nothing depends on which of several instances
    happens to be simulated first (see `Desk`, too).

    Args:
        members: the instances, in the order of their names, which is that of the router's numbers.
        scope: of a turn's prompt (see `Prompt`).
        mail: KV events of the instances; empty if the router hears none.
        absent, happenings: see `Members`.
    """

    def __init__(
        self,
        clock: Clock,
        trace: Trace,
        reception: Reception,
        router: Router,
        members: Sequence[Member],
        scope: Scope,
        mail: EventMail,
        *,
        absent: Sequence[int] = (),
        happenings: Sequence[Happening] = (),
    ) -> None:
        self._clock, self._reception, self._scope, self._servers = clock, reception, scope, members
        self._desk = Desk(clock, router, mail)
        self.members = Members(clock, members, absent, happenings, self._desk.changed)
        self._places = {
            (session.name, stream): (number, place)
            for number, session in enumerate(trace.sessions)
            for place, (stream, _turns) in enumerate(session.streams)
        }
        self._inbox: list[_Arrival] = []
        self._in_flight: dict[str, _Flight] = {}  # by the request's id
        self._num_routed = 0

    def submit(self, session: Session, stream: str, index: int, turn: Turn) -> simpy.Event:
        """See `kvsim.door.Door.submit`."""
        ended = self._clock.event()
        place = (*self._places[session.name, stream], index)
        if not self._inbox:
            routing = self._clock.at(0, ROUTE_PRIORITY)
            assert routing.callbacks is not None
            routing.callbacks.append(lambda _event: self._route())
        self._inbox.append(_Arrival(place, session, stream, turn, ended))
        return ended

    def on_first_token(self, entry: RequestRecord) -> None:
        """A request has its first token now."""
        flight = self._in_flight[entry.request_id]
        self._desk.first_token(flight.view, flight.instance)

    # -- inside
    def _route(self) -> None:
        self._desk.tell()
        arrivals, self._inbox = sorted(self._inbox, key=lambda arrival: arrival.place), []
        for arrival in arrivals:
            self._send(arrival)

    def _send(self, arrival: _Arrival) -> None:
        among, session, turn = self.members.up, arrival.session, arrival.turn
        if not among:
            entry = self._reception.enter(session, arrival.stream, arrival.place[2], turn)
            self._reception.refuse(entry, "failed", self.members.why_none())
            arrival.ended.succeed()
            return
        prompt = Prompt(
            turn.chain.truncated(min(turn.input_tokens, turn.known_prompt_tokens)), self._scope(session, turn)
        )
        number, self._num_routed = self._num_routed, self._num_routed + 1
        view = TurnView(number, session.name, arrival.stream, self._clock.now, turn.input_tokens, prompt)
        chosen = self._desk.choose(view, among)
        ended = self._servers[chosen].submit(session, arrival.stream, arrival.place[2], turn)
        entry = self._reception.records[-1]
        self._in_flight[entry.request_id] = flight = _Flight(view, chosen, entry, turn, arrival.ended)
        self._desk.sent(view, chosen)
        assert ended.callbacks is not None
        ended.callbacks.append(lambda _event: self._on_end(flight))

    def _on_end(self, flight: _Flight) -> None:
        entry, view = flight.entry, flight.view
        del self._in_flight[entry.request_id]
        content = Prompt(flight.turn.chain, view.prompt.scope)
        answer = Answer(entry.status, entry.first_token_ns, self._clock.now, entry.output_tokens, content)
        self._desk.ended(view, flight.instance, answer)
        flight.ended.succeed()
