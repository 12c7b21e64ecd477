"""MultiConnector: several connectors as one. The first that has something loads, all of them store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvsim.connectors.base import (
    Awaited,
    BlockTable,
    ConnectorWorker,
    KVConnector,
    LayerHooks,
    SchedulerOutput,
    WorkerOutput,
)
from kvsim.handoff import RemoteBlocks
from kvsim.kv_events import KVCacheEvent
from kvsim.request import Request


@dataclass(slots=True)
class MultiMeta:
    """This step's work of each connector, and how many of them the end of a request waits for, beyond the first."""

    parts: list[Any]
    extra_sends: dict[Request, int] = field(default_factory=dict)


class MultiConnector(KVConnector):
    """Asks all connectors in order; the first with tokens to load gets the request, unless one must be asked again.

    All others are told of an admission without a load. Every connector hears of everything else, and stores what it
    stores alone. A request that has ended keeps its blocks until all those have reported that wanted it to.
    Rules: vLLM 0.33.0 multi_connector.py.

    Args:
        parts: in the order in which they are asked.
        num_tiers: secondary tiers of each, which are numbered through.
    """

    def __init__(self, parts: Sequence[KVConnector], num_tiers: Sequence[int]) -> None:
        self.parts = list(parts)
        self._first_tier = [sum(num_tiers[:at]) for at in range(len(num_tiers))]
        self._chosen: dict[Request, int] = {}
        self._extra_sends: dict[Request, int] = {}
        self.lookups_are_pure = all(part.lookups_are_pure for part in parts)
        self.restless = any(part.restless for part in parts)

    # -- looking
    def get_num_new_matched_tokens(self, request: Request, num_local_tokens: int) -> tuple[int | None, bool]:
        found = (0, False)
        for number, part in enumerate(self.parts):
            tokens, is_async = part.get_num_new_matched_tokens(request, num_local_tokens)
            if tokens is None:
                return None, False
            if not found[0] and tokens:
                self._chosen[request] = number
                found = (tokens, is_async)
        return found

    @property
    def epoch(self) -> int:
        return sum(part.epoch for part in self.parts)

    @property
    def num_lookup_effects(self) -> int:
        return sum(part.num_lookup_effects for part in self.parts)

    def may_defer(self) -> bool:
        return any(part.may_defer() for part in self.parts)

    # -- planning
    def on_new_request(self, request: Request) -> None:
        for part in self.parts:
            part.on_new_request(request)

    def answer_to(self, request_id: str) -> RemoteBlocks | None:
        answers = (part.answer_to(request_id) for part in self.parts)
        return next((answer for answer in answers if answer is not None), None)

    def update_state_after_alloc(self, request: Request, table: BlockTable, num_external_tokens: int) -> None:
        chosen = self._chosen.get(request)
        for number, part in enumerate(self.parts):
            part.update_state_after_alloc(request, table, num_external_tokens if number == chosen else 0)

    def build_connector_meta(self, output: SchedulerOutput) -> MultiMeta:
        """Of all connectors, in their order."""
        meta = MultiMeta([part.build_connector_meta(output) for part in self.parts], self._extra_sends)
        self._extra_sends = {}
        return meta

    def follows_decoding(self, request: Request) -> bool:
        return any(part.follows_decoding(request) for part in self.parts)

    # -- ending
    def request_finished(self, request: Request, table: BlockTable) -> bool:
        """All of them are asked; one that wants the blocks to be kept is enough."""
        waits = sum(part.request_finished(request, table) for part in self.parts)
        if waits > 1:
            self._extra_sends[request] = waits - 1
        self._chosen.pop(request, None)
        return waits > 0

    def update_connector_output(self, output: WorkerOutput) -> None:
        """Each gets its own jobs and its own word, and everybody's loads and sends."""
        for part, own in zip(self.parts, output.meta, strict=True):
            part.update_connector_output(
                WorkerOutput(
                    output.received, own.jobs, output.sent, own.meta, own.failed_jobs, output.invalid_blocks,
                    output.failed_recving,
                )
            )  # fmt: skip

    def has_pending_work(self) -> bool:
        return any(part.has_pending_work() for part in self.parts)

    # -- telling
    @property
    def num_offloaded_chunks(self) -> int:
        return sum(part.num_offloaded_chunks for part in self.parts)

    @property
    def num_evicted_chunks(self) -> int:
        return sum(part.num_evicted_chunks for part in self.parts)

    @property
    def num_refusals(self) -> int:
        return sum(part.num_refusals for part in self.parts)

    @property
    def num_load_jobs(self) -> int:  # type: ignore[override]  # a sum, not counted here
        """Of all of them."""
        return sum(part.num_load_jobs for part in self.parts)

    @property
    def num_store_jobs(self) -> int:  # type: ignore[override]  # a sum, not counted here
        """Of all of them."""
        return sum(part.num_store_jobs for part in self.parts)

    def hit_tokens_by_tier(self, request: Request) -> dict[int, int]:
        chosen = self._chosen.get(request)
        if chosen is None:
            return {}
        first = self._first_tier[chosen]
        return {first + tier: tokens for tier, tokens in self.parts[chosen].hit_tokens_by_tier(request).items()}

    def enable_kv_events(self) -> None:
        for part in self.parts:
            part.enable_kv_events()

    def take_events(self) -> Sequence[KVCacheEvent]:
        return [event for part in self.parts for event in part.take_events()]

    def explain_wait(self, request: Request) -> str:
        return next((text for part in self.parts if (text := part.explain_wait(request))), "")

    def cautions(self) -> list[str]:
        return [line for part in self.parts for line in part.cautions()]

    def gpu_holds(self) -> list[list[int]]:
        return [blocks for part in self.parts for blocks in part.gpu_holds()]

    def check(self, *, at_end: bool) -> None:
        for part in self.parts:
            part.check(at_end=at_end)


