"""ExtentPool: the GPU blocks of `kvsim.cache.block_pool` by the run."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from kvsim.extents.changes import Changes
from kvsim.extents.path import Key, Path, Run
from kvsim.extents.pool_copies import Copies, Hits
from kvsim.extents.pool_pieces import NO_SEGMENT, PoolPiece, Table


class ExtentPool:
    """Decides as `BlockPool` does, at a cost per stretch of blocks; which block is which is not tracked.

    Blocks that are freed together are evicted one after another, from the tail of the prefix to its head, so one
    piece of the free queue stands for a whole stretch of them.

    Attributes:
        num_free: usable blocks in the free queue; block 0, vLLM's null block, never is.
        cached: the contents that lookups find.
        release_epoch: grows with every event that could let a request fit that did not fit before.
        touched_jobs: jobs that read blocks which were handed out or hit since the caller last cleared this: of each,
            the contents of those blocks. They must be complete before anything is computed.
        changes: of what can be found.
    """

    def __init__(self, num_blocks: int) -> None:
        self.changes = Changes()
        self.num_blocks = num_blocks
        self.num_free = num_blocks - 1
        self.evicted_blocks = 0
        self.release_epoch = 0
        self.kv_events = None  # nobody is told of single blocks
        self._copies = Copies()
        self.cached = self._copies.found
        self.touched_jobs: dict[int, list[Run]] = {}
        self.watchers: set[int] = set()
        self._queue = self._copies.queue
        if self.num_free:
            self._queue.put_plain_last(self.num_free)

    # -- looking
    def longest_prefix(self, path: Path, limit: int) -> Hits:
        """How many of the first blocks of a path (at most ``limit``) can be hit."""
        return self.cached.longest_prefix(path, limit)

    def blocks_before(self, segments: Collection[int], limit: int) -> int:
        """Blocks, at most ``limit``, that can be handed out without touching one of these segments or a watched one."""
        count = 0
        for piece in self._queue:
            if count >= limit or piece.segment in segments or piece.watch:
                break
            count += piece.last - piece.first
        return min(count, limit)

    def last_cached(self, segment: int) -> int:
        """Position behind the last block of a segment that can be found; 0 if there is none."""
        pieces = self.cached.of(segment)
        return pieces[-1].last if pieces else 0

    def free_list(self) -> list[Key | None]:
        """What each free block holds (None: nothing), next to be evicted first. For tests."""
        contents: list[Key | None] = []
        for piece in self._queue:
            positions = range(piece.last - 1, piece.first - 1, -1)
            contents += [None if piece.segment == NO_SEGMENT else Key(piece.segment, i) for i in positions]
        return contents

    # -- taking
    def take(self, count: int) -> None:
        """Hand out ``count`` blocks from the head of the free queue; what they held is evicted, in that order."""
        if count > self.num_free:
            raise ValueError(f"{count} blocks wanted, {self.num_free} free")
        self.num_free -= count
        queue = self._queue
        end = queue.end
        while count > 0:
            piece = end.after
            taken = min(piece.last - piece.first, count)
            count -= taken
            piece.last = first = piece.last - taken
            if first == piece.first:
                queue.remove(piece)
            if piece.segment != NO_SEGMENT:
                self.evicted_blocks += taken
                if piece.watch:
                    self._note_touched(piece, first, first + taken)
                if piece.segment in self.changes.watched:
                    self.changes.note(piece.segment)
                self._copies.evict(piece, first, first + taken)

    def touch(self, path: Path, count: int, table: Table) -> None:
        """The first ``count`` blocks of a path are hit: they begin an empty table, and are not free any more."""
        position, revived, queue = 0, 0, self._queue
        for segment, last in zip(path.segments, path.ends, strict=True):
            for piece in self.cached.cover((segment, position, min(last, count))):
                if not piece.refs:
                    queue.remove(piece)
                    revived += piece.last - piece.first
                if piece.watch:
                    self._note_touched(piece, piece.first, piece.last)
                piece.refs += 1
                table.pieces.append(piece)
            position = last
            if position >= count:
                break
        table.num_hashed = count
        self.num_free -= revived
        self.release_epoch += 1

    # -- giving back
    def cache_full_blocks(self, table: Table, path: Path, last: int) -> None:
        """Make a table's blocks up to ``last`` findable. Those whose content is here already are kept as duplicates."""
        first = table.num_hashed
        for run in path.runs(first, last):
            position = run.first
            for present in self.cached.overlapping(run):
                if position < present.first:
                    self._add(table, run.segment, position, present.first)
                    position = present.first
                stop = min(present.last, run.last)
                table.pieces.append(self._copies.add_duplicate(run.segment, position, stop))
                position = stop
            if position < run.last:
                self._add(table, run.segment, position, run.last)
        table.num_hashed = last
        table.num_plain -= last - first

    def _add(self, table: Table, segment: int, first: int, last: int) -> None:
        """Contents that nobody had: the end of a table gets them."""
        if segment in self.changes.watched:
            self.changes.note(segment)
        if table.pieces:
            piece = table.pieces[-1]
            if piece.last == first and piece.segment == segment and self._copies.extend(piece, last):
                return
        table.pieces.append(self._copies.add(segment, first, last))

    def free_table(self, table: Table) -> None:
        """One reference less for a request's blocks, tail first; those that nobody holds enter the free queue.

        The table is empty afterwards.
        """
        freed, end = table.num_plain, table.num_hashed
        if freed:
            self._file_plain(freed)
        for head in reversed(table.pieces):
            if head.last == end:
                freed += self._free(head)
            else:  # it has been cut
                for piece in reversed(list(head.chain(end))):
                    freed += self._free(piece)
            end = head.first
        table.pieces, table.num_hashed, table.num_plain = [], 0, 0
        if freed:
            self.num_free += freed
            self.release_epoch += 1

    def free_tail(self, table: Table, keep: int) -> None:
        """One reference less for the blocks behind the first ``keep`` of a table, which loses them."""
        cut, plain = min(keep, table.num_hashed), table.num_plain - max(keep - table.num_hashed, 0)
        tail: list[PoolPiece] = []
        for piece in table.held(cut):
            if piece.first < cut:
                self._copies.split(piece, cut)  # it comes next
            else:
                tail.append(piece)
        freed = plain
        if plain:
            self._file_plain(plain)
        for piece in reversed(tail):
            freed += self._free(piece)
        table.pieces = [piece for piece in table.pieces if piece.first < cut]
        table.num_hashed, table.num_plain = cut, table.num_plain - plain
        if freed:
            self.num_free += freed
            self.release_epoch += 1

    def _free(self, piece: PoolPiece) -> int:
        """One holder less; blocks that nobody holds now, which go to the end of the queue in either release."""
        piece.refs -= 1
        if piece.refs:
            return 0
        size = piece.last - piece.first
        piece.next_held = None
        self._queue.insert(piece, self._queue.end)
        self._copies.join(piece)
        return size

    def _file_plain(self, count: int) -> None:
        """Free order since 0.24: blocks without content go to the front, the others to the end."""
        self._queue.put_plain_first(count)

    # -- blocks of ended requests that are still read
    def watch(self, table: Table, runs: Iterable[Run], job_id: int) -> None:
        """A job goes on reading the table's own copies of these contents; to be called just before the table is freed.

        Until `unwatch` it is named in ``touched_jobs`` whenever one of these blocks is handed out (once: then the job
        has to end at once) or hit. vLLM: OffloadingConnectorScheduler._block_id_to_pending_jobs and the like.
        """
        self.watchers.add(job_id)
        for _, first, last in runs:
            if last > table.num_hashed:
                raise ValueError(f"block {last - 1} of a table with {table.num_hashed} hashed blocks")
            for piece in table.held(first, last):
                if piece.first < first:
                    self._copies.split(piece, first)  # it comes next
                    continue
                if piece.last > last:
                    self._copies.split(piece, last)
                if job_id not in piece.watch:
                    piece.watch = (*piece.watch, job_id)

    def rewatch(self, runs: Iterable[Run], job_id: int, new_job_id: int) -> None:
        """Another job reads what is left of these contents, as far as the first one did."""
        self.watchers.add(new_job_id)
        for piece in self._watched_by(runs, job_id):
            piece.watch = tuple(new_job_id if job == job_id else job for job in piece.watch)

    def unwatch(self, runs: Iterable[Run], job_id: int) -> None:
        """A job does not read these contents any more."""
        self.watchers.discard(job_id)
        found = self._watched_by(runs, job_id)
        for piece in found:
            piece.watch = tuple(job for job in piece.watch if job != job_id)
        free = {piece: None for piece in found if not piece.refs}
        behind = {piece.after: None for piece in free if piece.after not in free}
        for piece in (*free, *behind):
            self._copies.join(piece)

    def _watched_by(self, runs: Iterable[Run], job_id: int) -> list[PoolPiece]:
        """Pieces that a job reads within these runs, cut at their borders."""
        found: list[PoolPiece] = []
        for run in runs:
            for piece in self._copies.overlapping(run):
                if job_id in piece.watch:
                    if piece.last > run.last:
                        self._copies.split(piece, run.last)
                    found.append(self._copies.split(piece, run.first) if piece.first < run.first else piece)
        return found

    def _note_touched(self, piece: PoolPiece, first: int, last: int) -> None:
        for job_id in piece.watch:
            self.touched_jobs.setdefault(job_id, []).append(Run(piece.segment, first, last))

    # -- checking
    def check(self, holders: Iterable[Table], num_unowned: int = 0) -> None:
        """Raise AssertionError unless free + held = total, counts match ``holders`` and every map agrees.

        ``num_unowned``: blocks handed out that no table has gained yet.
        """
        refs: dict[PoolPiece, int] = {}
        used = num_unowned
        for table in holders:
            position = 0
            for piece in table.held():
                assert piece.first == position, "a table has a gap"
                position = piece.last
                refs[piece] = refs.get(piece, 0) + 1
            assert position == table.num_hashed, "a table does not end where it should"
            used += table.num_plain
        free = {piece for piece in self._queue if piece.segment != NO_SEGMENT}
        found = set(self._copies)
        assert refs.keys() | free == found, "a block has content nobody can find, or is found and lost"
        assert all(piece.refs == refs.get(piece, 0) for piece in found), "counts differ from what is held"
        assert all(len(piece) > 0 for piece in self._queue), "an empty piece is in the free queue"
        assert sum(map(len, self._queue)) == self.num_free, "free queue and free count differ"
        used += sum(map(len, refs))
        assert used + self.num_free == self.num_blocks - 1, f"{used} held + {self.num_free} free"
        assert sum(map(len, self.cached)) == len(self.cached), "number of contents is stale"


class ExtentPool023(ExtentPool):
    """Free order up to 0.23: everything goes to the end."""

    def _file_plain(self, count: int) -> None:
        self._queue.put_plain_last(count)
