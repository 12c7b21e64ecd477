"""The front of a cluster whose prefill and decode are apart: every turn goes to one instance of each kind.

As vLLM's proxies do (tests/v1/kv_connector/nixl_integration/toy_proxy_server.py): first the prefill instance gets the
prompt with one token to generate, which is thrown away; with its answer, which says where the KV is, the decode
instance gets the same prompt. The client gets its first token from the decode instance.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import simpy

from kvsim.clock import ROUTE_PRIORITY, Clock
from kvsim.cluster.desk import Desk
from kvsim.cluster.members import Happening, Member, Members
from kvsim.cluster.views import Answer, News, Prompt, TurnView
from kvsim.handoff import Handoff, RemoteBlocks
from kvsim.reception import Reception
from kvsim.request import Request
from kvsim.results.records import RequestRecord
from kvsim.trace.session import Session, Trace, Turn

Place = tuple[int, int, int]  # of a turn in its trace: session, stream, turn
Scope = Callable[[Session, Turn], int]

_OF_PREFILL = (
    "local_hit_tokens", "external_hit_tokens", "secondary_hit_tokens", "load_wait_ns", "first_scheduled_ns",
    "frontend_ns",
)  # fmt: skip
"""Columns of a turn's record that tell of its prefill."""


@dataclass(eq=False, slots=True)
class _Journey:
    """A turn on its way through both pools.

    ``entry``: its record; ``part``: that of its prefill.
    """

    place: Place
    session: Session
    stream: str
    turn: Turn
    ended: simpy.Event
    number: int = -1
    entry: RequestRecord | None = None
    part: RequestRecord | None = None
    remote: RemoteBlocks | None = None
    decoder: tuple[TurnView, int] | None = None  # if it was chosen before the prefill
    at_once: bool = False  # the decode part did not wait for the prefill


@dataclass(eq=False, slots=True)
class Pool:
    """Instances of one role, and the router in front of them.

    Attributes:
        numbers: the instances.
        parts: records of what they did of each turn, by instance; of the prefill pool.
    """

    role: str
    numbers: Sequence[int]
    desk: Desk
    parts: dict[int, list[RequestRecord]] = field(default_factory=dict)
    inbox: list[_Journey] = field(default_factory=list)
    flights: dict[str, tuple[TurnView, int, RequestRecord]] = field(default_factory=dict)  # by the request's id


