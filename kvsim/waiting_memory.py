"""What is known of waiting requests: who was told to wait, and that nobody can come in, until something changes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kvsim.connectors.offloading_runs import RunOffloadingConnector
from kvsim.extents.changes import Finding
from kvsim.extents.extent_pool import ExtentPool
from kvsim.request import Request

MOST_WATCHED = 1_000_000  # entries of findings that may be out of date for long, before all are forgotten

Segments = Sequence[int]


class _Answer(Finding):
    """What a lookup was told; holds while nothing has changed in the segments that it depended upon.

    Attributes:
        hit: segments of the local hit; None = nothing was looked up.
        version: of what is not told by segment.
    """

    __slots__ = ("hit", "version")

    def __init__(self, hit: Segments | None, version: int) -> None:
        super().__init__()
        self.hit, self.version = hit, version


@dataclass(frozen=True, slots=True)
class _Refused:
    """A request that found no room, for its load or for all of its tokens ("as a whole"), and when."""

    request: Request
    answer: _Answer
    release_epoch: int
    as_a_whole: bool


class WaitingMemory:
    """Spares lookups whose answer is known; changes no decision.

    A lookup's answer is known while nothing has changed in the segments that it has looked at: on the GPU, in CPU
    memory, in the tiers behind it, or in what is being loaded. Remembered are lookups without effects only
    (`KVConnector.num_lookup_effects`). A request that found no room is refused again unless blocks were freed or hit
    meanwhile, or somebody gave up for whom blocks are reserved: a prefill that takes what is reserved for it leaves as
    much less to others as before.

    Args:
        connector: one whose lookups do not touch what they find.
    """

    def __init__(self, pool: ExtentPool, connector: RunOffloadingConnector) -> None:
        self._pool, self._connector = pool, connector
        self._ledger: Any = connector.manager
        self._chunk_changes = connector.lookup_changes
        self._deferred: dict[Request, _Answer] = {}  # told to ask again
        self._refused: _Refused | None = None
        self._effects = -1  # before the lookup that is going on
        self._looked_up: list[Segments] = []
        self._is_idle = False  # nobody came in at the last scan, and all that stood in the way is known
        self._scanned = -1  # version of the world at its end
        self._num_watched = 0

    def _version(self) -> int:
        """Of the whole world: a sum of counters that never fall."""
        chunks = sum([changes.total for changes in self._chunk_changes])
        return self._pool.changes.total + chunks + self._connector.lookup_version

    def _num_effects(self) -> int:
        effects: int = self._ledger.num_changes + self._ledger.num_refusals
        return effects

    def _answer(self, request: Request, hit: Segments | None) -> _Answer:
        answer = _Answer(hit, self._connector.lookup_version)
        path = request.block_hashes.path  # type: ignore[attr-defined]
        # One segment more than was hit, so that it is noticed when more can be.
        near, far = path.segments[: len(hit or ()) + 1], self._connector.chunk_segments(request)
        self._pool.changes.watch(near, answer)
        for changes in self._chunk_changes:
            changes.watch(far, answer)
        self._num_watched += len(near) + len(far) * len(self._chunk_changes)
        return answer

    def _is_true(self, answer: _Answer) -> bool:
        """Whether the same lookup would have the same answer."""
        return answer.holds and answer.version == self._connector.lookup_version

    # -- one request
    def deferrals(self, requests: Iterable[Request]) -> list[Segments]:
        """What each of the first of these would hit locally before it is told again to ask again.

        As far as all of them hear the same as before; a request with gates is asked for itself.
        """
        hits: list[Segments] = []
        deferred, version = self._deferred, -1
        for request in requests:
            answer = deferred.get(request)
            if answer is None or answer.hit is None or (request.gated and hits):
                break
            if not hits:
                self._connector.refresh()  # as its lookup would
                version = self._connector.lookup_version
            if not answer.holds or answer.version != version:
                break
            hits.append(answer.hit)
        return hits

    def is_refused(self, request: Request) -> bool:
        """Whether it would find no room again."""
        refused = self._refused
        if refused is None or refused.request is not request:
            return False
        if refused.answer.hit is not None:
            self._connector.refresh()
        return self._holds(refused)

    @property
    def refused_hit(self) -> Segments | None:
        """What the refused request hits locally; None if it is not looked up."""
        assert self._refused is not None
        return self._refused.answer.hit

    @property
    def refused_as_a_whole(self) -> bool:
        """Whether it is all of its tokens that there is no room for."""
        assert self._refused is not None
        return self._refused.as_a_whole

    def _holds(self, refused: _Refused) -> bool:
        return refused.release_epoch == self._pool.release_epoch and self._is_true(refused.answer)

    def begin_lookup(self) -> None:
        """A request is about to be looked up, and perhaps admitted."""
        self._effects = self._num_effects()

    def defer(self, request: Request, hit: Segments) -> None:
        """It was told to ask again, having hit these segments locally."""
        if self._effects == self._num_effects() and not self._connector.is_busy(request):
            self._deferred[request] = self._answer(request, hit)
        else:
            self.forget(request)

    def refuse(self, request: Request, hit: Segments | None, *, as_a_whole: bool) -> None:
        """It found no room as a whole, or none for its load. ``hit``: None if it was not looked up."""
        if self._effects == self._num_effects():
            self._refused = _Refused(request, self._answer(request, hit), self._pool.release_epoch, as_a_whole)
        else:
            self._is_idle = False

    def forget(self, request: Request) -> None:
        """It waits no more, or has changed."""
        self._deferred.pop(request, None)
        self._is_idle = False

    def make_room(self) -> None:
        """Less is reserved than before: who found no room may find some."""
        self._refused, self._is_idle = None, False

    def disturb(self) -> None:
        """The next scan may find what the last one did not."""
        self._is_idle = False

    # -- all of them
    def known_outcome(self) -> list[Segments] | None:
        """What the next scan would hit locally, in vain, as the last one did; None if it has to be made."""
        if not self._is_idle:
            return None
        if self._looked_up:
            self._connector.refresh()
        return self._looked_up if self.is_settled() else None

    def is_settled(self) -> bool:
        """Whether the next scan's outcome is known as long as nothing changes."""
        if not self._is_idle or self._scanned != self._version():
            return False
        return self._refused is None or self._holds(self._refused)

    def begin_scan(self) -> None:
        """All that wait are going to be looked at."""
        if self._num_watched > MOST_WATCHED:
            self._num_watched = 0
            for changes in (self._pool.changes, *self._chunk_changes):
                changes.clear()
            self._deferred.clear()
            self._refused = None
        self._is_idle = True

    def end_scan(self, looked_up: list[Segments], blocked_by: Request | None) -> None:
        """``blocked_by``: the request at which the scan ended, that found no room; None if all were looked at."""
        if blocked_by is None:
            self._refused = None
        elif self._refused is None or self._refused.request is not blocked_by:
            self._is_idle = False
        self._looked_up, self._scanned = looked_up, self._version()
