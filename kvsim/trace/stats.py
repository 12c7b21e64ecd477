"""What a trace looks like: lengths, how much of it a cache can serve, and how large that cache must be.

Conventions, for every number:

- Percentiles are nearest rank.
- An unlimited cache holds all prompt blocks of earlier requests, never generated ones. Block ``i`` of a
  prompt hits if blocks ``0 .. i`` are there. Token hits are the hit blocks' tokens, at most the prompt's
  length. "Capped" counts at most ``(input - 1) // block`` blocks: an engine computes the last prompt token.
- GB is 1e9 bytes, at a stated KV size per token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from kvsim.trace.reuse import InfiniteCache, Runs, blocks_per_window, prompt_runs, reuse_distances
from kvsim.trace.schedule import Request, recorded_pace
from kvsim.trace.session import Trace, Turn

# Llama-3.1-70B in bf16: 80 layers x 2 (K and V) x 8 heads x 128 x 2 bytes. Source: its config.json.
LLAMA_70B_KV_BYTES = 327_680

LRU_SIZES_GB = (40, 80, 160, 320, 640, 1280, 2560, 5120, 10240, 20480)
WINDOWS_S = (60, 300, 900)
REUSE_PERCENTS = (10, 25, 50, 75, 90, 95, 99)
CUT_SHARE = (9, 10)  # a turn that keeps less than this of the previous prompt's blocks is a context cut


@dataclass(frozen=True, slots=True)
class Distribution:
    """Nearest-rank percentiles and moments of some values."""

    n: int
    total: float
    mean: float
    min: float
    p10: float
    p25: float
    p50: float
    p75: float
    p90: float
    p95: float
    p99: float
    max: float


@dataclass(frozen=True, slots=True)
class HitRates:
    """Hits of an unlimited prefix cache; see the module's description.

    Attributes:
        blocks: trace blocks of all prompts.
        blocks_hit: those that hit.
        block_rate: ``blocks_hit / blocks``.
        capped_block_rate: the same, the last prompt token always computed.
        token_rate: hit tokens per prompt token, so the tail without an id counts as missed.
        main_block_rate: main streams only.
        generated_block_rate: if generated tokens were cached too and came back as they were.
        per_session: block rate of each session; None unless sessions have several turns.
    """

    blocks: int
    blocks_hit: int
    block_rate: float
    capped_block_rate: float
    token_rate: float
    main_block_rate: float
    generated_block_rate: float
    per_session: Distribution | None


@dataclass(frozen=True, slots=True)
class OrderStats:
    """Reuse and working set if the requests come in a certain order.

    Attributes:
        order: which one.
        reuse_gb: reuse distance by percentile and "max".
        reuses, first_uses: block uses with and without a distance.
        lru_block_rate: block hit rate of an LRU cache by size in GB, and of an unlimited one as "inf".
        window_gb: distinct KV touched per window, by window length in s; empty for an order without times.
        makespan_s: from the first request to the end of the last; None for an order without times.
    """

    order: str
    reuse_gb: dict[str, float]
    reuses: int
    first_uses: int
    lru_block_rate: dict[str, float]
    window_gb: dict[str, Distribution]
    makespan_s: float | None


@dataclass(frozen=True, slots=True)
class TraceStats:
    """Everything `describe` finds out; names say the unit. Distributions are None where there is nothing."""

    name: str
    kind: str
    block_tokens: int
    kv_bytes_per_token: int
    notes: tuple[str, ...]
    sessions: int
    sessions_with_subagents: int
    main_requests: int
    subagents: int
    subagent_requests: int
    requests: int
    models: dict[str, int]
    turns_per_session: Distribution
    requests_per_subagent: Distribution | None
    input_tokens: Distribution
    output_tokens: Distribution
    input_output_ratio: float
    first_input_tokens: Distribution
    max_input_tokens: Distribution
    uncached_tokens: Distribution | None
    added_tokens: Distribution | None
    consecutive_pairs: int
    context_cuts: int
    hits: HitRates
    unique_blocks: int
    unique_gb: float
    session_gb: Distribution
    largest_request_gb: Distribution
    think_s: Distribution | None
    arrival_times: int | None
    arrivals_per_s: float | None
    orders: tuple[OrderStats, ...]


def distribution(values: Iterable[float]) -> Distribution | None:
    """Percentiles of some values; None if there are none."""
    ordered = sorted(values)
    n = len(ordered)
    if not n:
        return None

    def rank(percent: int) -> float:
        return ordered[max(1, -(-percent * n // 100)) - 1]

    total = sum(ordered)
    return Distribution(
        n=n,
        total=total,
        mean=total / n,
        min=ordered[0],
        p10=rank(10),
        p25=rank(25),
        p50=rank(50),
        p75=rank(75),
        p90=rank(90),
        p95=rank(95),
        p99=rank(99),
        max=ordered[-1],
    )


def describe(trace: Trace, kv_bytes_per_token: int = LLAMA_70B_KV_BYTES) -> TraceStats:
    """Computes all statistics of a trace.

    Args:
        trace: what to describe.
        kv_bytes_per_token: KV bytes of all layers and all ranks, for everything given in GB.
    """
    streams = [session.streams for session in trace.sessions]
    mains = [turns for (_, turns), *_ in streams]
    agents = [turns for _, *others in streams for _, turns in others]
    everything = [turn for turns in (*mains, *agents) for turn in turns]
    inputs = _some([turn.input_tokens for turn in everything])
    outputs = _some([turn.recorded_output_tokens for turn in everything])
    models: dict[str, int] = {}
    for turn in everything:
        if turn.model is not None:
            models[turn.model] = models.get(turn.model, 0) + 1
    walk = _Walk(trace)
    gb = kv_bytes_per_token / 1e9
    starts = [session.start_ns for session in trace.sessions if session.start_ns is not None]
    open_loop = len(starts) == len(trace.sessions)
    span_s = (max(starts) - min(starts)) / 1e9 if open_loop else 0.0
    return TraceStats(
        name=trace.name,
        kind=trace.kind,
        block_tokens=trace.block_tokens,
        kv_bytes_per_token=kv_bytes_per_token,
        notes=trace.notes,
        sessions=len(trace.sessions),
        sessions_with_subagents=sum(len(session) > 1 for session in streams),
        main_requests=sum(map(len, mains)),
        subagents=len(agents),
        subagent_requests=sum(map(len, agents)),
        requests=len(everything),
        models=models,
        turns_per_session=_some([len(turns) for turns in mains]),
        requests_per_subagent=distribution(len(turns) for turns in agents),
        input_tokens=inputs,
        output_tokens=outputs,
        input_output_ratio=inputs.total / outputs.total if outputs.total else float("inf"),
        first_input_tokens=_some([turns[0].input_tokens for turns in mains]),
        max_input_tokens=_some([max(turn.input_tokens for turn in turns) for turns in mains]),
        uncached_tokens=distribution(walk.uncached_tokens),
        added_tokens=distribution(
            after.input_tokens - turn.input_tokens for turns in mains for turn, after in pairwise(turns)
        ),
        consecutive_pairs=walk.pairs,
        context_cuts=walk.cuts,
        hits=walk.rates(),
        unique_blocks=walk.cache.blocks,
        unique_gb=walk.cache.blocks * trace.block_tokens * gb,
        session_gb=_some([blocks * trace.block_tokens * gb for blocks in walk.session_blocks]),
        largest_request_gb=_some([max(turn.input_tokens for turn in turns) * gb for turns in mains]),
        think_s=distribution(walk.think_s),
        arrival_times=len(set(starts)) if open_loop else None,
        arrivals_per_s=len(starts) / span_s if span_s else None,
        orders=_orders(trace, gb, open_loop),
    )


class _Walk:
    """One pass over all prompts, session by session, main stream before sub-agents."""

    def __init__(self, trace: Trace) -> None:
        self.size = trace.block_tokens
        self.cache = InfiniteCache()
        self.session_blocks: list[int] = []
        self.uncached_tokens: list[int] = []
        self.think_s: list[float] = []
        self.pairs = self.cuts = 0
        self._blocks = self._hit = self._capped = self._generated = 0
        self._tokens = self._token_hits = 0
        self._main_blocks = self._main_hit = 0
        self._rates: list[float] = []
        for session in trace.sessions:
            own = InfiniteCache()
            blocks, hit = self._blocks, self._hit
            for name, turns in session.streams:
                self._stream(turns, own, main=not name)
            self.session_blocks.append(own.blocks)
            blocks, hit = self._blocks - blocks, self._hit - hit
            self._rates.append(hit / blocks if blocks else 0.0)
        self._several = self.pairs > 0

    def _stream(self, turns: Sequence[Turn], own: InfiniteCache, *, main: bool) -> None:
        previous: Turn | None = None
        for turn in turns:
            runs = prompt_runs(turn, self.size)
            hit = self.cache.lookup(runs)
            token_hit = min(hit * self.size, turn.input_tokens)
            self._blocks += turn.num_ids
            self._hit += hit
            self._capped += min(hit, (turn.input_tokens - 1) // self.size)
            self._tokens += turn.input_tokens
            self._token_hits += token_hit
            if main:
                self._main_blocks += turn.num_ids
                self._main_hit += hit
            self._generated += hit if previous is None else self._pair(previous, turn, hit)
            if previous is not None:
                self.uncached_tokens.append(turn.input_tokens - token_hit)
                # A think time that the reader had to make up says nothing about the trace.
                if main and turn.recorded_think_ns is not None:
                    self.think_s.append(turn.recorded_think_ns / 1e9)
            self.cache.insert(runs)
            own.insert(runs)
            previous = turn

    def _pair(self, previous: Turn, turn: Turn, hit: int) -> int:
        """Looks at two consecutive prompts; returns the hits if the answer between them were cached."""
        self.pairs += 1
        shared = -(-previous.chain.shared_tokens(turn.chain) // self.size)
        shared = min(shared, previous.num_ids, turn.num_ids)
        if shared >= previous.num_ids - 1:
            answered = (previous.input_tokens + previous.recorded_output_tokens) // self.size
            return max(hit, min(turn.num_ids, answered))
        self.cuts += shared * CUT_SHARE[1] < previous.num_ids * CUT_SHARE[0]
        return hit

    def rates(self) -> HitRates:
        """The hit rates of the pass."""
        blocks = max(1, self._blocks)
        return HitRates(
            blocks=self._blocks,
            blocks_hit=self._hit,
            block_rate=self._hit / blocks,
            capped_block_rate=self._capped / blocks,
            token_rate=self._token_hits / max(1, self._tokens),
            main_block_rate=self._main_hit / max(1, self._main_blocks),
            generated_block_rate=self._generated / blocks,
            per_session=distribution(self._rates) if self._several else None,
        )


def _orders(trace: Trace, gb_per_token: float, open_loop: bool) -> tuple[OrderStats, ...]:
    requests = recorded_pace(trace)
    if open_loop:
        return (_order("by time stamp", requests, trace.block_tokens, gb_per_token, timed=True),)
    one_by_one = sorted(requests, key=lambda request: request.session)  # stable: by time within a session
    return (
        _order("sessions one after another", one_by_one, trace.block_tokens, gb_per_token, timed=False),
        _order("interleaved", requests, trace.block_tokens, gb_per_token, timed=True),
    )


def _order(order: str, requests: Sequence[Request], size: int, gb_per_token: float, *, timed: bool) -> OrderStats:
    used: list[Runs] = []
    times: list[float] = []
    for request in requests:
        if request.turn.num_ids:
            used.append(prompt_runs(request.turn, size))
            times.append(request.time_s)
    found = reuse_distances(used)
    gb = size * gb_per_token
    reuse_gb = {}
    for percent in REUSE_PERCENTS:
        blocks = found.percentile(percent)
        if blocks is not None:
            reuse_gb[f"p{percent}"] = blocks * gb
    if found.counts:
        reuse_gb["max"] = found.counts[-1][0] * gb
    rates = {str(limit): found.hit_rate(int(limit / gb)) for limit in LRU_SIZES_GB}
    rates["inf"] = found.reuses / max(1, found.reuses + found.first_uses)
    windows: dict[str, Distribution] = {}
    makespan_s = None
    if timed and requests:
        for window in WINDOWS_S:
            per_window = blocks_per_window(times, used, window).values()
            if per_window:
                windows[str(window)] = _some([blocks * gb for blocks in per_window])
        makespan_s = max(request.end_s for request in requests) - requests[0].time_s
    return OrderStats(order, reuse_gb, found.reuses, found.first_uses, rates, windows, makespan_s)


def _some(values: Sequence[float]) -> Distribution:
    found = distribution(values)
    if found is None:
        raise ValueError("a trace without requests has no statistics")
    return found
