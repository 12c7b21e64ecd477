"""Was it worth it? Which of the chunks that were stored have ever been loaded."""

from __future__ import annotations

from kvsim.offload.ledger import Keys


class StoreUse:
    """Counts stored chunks and, of them, those that no load has asked for since.

    One-shot content is copied out of the GPU for nothing: the bytes, the link's time and the room in the tier are
    wasted. A chunk that was evicted unread and is stored again counts twice; one that is loaded many times counts as
    used once. Names are those of the chunks' content, so a chunk that comes back from a tier further away is used, too.
    """

    def __init__(self) -> None:
        self.num_stored = 0
        self._num_used = 0
        self._unread: set[int] = set()

    @property
    def num_unused(self) -> int:
        """Stores that were (so far) for nothing."""
        return self.num_stored - self._num_used

    def stored(self, keys: Keys) -> None:
        """These chunks have been copied out of the GPU."""
        self.num_stored += len(keys)
        self._unread.update(keys)

    def loaded(self, keys: Keys) -> None:
        """These chunks are being copied back."""
        before = len(self._unread)
        self._unread.difference_update(keys)
        self._num_used += before - len(self._unread)
