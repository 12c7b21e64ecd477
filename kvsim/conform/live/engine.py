"""vLLM's own scheduler, KV cache manager and connector, driven step by step and observed, without a model."""

from __future__ import annotations

import hashlib
import inspect
import math
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import gates
from copies import CLOCK
from describe import describe_meta, describe_report
from settings import Options, group_block_sizes, kv_cache_config, vllm_config
from vllm.sampling_params import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

Record = dict[str, Any]
_HASH_BYTES = 16
_ROOT = b"root"
_BEYOND = 7  # a token that nobody looks at


def block_hash(previous: bytes | None, tokens: Sequence[int]) -> bytes:
    """Hash of a block; in the place of vLLM's, so that contents can be named."""
    digest = hashlib.blake2b(previous or _ROOT, digest_size=_HASH_BYTES)
    digest.update(b",".join(b"%d" % token for token in tokens))
    return digest.digest()


def adapter_root(lora: int) -> bytes | None:
    """What the hashes of an adapter's blocks start from, in the place of vLLM's extra keys."""
    return b"lora%d" % lora if lora else None


@dataclass
class Batch:
    """A step in flight."""

    step: int
    output: Any
    report: Any  # of the worker's side of the connector
    tokens: list[list[int]]


class RealEngine:
    """One engine. `step` gives the step's record, or None for a step in which vLLM does not schedule.

    Args:
        options: as `settings.options_of` gives them.
        name_of: name of a block's content, by its hash.
        files: folder for the file system tier.
    """

    def __init__(self, options: Options, name_of: Callable[[bytes], str], files: str) -> None:
        CLOCK.step = 0
        self._name_of = name_of
        config, cache = vllm_config(options, files), kv_cache_config(options)
        self.hash_tokens: int = math.gcd(*group_block_sizes(options))
        self._depth: int = config.max_concurrent_batches if options["async_scheduling"] else 1
        self._queue: deque[Batch] = deque()
        self.hash_lookahead: int = getattr(config, "num_hash_lookahead_tokens", 0)
        self.scheduler: Any = (AsyncScheduler if options["async_scheduling"] else Scheduler)(
            vllm_config=config,
            kv_cache_config=cache,
            log_stats=True,
            block_size=math.lcm(*(group.kv_cache_spec.block_size for group in cache.kv_cache_groups)),
            structured_output_manager=StructuredOutputManager(config),
            **({"hash_block_size": self.hash_tokens} if not options["no_prefix_caching"] else {}),
        )
        self._options, self._compiler = options, gates.Compiler()
        gates.limit(self.scheduler, options)
        self._grouped = options["groups"] is not None
        self.totals: Counter[str] = Counter()
        self._log: dict[str, list[Any]] = {name: [] for name in ("preempted", "evicted", "lookup", "cpu", "dma")}
        self._worker: Any = None
        if options["connector"] is not None:
            from worker import Worker

            self._worker = Worker(config, cache, options, self._log["dma"])
        self._outputs: dict[str, list[int]] = {}  # tokens that a request will generate
        self._sampled: dict[str, int] = {}
        self._num_drafts: int = options["num_speculative_tokens"] if options["spec_method"] else 0
        self._accepted: list[int] = options["accepted"]
        self._verified: Counter[str] = Counter()
        self._observe()
        if options["tier"] == "fs":
            from tier import without_threads

            for secondary in self._manager.secondary_tiers:
                without_threads(secondary, options["tier_load_delay"], options["tier_store_delay"])

    def add(
        self, request_id: str, prompt: Sequence[int], output: Sequence[int], priority: int, demands: gates.Demands
    ) -> None:
        """A request arrives."""
        going_on = self.scheduler.requests.get(request_id)
        if going_on is not None:  # a streaming session: vLLM keeps all but the last token of what it has
            kept = going_on.num_tokens - 1
            prompt, demands = prompt[kept:], gates.part_from(demands, kept)
        self._outputs[request_id], self._sampled[request_id] = list(output), 0
        request = self._request(request_id, prompt, len(output), priority, demands)
        self._compiler.start(request, demands["grammar_steps"])
        self.scheduler.add_request(request)

    def _request(
        self, request_id: str, prompt: Sequence[int], max_tokens: int, priority: int, demands: gates.Demands
    ) -> Any:
        eos = {"eos_token_id": None} if "eos_token_id" in inspect.signature(Request.__init__).parameters else {}
        return Request(
            request_id=request_id,
            prompt_token_ids=list(prompt),
            sampling_params=SamplingParams(
                max_tokens=max_tokens, ignore_eos=True, temperature=0.0, **gates.sampling_arguments(demands)
            ),
            pooling_params=None,
            block_hasher=self._hash_new_blocks,
            priority=priority,
            arrival_time=float(CLOCK.step),
            **eos,
            **gates.request_arguments(demands),
        )

    def abort(self, request_id: str) -> None:
        """The client has gone."""
        self.scheduler.finish_requests(request_id, RequestStatus.FINISHED_ABORTED)

    def end_session(self, request_id: str, *, goes_on: bool) -> bool:
        """A turn of a streaming session has ended. If it was the last one, so does the session; is it still open?"""
        is_open = request_id in self.scheduler.requests
        if is_open and not goes_on:
            self.scheduler.add_request(self._request(request_id, [1], 1, 0, gates.NO_DEMANDS))
        return is_open and goes_on

    def step(self) -> Record | None:
        """One iteration of vLLM's engine core, or None if it does nothing: v1/engine/core.py."""
        for entries in self._log.values():
            entries.clear()
        record = self._step_with_batch_queue() if self._depth > 1 else self._step()
        CLOCK.step += 1
        if record is not None:
            record["free_after"] = self._pool.get_num_free_blocks()
            self.totals["steps"] += 1
            self.totals["scheduled_tokens"] += sum(record["sched"].values())
            self.totals["preemptions"] += len(self._log["preempted"])
            self.totals["gpu_evictions"] += len(self._log["evicted"])
        return record

    def _step(self) -> Record | None:
        """As its `step`."""
        if not self.scheduler.has_requests():
            return None
        record, batch = self._schedule()
        record |= self._update(batch)
        if batch.output.num_scheduled_tokens:  # its `post_step`
            self._draft(list(batch.output.num_scheduled_tokens))
        return record

    def _step_with_batch_queue(self) -> Record | None:
        """As its `step_with_batch_queue`: to fill the queue comes before waiting for a result."""
        waits = {"updated": None, "finished": [], "kvout": None}
        record = None
        if self.scheduler.has_requests():
            record, batch = self._schedule()
            self._queue.append(batch)
            scheduled = bool(record["sched"])
            if len(self._queue) < self._depth and (scheduled or self.scheduler.has_requests()):
                return record | waits
        elif not self._queue:
            return None
        else:
            record = self._describe(None)
        batch = self._queue.popleft()
        return record | {"updated": batch.step} | self._update(batch)

    def _schedule(self) -> tuple[Record, Batch]:
        self._compiler.begin_step()
        output = self.scheduler.schedule()
        report = self._worker.execute(output) if self._worker else None
        tokens = [self._sample(request_id, output) for request_id in output.num_scheduled_tokens]
        return self._describe(output), Batch(CLOCK.step, output, report, tokens)

    def shutdown(self) -> None:
        """Release threads and files."""
        self.scheduler.shutdown()

    def _hash_new_blocks(self, request: Any) -> list[bytes]:
        size, first, ahead = self.hash_tokens, len(request.block_hashes), self.hash_lookahead
        lora = request.lora_request.lora_int_id if request.lora_request else 0
        previous = request.block_hashes[-1] if first else adapter_root(lora)
        hashes = []
        for index in range(first, (request.num_tokens - ahead) // size):
            previous = block_hash(previous, request.all_token_ids[index * size : (index + 1) * size + ahead])
            hashes.append(previous)
        return hashes

    def _update(self, batch: Batch) -> Record:
        """The step's tokens and the worker's report come back; what has finished."""
        output = batch.output
        request_ids = list(output.num_scheduled_tokens)
        model_output = ModelRunnerOutput(
            req_ids=request_ids,
            req_id_to_index={request_id: index for index, request_id in enumerate(request_ids)},
            sampled_token_ids=batch.tokens,
            logprobs=None,
            prompt_logprobs_dict={},
            pooler_output=[],
        )
        model_output.kv_connector_output = batch.report
        by_client = self.scheduler.update_from_output(output, model_output)
        finished = [
            answer.request_id
            for answers in by_client.values()
            for answer in answers.outputs
            if answer.finish_reason is not None
        ]
        return {"finished": finished, "kvout": describe_report(batch.report)}

    def _sample(self, request_id: str, output: Any) -> list[int]:
        """The accepted drafts and a token, where the prompt is complete; known when the step is launched."""
        request = self.scheduler.requests[request_id]
        # schedule() has counted this step's tokens already.
        if request.num_computed_tokens < request.num_tokens or getattr(request, "is_prefill_chunk", False):
            return []
        drafts = output.scheduled_spec_decode_tokens.get(request_id, ())
        accepted = 0
        cached = output.scheduled_cached_reqs
        admitted = {new.req_id for new in output.scheduled_new_reqs} | set(getattr(cached, "resumed_req_ids", ()) or ())
        if drafts and request_id not in admitted:  # else they only pad the batch
            number = self._verified[request_id]
            self._verified[request_id] += 1
            accepted = min(self._accepted[number % len(self._accepted)], len(drafts))
        # What a failed load makes void is sampled again; with steps in flight vLLM does not know all tokens yet.
        position = self._sampled[request_id] if self._depth > 1 else request.num_output_tokens
        self._sampled[request_id] = position + 1 + accepted
        tokens = self._outputs[request_id][position : position + 1 + accepted]
        return tokens + [_BEYOND] * (1 + accepted - len(tokens))

    def _draft(self, request_ids: Sequence[str]) -> None:
        """Every request gets its drafts; vLLM ignores those of prompts that are not complete."""
        if self._num_drafts:
            drafts = [[_BEYOND] * self._num_drafts for _ in request_ids]
            self.scheduler.update_draft_token_ids(DraftTokenIds(list(request_ids), drafts))

    def _observe(self) -> None:
        """Wrap what is to be seen; nothing behaves differently."""
        scheduler, log = self.scheduler, self._log
        kv_cache = scheduler.kv_cache_manager
        self._pool = kv_cache.block_pool

        def on_evict(call: Any, block: Any, *args: Any, **kwargs: Any) -> Any:
            content = block.block_hash
            evicted = call(block, *args, **kwargs)
            if evicted:
                log["evicted"].append([block.block_id, self._name(content)])
            return evicted

        def on_preempt(call: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            log["preempted"].append(request.request_id)
            return call(request, *args, **kwargs)

        def on_local_lookup(call: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
            found = call(request, *args, **kwargs)
            log["lookup"].append([request.request_id, found[1], None, None])
            return found

        def on_external_lookup(call: Any, request: Any, num_computed_tokens: int) -> Any:
            found = call(request, num_computed_tokens)
            lookups = log["lookup"]
            if lookups and lookups[-1][0] == request.request_id:
                lookups[-1][2:] = [found[0], found[1]]
            else:
                lookups.append([request.request_id, num_computed_tokens, found[0], found[1]])
            return found

        def on_cpu_evict(call: Any, count: int, *args: Any, **kwargs: Any) -> Any:
            evicted = call(count, *args, **kwargs)
            names = None if evicted is None else [self._name(entry[0]) for entry in evicted]
            log["cpu"].append(["evict", count, names])
            return evicted

        _wrap(self._pool, "_maybe_evict_cached_block", on_evict)
        _wrap(scheduler, "_preempt_request", on_preempt)
        _wrap(kv_cache, "get_computed_blocks", on_local_lookup)
        if scheduler.connector is not None:
            _wrap(scheduler.connector, "get_num_new_matched_tokens", on_external_lookup)
            side = getattr(scheduler.connector, "connector_scheduler", None)
            self._manager: Any = getattr(side, "manager", None)
            policy = getattr(getattr(self._manager, "primary_tier", self._manager), "_policy", None)
            if policy is not None:
                _wrap(policy, "evict", on_cpu_evict)

    def _block_ids(self, by_group: Any) -> list[Any]:
        return [list(blocks) for blocks in by_group] if self._grouped else list(by_group[0])

    def _name(self, content: Any) -> str | None:
        return self._name_of(bytes(content)[:_HASH_BYTES]) if content else None

    def _describe(self, output: Any) -> Record:
        """What was decided; None: nothing, and only the queues are of interest."""
        scheduler = self.scheduler
        output = output or SchedulerOutput.make_empty()
        cached = output.scheduled_cached_reqs
        blocks = {new.req_id: self._block_ids(new.block_ids) for new in output.scheduled_new_reqs}
        for request_id, gained in zip(cached.req_ids, cached.new_block_ids, strict=True):
            if gained is not None:
                blocks[request_id] = self._block_ids(gained)
        skipped = _ids(getattr(scheduler, "skipped_waiting", None))
        record = {
            "step": CLOCK.step,
            "sched": dict(output.num_scheduled_tokens),
            "new": [new.req_id for new in output.scheduled_new_reqs],
            "resumed": sorted(getattr(cached, "resumed_req_ids", ()) or ()),
            "preempted": list(self._log["preempted"]),
            "finished_prev": sorted(output.finished_req_ids),
            "computed": {name: scheduler.requests[name].num_computed_tokens for name in output.num_scheduled_tokens},
            "lookup": [list(entry) for entry in self._log["lookup"]],
            "running": _ids(scheduler.running),
            "waiting": _ids(scheduler.waiting),
            "skipped": skipped or _ids(getattr(scheduler, "kv_holding_waiting", None)),
            "deferred": sorted(request.request_id for request in getattr(scheduler, "deferred_waiting", ())),
            "new_blocks": blocks,
            "evicted": list(self._log["evicted"]),
            "free": self._pool.get_num_free_blocks(),
        }
        record |= gates.describe(output, self._options)
        if output.kv_connector_metadata is not None:
            record["dma"] = [list(entry) for entry in self._log["dma"]]
            record["cpu"] = list(self._log["cpu"])
            record["meta"] = describe_meta(output.kv_connector_metadata)
        return record


def _wrap(owner: Any, name: str, observed: Callable[..., Any]) -> None:
    """Have `observed` called with the method and what the method was called with."""
    call = getattr(owner, name)
    setattr(owner, name, lambda *args, **kwargs: observed(call, *args, **kwargs))


def _ids(requests: Any) -> list[str]:
    return [] if requests is None else [request.request_id for request in requests]
