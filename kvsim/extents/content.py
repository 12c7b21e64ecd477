"""A request's content as a path: the segments of its chain, then one segment that nobody else has."""

from __future__ import annotations

from kvsim.chain import Chain
from kvsim.extents.path import Path, PathKeys, Runs


class PathContent:
    """Stands for `kvsim.request.ChainContent`: the same blocks are equal, and nothing is spelled out.

    Args:
        chain: what other requests may have too.
        total_tokens: of prompt and output.
        private: number of the request, which names the segment behind the chain.
        salt: number of the tenant or adapter that it shares with, if any, of ``num_salts``.
    """

    def __init__(
        self, chain: Chain, block_size: int, total_tokens: int, private: int, *, salt: int = 0, num_salts: int = 1
    ) -> None:
        self._chain, self._total_tokens = chain, total_tokens
        self._private, self._salt, self._num_salts = private, salt, num_salts
        self.path = self.in_blocks_of(block_size)

    def in_blocks_of(self, tokens: int) -> Path:
        """The path in blocks (or chunks) of so many tokens. A block belongs to the segment of its last token."""
        segments: list[int] = []
        ends: list[int] = []
        salt, num_salts, end = self._salt, self._num_salts, 0
        chain_end = self._chain.num_tokens // tokens
        for segment in self._chain.segments:
            reached = min(segment.end_tokens // tokens, chain_end)
            if reached > end:
                segments.append(segment.index * num_salts + salt)
                ends.append(reached)
                end = reached
        shared, total = end, self._total_tokens // tokens
        if total > shared:
            segments.append(-2 - self._private)  # (-1 names blocks without content)
            ends.append(total)
        return Path(segments, ends, shared)

    def block_hashes(self, first: int, last: int) -> PathKeys | Runs:
        """See `kvsim.request.Content`; keys instead of hashes."""
        return PathKeys(self.path, last) if first == 0 else self.path.keys(first, last)