class MultiWorker:
    """The worker sides of several connectors; a request's blocks are released by the last that reports it as sent."""

    def __init__(self, parts: Sequence[ConnectorWorker]) -> None:
        self._parts = list(parts)
        self._extra_sends: dict[Request, int] = {}

    def handle_preemptions(self, meta: MultiMeta) -> list[tuple[int, Any]]:
        """Of all of them: the jobs to wait for, each with whose it is."""
        self._extra_sends |= meta.extra_sends
        return [
            (number, job)
            for number, (part, own) in enumerate(zip(self._parts, meta.parts, strict=True))
            for job in part.handle_preemptions(own)
        ]

    def start_load_kv(self, meta: MultiMeta) -> None:
        """Of all of them."""
        for part, own in zip(self._parts, meta.parts, strict=True):
            part.start_load_kv(own)

    def is_done(self, job: tuple[int, Any]) -> bool:
        """Whether a job that `handle_preemptions` returned is complete."""
        number, own = job
        return self._parts[number].is_done(own)

    def has_finished(self) -> bool:
        """Whether any of them has something to report."""
        return any(part.has_finished() for part in self._parts)

    def get_finished(self) -> WorkerOutput:
        """All reports as one; as its own word, the reports of each."""
        reports = [part.get_finished() for part in self._parts]
        output = WorkerOutput(meta=reports)
        for report in reports:
            output.received += report.received
            output.failed_recving += report.failed_recving
            output.jobs += report.jobs
            output.invalid_blocks |= report.invalid_blocks
            for request in report.sent:
                left = self._extra_sends.get(request, 0)
                if not left:
                    output.sent.append(request)
                elif left == 1:
                    del self._extra_sends[request]
                else:
                    self._extra_sends[request] = left - 1
        return output


class LayeredMultiWorker(MultiWorker):
    """The same where some of them work inside the forward pass."""

    def __init__(self, parts: Sequence[ConnectorWorker]) -> None:
        super().__init__(parts)
        perhaps: list[object] = list(parts)  # mypy holds that no worker can have both sets of methods
        self._layered = [part for part in perhaps if isinstance(part, LayerHooks)]
        self.num_layers = self._layered[0].num_layers

    def has_layer_work(self) -> bool:
        """Whether this step's forward pass loads or saves anything."""
        return any(part.has_layer_work() for part in self._layered)

    def before_forward(self) -> Iterator[Awaited]:
        """The part of `start_load_kv` that blocks."""
        for part in self._layered:
            yield from part.before_forward()

    def wait_for_layer_load(self, layer: int) -> Iterator[Awaited]:
        """Before a layer is computed."""
        for part in self._layered:
            yield from part.wait_for_layer_load(layer)

    def save_kv_layer(self, layer: int) -> Iterator[Awaited]:
        """When a layer has been computed."""
        for part in self._layered:
            yield from part.save_kv_layer(layer)

    def wait_for_save(self) -> Iterator[Awaited]:
        """When all layers have been computed."""
        for part in self._layered:
            yield from part.wait_for_save()


def multi_worker(parts: Sequence[ConnectorWorker]) -> MultiWorker:
    """The worker side of several connectors."""
    perhaps: list[object] = list(parts)
    layered = any(isinstance(part, LayerHooks) for part in perhaps)
    return LayeredMultiWorker(parts) if layered else MultiWorker(parts)
