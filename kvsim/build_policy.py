"""Eviction policies and admission of a plan, and what they may know of the simulation around them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from itertools import islice

from kvsim.chain import BlockIds
from kvsim.clock import Clock
from kvsim.config import OffloadingConnectorConfig, RunConfig
from kvsim.config.admission import MinLengthAdmission, SecondTouchAdmission
from kvsim.config.policies import options_of_policy
from kvsim.connectors.base import CopyJob
from kvsim.copy_time import copy_time
from kvsim.demands import AdapterContent
from kvsim.offload.admission import AdmittingLedger, MinLength, SecondTouch
from kvsim.offload.ledger import Ledger, Primary
from kvsim.offload.manager import PolicyFactory
from kvsim.offload.next_use import NextUses
from kvsim.offload.policies.base import EvictionPolicy
from kvsim.offload.policies.view import NEVER, TurnFacts, View
from kvsim.offload.slot import Slots
from kvsim.reception import name_of_turn
from kvsim.registry import POLICIES, is_class_path
from kvsim.request import ChainContent, Content, Request, Salted
from kvsim.resolve import Plan
from kvsim.trace.pace import PacedTurn, at_recorded_pace
from kvsim.trace.replay import ReplayOptions
from kvsim.trace.session import Trace


def replay_options(config: RunConfig) -> ReplayOptions:
    """How a config wants its trace to be played."""
    wanted = config.trace
    return ReplayOptions(
        session_interval_ns=wanted.session_interval,
        max_think_ns=wanted.max_think_time,
        max_concurrent_sessions=wanted.max_concurrent_sessions,
        time_scale=wanted.time_scale,
    )


def tenants_of(config: RunConfig, trace: Trace) -> dict[str, int]:
    """Number of the tenant of each session, by its name; empty without tenants."""
    count = len(config.trace.tenants)
    return {session.name: at % count for at, session in enumerate(trace.sessions)} if count else {}


def policy_factory(plan: Plan, config: OffloadingConnectorConfig, view: View) -> PolicyFactory:
    """Makes the eviction policy of a connector: the release's own, one of ours, or one of the user's."""
    name, release = config.eviction_policy, plan.release

    def make(capacity: int, slots: Slots) -> EvictionPolicy:
        if name in release.policies:
            policy = release.policies[name](capacity, slots)
        elif is_class_path(name):
            policy = POLICIES.make(name, [capacity, slots], config.eviction_policy_options, plan.config.python_path)
        else:
            policy = POLICIES.make(name, [capacity, slots], options_of_policy(name, config.eviction_policy_options))
        policy.view = view
        return policy

    return make


def facts_of(paced: PacedTurn, tenant: int) -> TurnFacts:
    """What a policy may know of a turn."""
    return TurnFacts(
        stream=paced.stream,
        tenant=tenant,
        is_subagent=paced.is_subagent,
        turn=paced.index,
        goes_on=paced.next_start_ns is not None,
        pause_ns=NEVER if paced.next_start_ns is None else max(paced.next_start_ns - paced.end_ns, 0),
    )


def admitting(plan: Plan, config: OffloadingConnectorConfig, tier: Primary) -> Ledger:
    """The tier, behind whatever decides what it takes in."""
    wanted = config.admission
    if isinstance(wanted, SecondTouchAdmission):
        return AdmittingLedger(tier, SecondTouch(wanted.uses, wanted.tracked_keys))
    if isinstance(wanted, MinLengthAdmission):
        return AdmittingLedger(tier, MinLength(_least_chunks(plan, config, wanted)))
    return tier


def _least_chunks(plan: Plan, config: OffloadingConnectorConfig, wanted: MinLengthAdmission) -> int:
    """Chunks of the shortest request that is stored."""
    if wanted.tokens is not None:
        return -(-wanted.tokens // (plan.sizes.block_tokens * config.block_size_factor))
    found = break_even_chunks(plan, config.block_size_factor)
    return NEVER if found is None else found


def break_even_chunks(plan: Plan, blocks_per_chunk: int) -> int | None:
    """From how many chunks on loading them, alone on the link, takes less than computing them; None = never.

    The longer, the better: a load's fixed part counts less, and attention makes later tokens dearer to compute.
    """
    cost, view = copy_time(plan), PlanView(Clock(), plan, blocks_per_chunk)

    def pays(chunks: int) -> bool:
        load = CopyJob(0, "load", list(range(chunks)), list(range(chunks * blocks_per_chunk)))
        return cost(load, "h2d").solo_ns < view.prefill_ns(0, chunks)

    most = max(plan.limits.max_model_len // (plan.sizes.block_tokens * blocks_per_chunk), 1)
    low, high = 0, 1  # the first does not pay
    while high < most and not pays(high):
        low, high = high, min(2 * high, most)
    if not pays(high):
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if pays(middle) else (middle, high)
    return high


def admission_notes(plan: Plan) -> list[str]:
    """What `min_length` comes to, for the plan and its parts."""
    found = [note for part in plan.parts for note in admission_notes(part)]
    config = plan.config.connector
    if not isinstance(config, OffloadingConnectorConfig) or not isinstance(config.admission, MinLengthAdmission):
        return found
    if config.admission.tokens is not None:
        return found
    chunks = break_even_chunks(plan, config.block_size_factor)
    if chunks is None:
        return [*found, "admission min_length: loading is never faster than computing here, so nothing is stored"]
    tokens = chunks * config.block_size_factor * plan.sizes.block_tokens
    return [*found, f"admission min_length: stored are requests of {tokens:,} tokens or more (loading is faster then)"]


class PlanView(View):
    """What policies may know in a simulation.

    What the future holds is worked out when it is first asked for, from the trace at its recorded pace: in a closed
    loop requests come in another order, and what has been used already is looked for further on.

    Attributes:
        queue: requests that wait, the next one first; whoever builds the scheduler gives it.
    """

    def __init__(self, clock: Clock, plan: Plan, blocks_per_chunk: int) -> None:
        self._clock, self._plan, self._factor = clock, plan, blocks_per_chunk
        self._chunk_tokens = plan.sizes.block_tokens * blocks_per_chunk
        self.queue: Iterable[Request] = ()
        self._begun: set[int] = set()  # numbers of turns whose chunks somebody has asked about
        self._waiting: dict[Request, frozenset[int]] = {}  # keys of those that were in the queue when last asked
        self._rates: dict[int, int] = {}  # by middle of the chunks, in tokens

    def now_ns(self) -> int:
        return self._clock.now

    def prefill_ns(self, first: int, last: int) -> int:
        """By the step-time model, as a part of a step that takes the whole token budget at the chunks' middle."""
        budget, middle = self._plan.limits.max_num_batched_tokens, (first + last) * self._chunk_tokens // 2
        step_ns = self._rates.get(middle)
        if step_ns is None:
            step_ns = self._rates[middle] = self._plan.step_time.step_ns([(budget, middle)], [])
        return (last - first) * self._chunk_tokens * step_ns // budget

    def turn(self, request_id: str) -> TurnFacts | None:
        return self._facts.get(name_of_turn(request_id))

    def waiting(self, limit: int) -> Sequence[Collection[int]]:
        first = list(islice(self.queue, limit))
        self._waiting = {request: self._waiting.get(request) or self._keys_of(request) for request in first}
        return list(self._waiting.values())

    def next_use(self, request_id: str, position: int) -> int:
        number = self._uses.number_of.get(name_of_turn(request_id))
        if number is None:
            return NEVER
        self._begun.add(number)
        found = self._uses.after(number, position)
        while found in self._begun:
            found = self._uses.after(found, position)
        return found

    def _keys_of(self, request: Request) -> frozenset[int]:
        return frozenset(request.block_hashes[self._factor - 1 :: self._factor])

    @cached_property
    def _paced(self) -> list[PacedTurn]:
        return at_recorded_pace(self._plan.trace, replay_options(self._plan.config))

    @cached_property
    def _facts(self) -> dict[str, TurnFacts]:
        return {paced.name: facts_of(paced, self._tenants.get(paced.session.name, 0)) for paced in self._paced}

    @cached_property
    def _tenants(self) -> dict[str, int]:
        return tenants_of(self._plan.config, self._plan.trace)

    @cached_property
    def _uses(self) -> NextUses:
        """By chunks of prompts: what a prompt holds is what its request looks up."""
        ids, salts = BlockIds(self._chunk_tokens), len(self._plan.config.trace.tenants)

        def keys_of(number: int) -> list[int]:
            paced = self._paced[number]
            turn = paced.turn
            content: Content = ChainContent(turn.chain, ids, self._chunk_tokens, 0)
            if turn.demands.adapter:
                content = AdapterContent(content, turn.demands.adapter)
            if salts:
                content = Salted(content, self._tenants[paced.session.name], salts)
            return content.block_hashes(0, min(turn.known_prompt_tokens, turn.chain.num_tokens) // self._chunk_tokens)

        return NextUses([paced.name for paced in self._paced], keys_of)
