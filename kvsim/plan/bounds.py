"""What is known before anything is simulated: how much there is to keep, and whether loading it beats computing it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import median_low

from kvsim.cluster_plan import ClusterPlan, resolve_run
from kvsim.config import OffloadingConnectorConfig, RunConfig, SimpleCPUConnectorConfig
from kvsim.connectors.base import CopyJob
from kvsim.copy_time import copy_time
from kvsim.errors import UserError
from kvsim.plan.axes import CPU, NVME, STORE
from kvsim.plan.mrc import MissRatioCurve, miss_ratio_curve
from kvsim.plan.prompts import prompts_of
from kvsim.plan.space import Space
from kvsim.resolve import Plan, with_max_sessions
from kvsim.trace.replay import ReplayOptions
from kvsim.trace.schedule import Pace
from kvsim.trace.session import Session, Trace, Turn

NS = 1e9


@dataclass(frozen=True, slots=True)
class WorkingSet:
    """How much KV the prompts of a trace have, and what a cache of the GPU's size gives.

    Attributes:
        kv_bytes_per_token: over all ranks of an instance.
        distinct_bytes: of all different prompt blocks: what no cache has to exceed.
        lru_bytes: the smallest LRU cache with all the hits there are, in the recorded order.
        gpu_bytes: KV pool of one instance.
        max_hit_rate: of a cache without limit.
        gpu_hit_rate: of an LRU cache of one instance's pool.
        knees: (bytes, hit rate) where more memory begins to buy clearly less.
        prompts: that were counted; those that no server takes are not.
    """

    kv_bytes_per_token: int
    distinct_bytes: int
    lru_bytes: int
    gpu_bytes: int
    max_hit_rate: float
    gpu_hit_rate: float
    knees: tuple[tuple[int, float], ...]
    prompts: int

    @property
    def fits_the_gpu(self) -> bool:
        """Whether one instance's pool holds everything that could be asked for again."""
        return self.distinct_bytes <= self.gpu_bytes


@dataclass(frozen=True, slots=True)
class BreakEven:
    """Loading the KV of a prompt from CPU memory against computing it, each alone on an idle instance.

    Attributes:
        tokens: the trace's median prompt.
        load_ns: over the links of all ranks at once.
        compute_ns: in chunks of max_num_batched_tokens.
    """

    tokens: int
    load_ns: int
    compute_ns: int

    @property
    def ratio(self) -> float:
        """How many times faster loading is."""
        return self.compute_ns / self.load_ns if self.load_ns else float("inf")


@dataclass(frozen=True, slots=True)
class Floor:
    """What no server can do better, however fast it is: clients still wait, think and stop.

    Attributes:
        makespan_s: first arrival to the last turn that a server takes, if every answer took no time.
        output_tokens: of all turns that a server takes.
    """

    makespan_s: float
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """All of it; parts that could not be told are None, with a note.

    Attributes:
        working_set: of the trace.
        break_even: of loading and computing.
        floor: of every point.
        notes: on what was left out.
        longest: the largest max_model_len of the space; None where points differ in what is played.
    """

    working_set: WorkingSet | None
    break_even: BreakEven | None
    floor: Floor | None = None
    notes: tuple[str, ...] = ()
    longest: int | None = None


def find_bounds(space: Space, trace: Trace) -> tuple[Space, Bounds]:
    """What the trace and the hardware say, and the space without sizes that cannot help.

    Raises:
        UserError: the base does not fit model, GPU or trace.
    """
    played = with_max_sessions(trace, space.base.trace.max_sessions)
    plain = _server(resolve_run(space.config(tuple(0 for _ in space.axes)), played))
    notes: list[str] = []
    most = _longest(space, played, plain.limits.max_model_len)
    floor = _floor(space, played, most)
    longest = None if any(axis.name.startswith("trace.") for axis in space.axes) else most
    curve = _curve(space.base, played, most)
    if curve is None:
        note = "the trace names no content that prompts share: no size is left out for being too large"
        return space, Bounds(None, None, floor, (note,), longest)
    found = _working_set(curve, plain)
    prompts_only = not isinstance(space.base.connector, OffloadingConnectorConfig) or (
        space.base.connector.offload_prompt_only
    )
    if prompts_only and plain.sizes.groups.simulated and not plain.sizes.groups.specs:
        for name in (CPU, NVME, STORE):
            capped = space.capped(name, found.distinct_bytes)
            if capped.lengths != space.lengths:
                notes.append(
                    f"{name} above {capped.axes[capped.place(name)].labels[-1]} is left out: all prompts together have"
                    f" {found.distinct_bytes / 2**30:,.0f} GiB of different KV"
                )
            space = capped
    return space, Bounds(found, _break_even(space, played, most), floor, tuple(notes), longest)


def _longest(space: Space, trace: Trace, found: int) -> int:
    """The largest max_model_len that a server of the space has: what is longer is refused at every point."""
    most = tuple(n - 1 if more else 0 for n, more in zip(space.lengths, space.monotone, strict=True))
    points = [most]
    for place, axis in enumerate(space.axes):
        if "." in axis.name:  # the others change no limit of the model
            points += [(*most[:place], index, *most[place + 1 :]) for index in range(1, len(axis.values))]
    for point in points:
        try:
            plan = resolve_run(space.config(space.canonical(point)), trace)
        except UserError:
            continue  # simulating such a point will say why
        plans = [member.plan for member in plan.members] if isinstance(plan, ClusterPlan) else [plan]
        found = max(found, *(each.limits.max_model_len for each in plans))
    return found


