"""The fast engine's scheduler: how many steps will be decided alike, and what they leave behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from kvsim.cohort_steps import CohortSteps
from kvsim.connectors.base import SchedulerOutput, WorkerOutput
from kvsim.connectors.offloading_runs import RunOffloadingConnector
from kvsim.scheduler_023 import Scheduler023


class CohortScheduler(CohortSteps):
    """Decides as `Scheduler` does, and knows when it would go on deciding the same."""

    # -- how far a stretch of quiet steps reaches
    def num_quiet_steps(self, output: SchedulerOutput) -> int:
        """How many steps, this one included, will be decided alike if nothing happens meanwhile; at least 1."""
        pool = self.kv.pool
        if not output.num_decoding or self._individuals or output.preempted or output.hits:
            return 1
        if self.connector is not None and self.connector.num_lookup_effects != self._effects_before:
            return 1
        if output.finished and self._num_refusals:  # an ended request makes its last offer only once
            return 1
        lookup = None if self.store is None else self.store.lookup
        if lookup is not None and lookup.asked and not (self._is_blocked and lookup.may_repeat()):
            return 1
        room = pool.num_free
        if self.connector is not None:
            sensitive: set[int] = set().union(*self._looked_up_for_something())
            if sensitive or pool.watchers:
                room = pool.blocks_before(sensitive, room)
        cohort = self.cohort
        taken = cohort.demand(1)  # the blocks of this step
        return max(cohort.most_steps(cohort.steps_to_end(), taken + room), 1)

    def _looked_up_for_something(self) -> list[Sequence[int]]:
        """Of this step's local hits those that matter.

        Who had no room for all of its tokens has none as long as nobody gives blocks back, even if it hits less: a hit
        that is handed out is a block less to take and one more to compute. But its lookup must not do anything else.
        """
        blocked_by, connector = self._blocked_by, self.connector
        if blocked_by is not None and self._no_room_for_all and isinstance(connector, RunOffloadingConnector):
            return self._looked_up[:-1] if connector.may_hit_less(blocked_by) else self._looked_up
        return self._looked_up

    def num_alike_chunks(self, output: SchedulerOutput) -> int:
        """How many steps, this one included, give the whole budget to the cohort and the same prompt; at least 1.

        In none of them is the prompt complete, and with the budget used up nobody looks at those who wait. Only without
        a connector: it would have to hear of each chunk.
        """
        limits, pool, cohort = self.limits, self.kv.pool, self.cohort
        (request, tokens), *others = output.num_scheduled_tokens.items()
        spent = tokens + output.num_decoding == limits.max_num_batched_tokens
        if others or not spent or limits.long_prefill_token_threshold:
            return 1
        if output.num_decoding != len(cohort) or len(self._individuals) != 1 or tokens == 1:
            return 1
        computed, size = request.num_computed_tokens, self.kv.block_size  # this chunk counts already
        most = 1 + (min(request.num_tokens, limits.max_model_len - 1) - computed - 1) // tokens
        if len(cohort):
            most = min(most, cohort.steps_to_end())
        steps, held, taken = 1, self.kv.num_held_blocks(request), cohort.demand(1)
        while steps < most:
            blocks = -(-(computed + steps * tokens) // size) - held
            if blocks + cohort.demand(steps + 1) - taken > pool.num_free:
                break
            steps += 1
        if steps > 1:
            self._chunk = request, tokens
        return steps

    # -- what does not end it
    def arrivals_matter(self) -> bool:
        """Whether a request that arrives during quiet steps could be admitted: not behind one that does not fit."""
        if self._chunk is not None:
            return False
        # Whoever blocked the queue may have given up since: then nobody waits any more.
        is_blocked = bool(self.waiting) and (self._is_blocked or self._refusal.is_held)
        is_blocked = is_blocked or len(self.running) >= self.limits.max_num_seqs
        return self._by_priority or not is_blocked

    def stores_matter(self) -> bool:
        """Whether the end of a store to CPU memory during quiet steps changes anything before their end.

        It makes chunks readable and evictable: that is of use to who is looked up or offers chunks, and to the tiers.
        """
        if self._looked_up_for_something() or self._offering:
            return True
        return self.connector is not None and not self.connector.stores_end_quietly

    def writes_matter(self) -> bool:
        """The same of the end of a write to a tier behind it, which makes chunks evictable.

        That is of no use to who is looked up, hears the same again, and would bring nothing in.
        """
        return not self.hears_the_same() or (self.connector is not None and not self.connector.writes_end_quietly)

    def hears_the_same(self) -> bool:
        """Whether the next step's lookups have the answers of this one's, and nothing is offered."""
        is_known = not self._looked_up or (self._memory is not None and self._memory.is_settled())
        return is_known and not self._offering

    def takes_reports(self) -> bool:
        """Whether quiet steps may go on when a store's end has been reported, if they still hear the same."""
        connector = self.connector
        return connector is not None and (connector.stores_end_quietly or connector.writes_end_quietly)

    # -- going on
    def report(self, output: WorkerOutput) -> None:
        """The worker's report at the end of a quiet step: stores have ended."""
        assert self.connector is not None
        self.connector.update_connector_output(output)

    def go_on(self, steps: int, decided_ns: int) -> None:
        """The step under way and those behind it are over, and so many steps later one like it is under way.

        ``decided_ns``: when that one was decided.
        """
        cohort = self.cohort
        if self.store is not None:
            self.store.lookup.repeat(steps, decided_ns)
        if self._chunk is not None:
            for _ in range(steps):
                cohort.advance(1)
                self._take_next()
            return
        self.kv.pool.take(cohort.demand(steps + 1) - cohort.demand(1))
        cohort.advance(steps)
        self._repeat_refusals(steps)

    @contextmanager
    def step_over(self) -> Iterator[None]:
        """Inside, the step under way is over; behind, it is under way again, as if nothing had happened."""
        self.cohort.advance(1)
        self._is_under_way = False
        yield
        self.cohort.advance(-1)
        self._is_under_way = True

    def _take_next(self) -> None:
        """Blocks for the next step of a stretch."""
        self.kv.pool.take(self.cohort.demand(1))
        if self._chunk is not None:
            request, tokens = self._chunk
            self.kv.allocate_slots(request, tokens)
            request.num_computed_tokens += tokens

    def _repeat_refusals(self, steps: int) -> None:
        if self._num_refusals and self.connector is not None:
            self.connector.repeat_refusals(steps * self._num_refusals)


class CohortScheduler023(CohortScheduler, Scheduler023):
    """Of release 0.23.0."""
