"""TieringManager by the run: a CPU ledger in front of secondary tiers that are asked about stretches of a request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kvsim.extents.changes import Changes
from kvsim.extents.context import RunContext
from kvsim.extents.ledger import RunOffloadingManager
from kvsim.extents.path import Run, Runs, run_of
from kvsim.extents.pieces import Piece, PieceMap, join_on
from kvsim.offload.ledger import PrefixHit, StorePlan
from kvsim.offload.tiering import Answer, SecondaryTier, TieringManager, TieringManager023


class RunTier(SecondaryTier, Protocol):
    """A secondary tier whose keys are `Runs`. A lookup of a stretch is a `peek` at all tiers, then an `ask`."""

    @property
    def num_changes(self) -> int:
        """Grows with what asking has started, changed or cost: if it stands still, repeating it is free."""
        ...

    @property
    def lookup_version(self) -> int:
        """Grows with every change that `peek` could notice and `lookup_changes` do not tell."""
        ...

    @property
    def lookup_changes(self) -> tuple[Changes, ...]:
        """What `peek` could notice, by segment."""
        ...

    def peek(self, run: Run) -> tuple[Answer, int]:
        """What a lookup of the run's first chunk would answer, and of how many from there on. Changes nothing."""
        ...

    def ask(self, run: Run, request_id: str) -> None:
        """The run's chunks have been looked up, in order: what `SecondaryTier.lookup` does besides answering."""
        ...


class _Promoted(Piece):
    __slots__ = ("tier",)

    def __init__(self, segment: int, first: int, last: int, tier: int) -> None:
        super().__init__(segment, first, last)
        self.tier = tier


def _cut(piece: _Promoted, position: int) -> _Promoted:
    right = _Promoted(piece.segment, position, piece.last, piece.tier)
    piece.last = position
    return right


class _Sources:
    """From which tier a request has had its chunks brought; the last time counts."""

    __slots__ = ("_pieces",)

    def __init__(self) -> None:
        self._pieces: PieceMap[_Promoted] = PieceMap(_cut)

    def note(self, run: Run, tier: int) -> None:
        known = self._pieces.overlapping(run)
        if len(known) == 1 and known[0].tier == tier and known[0].first <= run.first and run.last <= known[0].last:
            return
        for piece in self._pieces.cover(run):
            self._pieces.remove(piece)
        self._pieces.add(_Promoted(*run, tier))

    def of(self, runs: list[Run]) -> list[tuple[int, int]]:
        """(tier, chunks) of one stretch after the other."""
        return [
            (piece.tier, min(piece.last, run.last) - max(piece.first, run.first))
            for run in runs
            for piece in self._pieces.overlapping(run)
        ]