def too_long(trace: Trace, longest: int) -> int:
    """Requests of a trace that a server with this max_model_len refuses."""
    return sum(
        turn.input_tokens >= longest for session in trace.sessions for _, turns in session.streams for turn in turns
    )


def _server(plan: Plan | ClusterPlan) -> Plan:
    return plan.members[0].plan if isinstance(plan, ClusterPlan) else plan


def _floor(space: Space, trace: Trace, max_model_len: int) -> Floor | None:
    """None where points differ in what is played."""
    if any(axis.name.startswith("trace.") or axis.name == "engine.max_model_len" for axis in space.axes):
        return None
    wanted = space.base.trace
    options = ReplayOptions(
        wanted.session_interval, wanted.max_think_time, wanted.max_concurrent_sessions, wanted.time_scale
    )
    first, last, staggered = None, 0, 0
    for session in trace.sessions:
        if session.start_ns is None:
            now = staggered * options.session_interval_ns
            staggered += 1
        else:
            now = round(session.start_ns * options.time_scale)
        for turn in session.turns:  # sub-agents only make it longer
            now += options.think_ns(turn)
            first = now if first is None else min(first, now)
            if turn.input_tokens < max_model_len:
                last = max(last, now)
    tokens = sum(
        turn.output_tokens
        for session in trace.sessions
        for _, turns in session.streams
        for turn in turns
        if turn.input_tokens < max_model_len
    )
    return Floor(max(0, last - (first or 0)) / NS, tokens)


def _curve(base: RunConfig, trace: Trace, max_model_len: int) -> MissRatioCurve | None:
    """Of the prompts that a server takes; the others are refused before anything is looked up."""
    pace = Pace(
        session_interval_s=base.trace.session_interval / NS,
        max_think_s=None if base.trace.max_think_time is None else base.trace.max_think_time / NS,
        max_concurrent_sessions=base.trace.max_concurrent_sessions,
    )
    taken = replace(trace, sessions=tuple(_without_long(session, max_model_len) for session in trace.sessions))
    try:
        prompts = prompts_of(taken, pace=pace, tenants=base.trace.tenants)
    except UserError:
        return None
    return miss_ratio_curve(prompts) if prompts.runs else None


def _without_long(session: Session, max_model_len: int) -> Session:
    """The session with prompts that are refused emptied: they are sent, but nothing of them is computed or cached."""

    def of(turns: Sequence[Turn]) -> tuple[Turn, ...]:
        return tuple(
            replace(
                turn,
                num_ids=0 if turn.input_tokens >= max_model_len else turn.num_ids,
                subagents=tuple(replace(agent, turns=of(agent.turns)) for agent in turn.subagents),
            )
            for turn in turns
        )

    trailing = tuple(replace(agent, turns=of(agent.turns)) for agent in session.trailing)
    return replace(session, turns=of(session.turns), trailing=trailing)


def _working_set(curve: MissRatioCurve, plan: Plan) -> WorkingSet:
    sizes, tokens = plan.sizes, curve.prompts.block_tokens
    per_token = sizes.gpu_block_bytes // sizes.block_tokens

    def as_bytes(blocks: int) -> int:
        return blocks * tokens * per_token

    gpu_bytes = (sizes.num_gpu_blocks - 1) * sizes.gpu_block_bytes
    return WorkingSet(
        per_token,
        as_bytes(curve.first_uses),
        as_bytes(curve.full_blocks),
        gpu_bytes,
        curve.max_hit_rate,
        curve.hit_rate(gpu_bytes // (tokens * per_token)),
        tuple((as_bytes(knee.blocks), knee.hit_rate) for knee in curve.knees()),
        len(curve.prompts.runs),
    )


def _break_even(space: Space, trace: Trace, longest: int) -> BreakEven | None:
    """At the space's largest CPU memory; None if the space has none, or with a connector of which it cannot be told."""
    most = tuple(
        length - 1 if is_monotone else 0 for length, is_monotone in zip(space.lengths, space.monotone, strict=True)
    )
    try:
        plan = _server(resolve_run(space.config(space.canonical(most)), trace))
    except UserError:
        return None  # simulating that point will say why
    plan = next((part for part in plan.parts if part.sizes.num_cpu_chunks), plan)
    if not isinstance(plan.config.connector, OffloadingConnectorConfig | SimpleCPUConnectorConfig):
        return None
    lengths = [
        turn.input_tokens
        for session in trace.sessions
        for _, turns in session.streams
        for turn in turns
        if turn.input_tokens < longest
    ]
    if not lengths:
        return None
    blocks = max(1, median_low(lengths) // plan.sizes.block_tokens)
    places = list(range(blocks))
    load_ns = copy_time(plan)(CopyJob(0, "load", places, places), "h2d").solo_ns
    tokens, budget = blocks * plan.sizes.block_tokens, plan.limits.max_num_batched_tokens
    compute_ns = sum(
        plan.step_time.step_ns([(min(budget, tokens - done), done)], []) for done in range(0, tokens, budget)
    )
    return BreakEven(tokens, load_ns, compute_ns)
