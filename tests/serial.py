"""Workloads of requests that come one after another, in a fixed order, and what became of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from hypothesis import strategies as st
from pydantic import PrivateAttr
from worlds import MS, config

from kvsim.build import Simulation
from kvsim.chain import PrefixTree
from kvsim.config import RunConfig
from kvsim.connectors.base import SchedulerOutput
from kvsim.profile import LinkProfile, Pieces
from kvsim.request import Request
from kvsim.resolve import resolve
from kvsim.results.records import RunRecord
from kvsim.trace.session import Session, Trace, Turn

BLOCK = 16  # tokens
PAUSE_NS = 10_000 * MS  # between two requests: every copy is over by then


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as a word, one letter per full block, and ``rest`` tokens of a last one.

    A letter stands for its block and everything before it: it has the same letters before it in every word.
    """

    word: str
    rest: int = 0
    out: int = 1


def prompts(max_blocks: int = 12) -> st.SearchStrategy[list[Prompt]]:
    """Prompts that come again, go on from earlier ones or are new, none longer than ``max_blocks`` full blocks."""
    shares = st.one_of(
        st.tuples(st.integers(0, 99), st.just(max_blocks), st.just(0)),  # the same again
        st.tuples(st.integers(0, 99), st.integers(1, 8), st.integers(1, 4)),  # part of it, and more
        st.tuples(st.just(0), st.just(0), st.integers(1, 7)),
    )
    ends = st.tuples(st.sampled_from([0, 1, 15]), st.sampled_from([1, 1, 2, 20]))
    one = st.tuples(shares, ends).map(lambda drawn: (*drawn[0], *drawn[1]))
    return st.lists(one, min_size=15, max_size=22).map(lambda drawn: words(drawn, max_blocks))


def words(drawn: Sequence[tuple[int, int, int, int, int]], max_blocks: int) -> list[Prompt]:
    """Prompts from (parent, keep, new, rest, out), taken modulo what there is."""
    found: list[Prompt] = []
    fresh = ord("A")
    for parent, keep, new, rest, out in drawn:
        at = parent % (len(found) + 1) - 1
        kept = found[at].word[:keep] if at >= 0 else ""
        count = min(new, max_blocks - len(kept)) or int(not kept)
        found.append(Prompt(kept + "".join(map(chr, range(fresh, fresh + count))), rest, out))
        fresh += count
    return found


def one_after_another(sequence: Sequence[Prompt | str], pause_ns: int = PAUSE_NS) -> Trace:
    """One session that sends these prompts; answers don't come back."""
    tree = PrefixTree()
    sent = [Prompt(prompt) if isinstance(prompt, str) else prompt for prompt in sequence]
    leaves = [tree.add("", list(map(ord, prompt.word)), BLOCK) for prompt in sent]
    turns = []
    for prompt, leaf in zip(sent, leaves, strict=True):
        known = len(prompt.word) * BLOCK
        turns.append(
            Turn(known + prompt.rest, prompt.out, tree.chain(leaf, known), known, len(prompt.word), think_ns=pause_ns)
        )
    return Trace("serial", "sessions", BLOCK, (Session("s", None, tuple(turns)),), False, (), tree)


def play(trace: Trace, settings: RunConfig, link_times: float = 1.0) -> RunRecord:
    """Simulate; every copy takes ``link_times`` as long as the link profile says."""
    plan = resolve(settings, trace)
    return Simulation(replace(plan, link=slowed(plan.link, link_times))).run()


Steps = list[tuple[int, list[tuple[str, int]]]]


def diary(trace: Trace, settings: RunConfig, link_times: float, since_ns: int) -> Steps:
    """(us after ``since_ns``, [(session, tokens)]) of every step with tokens from then on."""
    plan = resolve(settings, trace)
    simulation = Simulation(replace(plan, link=slowed(plan.link, link_times)))
    scheduler = simulation.instance.scheduler
    steps: Steps = []
    decide = scheduler.schedule

    def schedule() -> SchedulerOutput:
        output = decide()
        at_ns = simulation.clock.now - since_ns
        if output.num_scheduled_tokens and at_ns >= 0:
            tokens = [(_session(request), count) for request, count in output.num_scheduled_tokens.items()]
            steps.append((at_ns // 1000, tokens))
        return output

    scheduler.schedule = schedule  # type: ignore[method-assign]
    simulation.run()
    return steps


def _session(request: Request) -> str:
    return request.request_id.split(":")[1].split("#")[0]


class SlowerLink(LinkProfile):
    """A link on which every copy takes so many times as long."""

    _times: float = PrivateAttr(1.0)

    def batch_ns(self, way: Any, direction: Any, batch: tuple[Pieces, ...], *, remote: bool = False) -> int:
        return round(self._times * super().batch_ns(way, direction, batch, remote=remote))


def slowed(link: LinkProfile, times: float) -> LinkProfile:
    """The same link, slower or faster."""
    slower = SlowerLink.model_construct(**dict(link))
    slower._times = times
    return slower


def hits(record: RunRecord) -> list[tuple[int, int]]:
    """(local, external) tokens hit by each request."""
    assert {entry.status for entry in record.requests} == {"finished"}
    return [(entry.local_hit_tokens, entry.external_hit_tokens) for entry in record.requests]


def total_hits(record: RunRecord) -> int:
    """Tokens hit by all requests, wherever."""
    return sum(map(sum, hits(record)))


def offloading(blocks: int, version: str = "0.33.0", *, gpu_blocks: int, **more: Any) -> RunConfig:
    """A CPU tier of so many blocks of 2 MiB (0 = none), behind so many GPU blocks; prompts of one step.

    A block is one descriptor: 42 us on the H100's link, and 4 us for the call.
    """
    tier = {"kind": "offloading", "cpu_bytes_to_use": f"{2 * blocks}MiB", "kv_layout": "cross_layer"}
    connector = more.pop("connector", {})
    connector = connector if connector.get("kind", "offloading") != "offloading" else {**tier, **connector}
    engine = {
        "vllm_version": version,
        "num_gpu_blocks_override": gpu_blocks + 1,
        "max_model_len": 1024,
        "max_num_batched_tokens": 1024,
        **more.pop("engine", {}),
    }
    return config(engine=engine, connector=connector if blocks else {"kind": "none"}, **more)


def at_times(arrivals: Sequence[tuple[int, Prompt | str]]) -> Trace:
    """Each prompt arrives at its time (ns), whatever the others do."""
    serial = one_after_another([prompt for _, prompt in arrivals])
    turns = [replace(turn, think_ns=0) for turn in serial.sessions[0].turns]
    sessions = (
        Session(f"s{i}", start_ns, (turn,)) for i, ((start_ns, _), turn) in enumerate(zip(arrivals, turns, strict=True))
    )
    return replace(serial, sessions=tuple(sessions))
