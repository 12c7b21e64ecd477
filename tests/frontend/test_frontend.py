"""API servers by hand: 2 ms a request and 10 us a token there, then 1 ms a step and 10 us a token in the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from worlds import MS, TraceBuilder, config, run, summary

from kvsim.build import Simulation
from kvsim.clock import Clock
from kvsim.cluster_plan import resolve_run
from kvsim.config import RunConfig, load_config
from kvsim.door import Door, Guest
from kvsim.errors import UserError
from kvsim.frontend import Frontend, FrontendTimes
from kvsim.plan.recommend import _resource
from kvsim.reception import Reception
from kvsim.results.compare import metrics_of
from kvsim.results.records import NEVER, FaultTotals, RequestRecord, RunRecord
from kvsim.results.summary import digest
from kvsim.runner import requests_frame

Session = tuple[int, list[tuple[int, int, int]]]  # start in ms, turns: new tokens, output tokens, think ns
TIMES = {"request_time": "2ms", "token_time": "10us"}
SPLIT = [{"name": "p", "role": "prefill"}, {"name": "d", "role": "decode"}]
INSTANT = {"nic": "instant", "bandwidth": "2097152000B/s"}  # 1 ms for a block of 16 tokens


class Nobody:
    """A host whom no guest reaches."""

    is_dead = False

    def admit(self, guest: Guest) -> tuple[str, str]:
        raise AssertionError(guest)

    def answer_to(self, request_id: str) -> None:
        raise AssertionError(request_id)


def play(*sessions: Session, servers: int | None = None, **parts: Any) -> RunRecord:
    """A run of sessions s0, s1, ..."""
    builder = TraceBuilder()
    for number, (start, turns) in enumerate(sessions):
        builder.session(f"s{number}", turns, start_ns=start * MS)
    parts.setdefault("frontend", TIMES | ({"api_servers": servers} if servers else {}))
    return run(builder.build(), config(**parts))[1]


def through(record: RunRecord) -> list[tuple[int, int]]:
    """(us before the engine, us until the end) of each request."""
    return [(each.frontend_ns // 1000, (each.finish_ns - each.arrival_ns) // 1000) for each in record.requests]


def ends(entry: RequestRecord) -> tuple[str, str, int, int, int]:
    """Of one that never reached an engine: status, reason, end and time in the frontend (us), first scheduled."""
    return entry.status, entry.reason, entry.finish_ns // 1000, entry.frontend_ns // 1000, entry.first_scheduled_ns


def test_two_requests_at_once_and_one_server() -> None:
    """The second waits for the first: 3 ms each there, and 2 ms for the step that prefills 100 tokens."""
    record = play((0, [(100, 1, 0)]), (0, [(100, 1, 0)]))
    assert through(record) == [(3_000, 5_000), (6_000, 8_000)]
    latency = summary(record)["latency"]
    assert (latency["frontend_ms"]["mean"], latency["queue_ms"]["mean"], latency["ttft_ms"]["mean"]) == (4.5, 0, 6.5)


def test_who_has_too_few_servers_is_told() -> None:
    """In tables beside the other latencies, in a warning, and as what binds a plan; else nowhere."""
    slow, quick = (summary(play(*[(0, [(100, 1, 0)])] * 3, frontend={"token_time": time})) for time in ("20ms", "1us"))
    keys = [metric.key for metric in metrics_of([slow])]
    assert keys.index("latency.frontend_ms.p99") == keys.index("sessions.time_s.p50") - 1
    assert [line for line in slow["warnings"] if line.startswith("Half of the requests spent 4.0 s or more in front")]
    assert not [line for line in quick["warnings"] if "in front" in line]
    assert (_resource(slow, "ttft_p90")[0], _resource(quick, "ttft_p90")[0]) == ("frontend", "compute")
    without = summary(play((0, [(100, 1, 0)]), frontend=None))
    assert "latency.frontend_ms.p50" not in [metric.key for metric in metrics_of([without])]


def test_two_requests_at_once_and_two_servers() -> None:
    """Nobody waits, and both are in one step of 200 tokens."""
    assert through(play((0, [(100, 1, 0)]), (0, [(100, 1, 0)]), servers=2)) == [(3_000, 6_000)] * 2


def test_first_come_first_served_but_several_servers_overtake() -> None:
    """A short prompt passes a long one that came before; the third takes the server that is free first."""
    record = play((0, [(200, 1, 0)]), (0, [(50, 1, 0)]), (0, [(50, 1, 0)]), servers=2)
    # Steps: 2.5 to 4 ms; 4 to 7 ms; the third is through at 5 ms and waits for 7 ms.
    assert through(record) == [(4_000, 7_000), (2_500, 4_000), (5_000, 8_500)]


def test_every_turn_is_tokenized_whole() -> None:
    """What is cached in the engine takes its time in front of it: 2 + 1 ms, then 2 + 1.61 ms of which 96 tokens hit."""
    record = play((0, [(100, 1, 0), (60, 1, 0)]))
    assert [each.local_hit_tokens for each in record.requests] == [0, 96]
    assert through(record) == [(3_000, 5_000), (3_610, 3_610 + 1_000 + 650)]


def test_first_come_first_served() -> None:
    """Three at once, one after the other."""
    record = play(*[(0, [(100, 1, 0)])] * 3)
    assert through(record) == [(3_000, 5_000), (6_000, 8_000), (9_000, 11_000)]


def test_arrival_is_when_the_client_sends_it() -> None:
    """By priority the earlier arrival goes first, though it reaches the engine later (at 4 ms, and not at 3.5 ms)."""
    engine = {"scheduling_policy": "priority", "max_num_seqs": 1}
    record = play((0, [(10, 6, 0)]), (0, [(200, 1, 0)]), (1, [(50, 1, 0)]), servers=3, engine=engine)
    assert [each.arrival_ns for each in record.requests] == [0, 0, MS]
    # The first keeps them waiting until 2.1 + 1.1 + 5 x 1.01 ms.
    assert [each.finish_ns // 1000 for each in record.requests] == [8_250, 11_250, 12_750]


def test_a_prompt_that_is_too_long_is_refused_when_it_is_tokenized() -> None:
    """And not before: vLLM counts tokens to know."""
    record = play((0, [(3_000, 1, 0), (100, 1, 0)]))
    first, second = record.requests
    assert (first.status, first.frontend_ns, second.arrival_ns) == ("rejected", 32 * MS, 32 * MS)
    assert second.status == "rejected"  # it is longer still


def test_a_client_gives_up_while_it_waits() -> None:
    """Nobody ever works on it, so that the third is next."""
    faults = {"aborts": {"script": [{"request": 1, "after": "1ms"}]}}
    record = play((0, [(100, 1, 0)]), (0, [(900, 1, 0)]), (0, [(100, 1, 0)]), faults=faults)
    assert ends(record.requests[1]) == ("aborted", "client went away", 1_000, 1_000, NEVER)
    assert through(record)[2] == (6_000, 8_000)
    assert record.faults.client_aborts == 1


def test_a_client_gives_up_while_it_is_worked_on() -> None:
    """The thread works on to the end, for nobody."""
    faults = {"aborts": {"script": [{"request": 0, "after": "1ms"}]}}
    record = play((0, [(100, 1, 0)]), (0, [(100, 1, 0)]), faults=faults)
    assert ends(record.requests[0]) == ("aborted", "client went away", 1_000, 1_000, NEVER)
    assert through(record)[1] == (6_000, 8_000)


def test_a_client_gives_up_behind_the_frontend() -> None:
    """The engine hears of it; 3 ms there, 2 ms of prefill, a token each 1.01 ms."""
    record = play((0, [(100, 50, 0)]), faults={"client_timeout": "10ms"})
    (entry,) = record.requests
    assert (entry.status, entry.reason, entry.frontend_ns) == ("aborted", "client timeout", 3 * MS)
    assert entry.output_tokens == 6  # at 5, 6.01, ... 10.05 ms
    assert record.faults.client_aborts == 1


def test_a_server_dies_with_all_in_front_of_it() -> None:
    """Who is tokenized and who waits fails at once; who comes while it is down, too; then it begins anew."""
    faults = {"restarts": ["1ms"], "restart_time": "10ms"}
    record = play(*[(at, [(100, 1, 0)]) for at in (0, 0, 5, 20)], faults=faults)
    assert [ends(each) for each in record.requests[:2]] == [("failed", "the engine died", 1_000, 1_000, NEVER)] * 2
    down, last = record.requests[2:]
    assert (down.status, down.reason, down.frontend_ns) == ("failed", "the engine was down", 0)
    assert (last.status, last.frontend_ns, last.finish_ns) == ("finished", 3 * MS, 25 * MS)


def test_an_instance_fails_and_drains() -> None:
    """Failing loses what is in the frontend, draining finishes it."""
    for action, status in (("fail", "failed"), ("drain", "finished")):
        cluster = {
            "instances": [{"name": "a", "count": 2}],
            "events": [{"at": "1ms", "instance": "a-0", "action": action}],
        }
        record = play((0, [(100, 1, 0)]), (0, [(100, 1, 0)]), (2, [(100, 1, 0)]), cluster=cluster)
        assert [each.instance for each in record.requests] == ["a-0", "a-1", "a-1"]
        assert [each.status for each in record.requests] == [status, "finished", "finished"]
        assert record.requests[2].frontend_ns == 4 * MS  # one of which it waits for the second


def test_prefill_and_decode_both_tokenize() -> None:
    """3.6 ms in front of each side, and nothing else changes."""
    parts = {"connector": {"kind": "nixl", "handshake": "5ms"}, "cluster": {"instances": SPLIT, "network": INSTANT}}
    (entry,) = play((0, [(160, 3, 0)]), **parts).requests
    assert (entry.frontend_ns, entry.decode_frontend_ns) == (3_600_000, 3_600_000)
    # The prefill's step, the handshake, 10 blocks, a step of one token: see tests/remote.
    assert entry.first_token_ns == 2 * 3_600_000 + 2_600_000 + 5 * MS + 10 * MS + 1_010_000
    assert entry.first_scheduled_ns == 3_600_000


def test_only_one_side_may_have_a_frontend() -> None:
    """A group's section counts for its instances only; the other side has none."""
    groups = [SPLIT[0], SPLIT[1] | {"frontend": TIMES}]
    cluster = {"instances": groups, "network": INSTANT}
    (entry,) = play((0, [(160, 3, 0)]), frontend=None, connector={"kind": "nixl"}, cluster=cluster).requests
    assert (entry.frontend_ns, entry.decode_frontend_ns, entry.first_scheduled_ns) == (0, 3_600_000, 0)


