"""The prompts of a trace in the order in which they reach a cache: what curves and bounds are computed from.

The order decides how many other prompts come between two uses of a block, and with it every hit rate of a finite
cache. Only a simulation knows it exactly, because faster answers bring the next prompts sooner; here every response
takes as long as it did when the trace was recorded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvsim.config import TraceConfig
from kvsim.errors import UserError
from kvsim.trace.reuse import Runs, prompt_runs
from kvsim.trace.schedule import Pace, recorded_pace
from kvsim.trace.session import Trace

Order = Literal["auto", "recorded", "closed-loop", "sequential"]
ORDERS: tuple[Order, ...] = ("auto", "recorded", "closed-loop", "sequential")


@dataclass(frozen=True, slots=True)
class Prompts:
    """Prompts in the order of their lookups.

    Attributes:
        order: how they were put in order, in words.
        block_tokens: tokens per block of `runs`.
        runs: of each prompt, those without any block left out.
        times_s: when each is sent; empty if the order has no times.
        tenants: names of the tenants; empty if there is only one. They share no block.
        tenant_of: index of each prompt's tenant.
    """

    order: str
    block_tokens: int
    runs: tuple[Runs, ...]
    times_s: tuple[float, ...] = ()
    tenants: tuple[str, ...] = ()
    tenant_of: tuple[int, ...] = ()

    def of_tenant(self, tenant: int) -> Prompts:
        """The prompts of one tenant, in the same order."""
        own = [at for at, owner in enumerate(self.tenant_of) if owner == tenant]
        return Prompts(
            f"{self.order}, only {self.tenants[tenant]}",
            self.block_tokens,
            tuple(self.runs[at] for at in own),
            tuple(self.times_s[at] for at in own) if self.times_s else (),
        )


def prompts_of(
    traces: Trace | Sequence[Trace], order: Order = "auto", pace: Pace | None = None, tenants: Sequence[str] = ()
) -> Prompts:
    """Puts the prompts of a trace in order.

    Args:
        traces: one trace, or one for each tenant, all with the same tokens per block. Each has its own clock: closed
            loops of several tenants begin side by side.
        order: ``recorded`` by the arrival times of the trace, ``closed-loop`` with sessions started at intervals,
            ``sequential`` one session after the other; ``auto`` is ``recorded`` where all sessions have arrival times,
            else ``closed-loop``.
        pace: intervals and pauses.
        tenants: names. With one trace, its sessions belong to them in turn, as in `trace.tenants` of a run.

    Raises:
        UserError: the order does not suit the trace, or tenants and traces do not suit each other.
    """
    traces = (traces,) if isinstance(traces, Trace) else tuple(traces)
    if len(traces) > 1 and len(tenants) != len(traces):
        raise UserError(f"{len(tenants)} tenants for {len(traces)} traces, expected one for each trace")
    if len(set(tenants)) < len(tenants):
        raise UserError(f"tenants: expected different names, found {', '.join(tenants)}")
    for trace in traces:
        if trace.block_tokens != traces[0].block_tokens:
            raise UserError(
                f"{trace.name}: {trace.block_tokens} tokens per block id, expected {traces[0].block_tokens} like"
                f" {traces[0].name}"
            )
    words = _in_words(traces, order)
    several = len(traces) > 1
    found = [
        (request, place if several else request.session % max(1, len(tenants)))
        for place, trace in enumerate(traces)
        for request in recorded_pace(trace, pace)
    ]
    if order == "sequential":
        found.sort(key=lambda each: (each[1] if several else 0, each[0].session))  # stable: by time within a session
    elif several:
        found.sort(key=lambda each: (each[0].time_s, each[1]))
    found = [each for each in found if each[0].turn.num_ids]
    scopes: dict[tuple[int, int], int] = {}  # prompts with different cache salts or adapters share nothing
    for request, tenant in found:
        scopes.setdefault((tenant, request.turn.demands.adapter), len(scopes))
    runs: list[Runs] = []
    for request, tenant in found:
        scope = scopes[tenant, request.turn.demands.adapter]
        own = prompt_runs(request.turn, traces[0].block_tokens)
        runs.append(own if len(scopes) == 1 else [(segment * len(scopes) + scope, blocks) for segment, blocks in own])
    return Prompts(
        words,
        traces[0].block_tokens,
        tuple(runs),
        () if order == "sequential" else tuple(request.time_s for request, _ in found),
        tuple(tenants),
        tuple(tenant for _, tenant in found) if tenants else (),
    )


def pace_of(config: TraceConfig) -> Pace:
    """The pace at which a run of this config begins its sessions and goes on with them."""
    longest = config.max_think_time
    return Pace(
        session_interval_s=config.session_interval / 1e9,
        max_think_s=None if longest is None else longest / 1e9,
        max_concurrent_sessions=config.max_concurrent_sessions,
        time_scale=config.time_scale,
    )


def _in_words(traces: Sequence[Trace], order: Order) -> str:
    if order == "sequential":
        return "sessions one after another"
    for trace in traces:
        without = sum(session.start_ns is None for session in trace.sessions)
        if order == "recorded" and without:
            raise UserError(
                f"{trace.name}: {without:,} of {len(trace.sessions):,} sessions have no arrival time, expected an order"
                " closed-loop or sequential"
            )
        if order == "closed-loop" and not without:
            raise UserError(f"{trace.name}: all sessions have arrival times, expected an order recorded or sequential")
    closed = any(session.start_ns is None for trace in traces for session in trace.sessions)
    return "interleaved, closed loop" if closed else "by time stamp"
