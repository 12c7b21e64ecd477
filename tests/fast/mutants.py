"""Rules of the fast engine, each with a way to break it. A random world must notice (see run_mutants.py).

(rule, module under kvsim/, text, what it becomes). The text must occur exactly once, or the mutant is stale.

Not here, because nothing could notice:
- what only saves time: joining pieces, forgetting watchers, windows that are longer than they would have to be;
- what another rule covers: without individuals no window is opened because none of them computes, and the other way
  round; a preemption needs a dissolved cohort; a refused offer is refused again whatever it has marked; what is hit is in
  a table that is looked at; a touch takes as much from the free blocks as from the need; who stands before a member never
  wants more than it got when that member was admitted.
Nor rules that 2,000 worlds did not see and that we keep all the same: a window ends before blocks of a remembered,
refused hit are evicted, and after a step that asked a tier for the first time or took in its news; watched pieces of a
running request do not grow (a job would be flushed without need); a file that a tier has evicted since it was found is
a miss.
Nor what test_equality.py has by hand: who leaves the cohort takes its place again, and a step outlives its engine.
"""

from __future__ import annotations

SCHEDULER, ENGINE, COHORT = "cohort_scheduler.py", "fast_engine.py", "cohort.py"
CONNECTOR, POOL, COPIES = "connectors/offloading_runs.py", "extents/extent_pool.py", "extents/pool_copies.py"
LEDGER, TIERING, LOOKUP, FILES = "extents/ledger.py", "extents/tiering.py", "extents/lookup.py", "extents/files.py"
LRU, LRU_023, ARC, RESERVATION = "extents/lru.py", "extents/lru_023.py", "extents/arc.py", "extents/arc_reservation.py"