def test_mooncakes_proxy_sends_to_both_at_once() -> None:
    """Both sides tokenize at the same time: the whole turn is 3.6 ms later, and that counts once."""
    cluster = {"instances": SPLIT, "network": INSTANT}
    with_it, without = (
        play((0, [(160, 3, 0)]), frontend=frontend, connector={"kind": "mooncake"}, cluster=cluster).requests[0]
        for frontend in (TIMES, None)
    )
    assert (with_it.frontend_ns, with_it.decode_frontend_ns) == (3_600_000, 0)
    assert with_it.first_token_ns == without.first_token_ns + 3_600_000


def test_a_prefill_that_is_refused_behind_its_frontend_is_the_reason() -> None:
    """Mooncake's decode instance has waited in vain, and the turn says for what."""
    groups = [SPLIT[0] | {"engine": {"max_model_len": 150}}, SPLIT[1]]
    cluster = {"instances": groups, "network": INSTANT}
    (entry,) = play((0, [(160, 3, 0)]), connector={"kind": "mooncake"}, cluster=cluster).requests
    assert entry.status == "failed"
    assert entry.reason == "its KV could not be loaded; prefill: prompt too long for max_model_len 150"


def test_a_turn_that_never_reaches_an_engine_of_a_pair() -> None:
    """The prefill instance dies with it in front; the decode instance does; each ends the turn once."""
    for name, at, frontends in (("p-0", "1ms", (1 * MS, 0)), ("d-0", "7ms", (3_600_000, 800_000))):
        events = [{"at": at, "instance": name, "action": "fail"}, {"at": "9ms", "instance": name, "action": "join"}]
        cluster = {"instances": SPLIT, "network": INSTANT, "events": events}
        first, second = play(
            (0, [(160, 3, 0)]), (20, [(160, 3, 0)]), connector={"kind": "nixl"}, cluster=cluster
        ).requests
        assert (first.status, first.reason) == ("failed", "the engine died")
        assert (first.frontend_ns, first.decode_frontend_ns) == frontends
        assert second.status == "finished"


