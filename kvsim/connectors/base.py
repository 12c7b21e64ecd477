"""The V1 connector protocol: what a scheduler asks, and what a worker reports. All that a connector needs is here.

A connector is two objects. The *scheduler side* (`KVConnector`) decides, the *worker side* (`ConnectorWorker`) moves
bytes. They share nothing but two messages: a step's metadata goes down, a `WorkerOutput` comes back. vLLM has one
class with two roles (KVConnectorBase_V1) and a worker per rank; here one worker stands for all ranks of an engine.

**One step**, in the order of the calls:

    scheduler side                       worker side
    on_new_request(request)                                        between steps: it has arrived
    request_finished(request, table)                               between steps: its client has gone (abort)
      schedule():
    get_num_new_matched_tokens                                     each waiting request that is reached, without blocks
    update_state_after_alloc                                       if it was admitted: it has blocks now
    build_connector_meta(output)                                   once, last, also in a step without tokens
                                         handle_preemptions(meta)  what it returns is waited for; nothing is written yet
                                         start_load_kv(meta)
      the forward pass, for as long as the step-time model says; a worker with LayerHooks is called before it
      (before_forward), around each layer (wait_for_layer_load, save_kv_layer) and behind it (wait_for_save)
                                         get_finished()
      update_from_output():
    request_finished(request, table)                               each request that ended, in scheduling order
    update_connector_output(report)
    take_events()                                                  if KV events are wanted

**The life of a request**

1. *It arrives.* `on_new_request`. ``request.block_hashes`` has the hash of each full block of its tokens; it grows
   with the tokens that are generated. Equal hashes mean an equal prefix up to there: they are what you look up.
2. *It is looked up*, whenever the scheduler reaches it while it waits without blocks: first locally
   (``num_local_tokens``, whole blocks), then by you, with one of

   - ``(0, False)``: nothing to load;
   - ``(n, True)``: n tokens behind the local hit are loaded while others compute (at most up to ``num_tokens``);
   - ``(n, False)``: they are there when the forward pass needs them (at most up to ``num_tokens - 1``: the last token
     is always computed; a worker that needs time for it has `LayerHooks`);
   - ``(None, False)``: not known yet, ask again in the next step. Others may overtake it.

   The question commits nobody. It is asked again in every step in which the request finds no room; pin and plan in
   `update_state_after_alloc`. If asking again changes nothing, say so with `lookups_are_pure`, and the scheduler
   spares itself the questions; then `epoch` must grow with whatever could change an answer (a chunk became readable,
   was lost, a load ended), or a change goes unnoticed.
3. *It is admitted.* `update_state_after_alloc` gets its block table, the scheduler's own list: the local hits, then
   blocks for ``num_external_tokens``, then blocks to be computed. It is called with 0, too: on an admission without a
   load, and again when a request that was loaded is scheduled. Keep no copy: the list grows while the request runs.
4. *An asynchronous load parks it* (WAITING_FOR_REMOTE_KVS). It owns its blocks, nobody can hit them. Its worker puts
   it into ``received`` after the last byte; only then are the blocks given their hashes, and it may be scheduled in
   the next step. If all of its tokens were loaded, the last one is computed again.
5. *It runs.* In `build_connector_meta`, ``output.num_scheduled_tokens`` says what this step computes, and
   ``request.num_computed_tokens`` still what earlier steps have computed: KV of the first number of tokens plus the
   second exists when the forward pass is over, so a store of them may start then and not before.
6. *It is preempted* (``output.preempted``). Its blocks are free already, and may have been given to others in this very
   step: a store that still reads them has to be returned by `handle_preemptions`. It keeps what it has generated,
   has computed nothing, is looked up again, and comes back in ``output.resumed``.
7. *It ends.* `request_finished`: answer False, and its blocks are free from now on; their content stays until they are
   handed out again, in a later ``output.tables`` or ``output.new_blocks``: whoever still reads them must look there.
   Answer True, and the request keeps its blocks until the worker puts it into ``sent`` (vLLM: finished_sending).
   ``output.finished`` of the next step names it. True costs blocks that others are waiting for; it is the safe answer.
8. *Or its client goes away*, at any moment between steps: `request_finished` with status ABORTED. If a load is on its
   way, the blocks are kept until the worker reports it as ``received``; it must, whether or not anybody is left.

**Blocks.** The scheduler owns them. A connector may read a block of a living request whose tokens are computed, and
write into blocks that it was given for a load, until it reports. To keep a block beyond that, reference it in the pool
(`Site.pool`: touch, free_blocks) and name it in `gpu_holds`.

**Time.** Nothing waits for you but for what `handle_preemptions` returns and what `LayerHooks` yield. An engine in
which nothing can be computed sleeps until something happens; the end of a copy of `Site.copier` wakes it, anything else
must call `Site.wake`. While `has_pending_work`, steps go on without requests.

**To add one**: subclass `KVConnector`, with a constructor ``(site, config)`` if the class has a pydantic ``Config``, or
``(site, **options)``; return your worker from `make_worker` (`kvsim.connectors.copy_worker` has one that will often
do); write ``connector: {kind: "my_module:MyConnector", options: {...}}``. README has a whole one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

from kvsim.handoff import RemoteBlocks
from kvsim.kv_events import KVCacheEvent
from kvsim.offload.store_use import StoreUse
from kvsim.request import Request

BlockTable = Any
"""Block ids: a list, or a list per KV cache group where there are several (`kvsim.cache.hybrid_kv_cache_manager`)."""


@dataclass(slots=True)
class SchedulerOutput:
    """What one ``schedule()`` decided, in the order in which it decided it."""

    num_scheduled_tokens: dict[Request, int] = field(default_factory=dict)
    new: list[Request] = field(default_factory=list)
    resumed: list[Request] = field(default_factory=list)
    new_blocks: dict[Request, BlockTable] = field(default_factory=dict)  # what running requests gained, if anything
    preempted: list[Request] = field(default_factory=list)
    hits: dict[Request, tuple[int, int]] = field(default_factory=dict)  # (local, external) tokens, of those admitted
    finished: list[Request] = field(default_factory=list)  # requests that ended in the step before
    tables: dict[Request, BlockTable] = field(default_factory=dict)  # whole tables of new and resumed requests
    drafts: dict[Request, int] = field(default_factory=dict)  # guesses verified in this step, if any
    sampling: set[Request] = field(default_factory=set)  # with steps in flight: whom this one gives a token
    encoder_tokens: int = 0  # of images and audio, that the encoder computes before this step's forward pass
    boundary_states: Sequence[Any] = ()  # recurrent states hashed in this step: `kvsim.cache.mamba_group.BoundaryState`
    connector_meta: Any = None
    # The fast engine's cohort (`kvsim.cohort`), whose members compute one token each and are named nowhere else:
    num_decoding: int = 0
    decode_contexts: int = 0  # of all members together, this step's token included
    offering: list[Request] = field(default_factory=list)  # members that `KVConnector.repeats_offer` tells of
    filling: dict[Request, int] = field(default_factory=dict)  # members that fill a block, with so many tokens computed
    order: Mapping[Request, int] = field(default_factory=dict)  # of all running requests, if one of these is named

    @property
    def total_tokens(self) -> int:
        """Tokens of this step's forward pass."""
        return sum(self.num_scheduled_tokens.values()) + self.num_decoding

    @property
    def computes(self) -> bool:
        """Whether there is a forward pass."""
        return bool(self.num_scheduled_tokens) or self.num_decoding > 0


