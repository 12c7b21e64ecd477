"""RunOffloadingManager: the ledger of the CPU tier by the run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kvsim.extents.changes import Changes
from kvsim.extents.chunk_piece import ChunkPiece, RunPolicy
from kvsim.extents.context import RunContext
from kvsim.extents.intervals import Interval, interval_of
from kvsim.extents.path import NO_KEYS, Key, Run, Runs
from kvsim.offload.ledger import PrefixHit, Primary, StorePlan

RunPolicyFactory = Callable[[int], RunPolicy]  # takes the capacity
NOTHING_TO_STORE = StorePlan(NO_KEYS, NO_KEYS)


class RunOffloadingManager(Primary):
    """Decides as `kvsim.offload.manager.OffloadingManager` does, at a cost that grows with pieces, not with chunks.

    Keys are `Runs`, slots are not told apart: where the reference returns slots, this returns the keys. KV events and
    contexts of several groups are not supported.

    Raises:
        ValueError: a ``store_threshold`` that would count offers, which only the reference does.
    """

    def __init__(self, num_slots: int, policy: RunPolicyFactory, store_threshold: int = 0) -> None:
        if store_threshold >= 2:
            raise ValueError("a store_threshold counts chunk by chunk: it needs the reference ledger")
        self.num_slots = num_slots
        self.policy = policy(num_slots)
        self.pieces = self.policy.pieces
        self._epoch = 0
        self._num_chunks = self._num_evictable = self._num_evicted = self._num_refusals = 0
        self._num_marked = 0  # times that somebody was first seen to use, or to miss, a chunk

    # -- looking
    @property
    def epoch(self) -> int:
        return self._epoch

    @property
    def num_changes(self) -> int:
        """Grows with whatever a lookup or a refused offer changes so that repeating it might be something else.

        A refusal alone is not: it is counted, and repeated for nothing (see `repeat_refusals`).
        """
        return self.policy.num_changes + self._num_marked

    @property
    def lookup_version(self) -> int:
        """Grows with every change that `lookup_prefix` could notice and `lookup_changes` do not tell."""
        return 0

    @property
    def lookup_changes(self) -> tuple[Changes, ...]:
        """What a lookup could notice, by segment."""
        return (self.policy.changes,)

    def refresh(self) -> None:
        """A lookup is about to come: take in what others have to tell. Here is nobody."""

    def repeat_refusals(self, count: int) -> None:
        """So many offers were made again, and refused again, because nothing had changed."""
        self._num_refusals += count

    def __contains__(self, key: Key) -> bool:
        return key in self.pieces

    def lookup_prefix(self, context: RunContext, first: int, last: int) -> PrefixHit:
        pending, position = False, first
        for run in context.path.runs(first, last):
            pieces = self.pieces.of(run.segment)
            for piece in self.pieces.scan(run) if len(pieces) > 1 else pieces:
                if not piece.first <= position < piece.last:
                    break
                pending = pending or piece.ref_count < 0
                position = piece.last
            if position < run.last:
                return PrefixHit(position - first, pending)
            position = run.last
        return PrefixHit(position - first, pending)

    def held(self, keys: Runs) -> Runs:
        """Those of the keys that are here, in the order given."""
        here = [(run, piece) for run in keys.runs for piece in self.pieces.overlapping(run)]
        count = sum([min(piece.last, run[2]) - max(piece.first, run[1]) for run, piece in here])
        if count == keys.num_keys:
            return keys
        return Runs([Run(run[0], max(piece.first, run[1]), min(piece.last, run[2])) for run, piece in here], count)

    def touch(self, context: RunContext) -> None:
        """Nothing to do: recency is committed at the request's end."""

    # -- loading
    def prepare_load(self, context: RunContext, first: int, last: int) -> Runs:
        keys = context.path.keys(first, last)
        self.pin(keys)
        if first < last:
            self._note(context, [(first, last)], [(first, last)])
        return keys

    def prepare_load_of(self, context: RunContext, positions: Sequence[int]) -> Runs:
        return self.prepare_load(context, *interval_of(positions))

    def pin(self, keys: Runs) -> Runs:
        """Protect ready chunks from eviction while somebody reads them."""
        pieces = self._pieces_of(keys)
        if any(piece.ref_count < 0 for piece in pieces):
            raise ValueError("a chunk is read that is still being written")
        for piece in pieces:
            self._use(piece)
        self._epoch += 1
        return keys

    def complete_load(self, keys: Runs) -> None:
        for piece in self._pieces_of(keys):
            if piece.ref_count <= 0:
                raise ValueError("a load is completed that was never prepared")
            if piece.ref_count == 1 and piece.doomed:
                self._drop(piece)
            else:
                self._release(piece)
        self._epoch += 1

    # -- storing
    def prepare_store(self, context: RunContext, first: int, last: int) -> StorePlan | None:
        runs = context.path.runs(first, last)
        absent, ready = self._survey(runs, first, last)
        missed = [new for gap in absent for new in context.missed.add(*gap)]
        if missed:
            self._num_marked += 1
            if self.policy.hears_misses:
                self.policy.on_store_miss(context.runs_of(missed))
        self._note(context, sorted(absent + ready) if ready else absent, ready)
        return self._store(context, runs, absent, ready)

    def prepare_store_of(self, context: RunContext, positions: Sequence[int]) -> StorePlan | None:
        return self.prepare_store(context, *interval_of(positions))

    def promote(self, context: RunContext, first: int, last: int) -> int:
        """Reserve absent chunks, one offer after another until one is refused; returns how many were reserved."""
        if first >= last:
            return 0
        free = self.num_slots - self._num_chunks
        fresh = context.missed.missing(first, last)
        count = self.policy.reserve(context, first, last, fresh, free, self._num_evictable)
        evicted = max(count - free, 0)
        self._num_chunks += count - evicted
        self._num_evictable -= evicted
        self._num_evicted += evicted
        self._num_refusals += first + count < last
        self._epoch += count + evicted
        if count:
            self._tell_changed(context.path.runs(first, first + count))
        self._note_promoted(context, first, first + count, min(first + count + 1, last))
        return count

    def complete_store(self, keys: Runs, context: RunContext | None = None, *, success: bool = True) -> None:
        for piece in self._pieces_of(keys):
            if piece.ref_count >= 0:
                raise ValueError("a store is completed that was never prepared")
            if success and not piece.doomed:
                self._release(piece)
            else:
                self._drop(piece)
        self._tell_changed(keys.runs)
        self._epoch += 1

    def hand_over(self, keys: Runs, readers: int) -> Runs:
        """Chunks are written, and so many read them from now on; returns those that have not been lost meanwhile.

        `complete_store` and a `pin` for each reader, without making the chunks evictable in between.
        """
        is_lost = False
        for piece in self._pieces_of(keys):
            if piece.ref_count >= 0:
                raise ValueError("a store is completed that was never prepared")
            if piece.doomed:
                self._drop(piece)
                is_lost = True
            else:
                piece.ref_count = readers
        self._tell_changed(keys.runs)
        held = self.held(keys) if is_lost else keys
        self._epoch += 1 + (readers if held else 0)
        return held

    def on_request_finished(self, context: RunContext) -> None:
        self.policy.on_request_finished(context)

    def lose_contents(self) -> None:
        """The memory is empty from now on. What somebody reads or writes goes when they are done."""
        for piece in list(self.pieces):
            if piece.ref_count == 0:
                self._num_evictable -= piece.last - piece.first
                self._drop(piece)
            else:
                piece.doomed = True
        self._epoch += 1

    # -- counting
    @property
    def capacity_chunks(self) -> int:
        return self.num_slots

    @property
    def num_chunks(self) -> int:
        return self._num_chunks

    @property
    def num_evicted(self) -> int:
        return self._num_evicted

    @property
    def num_refusals(self) -> int:
        return self._num_refusals

    # -- inside
    def _pieces_of(self, keys: Runs) -> list[ChunkPiece]:
        """Exactly these chunks, which must all be here."""
        cover = self.pieces.cover
        pieces = [piece for run in keys.runs for piece in cover(run)]
        if sum([piece.last - piece.first for piece in pieces]) != keys.num_keys:
            raise KeyError("a chunk is used that is not here")
        return pieces

    def _survey(self, runs: list[Run], first: int, last: int) -> tuple[list[Interval], list[Interval]]:
        """Positions that are absent, and positions that are ready; those being written are neither."""
        absent: list[Interval] = []
        ready: list[Interval] = []
        start, overlapping = first, self.pieces.overlapping  # of a gap, which may go on over several segments
        for run in runs:
            for piece in overlapping(run):
                if start < piece.first:
                    absent.append((start, piece.first))
                start = min(piece.last, run.last)
                if piece.ref_count >= 0:
                    ready.append((max(piece.first, run.first), start))
        if start < last:
            absent.append((start, last))
        return absent, ready

    def _note(self, context: RunContext, used: Iterable[Interval], reused: Iterable[Interval]) -> None:
        """The request is seen to use these positions; those reused were there, perhaps thanks to itself."""
        new = [part for interval in used for part in context.seen.add(*interval)]
        if new:
            self._num_marked += 1
            self.policy.on_access(context, new if reused else ())  # nothing of it is here yet
        for interval in reused:
            for part in context.inserted.missing(*interval):
                context.reused.add(*part)

    def _note_promoted(self, context: RunContext, first: int, last: int, end: int) -> None:
        """Chunks up to ``end`` were offered, and found missing; those up to ``last`` were put in."""
        if context.missed.add(first, end):
            self._num_marked += 1
        self._note(context, [(first, end)], [])
        if first < last:
            context.inserted.add(first, last)

    def _store(
        self, context: RunContext, runs: list[Run], absent: list[Interval], ready: list[Interval]
    ) -> StorePlan | None:
        """Reserve slots for what is absent of these runs; nothing that was offered makes room for it."""
        if not absent:
            return NOTHING_TO_STORE
        missing = sum([last - first for first, last in absent]) - (self.num_slots - self._num_chunks)
        if missing > 0:
            spared: list[ChunkPiece] = []
            if ready:
                covered = (piece for run in context.runs_of(ready) for piece in self.pieces.cover(run))
                spared = [piece for piece in covered if not piece.ref_count]
            evictable = self._num_evictable - sum(map(len, spared))
            if missing > evictable or not self._evict(missing, spared):
                self._num_refusals += 1
                return None
        all_is_absent = absent == [(runs[0].first, runs[-1].last)]
        return self._insert(context, absent, runs if all_is_absent else context.runs_of(absent))

    def _evict(self, count: int, spared: list[ChunkPiece]) -> bool:
        for piece in spared:
            self._use(piece)
        done = self.policy.evict(count)
        for piece in spared:
            self._release(piece)
        if done:
            self._num_chunks -= count
            self._num_evictable -= count
            self._num_evicted += count
            self._epoch += 1
        return done

    def _insert(self, context: RunContext, positions: list[Interval], runs: list[Run]) -> StorePlan:
        keys = Runs(runs)
        self.policy.insert(context, keys.runs)
        for first, last in positions:
            context.inserted.add(first, last)
        self._num_chunks += keys.num_keys
        self._tell_changed(keys.runs)
        self._epoch += 1
        return StorePlan(keys, keys)

    def _use(self, piece: ChunkPiece) -> None:
        if piece.ref_count == 0:
            self._num_evictable -= piece.last - piece.first
            self.policy.on_in_use(piece)
        piece.ref_count += 1

    def _release(self, piece: ChunkPiece) -> None:
        """One reader less, or the writer is done."""
        piece.ref_count -= 1
        if piece.ref_count <= 0:
            piece.ref_count = 0
            self._num_evictable += piece.last - piece.first
            self.policy.on_evictable(piece)

    def _tell_changed(self, runs: Iterable[Run]) -> None:
        changes = self.policy.changes
        watched = changes.watched
        if watched:
            for run in runs:
                if run[0] in watched:
                    changes.note(run[0])

    def _drop(self, piece: ChunkPiece) -> None:
        self.policy.changes.note(piece.segment)
        self._num_chunks -= piece.last - piece.first
        self.policy.remove(piece)

    def check(self, *, at_end: bool) -> None:
        assert sum(map(len, self.pieces)) == self._num_chunks, "CPU chunks miscounted"
        assert self._num_chunks <= self.num_slots, "more CPU chunks than slots"
        evictable = sum(len(piece) for piece in self.pieces if piece.ref_count == 0)
        assert evictable == self._num_evictable, f"{evictable} evictable chunks, {self._num_evictable} counted"
        self.policy.check()
        if at_end:
            assert evictable == self._num_chunks, f"{self._num_chunks - evictable} CPU chunks are still pinned"


class RunOffloadingManager023(RunOffloadingManager):
    """0.23.0: a policy is touched at every lookup and store; nothing is committed late.

    `kvsim.offload.manager.OffloadingManager023` by the run.
    """

    lookups_are_pure = False

    def touch(self, context: RunContext) -> None:
        self.policy.touch(context.path.runs(0, context.num_keys))

    def prepare_load(self, context: RunContext, first: int, last: int) -> Runs:
        return self.pin(context.path.keys(first, last))

    def prepare_store(self, context: RunContext, first: int, last: int) -> StorePlan | None:
        runs = context.path.runs(first, last)
        return self._store(context, runs, *self._survey(runs, first, last))

    def _note_promoted(self, context: RunContext, first: int, last: int, end: int) -> None:
        """Only touches are noted."""

    def on_request_finished(self, context: RunContext) -> None:
        """Nothing is committed late."""
