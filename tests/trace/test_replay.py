"""Playing a trace: when each turn is sent."""

from __future__ import annotations

from dataclasses import replace

import simpy

from kvsim.chain import Chain, PrefixTree
from kvsim.clock import Clock
from kvsim.trace.replay import ReplayOptions, play
from kvsim.trace.session import Session, SubAgent, Trace, Turn

Log = list[tuple[int, str, str, int]]


def _turn(think: int = 0, *agents: SubAgent) -> Turn:
    return Turn(1, 1, Chain(), 0, 0, think_ns=think, subagents=agents)


def _agent(name: str, *thinks: int, blocking: bool = True) -> SubAgent:
    return SubAgent(name, blocking, tuple(_turn(think) for think in thinks))


def _play(
    *sessions: Session, options: ReplayOptions | None = None, response: int | dict[str, int] = 10
) -> tuple[Log, list[int]]:
    """Plays sessions with responses of a fixed length; returns who was sent when, and each session's end."""
    env = Clock()
    log: Log = []

    def submit(session: Session, stream: str, index: int, _turn: Turn) -> simpy.Event:
        log.append((env.now, session.name, stream, index))
        return env.timeout(response if isinstance(response, int) else response[stream])

    trace = Trace("t", "sessions", 1, sessions, True, (), PrefixTree())
    ends = [-1] * len(sessions)

    def over(place: int) -> None:
        ends[place] = env.now

    play(env, trace, submit, options, over)
    env.run()
    return log, ends


def test_turn_follows_the_response_and_its_think_time() -> None:
    """The next turn is sent its think time after the previous response ended."""
    log, ends = _play(Session("s", None, (_turn(), _turn(5), _turn(0))))
    assert log == [(0, "s", "", 0), (15, "s", "", 1), (25, "s", "", 2)]
    assert ends == [35]


def test_closed_loop_sessions_are_staggered_and_fixed_ones_are_not() -> None:
    """Session i of the closed loop starts at i intervals; a session with a start of its own keeps it."""
    sessions = [Session("a", None, (_turn(),)), Session("x", 3, (_turn(),)), Session("b", None, (_turn(),))]
    log, _ = _play(*sessions, options=ReplayOptions(session_interval_ns=100))
    assert log == [(0, "a", "", 0), (3, "x", "", 0), (100, "b", "", 0)]


def test_think_times_are_capped() -> None:
    """max_think_ns bounds what is waited."""
    log, _ = _play(Session("s", None, (_turn(), _turn(500))), options=ReplayOptions(max_think_ns=60))
    assert log[1] == (70, "s", "", 1)


def test_time_scale_stretches_starts_and_think_times_before_the_cap() -> None:
    """time_scale multiplies the trace's own times; the cap is on what is really waited."""
    session = Session("s", 100, (_turn(), _turn(20), _turn(7)))
    log, _ = _play(session, options=ReplayOptions(time_scale=2.0, max_think_ns=30))
    assert [time for time, *_ in log] == [200, 240, 264]


def test_parent_waits_for_its_subagents_and_its_think_time_at_once() -> None:
    """The think time contains the sub-agents' run: the longer of the two decides, they are not added."""
    agents = (_agent("a", 0, 4), _agent("b", 0))
    short, _ = _play(Session("s", None, (_turn(), _turn(3, *agents))))
    assert short == [
        (0, "s", "", 0),
        (10, "s", "a", 0),
        (10, "s", "b", 0),
        (24, "s", "a", 1),
        (34, "s", "", 1),
    ]
    long, _ = _play(Session("s", None, (_turn(), _turn(50, *agents))))
    assert long[-1] == (60, "s", "", 1)


def test_background_agents_delay_nobody_but_the_end_of_the_session() -> None:
    """A launched sub-agent runs beside the parent; the session is over when it is."""
    session = Session("s", None, (_turn(), _turn(3, _agent("bg", 0, 90, blocking=False))))
    log, ends = _play(session)
    assert log == [(0, "s", "", 0), (10, "s", "bg", 0), (13, "s", "", 1), (110, "s", "bg", 1)]
    assert ends == [120]


def test_agents_of_the_first_turn_start_with_the_session_and_trailing_ones_after_it() -> None:
    """Sub-agents before the first request start with the session, the last ones after its last response."""
    session = Session("s", None, (_turn(0, _agent("first", 0)),), (_agent("last", 0),))
    log, ends = _play(session)
    assert log == [(0, "s", "first", 0), (10, "s", "", 0), (20, "s", "last", 0)]
    assert ends == [30]


def test_session_waits_for_a_slot() -> None:
    """With max_concurrent_sessions the next session starts when one has ended completely."""
    sessions = [
        Session("a", None, (_turn(),), (_agent("bg", 0, blocking=False),)),
        Session("b", None, (_turn(),)),
        Session("c", None, (_turn(),)),
    ]
    log, ends = _play(*sessions, options=ReplayOptions(session_interval_ns=1, max_concurrent_sessions=1))
    assert [entry for entry in log if entry[2] == ""] == [(0, "a", "", 0), (20, "b", "", 0), (30, "c", "", 0)]
    assert ends == [20, 30, 40]


def test_session_goes_on_after_a_turn_that_ended_at_once() -> None:
    """A rejected turn is over when its event fires, and the next turn follows."""
    log, _ = _play(Session("s", None, (_turn(), _turn(5), _turn(5))), response=0)
    assert [time for time, *_ in log] == [0, 5, 10]


def test_event_that_fired_long_ago_is_fine() -> None:
    """`submit` may return an event that has already been processed."""
    env = Clock()
    past = env.event().succeed()
    env.run()
    times: list[int] = []

    def submit(*_: object) -> simpy.Event:
        times.append(env.now)
        return past

    trace = Trace("t", "sessions", 1, (Session("s", None, (_turn(), _turn(4))),), True, (), PrefixTree())
    play(env, trace, submit)
    env.run()
    assert times == [0, 4]


def test_equal_times_come_in_the_order_of_the_trace() -> None:
    """Sessions and siblings that act at the same instant do so in their order in the trace, in every run."""
    agents = tuple(_agent(name, 0) for name in "zay")
    sessions = [replace(Session("", None, (_turn(), _turn(0, *agents))), name=name) for name in ("s2", "s1", "s3")]
    log, _ = _play(*sessions)
    assert [entry[1] for entry in log[:3]] == ["s2", "s1", "s3"]
    assert [entry[1:3] for entry in log[3:12]] == [(name, agent) for name in ("s2", "s1", "s3") for agent in "zay"]
    assert _play(*sessions)[0] == log
