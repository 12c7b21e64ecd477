"""One server of several data-parallel ranks, as its clients see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import simpy

from kvsim.books import Books
from kvsim.clock import Clock
from kvsim.connectors.base import SchedulerOutput, WorkerOutput
from kvsim.door import Guest, Refusal
from kvsim.handoff import RemoteBlocks
from kvsim.instance import Instance
from kvsim.load_balancer import Coordinator, LoadBalancer
from kvsim.request import Request
from kvsim.results.records import RunRecord, Sample, Totals
from kvsim.scheduler import Scheduler

# Times during which something is busy or stalled are means over the ranks: a share of 1 means that all of them are.
_MEANS = frozenset({"gpu_busy_ns", "h2d_busy_ns", "d2h_busy_ns", "stall_ns", "flush_stall_ns", "sync_stall_ns"})
_SAME = frozenset({"time_ns", "end_ns", "block_tokens", "gpu_block_bytes", "cpu_block_bytes"})


class RankBooks(Books):
    """The books of one rank, which also tells the coordinator how many requests it has."""

    def __init__(self, clock: Clock, record: RunRecord, rank: int = 0) -> None:
        super().__init__(clock, record)
        self.rank, self.record = rank, record
        self.coordinator: Coordinator | None = None

    @property
    def scheduler(self) -> Scheduler:
        """The engine's."""
        return self._scheduler

    def on_step_start(self) -> None:
        if self.coordinator is not None:
            self._tell(self.coordinator)

    def on_step_done(self, output: SchedulerOutput, worker: WorkerOutput | None, ended: list[Request]) -> None:
        super().on_step_done(output, worker, ended)
        if self.coordinator is not None:
            self._tell(self.coordinator)

    def _tell(self, coordinator: Coordinator) -> None:
        scheduler, pool = self.scheduler, self.scheduler.kv.pool
        usable = pool.num_blocks - 1
        usage = (usable - pool.num_free) / usable
        coordinator.tell(self.rank, (len(scheduler.waiting), len(scheduler.running), usage))


def connect(books: Sequence[RankBooks], coordinator: Coordinator) -> None:
    """The ranks of one server: their counts go to its load balancer, and a sample shows all of them."""
    for ledger in books:
        ledger.coordinator = coordinator
        ledger.sample_of_all = lambda: sum_samples([each.sample() for each in books])


def close(books: Sequence[RankBooks], record: RunRecord, hang: str) -> None:
    """The simulation is over: see `Books.close`. The ranks' totals become the server's."""
    books[0].close(hang)
    for ledger in books[1:]:
        ledger.settle(hang)
    if len(books) > 1:
        sum_totals(record.totals, [ledger.record.totals for ledger in books])


class DataParallelServer:
    """Sends every turn to the rank that the load balancer names.

    Turns that can never run are refused in front of it, as vLLM's front end does.
    """

    def __init__(self, ranks: Sequence[Instance], balancer: LoadBalancer, coordinator: Coordinator) -> None:
        self.ranks, self._balancer, self._coordinator = ranks, balancer, coordinator

    @property
    def is_dead(self) -> bool:
        """Never: nobody kills a server of several ranks."""
        return False

    def admit(self, guest: Guest) -> simpy.Event | Refusal:
        """See `Instance.admit`."""
        if self.ranks[0].refusal(guest.turn.input_tokens, guest.max_tokens):
            return self.ranks[0].admit(guest)
        self._coordinator.catch_up()
        rank = guest.entry.rank = self._balancer.choose()
        ended = self.ranks[rank].admit(guest)
        assert isinstance(ended, simpy.Event)
        assert ended.callbacks is not None
        ended.callbacks.append(lambda _event: self._balancer.ended(rank))
        return ended

    def answer_to(self, request_id: str) -> RemoteBlocks | None:
        """See `Instance.answer_to`."""
        return self.ranks[0].answer_to(request_id)


def sum_samples(samples: Sequence[Sample], num_ranks: int | None = None) -> Sample:
    """The ranks' samples of one moment as one: sums, and means of busy times.

    ``num_ranks``: over so many, if some have no sample yet.
    """
    total = replace(samples[0])
    for name, value in _combine(Sample, samples, num_ranks).items():
        setattr(total, name, value)
    return total


def sum_totals(target: Totals, ranks: Sequence[Totals]) -> None:
    """The ranks' totals into the run's. Peaks are those of each rank, summed up."""
    for name, value in _combine(Totals, ranks).items():
        setattr(target, name, value)


def _combine(kind: type, ranks: Sequence[Sample] | Sequence[Totals], num_ranks: int | None = None) -> dict[str, int]:
    found: dict[str, int] = {}
    for field in fields(kind):
        if field.name == "tiers":
            continue  # there are none
        values = [getattr(rank, field.name) for rank in ranks]
        total = max(values) if field.name in _SAME else sum(values)
        found[field.name] = total // (num_ranks or len(values)) if field.name in _MEANS else total
    return found