class Proxy:
    """Takes the turns of a trace and passes them on, twice. See `kvsim.cluster.front.Front`, which does it once.

    Args:
        prefill, decode: the pools.
        members: all instances, in the order of their numbers.
        scope: of a turn's prompt (see `Prompt`).
        pairs: the decode instance is chosen before the prefill, which has to know it.
        absent, happenings: see `Members`.
    """

    def __init__(
        self,
        clock: Clock,
        trace: Trace,
        reception: Reception,
        prefill: Pool,
        decode: Pool,
        members: Sequence[Member],
        scope: Scope,
        *,
        pairs: bool = False,
        absent: Sequence[int] = (),
        happenings: Sequence[Happening] = (),
    ) -> None:
        self._clock, self._reception, self._servers, self._scope = clock, reception, members, scope
        self._prefill, self._decode, self._pairs = prefill, decode, pairs
        self.members = Members(clock, members, absent, happenings, self._on_change)
        self._places = {
            (session.name, stream): (number, place)
            for number, session in enumerate(trace.sessions)
            for place, (stream, _turns) in enumerate(session.streams)
        }
        self._num_turns = 0

    def submit(self, session: Session, stream: str, index: int, turn: Turn) -> simpy.Event:
        """See `kvsim.door.Door.submit`."""
        place = (*self._places[session.name, stream], index)
        journey = _Journey(place, session, stream, turn, self._clock.event())
        self._drop(self._prefill, journey, self._send_to_prefill)
        return journey.ended

    def on_first_token(self, entry: RequestRecord) -> None:
        """A request has its first token now."""
        for pool in (self._prefill, self._decode):
            view, instance, own = pool.flights.get(entry.request_id, (None, -1, None))
            if own is entry and view is not None:
                pool.desk.first_token(view, instance)

    # -- inside
    def _on_change(self, news: News) -> None:
        for pool in (self._prefill, self._decode):
            if news.instance in pool.numbers:
                pool.desk.changed(news)

    def _drop(self, pool: Pool, journey: _Journey, send: Callable[[_Journey], None]) -> None:
        """Into the inbox of a pool, which is emptied when all steps that end at this instant have ended."""
        if not pool.inbox:
            routing = self._clock.at(0, ROUTE_PRIORITY)
            assert routing.callbacks is not None
            routing.callbacks.append(lambda _event: self._route(pool, send))
        pool.inbox.append(journey)

    def _route(self, pool: Pool, send: Callable[[_Journey], None]) -> None:
        pool.desk.tell()
        journeys, pool.inbox = sorted(pool.inbox, key=lambda journey: journey.place), []
        for journey in journeys:
            send(journey)

    def _choose(self, pool: Pool, journey: _Journey) -> tuple[TurnView, int] | None:
        among = [number for number in self.members.up if number in pool.numbers]
        if not among:
            return None
        session, turn = journey.session, journey.turn
        known = turn.chain.truncated(min(turn.input_tokens, turn.known_prompt_tokens))
        prompt = Prompt(known, self._scope(session, turn))
        view = TurnView(journey.number, session.name, journey.stream, self._clock.now, turn.input_tokens, prompt)
        return view, pool.desk.choose(view, among)

    def _send_to_prefill(self, journey: _Journey) -> None:
        session, turn, pool = journey.session, journey.turn, self._prefill
        entry = journey.entry = self._reception.enter(session, journey.stream, journey.place[2], turn)
        journey.number, self._num_turns = self._num_turns, self._num_turns + 1
        found = self._choose(pool, journey)
        if found is None:
            self._refuse(journey, "failed", self.members.why_none(pool.numbers, pool.role))
            return
        view, number = found
        server = self._servers[number]
        entry.prefill_instance = server.name
        part = journey.part = RequestRecord(
            entry.request_id, entry.session, entry.stream, entry.turn, self._clock.now, entry.prompt_tokens,
            tenant=entry.tenant, instance=server.name,
        )  # fmt: skip
        pool.parts.setdefault(number, []).append(part)
        handoff = Handoff("prefill")
        if self._pairs:
            self._decode.desk.tell()
            journey.decoder = self._choose(self._decode, journey)
            if journey.decoder is not None:
                handoff.target = self._servers[journey.decoder[1]].engine_id
        started = server.serve(part, session, turn, handoff)
        self._follow(pool, journey, view, number, part, started, self._prefilled)
        if handoff.answer is not None:
            # Mooncake's proxy (examples/disaggregated/mooncake_connector) does not wait for the prefill: the decode
            # instance waits for its KV.
            journey.remote, journey.at_once = handoff.answer, True
            self._drop(self._decode, journey, self._send_to_decode)

    def _prefilled(self, journey: _Journey, request: Request) -> None:
        part = self._note_prefill(journey)
        if journey.remote is not None:
            return  # it has been sent on
        if part.status != "finished":
            self._refuse(journey, part.status, f"prefill: {part.reason}")
            return
        assert request.handoff is not None
        journey.remote = request.handoff.answer
        assert journey.remote is not None or self._pairs, "an ended prefill keeps its blocks"
        self._drop(self._decode, journey, self._send_to_decode)

    @staticmethod
    def _note_prefill(journey: _Journey) -> RequestRecord:
        """What the turn's record says of its prefill; that one's own record."""
        entry, part = journey.entry, journey.part
        assert entry is not None
        assert part is not None
        for name in _OF_PREFILL:
            setattr(entry, name, getattr(part, name))
        return part

    def _send_to_decode(self, journey: _Journey) -> None:
        pool, entry = self._decode, journey.entry
        assert entry is not None
        found = journey.decoder or self._choose(pool, journey)
        if found is None:
            self._refuse(journey, "failed", self.members.why_none(pool.numbers, pool.role))
            return
        view, number = found
        server = self._servers[number]
        entry.instance = server.name
        started = server.serve(entry, journey.session, journey.turn, Handoff("decode", journey.remote))
        self._follow(pool, journey, view, number, entry, started, self._decoded)

    def _decoded(self, journey: _Journey, _request: Request) -> None:
        self._reception.ended()
        assert journey.entry is not None
        assert journey.part is not None
        entry, part = journey.entry, journey.part
        entry.preemptions += part.preemptions
        if journey.at_once:  # what both frontends did side by side counts once
            entry.decode_frontend_ns = max(entry.decode_frontend_ns - part.frontend_ns, 0)
            if entry.status == "failed" and part.status not in {"", "finished"}:
                entry.reason = f"{entry.reason}; prefill: {part.reason}"
        journey.ended.succeed()

    def _follow(
        self,
        pool: Pool,
        journey: _Journey,
        view: TurnView,
        number: int,
        record: RequestRecord,
        started: simpy.Event | tuple[str, str],
        then: Callable[[_Journey, Request], None],
    ) -> None:
        """A part has gone to an instance, or was refused there."""
        pool.desk.sent(view, number)
        if isinstance(started, tuple):
            record.status, record.reason = started
            self._tell_end(pool, journey, view, number, record)
            self._refuse(journey, *started)
            return
        pool.flights[record.request_id] = (view, number, record)

        def end(event: simpy.Event) -> None:
            del pool.flights[record.request_id]
            self._tell_end(pool, journey, view, number, record)
            outcome: Any = event.value
            if not isinstance(outcome, tuple):
                then(journey, outcome)
                return
            # It never reached the engine.
            if pool is self._prefill:
                self._note_prefill(journey)
                if journey.remote is not None:
                    return  # it has been sent on
            self._refuse(journey, *outcome)

        assert started.callbacks is not None
        started.callbacks.append(end)

    def _tell_end(self, pool: Pool, journey: _Journey, view: TurnView, number: int, record: RequestRecord) -> None:
        content = Prompt(journey.turn.chain, view.prompt.scope) if pool is self._decode else view.prompt
        answer = Answer(record.status, record.first_token_ns, self._clock.now, record.output_tokens, content)
        pool.desk.ended(view, number, answer)

    def _refuse(self, journey: _Journey, status: str, reason: str) -> None:
        assert journey.entry is not None
        self._reception.refuse(journey.entry, status, reason)
        journey.ended.succeed()