class WorkerDiedError(Exception):
    """The worker side of a connector cannot go on; the engine ends with it."""


Direction = Literal["load", "store"]


@dataclass(eq=False, slots=True)
class CopyJob:
    """One copy: GPU blocks to CPU slots (store) or back (load). Only the GPU side's length is certain to be moved."""

    job_id: int
    direction: Direction
    source: list[int]
    destination: list[int]
    # GPU blocks whose copy did not arrive: the copier says so before the job is done. A store fails as a whole.
    failed_blocks: set[int] = field(init=False, default_factory=set)

    @property
    def gpu_blocks(self) -> list[int]:
        """The side that lies in the GPU's pool."""
        return self.source if self.direction == "store" else self.destination


@dataclass(slots=True)
class WorkerOutput:
    """What the worker side reports after a step.

    ``received`` and ``sent`` are for the scheduler, which frees and wakes requests by them after the connector has
    seen the report, and so are failed loads; the rest is between the worker and its scheduler side.
    """

    received: list[Request] = field(default_factory=list)  # loads that are complete: they may be scheduled
    jobs: list[int] = field(default_factory=list)  # finished jobs, in the order of their submission
    # Ended requests that nobody reads any more: of those, and each once, for which request_finished answered True.
    sent: list[Request] = field(default_factory=list)
    meta: Any = None  # the worker's own word to its scheduler side (vLLM: build_connector_worker_meta)
    failed_jobs: set[int] = field(default_factory=set)  # those of ``jobs`` that did not do it
    invalid_blocks: set[int] = field(default_factory=set)  # GPU blocks that were to be loaded and are not
    failed_recving: list[Request] = field(default_factory=list)  # loads of which nothing can be used

    def take_failure(self, job: CopyJob) -> None:
        """Report what a finished job did not move, if anything."""
        if job.failed_blocks and job.direction == "load":
            self.invalid_blocks |= job.failed_blocks
        elif job.failed_blocks:
            self.failed_jobs.add(job.job_id)


