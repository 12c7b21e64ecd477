"""Speculative decoding: drafts that are verified together, and how many of them hold."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Literal, Protocol

from kvsim.request import Request

Method = Literal["ngram", "eagle", "draft_model"]


class Acceptance(Protocol):
    """Says how many of a request's drafts its target model accepts."""

    def accepted(self, request: Request, drafts: int) -> int:
        """Of ``drafts`` guesses for the tokens after ``request.num_tokens``, the leading ones that hold."""
        ...


class RandomAcceptance:
    """Each draft holds with the same probability; after the first that does not, none counts.

    The draw belongs to the request and the position of the token, not to the step: a higher rate accepts at least
    what a lower one does, and two configs are compared on the same draws.
    """

    def __init__(self, rate: float, seed: int) -> None:
        self._rate, self._seed = rate, seed

    def accepted(self, request: Request, drafts: int) -> int:
        """See `Acceptance`."""
        for number in range(drafts):
            key = f"{self._seed}/{request.request_id}/{request.num_tokens + number}".encode()
            draw = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "big")
            if draw >= self._rate * 2**64:
                return number
        return drafts


@dataclass(frozen=True, slots=True)
class Speculation:
    """How drafts are made. Rules: vLLM 0.33.0 config/vllm.py and config/speculative.py."""

    method: Method
    num_speculative_tokens: int
    lookahead_block_hashes: bool  # EAGLE: a hash covers the token after its block, instead of dropping the last hit
    acceptance: Acceptance

    @property
    def num_lookahead_tokens(self) -> int:
        """KV slots behind the scheduled tokens, for drafters with a KV cache of their own."""
        return 0 if self.method == "ngram" else self.num_speculative_tokens

    @property
    def draft_slots(self) -> int:
        """Tokens of the step's budget that drafting takes per request (max_num_new_slots_for_drafting)."""
        return 1 if self.method == "draft_model" else 0

    @property
    def drops_last_hit(self) -> bool:
        """EAGLE computes the last block of a hit again, unless hashes look ahead."""
        return self.method == "eagle" and not self.lookahead_block_hashes

    @property
    def hash_lookahead_tokens(self) -> int:
        """Tokens after a block that its hash covers."""
        return 1 if self.method == "eagle" and self.lookahead_block_hashes else 0
