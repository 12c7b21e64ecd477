"""A whole engine with an OffloadingConnector on a clock of steps, and contents that are plain numbers."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from engine_builder import ids, scheduled

from kvsim.cache.kv_cache_manager import KVCacheManager
from kvsim.clock import Clock
from kvsim.conform.step_clock import OneTick, Step, StepCopier
from kvsim.connectors.base import SchedulerOutput, WorkerOutput
from kvsim.engine import Engine, EngineObserver
from kvsim.limits import SchedulerLimits
from kvsim.offload.context import RequestContext
from kvsim.releases import RELEASES
from kvsim.request import Request

BLOCK_TOKENS = 16


class Numbers:
    """Content whose block ``i`` is ``first + i``, after ``shared`` blocks that are ``0 .. shared-1`` in every content.

    Two contents have the same blocks exactly where the numbers are equal, so keep ``first`` far apart.
    """

    def __init__(self, first: int, shared: int = 0) -> None:
        self.first, self.shared = first, shared

    def block_hashes(self, first: int, last: int) -> list[int]:
        """See `kvsim.request.Content`."""
        return [i if i < self.shared else self.first + i for i in range(first, last)]


def numbered(name: str, prompt: int, content: Numbers, *, out: int = 1, priority: int = 0, arrival: int = 0) -> Request:
    """A request of ``prompt`` tokens."""
    return Request(
        name, content, block_size=BLOCK_TOKENS, num_prompt_tokens=prompt, max_tokens=out, priority=priority,
        arrival=arrival,
    )  # fmt: skip


class HandEngine(EngineObserver):
    """Scheduler, pool, connector and worker of a release. `run` plays what was submitted and keeps a diary.

    Attributes:
        steps: per step (requests with tokens, in order; requests preempted).
        hits: request id -> (local, external) tokens at its first admission.
        ended: request ids in the order of their end.
    """

    def __init__(
        self,
        version: str = "0.33.0",
        *,
        num_gpu_blocks: int,
        num_cpu_chunks: int = 1000,
        factor: int = 1,
        policy: str = "lru",
        kv_manager: type[KVCacheManager] = KVCacheManager,
        load_steps: int = 2,
        store_steps: int = 1,
        max_num_batched_tokens: int = 8192,
        max_num_seqs: int = 64,
        **limits: Any,
    ) -> None:
        release = RELEASES[version]
        self.env = Clock()
        self._step = Step(self.env)
        longest = limits.pop("max_model_len", 200_000)
        kv = kv_manager(release.block_pool(num_gpu_blocks), block_size=BLOCK_TOKENS, max_model_len=longest)
        self.manager = release.manager(num_cpu_chunks, release.policies[policy])
        self.connector = release.offloading_connector(self.manager, block_size=BLOCK_TOKENS, block_size_factor=factor)
        self.copies: list[list[Any]] = []  # [direction, job, source, destination]
        copier = StepCopier(self._step, {"load": load_steps, "store": store_steps}, self.copies, log_waits=False)
        self.scheduler = release.scheduler(
            SchedulerLimits(max_num_batched_tokens, max_num_seqs, longest, **limits), kv, self.connector
        )
        self.engine = Engine(
            self.env,
            self.scheduler,
            OneTick(),
            release.offloading_worker(copier),
            observer=self,
            empty_step=1,
            give_up_after=100,
            check_every_step=True,
        )
        self.steps: list[tuple[list[tuple[str, int]], list[str]]] = []
        self.hits: dict[str, tuple[int, int]] = {}
        self.ended: list[str] = []

    def fill_cpu(self, content: Numbers, blocks: int) -> None:
        """The first so many blocks of a content lie in the CPU tier."""
        context = RequestContext("filler")
        factor = self.connector.factor
        context.extend(content.block_hashes(0, blocks)[factor - 1 :: factor])
        plan = self.manager.prepare_store(context, 0, len(context.keys))
        assert plan is not None
        self.manager.complete_store([context.keys[i] for i in plan.positions])
        self.manager.on_request_finished(context)

    def run(self, *requests: Request, steps: int | None = None) -> None:
        """Submit these requests now, in order, and go on for so many steps, or until nothing is left to do."""
        for request in requests:
            self.engine.submit(request)
        self.env.run(until=None if steps is None else self.env.now + steps)

    def load_jobs(self) -> list[list[Any]]:
        """The loads so far."""
        return [copy for copy in self.copies if copy[0] == "load"]

    def tokens_of(self, name: str) -> int:
        """Tokens computed for a request so far, what was computed twice included."""
        return sum(tokens for batch, _ in self.steps for request, tokens in batch if request == name)

    # -- what the engine tells
    def on_step_start(self) -> None:
        self._step.begin()

    def on_step_scheduled(self, output: SchedulerOutput) -> None:
        self.steps.append((scheduled(output), ids(output.preempted)))
        for request, hit in output.hits.items():
            self.hits.setdefault(request.request_id, hit)

    def on_step_done(self, output: SchedulerOutput, worker: WorkerOutput | None, ended: Iterable[Request]) -> None:
        self.ended += ids(ended)
