"""Who has looked at a few stretches of blocks is told when something changes in one of them."""

from __future__ import annotations

from collections.abc import Iterable


class Finding:
    """Something that was found out by looking. ``holds`` until something has changed where it was looked."""

    __slots__ = ("holds",)

    def __init__(self) -> None:
        self.holds = True


class Changes:
    """Tells, for one kind of knowledge about segments, whose findings are out of date.

    Attributes:
        watched: segment -> findings. Whoever makes changes in a hot place may look here before `note`.
        total: changes of watched segments; never falls.
    """

    __slots__ = ("total", "watched")

    def __init__(self) -> None:
        self.watched: dict[int, list[Finding]] = {}
        self.total = 0

    def watch(self, segments: Iterable[int], finding: Finding) -> None:
        """The next change in one of these ends the finding."""
        watched = self.watched
        for segment in segments:
            if segment in watched:
                watched[segment].append(finding)
            else:
                watched[segment] = [finding]

    def note(self, segment: int) -> None:
        """Something has changed here."""
        findings = self.watched.pop(segment, None)
        if findings is not None:
            self.total += 1
            for finding in findings:
                finding.holds = False

    def clear(self) -> None:
        """Forget all findings; those who have some must, too."""
        self.watched.clear()
