"""Looking for chunks in the background: the first answer is "later"."""

from __future__ import annotations

from collections.abc import Iterable

from kvsim.offload.tiering import Answer


class AsyncLookup:
    """Remembers what was asked, and by whom; somebody else finds the answers.

    What is asked in a step is taken away as one batch at its end (`flush`). An answer is remembered until the last
    request that asked for it is over, even if the chunk arrives or vanishes meanwhile.
    Rules: vLLM 0.33.0 v1/kv_offload/tiering/async_lookup.py.
    """

    def __init__(self) -> None:
        self._answers: dict[int, bool | None] = {}  # None = not known yet
        self._asked_by: dict[int, set[str]] = {}
        self._keys_of: dict[str, list[int]] = {}
        self._batch: list[int] = []  # asked in this step
        self._looking: set[int] = set()  # in flight; never iterated
        self.epoch = 0  # grows with every answer
        self.num_changes = 0  # grows when somebody asks for the first time

    def ask(self, key: int, request_id: str) -> Answer:
        """The remembered answer, or RETRY."""
        answers = self._answers
        if key not in answers:
            answers[key] = None
            self._asked_by[key] = set()
            self._batch.append(key)
        askers = self._asked_by[key]
        if request_id not in askers:
            askers.add(request_id)
            self.num_changes += 1
            self._keys_of.setdefault(request_id, []).append(key)
        answer = answers[key]
        return Answer.RETRY if answer is None else Answer.HIT if answer else Answer.MISS

    def flush(self) -> list[int]:
        """The step's new questions; those that nobody asks any more are left out."""
        batch = [key for key in dict.fromkeys(self._batch) if key in self._answers]
        self._looking.update(batch)
        self._batch = []
        return batch

    def answer(self, found: Iterable[tuple[int, bool]]) -> None:
        """The background has looked."""
        for key, is_there in found:
            self._looking.discard(key)
            if self._asked_by[key]:
                self._answers[key] = is_there
            else:
                del self._answers[key], self._asked_by[key]
        self.epoch += 1

    def mark_miss(self, keys: Iterable[int]) -> None:
        """These could not be read: whoever asks hears so."""
        for key in keys:
            if self._answers.get(key):
                self._answers[key] = False
                self.epoch += 1

    def on_request_finished(self, request_id: str) -> None:
        """Forget what nobody else has asked for, unless the background is looking for it."""
        for key in self._keys_of.pop(request_id, ()):
            askers = self._asked_by[key]
            askers.discard(request_id)
            if not askers and key not in self._looking:
                del self._answers[key], self._asked_by[key]