@pytest.mark.parametrize("kind", ["nixl", "mooncake"])
def test_a_turn_of_a_pair_ends_once(kind: str) -> None:
    """Whoever counts hears once of it: served, or sent on when its prefill dies in front of the engine."""
    events = [{"at": "1ms", "instance": "p-0", "action": action} for action in ("fail", "join") if kind == "mooncake"]
    builder = TraceBuilder()
    builder.session("s0", [(160, 3, 0)], start_ns=0)
    cluster = {"instances": SPLIT, "network": INSTANT, "events": events}
    settings = config(frontend=TIMES, connector={"kind": kind}, cluster=cluster)
    done: list[tuple[int, int]] = []
    Simulation(resolve_run(settings, builder.build()), lambda *counts: done.append(counts)).run()
    assert done == [(1, 1)]


def test_ranks_have_as_many_servers_as_they_are() -> None:
    """As vLLM's default for --api-server-count; the balancer chooses behind them."""
    record = play((0, [(100, 1, 0)]), (0, [(100, 1, 0)]), (0, [(100, 1, 0)]), engine={"data_parallel_size": 2})
    assert through(record) == [(3_000, 5_000), (3_000, 5_000), (6_000, 8_000)]
    # The counts of rank 0 were published when its step began; those of rank 1 will be 100 ms later.
    assert [each.rank for each in record.requests] == [0, 1, 1]


