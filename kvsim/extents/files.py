"""Which chunks a secondary tier holds, by the run."""

from __future__ import annotations

from kvsim.extents.path import Key, Run, Runs, run_of
from kvsim.extents.pieces import Piece, PieceMap


class _File(Piece):
    """Files in one state. Unless somebody reads them, published ones stand in the queue: the last is the oldest."""

    __slots__ = ("is_published", "newer", "num_readers", "older")

    def __init__(self, segment: int, first: int, last: int, num_readers: int, *, is_published: bool) -> None:
        super().__init__(segment, first, last)
        self.num_readers, self.is_published = num_readers, is_published
        self.older = self.newer = self  # the neighbours in the queue


class RunFiles:
    """`kvsim.tiers.files.Files` of `Runs`; KV events are not supported.

    Every reader who closes a file makes it the most recently used one, and nothing goes that has readers; so a file
    needs no place in the queue while it has some. Without eviction nothing needs a place, or readers.
    """

    def __init__(self, max_files: int | None = None, *, evict: bool = False) -> None:
        self.max_files, self._evicts = max_files, evict and max_files is not None
        self.num_reserved = 0  # files being written
        self.num_evicted = 0
        self.epoch = 0  # grows with every change of what is here
        self._num_published = 0
        self._pieces: PieceMap[_File] = PieceMap(self._cut)
        self._head = _File(-1, 0, 0, 0, is_published=False)  # the oldest is newer than it, the newest older

    def must_be_told(self, wanted: int) -> bool:
        """Whether somebody who wants space for so many must know how far all others have come.

        They stand in a queue; or one of them might have written what is here already, and so need no space.
        """
        is_short = self.max_files is not None and self._num_published + self.num_reserved + wanted > self.max_files
        return self._evicts or is_short

    def __contains__(self, key: Key) -> bool:
        piece = self._pieces.at(key)
        return piece is not None and piece.is_published

    def __len__(self) -> int:
        return self._num_published

    def lru_order(self) -> list[Run]:
        """What may be evicted, the oldest first; within a run the last is the oldest."""
        found: list[Run] = []
        piece = self._head.newer
        while piece is not self._head:
            found.append(Run(piece.segment, piece.first, piece.last))
            piece = piece.newer
        return found

    # -- looking
    def leading(self, run: Run) -> tuple[bool, int]:
        """Whether the run's first file is here, and of how many from there on the same is true."""
        segment, first, last = run
        position, is_here = first, None
        if not self._pieces.of(segment):
            return False, last - first
        for piece in self._pieces.scan(run):
            if piece.first > position:
                if is_here:
                    break
                is_here, position = False, piece.first
            if is_here is None:
                is_here = piece.is_published
            elif is_here is not piece.is_published:
                break
            position = piece.last
        else:
            if not is_here:
                return False, last - first
        return bool(is_here), min(position, last) - first

    def find(self, keys: Runs) -> list[tuple[Run, bool]]:
        """Which of these files are here, and which are not, in order."""
        found: list[tuple[Run, bool]] = []
        for segment, first, last in keys.runs:
            position = first
            while position < last:
                is_here, count = self.leading(run_of((segment, position, last)))
                found.append((run_of((segment, position, position + count)), is_here))
                position += count
        return found

    def missing(self, keys: Runs) -> Runs:
        """Those that are not here, in order."""
        if not any(map(self._pieces.overlapping, keys.runs)):  # as almost always
            return keys
        return Runs(run for run, is_here in self.find(keys) if not is_here)

    # -- writing
    def reserve(self, wanted: int) -> int:
        """Space for new files; returns for how many there is some."""
        if self.max_files is not None:
            missing = self._num_published + self.num_reserved + wanted - self.max_files
            if missing > 0 and self._evicts:
                missing -= self._make_room(missing)
            wanted -= max(missing, 0)
        self.num_reserved += wanted
        return wanted

    def _make_room(self, count: int) -> int:
        left, head = count, self._head
        while left and (piece := head.newer) is not head:
            if len(piece) <= left:
                left -= len(piece)
                self._unqueue(piece)
                self._pieces.remove(piece)
            else:
                piece.last -= left
                left = 0
        gone = count - left
        self._num_published -= gone
        self.num_evicted += gone
        self.epoch += bool(gone)
        return gone

    def publish(self, keys: Runs) -> None:
        """Reserved files are complete: from now on they can be found. One that is here already is replaced."""
        self.num_reserved -= len(keys)
        for run in reversed(keys.runs):
            segment, first, last = run
            known = self._pieces.cover(run)
            for piece in reversed(known):  # tail first; those that are here keep their place
                if piece.last < last:
                    self._append_new(segment, piece.last, last)
                last = piece.first
                if not piece.is_published:  # only readers so far
                    piece.is_published = True
                    self._num_published += len(piece)
            if first < last:
                self._append_new(segment, first, last)
        self.epoch += 1

    # -- reading
    def open(self, keys: Runs) -> None:
        """Somebody is going to read these files: they stay."""
        if not self._evicts:
            return
        for run in keys.runs:
            for gap in self._pieces.gaps(run):
                self._pieces.add(_File(*gap, 0, is_published=False))
            for piece in self._pieces.cover(run):
                if piece.is_published and not piece.num_readers:
                    self._unqueue(piece)
                piece.num_readers += 1

    def close(self, keys: Runs) -> None:
        """They have been read, and become the most recently used."""
        if not self._evicts:
            return
        for run in reversed(keys.runs):
            for piece in reversed(self._pieces.cover(run)):
                piece.num_readers -= 1
                if not piece.num_readers:
                    if piece.is_published:
                        self._enqueue(piece)
                    else:
                        self._pieces.remove(piece)

    # -- inside
    def _append_new(self, segment: int, first: int, last: int) -> None:
        """Files that were not here, as the most recently used."""
        self._num_published += last - first
        if not self._evicts:  # no order: as few pieces as possible
            for piece in self._pieces.overlapping((segment, first - 1, last + 1)):
                first, last = min(first, piece.first), max(last, piece.last)
                self._pieces.remove(piece)
        piece = _File(segment, first, last, 0, is_published=True)
        self._pieces.add(piece)
        if self._evicts:
            self._enqueue(piece)

    def _enqueue(self, piece: _File) -> None:
        """At the end; joined with what stands there if it follows it."""
        head = self._head
        newest = head.older
        if newest.first == piece.last and newest.segment == piece.segment:
            self._pieces.remove(piece)
            newest.first = piece.first
        else:
            newest.newer, piece.older, piece.newer, head.older = piece, newest, head, piece

    @staticmethod
    def _unqueue(piece: _File) -> None:
        piece.older.newer, piece.newer.older = piece.newer, piece.older

    def _cut(self, piece: _File, position: int) -> _File:
        """The right part is older and stays; the left one stands behind it."""
        left = _File(piece.segment, piece.first, position, piece.num_readers, is_published=piece.is_published)
        piece.first = position
        if self._evicts and piece.is_published and not piece.num_readers:
            left.older, left.newer = piece, piece.newer
            piece.newer.older = left
            piece.newer = left
        return left
