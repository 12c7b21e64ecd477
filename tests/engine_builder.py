"""Small requests, a scripted connector and short cuts for the tests of the engine's parts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import count
from typing import Any

from kvsim.cache.block_pool import BlockPool, BlockPool023
from kvsim.cache.kv_cache_manager import KVCacheManager
from kvsim.connectors.base import KVConnector, SchedulerOutput, WorkerOutput
from kvsim.gates.base import Gate
from kvsim.limits import SchedulerLimits
from kvsim.load_failures import LoadFailurePolicy
from kvsim.offload.context import SEEN, RequestContext
from kvsim.offload.policies.base import EvictionPolicy
from kvsim.offload.slot import Slot, Slots
from kvsim.request import Request
from kvsim.scheduler import Scheduler
from kvsim.scheduler_023 import Scheduler023

BLOCK = 4  # tokens

Answer = tuple[int | None, bool]


class Letters:
    """Content written as a word, one letter per block; blocks after the word are nobody else's.

    A letter stands for its block and everything before it, so a letter of two words must have the
    same letters before it in both.
    """

    _private = count(1_000_000, 1_000)

    def __init__(self, word: str) -> None:
        self._word = word
        self._rest = next(self._private) - len(word)

    def block_hashes(self, first: int, last: int) -> list[int]:
        """See `kvsim.request.Content`."""
        word = self._word
        return [ord(word[i]) if i < len(word) else self._rest + i for i in range(first, last)]


def hashes(word: str) -> list[int]:
    """The block hashes of a word."""
    return [ord(letter) for letter in word]


def word(keys: Iterable[int]) -> str:
    """The word with these block hashes."""
    return "".join(map(chr, keys))


def make_request(
    name: str,
    content: str = "",
    *,
    prompt: int | None = None,
    out: int = 1,
    arrival: int = 0,
    priority: int = 0,
    block_size: int = BLOCK,
) -> Request:
    """A request whose prompt is as long as its word, unless ``prompt`` says how many tokens it has."""
    return Request(
        name,
        Letters(content),
        block_size=block_size,
        num_prompt_tokens=len(content) * block_size if prompt is None else prompt,
        max_tokens=out,
        arrival=arrival,
        priority=priority,
    )


def make_context(name: str, content: str) -> RequestContext:
    """A request as offloading managers see it, one letter per chunk."""
    context = RequestContext(name)
    context.extend(hashes(content))
    return context


class Tier:
    """An eviction policy with the slots and marks that a manager would keep."""

    def __init__(self, policy: type[EvictionPolicy], capacity: int = 100) -> None:
        self.slots: Slots = {}
        self.policy = policy(capacity, self.slots)

    def insert(self, context: RequestContext, letters: str) -> None:
        """The request stores these chunks, and they are ready at once."""
        positions = [context.keys.index(key) for key in hashes(letters)]
        self.note(context, positions)
        for position in positions:
            slot = self.slots[context.keys[position]] = Slot(0)
            self.policy.insert(context, position)
            slot.ref_count = 0

    def use(self, context: RequestContext, letters: str) -> None:
        """The request is seen to use these chunks."""
        self.note(context, [context.keys.index(key) for key in hashes(letters)])

    def note(self, context: RequestContext, positions: list[int]) -> None:
        """As a manager does: first uses are told to the policy."""
        new = [position for position in positions if not context.marks[position] & SEEN]
        for position in new:
            context.marks[position] |= SEEN
        if new:
            self.policy.on_access(context, new)

    def evict(self, count: int, protected: str = "") -> str | None:
        """The victims' letters, in order."""
        victims = self.policy.evict(count, set(hashes(protected)))
        if victims is None:
            return None
        for key in victims:
            del self.slots[key]
        return word(victims)

    def evict_all(self) -> str | None:
        """Everything, in order."""
        return self.evict(len(self.slots))


class ScriptedConnector(KVConnector):
    """Answers lookups from a script and writes down every call.

    Args:
        script: request id -> its answers in turn, the last one again and again; not in it = nothing to load.
    """

    def __init__(self, script: dict[str, Sequence[Answer]] | None = None) -> None:
        self._script = {name: list(answers) for name, answers in (script or {}).items()}
        self.calls: list[tuple[Any, ...]] = []
        self.pending = False
        self.sends = False  # whether ended requests keep their blocks until they are reported as sent

    def get_num_new_matched_tokens(self, request: Request, num_local_tokens: int) -> Answer:
        answers = self._script.get(request.request_id, [(0, False)])
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        self.calls.append(("lookup", request.request_id, num_local_tokens))
        return answer

    def update_state_after_alloc(self, request: Request, table: list[int], num_external_tokens: int) -> None:
        self.calls.append(("alloc", request.request_id, list(table), num_external_tokens))

    def build_connector_meta(self, output: SchedulerOutput) -> str:
        self.calls.append(("meta",))
        return "meta"

    def request_finished(self, request: Request, table: list[int]) -> bool:
        self.calls.append(("finished", request.request_id, list(table)))
        return self.sends

    def update_connector_output(self, output: WorkerOutput) -> None:
        self.calls.append(("output", output.jobs, [request.request_id for request in output.received]))

    def has_pending_work(self) -> bool:
        return self.pending

    def lookups(self) -> list[tuple[str, int]]:
        """(request id, local tokens) of every lookup so far; forgets them."""
        found = [call[1:] for call in self.calls if call[0] == "lookup"]
        self.calls.clear()
        return found


def make_scheduler(
    release: type[Scheduler] = Scheduler,
    *,
    num_blocks: int = 101,
    connector: KVConnector | None = None,
    gates: Gate | None = None,
    max_num_batched_tokens: int = 64,
    max_num_seqs: int = 8,
    max_model_len: int = 1000,
    enable_caching: bool = True,
    kv_load_failure_policy: LoadFailurePolicy = "fail",
    **limits: Any,
) -> Scheduler:
    """A scheduler over ``num_blocks`` blocks of 4 tokens (block 0 is the null block)."""
    pool = (BlockPool023 if issubclass(release, Scheduler023) else BlockPool)(num_blocks)
    kv = KVCacheManager(pool, block_size=BLOCK, max_model_len=max_model_len, enable_caching=enable_caching)
    bounds = SchedulerLimits(max_num_batched_tokens, max_num_seqs, max_model_len, **limits)
    return release(bounds, kv, connector, gates, kv_load_failure_policy=kv_load_failure_policy)


def step(
    scheduler: Scheduler, *, received: Sequence[Request] = (), jobs: Sequence[int] = (), sent: Sequence[Request] = ()
) -> tuple[SchedulerOutput, list[str]]:
    """One step, with these reports of the worker. Returns the decision and the ids of those that ended."""
    output = scheduler.schedule()
    report = None if scheduler.connector is None else WorkerOutput(list(received), list(jobs), list(sent))
    ended = scheduler.update_from_output(output, report)
    scheduler.check()
    return output, ids(ended)


def scheduled(output: SchedulerOutput) -> list[tuple[str, int]]:
    """(request id, tokens) in scheduling order."""
    return [(request.request_id, tokens) for request, tokens in output.num_scheduled_tokens.items()]


def ids(requests: Iterable[Request]) -> list[str]:
    """Request ids, in order."""
    return [request.request_id for request in requests]