class RunTieringManager(TieringManager):
    """Decides as `TieringManager` does, at a cost that grows with stretches of equal answers, not with chunks."""

    primary: RunOffloadingManager
    tiers: Sequence[RunTier]

    def __init__(self, primary: RunOffloadingManager, tiers: Sequence[RunTier]) -> None:
        super().__init__(primary, tiers)
        self._num_changes = 0
        self._sources_of: dict[str, _Sources] = {}

    @property
    def num_changes(self) -> int:
        """Grows with what a lookup has started, changed or cost.

        If it has stood still during a step's decisions, making the same lookups again would change nothing, as long
        as no copy ends and no tier has news.
        """
        changes = self._num_changes + self.primary.num_changes
        for tier in self.tiers:
            changes += tier.num_changes
        return changes

    @property
    def lookup_version(self) -> int:
        """See `RunOffloadingManager`; for lookups behind a `refresh`."""
        return sum([tier.lookup_version for tier in self.tiers])

    @property
    def lookup_changes(self) -> tuple[Changes, ...]:
        """See `RunOffloadingManager`."""
        return sum((tier.lookup_changes for tier in self.tiers), self.primary.lookup_changes)

    def refresh(self) -> None:
        """A lookup is about to come: take in what the tiers have to tell, once in a step."""
        self._poll_once()

    def lookup_prefix(self, context: RunContext, first: int, last: int) -> PrefixHit:
        self._poll_once()
        chunks, pending, position = 0, False, first
        while position < last:
            hit = self.primary.lookup_prefix(context, position, last)
            chunks, position, pending = chunks + hit.chunks, position + hit.chunks, pending or hit.pending
            # Only this lookup puts chunks in, one after another: what is absent now is so when its turn comes.
            for segment, _first, stop in context.path.runs(position, self._end_of_gap(context, position, last)):
                while position < stop:
                    hits, passed, is_over = self._promote_leading(context, run_of((segment, position, stop)))
                    chunks, position, pending = chunks + hits, position + passed, pending or passed > 0
                    if is_over:
                        return PrefixHit(chunks, pending)
        return PrefixHit(chunks, pending)

    def _end_of_gap(self, context: RunContext, first: int, last: int) -> int:
        """Position of the first chunk from ``first`` on that the primary has."""
        pieces = self.primary.pieces
        for run in context.path.runs(first, last):
            for piece in pieces.scan(run):
                return piece.first
        return last

    def _promote_leading(self, context: RunContext, run: Run) -> tuple[int, int, bool]:
        """Look in the tiers for as much of the run as they agree upon, and reserve slots for what is found.

        Returns:
            Chunks found, chunks done with (found, or unknown as yet), and whether the next one is a miss for good.
        """
        segment, first, last = run
        unknown, asked_tiers = False, 0
        answer = Answer.MISS
        for tier in self.tiers:
            answer, count = tier.peek(run)
            if count < last - first:
                last = first + count
                run = run_of((segment, first, last))
            asked_tiers += 1
            if answer is Answer.HIT:
                break
            unknown = unknown or answer is Answer.RETRY
        if answer is Answer.HIT:
            found = passed = self._reserve(context, run, asked_tiers - 1)
            asked = min(found + 1, last - first)  # the one that is refused was asked for, too
        elif unknown:
            found, passed = 0, last - first
            asked = passed
        else:
            found, passed, asked = 0, 0, 1
        if asked < last - first:
            run = run_of((segment, first, first + asked))
        for tier in self.tiers[:asked_tiers]:
            tier.ask(run, context.request_id)
        return found, passed, asked > passed

    def _reserve(self, context: RunContext, run: Run, number: int) -> int:
        """Slots for chunks that a tier has, loaded at the end of the step; returns for how many there was room."""
        count = self.primary.promote(context, run.first, run.last)
        if count:
            self._num_changes += 1
            found = run_of((run.segment, run.first, run.first + count))
            join_on(self._promotions.setdefault((number, context.request_id), []), found)
            self._sources_of.setdefault(context.request_id, _Sources()).note(found, number)
        return count

    def prepare_store(self, context: RunContext, first: int, last: int) -> StorePlan | None:
        self._poll()
        return self._count(context, self.primary.prepare_store(context, first, last))

    def complete_store(self, keys: Runs, context: RunContext | None = None, *, success: bool = True) -> None:
        if not success:
            super().complete_store(keys, context, success=False)
            return
        held = self.primary.hand_over(keys, len(self.tiers))
        for tier in self.tiers if held else ():
            tier.submit("store", held)
        if context is not None:
            self._close_store(context.request_id)

    def repeat_refusals(self, count: int) -> None:
        """See `RunOffloadingManager`."""
        self.primary.repeat_refusals(count)

    def sources(self, context: RunContext, first: int, last: int) -> list[int]:
        return [tier for tier, count in self._stretches(context, first, last) for _ in range(count)]

    def chunks_by_source(self, context: RunContext, first: int, last: int) -> dict[int, int]:
        """How many chunks come from which tier: `sources`, counted, in the order in which they first occur."""
        chunks: dict[int, int] = {}
        for tier, count in self._stretches(context, first, last):
            chunks[tier] = chunks.get(tier, 0) + count
        return chunks

    def _stretches(self, context: RunContext, first: int, last: int) -> list[tuple[int, int]]:
        promoted = self._sources_of.get(context.request_id)
        return [] if promoted is None else promoted.of(context.path.runs(first, last))

    def on_request_finished(self, context: RunContext) -> None:
        self._sources_of.pop(context.request_id, None)
        super().on_request_finished(context)

    def on_schedule_end(self) -> None:
        if self._promotions:
            self._promotions = {whose: Runs(runs) for whose, runs in self._promotions.items()}
        super().on_schedule_end()


class RunTieringManager023(RunTieringManager, TieringManager023):
    """0.23.0: `TieringManager023` by the run."""

    def __init__(self, primary: RunOffloadingManager, tiers: Sequence[RunTier]) -> None:
        super().__init__(primary, tiers)
        self._num_deaf = 0  # steps whose decisions have taken in no news: the next one's may
        self._is_deaf = False  # the next step is one

    @property
    def num_changes(self) -> int:
        """See `RunTieringManager`; news may come when a step's lookups have been made, and change the next one's."""
        return super().num_changes + self.num_news + self._num_deaf

    def prepare_store(self, context: RunContext, first: int, last: int) -> StorePlan | None:
        self._is_deaf = True
        return TieringManager023.prepare_store(self, context, first, last)

    def on_schedule_end(self) -> None:
        super().on_schedule_end()
        self._num_deaf += self._is_deaf
        self._is_deaf = False