MUTANTS = [
    # -- who joins the cohort, and who leaves it
    ("join: not while prefilling", SCHEDULER,
     "request.num_computed_tokens + 1 != request.num_tokens:\n            return\n        if not request.num_output_tokens or request in self._inflight_prefills:\n",
     "not request.num_output_tokens:\n            return\n        if False:\n"),
    ("join: not while the connector listens", SCHEDULER,
     "if is_offering and self.connector is not None and not self.connector.repeats_offer(request):", "if False:"),
    ("join: not while others have what it will compute", SCHEDULER,
     "if any(self._users[segment] > 1 or self._is_cached_behind(segment, hashed) for segment in future):",
     "if any(self._is_cached_behind(segment, hashed) for segment in future):"),
    ("join: not while what it will compute is cached", SCHEDULER,
     "if any(self._users[segment] > 1 or self._is_cached_behind(segment, hashed) for segment in future):",
     "if any(self._users[segment] > 1 for segment in future):"),
    ("join: who offers is named", SCHEDULER, "            self._offering[request] = None\n", "            pass\n"),
    ("leave: when others ask for what it computes", SCHEDULER,
     "                self._contested[growing[segment]] = None\n", "                pass\n"),
    ("leave: its segments are known", SCHEDULER, "            self._growing[segment] = request\n", "            pass\n"),
    ("leave: its blocks get their hashes", SCHEDULER, "        self.kv.cache_blocks(request, computed)\n", ""),
    # -- a step with a cohort
    ("step: dissolved when an individual needs what is not free", SCHEDULER,
     "        if free < 0:\n            return False\n        # With", "        # With"),
    ("step: members that offer do so in order", SCHEDULER,
     "output.offering, output.order = list(self._offering), self._order",
     "output.offering, output.order = [], self._order"),
    ("step: members end in scheduling order", SCHEDULER, "            if due:  # they end", "            if False:  # they end"),
    ("step: offers in scheduling order", CONNECTOR,
     "for request in sorted([*scheduled, *output.offering], key=output.order.__getitem__):",
     "for request in [*scheduled, *output.offering]:"),
    ("step: due members are told one by one", SCHEDULER,
     "                output.num_scheduled_tokens[request] = 1\n", "                pass\n"),
    # -- how far a window reaches
    ("window: none with hits", SCHEDULER,
     "self._individuals or output.preempted or output.hits:", "self._individuals or output.preempted:"),
    ("window: none after a lookup with effects", SCHEDULER,
     "if self.connector is not None and self.connector.num_lookup_effects != self._effects_before:", "if False:"),
    ("window: none when a last offer was refused", SCHEDULER,
     "if output.finished and self._num_refusals:", "if False:"),
    ("window: ends with a member", SCHEDULER,
     "cohort.most_steps(cohort.steps_to_end(), taken + room)", "cohort.most_steps(cohort.steps_to_end() + 1, taken + room)"),
    ("window: ends when blocks run out", SCHEDULER,
     "cohort.most_steps(cohort.steps_to_end(), taken + room)", "cohort.steps_to_end()"),
    ("window: ends before a hit is evicted", SCHEDULER,
     "sensitive.update(run[0] for run in path.runs(0, blocks))", "pass"),
    ("window: ends before a block of a looked up hit is evicted", SCHEDULER,
     "        self._looked_up.append((request, local // self.kv.block_size))\n", ""),
    ("window: ends before a watched block is handed out", POOL,
     "if count >= limit or piece.segment in segments or piece.watch:", "if count >= limit or piece.segment in segments:"),
    ("window: none while the worker has plans", ENGINE, "not worker.has_plans() and ", ""),
    ("window: none while the worker has news", ENGINE, " and not worker.has_finished()  # type", "  # type"),
    ("window: slowed by copies", ENGINE, "self._is_slowed = speed_ppm != FULL_PPM", "self._is_slowed = False"),
    ("window: handed over when copies change speed", ENGINE,
     "        self.compute.before_change = self._hand_over\n", ""),
    ("window: time lost to copies is told", ENGINE,
     "            self._tell_lost(window, self._under_way, step - 1)\n", ""),
    ("window: ends with news", ENGINE, "            if last < window.last and not", "            if False and not"),
    ("window: loads end it", ENGINE, " or worker.has_finished_load():", ":"),
    ("window: stores end it where they matter", ENGINE, "window.stores_matter or worker", "worker"),
    ("window: arrivals end it where they matter", ENGINE,
     "if window is None or scheduler.arrivals_matter():", "if window is None:"),
    ("window: an end of a step is that step", ENGINE, "if self.span_ns(middle) >= elapsed:", "if self.span_ns(middle) > elapsed:"),
    ("window: stops for a sample", ENGINE, "if wanted_ns < window.started_ns + window.span_ns(stop):", "if False:"),
    ("window: a death comes before the end of its step", ENGINE,
     "self._go_on(window, max(window.step_at(self.env.now, self._under_way), 1))",
     "self._go_on(window, self._under_way)"),
    ("window: the clock does not run on to void ends", ENGINE,
     "            self.env.cancel(window.wake)\n        wake =", "            pass\n        wake ="),
    ("window: quiet steps are counted", ENGINE,
     "self._observer.on_quiet_steps(more, window.work_ns(step) - window.work_ns(self._under_way))", "pass"),
    ("window: refusals repeat themselves", SCHEDULER,
     "        cohort.advance(steps)\n        self._repeat_refusals(steps)", "        cohort.advance(steps)"),
    ("window: refusals repeat themselves at samples", SCHEDULER,
     "        self.kv.pool.take(self.cohort.demand(1))\n        self._repeat_refusals(1)",
     "        self.kv.pool.take(self.cohort.demand(1))"),
    # -- the engine
    ("engine: others at this instant go first", ENGINE, "return not is_alone or self.env.peek() <= self.env.now", "return not is_alone"),
    ("engine: a step's end is not the first at its instant", ENGINE,
     "        is_alone, self._is_alone = self._is_alone, False\n", "        is_alone, self._is_alone = True, False\n"),
    ("engine: loads begin behind the pass", ENGINE, "if output.hits or self._is_disturbed():", "if self._is_disturbed():"),
    ("engine: copies slow a pass down", ENGINE, "if output.hits or self._is_disturbed():", "if output.hits:"),
    ("engine: contexts of members count", ENGINE,
     "return [*own, output.decode_contexts, *[0] * (output.num_decoding - 1)]", "return [*own, *[0] * output.num_decoding]"),
    # -- the cohort's numbers
    ("cohort: who left and came back ends once", COHORT, "place = self._places[request] = order, self._num_joins", "place = self._places[request] = order, 0"),
    ("cohort: members need blocks in their own steps", COHORT,
     "need += by_phase[-(at + step) % self.block_size]", "need += by_phase[-step % self.block_size]"),
    ("cohort: members' tokens are counted", SCHEDULER, "return others + cohort.num_computed_tokens + len(cohort) - cohort.num_prompt_tokens", "return others"),
    ("cohort: those who come back have generated", SCHEDULER, "for group in (self._individuals, self._come_back)", "for group in (self._individuals,)"),
    ("cohort: members' full blocks are cached", SCHEDULER,
     "return super().num_cached_blocks() + self.cohort.full_blocks() - self._num_hashed", "return super().num_cached_blocks()"),
    # -- the GPU pool
    ("pool: plain blocks go to the front", POOL, "        self._queue.put_plain_first(count)\n", "        self._queue.put_plain_last(count)\n"),
    ("pool: plain blocks go to the end (0.23.0)", POOL,
     "class ExtentPool023(ExtentPool):\n    \"\"\"Free order up to 0.23: everything goes to the end.\"\"\"\n\n    def _file_plain(self, count: int) -> None:\n        self._queue.put_plain_last(count)",
     "class ExtentPool023(ExtentPool):\n    \"\"\"Free order up to 0.23: everything goes to the end.\"\"\"\n"),
    ("pool: tables are freed tail first", POOL, "for head in reversed(table.pieces):\n            if head.last == end:", "for head in table.pieces:\n            if True:"),
    ("pool: a heir is found after an eviction", COPIES, "        if segment in self._duplicates:\n", "        if False:\n"),
    ("pool: the oldest duplicate inherits", COPIES, "for piece in tuple(self._duplicates[segment]):", "for piece in tuple(reversed(self._duplicates[segment])):"),
    ("pool: shared pieces do not grow", COPIES, "if piece.refs != 1 or piece.is_duplicate or piece.watch:", "if piece.is_duplicate or piece.watch:"),
    ("pool: duplicates do not grow", COPIES, "if piece.refs != 1 or piece.is_duplicate or piece.watch:", "if piece.refs != 1 or piece.watch:"),
    ("pool: differently watched pieces stay apart", COPIES, "            and ahead.watch == piece.watch\n", ""),
    ("pool: what is evicted is noticed by who reads it", POOL,
     "                if piece.watch:\n                    self._note_touched(piece, first, first + taken)\n", ""),
    ("pool: free hits count as needed", "extents/kv_cache_manager.py", "return max(new, 0) + hits.num_unreferenced", "return max(new, 0)"),
    ("pool: loads leave others their blocks", "extents/kv_cache_manager.py", "            if missing > pool.num_free - reserved_blocks:\n                return None\n            if table is None:", "            if missing > pool.num_free:\n                return None\n            if table is None:"),
    # -- the connector
    ("connector: blocks of running requests are in the way", CONNECTOR, "        if pool.watchers:\n            for table", "        if False:\n            for table"),
    ("connector: stores of ended requests are watched", CONNECTOR, "self._pool.watch(table, self._block_runs(state.request, job.keys.runs), job_id)", "pass"),
    ("connector: last offers are watched", CONNECTOR, "            self._pool.watch(state.table, blocks, -self._num_last_offers)\n", ""),
    ("connector: a last offer's store is flushed if its blocks are gone", CONNECTOR, "                flush.add(job.job_id)\n            self._pool.rewatch", "                pass\n            self._pool.rewatch"),
    ("connector: a last offer's store goes on watching", CONNECTOR, "            self._pool.rewatch(source, watcher, job.job_id)\n", ""),
    ("connector: offers of generated tokens grow", CONNECTOR, "return self.offload_prompt_only and self._states[request].refused", "return self._states[request].refused"),
    ("connector: chunks that are loading are waited for", CONNECTOR, "return self._keys.isdisjoint(keys.runs)", "return True"),
    # -- the CPU tier
    ("ledger: what is offered is spared", LEDGER, "        for piece in spared:\n            self._use(piece)\n        done = self.policy.evict(count)\n        for piece in spared:\n            self._release(piece)\n", "        done = self.policy.evict(count)\n"),
    ("ledger: what is being written is pending", LEDGER, "pending = pending or piece.ref_count < 0", "pending = False"),
    ("ledger: what is being written is not reused", LEDGER, "                if piece.ref_count >= 0:\n                    ready", "                if True:\n                    ready"),
    ("ledger: the refused chunk of a promotion is noted", LEDGER, "min(first + count + 1, last))\n        return count", "first + count)\n        return count"),
    ("ledger: refused promotions count", LEDGER, "        self._num_refusals += first + count < last\n", ""),
    ("ledger: reused is what others had put in", LEDGER, "            for part in context.inserted.missing(*interval):\n                context.reused.add(*part)", "            context.reused.add(*interval)"),
    ("lru: recency is per request", LRU, "        self._raise(context, context.seen, self._next_rank())\n", "        pass\n"),
    ("lru: a rank is never lowered", LRU, "                    if piece.rank >= rank:\n                        continue\n", ""),
    ("lru: the tail goes first", LRU, "                piece = group[-1]\n", "                piece = group[0]\n"),
    ("lru (0.23.0): the head of the prefix is the youngest", LRU_023, "        for run in reversed(runs):\n            for piece in reversed(pieces.cover(run)):", "        for run in runs:\n            for piece in pieces.cover(run):"),
    ("arc: misses move the target", ARC, "        for run in reversed(runs):\n            self._adapt(run)\n", "        pass\n"),
    ("arc: what was reused goes to T2", ARC, "self._move_to_end(piece, T2 if reused else piece.queue)", "self._move_to_end(piece, piece.queue)"),
    ("arc: ghosts are forgotten", ARC, "        self.trim(*(max(self.queues[number].num_chunks - self.capacity, 0) for number in GHOSTS))\n", ""),
    ("arc: T1 is the last resort", ARC, "    t1_is_last_resort = True  # T2", "    t1_is_last_resort = False  # T2"),
    ("arc (0.23.0): T1 is not the last resort", ARC, "    t1_is_last_resort = False\n", "    t1_is_last_resort = True\n"),
    ("arc (0.23.0): a touch that moves the target ends a window", ARC, "        self.num_changes += self.target != before\n", ""),
    ("arc: promotions move the target", RESERVATION, "if stretch.adapts and stretch.ghost is not None:", "if False:"),
    ("arc: victims of a reservation", RESERVATION, "        if evictable[0] and self.t1_size >= int(self.target):\n", "        if evictable[0]:\n"),
    # -- tiers behind it
    ("tiering: a promotion ends a window", TIERING, "            self._num_changes += 1\n            found", "            found"),
    ("tiering: the tiers' changes end a window", TIERING, "return self._num_changes + self.primary.num_changes + sum(tier.num_changes for tier in self.tiers)", "return self._num_changes + self.primary.num_changes"),
    ("tiering: the refused chunk was asked for", TIERING, "asked = min(found + 1, last - first)", "asked = max(found, 1)"),
    ("tiering: chunks that are here divide a stretch", TIERING, "                return piece.first\n        return last\n\n    def _promote_leading", "                pass\n        return last\n\n    def _promote_leading"),
    ("tiering: unknown chunks don't end a lookup", TIERING, "        elif unknown:\n", "        elif False:\n"),
    ("tiering: the first tier that has it", TIERING, "            if answer is Answer.HIT:\n                break\n", ""),
    ("lookup: who is finished is forgotten", LOOKUP, "            for piece in self._pieces.overlapping(run):\n                piece.askers.discard", "            for piece in ():\n                piece.askers.discard"),
    ("lookup: all askers are known", LOOKUP, "                    part.askers.add(request_id)\n", "                    pass\n"),
    ("storage: time of a lookup ends a window", "tiers/storage_tier.py", "        self._on_blocked(time_ns)\n        self._num_changes += 1\n", "        self._on_blocked(time_ns)\n"),
    ("files: the tail is older", FILES, "                piece.last -= left\n                left = 0", "                piece.first += left\n                left = 0"),
    ("files: what has readers stays", FILES, "                if piece.is_published and not piece.num_readers:\n                    self._unqueue(piece)\n                piece.num_readers", "                piece.num_readers"),
    ("files: who was read is the most recent", FILES, "                    if piece.is_published:\n                        self._enqueue(piece)\n", "                    if False:\n                        self._enqueue(piece)\n"),
    # -- contents
    ("contents: tenants share nothing", "extents/content.py", "segments.append(segment.index * num_salts + salt)", "segments.append(segment.index)"),
    ("contents: a request's own tail is its own", "extents/content.py", "segments.append(-2 - self._private)", "segments.append(-2)"),
]  # fmt: skip