def test_servers_listen_when_the_engine_is_ready() -> None:
    """A request that comes at 1 is worked on from 10 to 13, the next from there."""
    clock = Clock()
    done: list[tuple[str, int]] = []
    frontend = Frontend(clock, FrontendTimes(1, 2, 1), lambda: 10)
    clock.run(until=1)
    for name in "ab":
        frontend.enter(1, lambda name=name: done.append((name, clock.now)))  # type: ignore[misc]
    clock.run()
    assert done == [("a", 13), ("b", 16)]


def test_who_is_left_in_front() -> None:
    """A simulation that is stopped says where they are."""
    clock = Clock()
    reception = Reception(clock, [], lambda: None)
    door = Door(clock, reception, None, Nobody(), Frontend(clock, FrontendTimes(5, 0, 1), lambda: 0), FaultTotals())
    trace_of = TraceBuilder()
    trace_of.session("s0", [(16, 1, 0)])
    (session,) = trace_of.build().sessions
    door.submit(session, "main", 0, session.turns[0])
    clock.run(until=3)
    door.settle()
    (entry,) = reception.records
    assert (entry.status, entry.reason, entry.frontend_ns) == ("stuck", "in the frontend", 3)


def test_no_time_is_as_no_frontend() -> None:
    """Equal results, and the summary does not speak of it."""
    nothing = {"request_time": "0", "token_time": "0"}
    sessions: list[Session] = [(0, [(100, 4, 0), (60, 3, 0)]), (0, [(300, 5, MS)])]
    with_it, without = (play(*sessions, frontend=frontend) for frontend in (nothing, None))
    assert digest(requests_frame(with_it)) == digest(requests_frame(without))
    assert "frontend_ms" not in summary(with_it)["latency"]


def test_a_preset_says_how_long_and_what_is_assumed() -> None:
    """Keys beside it win; the notes name the CPU."""
    record = play((0, [(100, 1, 0)]), frontend={"preset": "kimi-k2", "token_time": "10us"})
    (told,) = [note for note in record.notes if note.startswith("frontend: ")]
    assert "10us per prompt token (kimi-k2: " in told
    assert any("the CPU is as fast as the one measured" in note for note in record.notes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{token_time: 2}", r"run\.yaml:3: frontend\.token_time: expected a time with its unit.*plain number 2"),
        ("{token_time: -2us}", r"frontend\.token_time: .*not negative"),
        ("{request_time: 2GiB}", r"frontend\.request_time: expected a time"),
        ("{token_time: 2us, api_servers: 0}", r"frontend\.api_servers: expected at least 1, found 0"),
        ("{api_servers: 2}", r"frontend\.preset: expected one, or request_time or token_time"),
        ("{token_time: 2us, tokenizer: x}", r"frontend\.tokenizer"),
        ("fast", r"frontend"),
    ],
)
def test_bad_values(tmp_path: Path, text: str, message: str) -> None:
    """One line names the key and what was expected."""
    path = tmp_path / "run.yaml"
    path.write_text(f"trace: {{path: x.jsonl}}\nmodel: llama-3.1-8b\nfrontend: {text}\n")
    with pytest.raises(UserError, match=message):
        load_config(path)


def test_streams_have_none() -> None:
    """Streaming sessions send what is new, and vLLM tokenizes no more than that."""
    with pytest.raises(ValueError, match=r"expected none with trace\.streaming_sessions"):
        config(frontend=TIMES, trace={"streaming_sessions": True})


def test_a_preset_that_is_not_there() -> None:
    """The nearest name is suggested."""
    with pytest.raises(UserError, match=r"frontend\.preset: frontend 'kimi': no such profile.*kimi-k2"):
        play((0, [(100, 1, 0)]), frontend={"preset": "kimi"})


def test_groups_change_single_keys(tmp_path: Path) -> None:
    """A group's api_servers beside the common times; a preset of its own in the place of another."""
    path = tmp_path / "run.yaml"
    path.write_text(
        "trace: {path: x.jsonl}\nmodel: llama-3.1-8b\nfrontend: {token_time: 2us}\ncluster:\n"
        "  instances: [{name: a, frontend: {api_servers: 8}}, {name: b}]\n"
    )
    loaded = load_config(path)
    found = [loaded.of_group(number).frontend for number in (0, 1)]
    assert [each and (each.token_time, each.api_servers) for each in found] == [(2_000, 8), (2_000, None)]
    assert isinstance(loaded, RunConfig)


def test_the_timeline_shows_it() -> None:
    """Between its arrival and the engine's queue a request is in the frontend, and is counted nowhere."""
    record = play((0, [(100, 1, 0)]), (0, [(100, 1, 0)]), output={"timeline": True})
    assert record.timeline is not None
    (server,) = record.timeline.processes
    states = [[(at // 1000, state) for at, state in each.states] for each in server.lifelines.entries]
    assert states == [
        [(0, "frontend"), (3_000, "waiting"), (3_000, "running")],
        [(0, "frontend"), (6_000, "waiting"), (6_000, "running")],
    ]