class Copier(Protocol):
    """Whatever moves the bytes: a timed link, or a clock that counts steps. Jobs of a direction finish in order."""

    def submit(self, job: CopyJob) -> None:
        """Queue the copy behind those of its direction."""
        ...

    def flush(self, job: CopyJob) -> None:
        """The engine is going to wait for this job."""
        ...

    def is_done(self, job: CopyJob) -> bool:
        """Whether the copy is complete now."""
        ...

    def forget(self, job: CopyJob) -> None:
        """The job was reported and will not be asked for again."""
        ...


class KVConnector(ABC):
    """Scheduler side of a connector. The module's docstring tells when each method is called and what it may do.

    Counters (``num_...``) are for the results; a connector that leaves them at 0 works all the same.
    """

    lookups_are_pure = False  # asking again for a request that found no room changes nothing
    restless = False  # may go on copying for ever although no request moves
    stores_end_quietly = False  # the report of a store changes nothing but what lookups and stores find
    writes_end_quietly = False  # nor does that of a write to a tier
    num_load_jobs = 0  # copies planned so far
    num_store_jobs = 0
    store_use: StoreUse | None = None  # which stores have been worth it; None = not counted

    @property
    def epoch(self) -> int:
        """Grows with every change that `get_num_new_matched_tokens` could notice."""
        return 0

    @property
    def num_offloaded_chunks(self) -> int:
        """Chunks that are kept outside the GPU now, where the GPU can reach them."""
        return 0

    @property
    def num_evicted_chunks(self) -> int:
        """Chunks that were lost there so far."""
        return 0

    @property
    def num_refusals(self) -> int:
        """Stores that found no room so far; a store is tried again every step."""
        return 0

    def make_worker(self) -> ConnectorWorker:
        """The worker side. Asked once, after the constructor; only of connectors given as ``module_path:Class``."""
        raise NotImplementedError(f"{type(self).__name__} has no make_worker(): expected one that returns its worker")

    def on_new_request(self, request: Request) -> None:
        """The request has arrived."""

    def answer_to(self, request_id: str) -> RemoteBlocks | None:
        """What the decode part of a turn can be told before its prefill part has reached the engine; None = nothing."""
        return None

    @abstractmethod
    def get_num_new_matched_tokens(self, request: Request, num_local_tokens: int) -> tuple[int | None, bool]:
        """Tokens loadable after the local hit, and whether the load is asynchronous. None = ask again next step."""

    @abstractmethod
    def update_state_after_alloc(self, request: Request, table: BlockTable, num_external_tokens: int) -> None:
        """The request has blocks now: the local hits, then ``num_external_tokens`` to be loaded."""

    @abstractmethod
    def build_connector_meta(self, output: SchedulerOutput) -> Any:
        """This step's work for the worker side."""

    @abstractmethod
    def request_finished(self, request: Request, table: BlockTable) -> bool:
        """The request is over. True = keep its blocks until the worker reports it as ``sent``; False = free them."""

    @abstractmethod
    def update_connector_output(self, output: WorkerOutput) -> None:
        """Reports of the worker side, after the step: before its loads wake requests and its ``sent`` frees blocks."""

    def enable_kv_events(self) -> None:
        """Note KV events from now on: somebody will take them after every step."""

    def take_events(self) -> Sequence[KVCacheEvent]:
        """KV events of what is kept outside the GPU, since the last call; a connector without tiers has none."""
        return ()

    def hit_tokens_by_tier(self, request: Request) -> dict[int, int]:
        """Tokens of the request's last load that came from secondary tiers, by the tier's number."""
        return {}

    def repeats_offer(self, request: Request) -> bool:
        """Whether it follows a decoding request only to offer, step after step, what found no room so far."""
        return False

    def repeat_refusals(self, count: int) -> None:
        """So many offers were refused again in steps that were decided like the last one."""

    def may_defer(self) -> bool:
        """Whether `get_num_new_matched_tokens` could answer None now."""
        return True

    @property
    def num_lookup_effects(self) -> int:
        """Grows when a lookup has done something that the same lookup, asked again, would not leave as it is."""
        return 0

    def follows_decoding(self, request: Request) -> bool:
        """Whether `build_connector_meta` has to hear of each token that a running request decodes from now on."""
        return True

    def has_pending_work(self) -> bool:
        """Whether the engine must keep stepping although no request is left."""
        return False

    def explain_wait(self, request: Request) -> str:
        """What a request that makes no progress waits for here, and what would help; empty = nothing."""
        return ""

    def cautions(self) -> list[str]:
        """What happened in this run that would have broken the real one, a line each."""
        return []

    def gpu_holds(self) -> list[list[int]]:
        """GPU blocks that the connector references beside the requests' tables."""
        return []

    def check(self, *, at_end: bool) -> None:
        """Raise AssertionError if the connector's books are wrong (``at_end``: or if anything is still pinned)."""


