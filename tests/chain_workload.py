"""Small workloads of chains: requests that share prefixes, for replays of a cache alone."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from kvsim.plan.replay import CacheRequest


def chains(words: Sequence[str]) -> list[CacheRequest]:
    """A request per word, a chunk per letter; equal prefixes are equal chunks."""
    number: dict[str, int] = {}
    return [
        CacheRequest(str(at), [number.setdefault(word[: end + 1], len(number)) for end in range(len(word))])
        for at, word in enumerate(words)
    ]


# Few letters and short words, so that prefixes meet.
words = st.lists(st.text("ab", min_size=1, max_size=6), min_size=1, max_size=40)