class ConnectorWorker(Protocol):
    """Worker side: turns a step's metadata into copies and polls them. Called in the order of the methods.

    In every step, also without tokens. Jobs are whatever worker and scheduler side agree on.
    """

    def handle_preemptions(self, meta: Any) -> Sequence[Any]:
        """First of all: submit what was deferred. Returns the jobs that must be complete before the forward pass."""
        ...

    def start_load_kv(self, meta: Any) -> None:
        """Submit this step's loads."""
        ...

    def is_done(self, job: Any) -> bool:
        """Whether a job that `handle_preemptions` returned is complete."""
        ...

    def has_finished(self) -> bool:
        """Whether `get_finished` has something to report."""
        ...

    def get_finished(self) -> WorkerOutput:
        """After the forward pass: what has finished since the last report."""
        ...


class Awaited(Protocol):
    """Something that will be over."""

    @property
    def is_done(self) -> bool:
        """Whether it is over now."""
        ...


@runtime_checkable
class LayerHooks(Protocol):
    """What the worker side of a *synchronous* connector adds: hooks before, inside and behind the forward pass.

    The names are those of vLLM's worker-side protocol. A hook yields what the host waits for, one after the other:
    it goes on when that is over, and the GPU computes nothing meanwhile. Copies that nobody waits for yet are simply
    submitted. A worker with these methods is driven through them (`kvsim.forward`), any other is not.
    """

    num_layers: int  # that have KV

    def has_layer_work(self) -> bool:
        """Whether this step's forward pass loads or saves anything; if not, no hook is called."""
        ...

    def before_forward(self) -> Iterator[Awaited]:
        """The part of `start_load_kv` that blocks."""
        ...

    def wait_for_layer_load(self, layer: int) -> Iterator[Awaited]:
        """Before a layer is computed."""
        ...

    def save_kv_layer(self, layer: int) -> Iterator[Awaited]:
        """When a layer has been computed."""
        ...

    def wait_for_save(self) -> Iterator[Awaited]:
        """When all layers have been computed."""
        ...
