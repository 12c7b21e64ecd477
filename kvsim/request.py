"""A request as the scheduler sees it: how long it is, how far it is computed, and what its blocks contain."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Protocol

from kvsim.demands import PLAIN, Demands
from kvsim.handoff import Handoff

if TYPE_CHECKING:
    from kvsim.chain import BlockIds, Chain


class RequestStatus(IntEnum):
    """vLLM's states, as far as the scheduler tells them apart."""

    WAITING = 0
    WAITING_FOR_STRUCTURED_OUTPUT_GRAMMAR = 1
    WAITING_FOR_REMOTE_KVS = 2  # parked: blocks allocated, KV on its way
    WAITING_FOR_STREAMING_REQ = 3  # parked between two parts of its input, with its blocks
    RUNNING = 4
    PREEMPTED = 5
    FINISHED = 6
    ABORTED = 7  # finished too, but by its client
    FAILED = 8  # finished with an error


class Content(Protocol):
    """What a request's tokens are, known only through the hashes of its full blocks."""

    def block_hashes(self, first: int, last: int) -> list[int]:
        """Hashes of blocks ``first .. last-1``; equal exactly where the whole prefix up to there is equal."""
        ...


class ChainContent:
    """Content of a trace's request: a shared chain, then tokens that nobody else will ever have.

    The private part holds the prompt's tail without trace ids and the generated tokens that do not come back.
    """

    def __init__(self, chain: Chain, block_ids: BlockIds, block_size: int, total_tokens: int) -> None:
        self._chain, self._block_ids = chain, block_ids
        self._shared_blocks = block_ids.full(chain.num_tokens)
        self._private = block_ids.private(max(total_tokens // block_size - self._shared_blocks, 0))

    def block_hashes(self, first: int, last: int) -> list[int]:
        """See `Content`."""
        shared = self._shared_blocks
        if last <= shared:
            return self._block_ids.of(self._chain, first, last)
        private = self._private - shared
        if first >= shared:
            return list(range(private + first, private + last))
        return self._block_ids.of(self._chain, first, shared) + list(range(private + shared, private + last))


class Salted:
    """Content of one of several tenants: vLLM hashes `cache_salt` with the first block, so nobody shares with others.

    Hash h of tenant t becomes h x number of tenants + t: what ignores salts divides, and has h again.
    """

    def __init__(self, content: Content, salt: int, num_salts: int) -> None:
        self._content, self._salt, self._num_salts = content, salt, num_salts

    def block_hashes(self, first: int, last: int) -> list[int]:
        """See `Content`."""
        return [block * self._num_salts + self._salt for block in self._content.block_hashes(first, last)]


class Request:
    """One prompt with its generated tokens.

    ``arrival`` is a number on the engine's clock (nanoseconds, or steps under a step clock); it orders priorities.
    ``shared_prefix_boundary``: tokens that some KV cache group could have hit at the last lookup and others could not.
    """

    __slots__ = (
        "arrival", "block_hashes", "block_size", "content", "demands", "gated", "handoff", "hash_lookahead_tokens",
        "last_sched_seq", "max_tokens",
        "num_computed_tokens", "num_draft_tokens", "num_in_flight_tokens", "num_output_placeholders",
        "num_preemptions", "num_prompt_tokens", "num_stale_output_tokens", "num_tokens", "priority", "request_id",
        "shared_prefix_boundary",
        "status",
    )  # fmt: skip

    def __init__(
        self,
        request_id: str,
        content: Content,
        *,
        block_size: int,
        num_prompt_tokens: int,
        max_tokens: int,
        arrival: int,
        priority: int = 0,
        hash_lookahead_tokens: int = 0,
        demands: Demands = PLAIN,
        handoff: Handoff | None = None,
    ) -> None:
        self.handoff = handoff  # of disaggregated prefill
        self.request_id, self.content, self.block_size = request_id, content, block_size
        self.demands, self.gated = demands, demands != PLAIN  # gated: the scheduler's gates have to be asked
        self.num_prompt_tokens, self.max_tokens = num_prompt_tokens, max_tokens
        self.priority, self.arrival = priority, arrival
        self.num_tokens = num_prompt_tokens
        self.num_computed_tokens = 0
        self.num_preemptions = 0
        self.shared_prefix_boundary = 0
        # Only with steps in flight (see AsyncScheduler):
        self.num_output_placeholders = 0  # tokens that are being sampled: counted as computed, not known yet
        self.num_in_flight_tokens = 0  # scheduled in steps whose output has not come back
        self.num_stale_output_tokens = 0  # of those, scheduled before the last preemption
        self.last_sched_seq = 0  # number of the last step that computes something of it
        self.status = RequestStatus.WAITING
        self.num_draft_tokens = 0  # guesses that its next step will verify (speculative decoding)
        # A block's hash is known when so many tokens after it are (vLLM: num_hash_lookahead_tokens, for EAGLE).
        self.hash_lookahead_tokens = hash_lookahead_tokens
        full = max(num_prompt_tokens - hash_lookahead_tokens, 0) // block_size
        self.block_hashes: list[int] = content.block_hashes(0, full)

    @property
    def num_output_tokens(self) -> int:
        """Tokens generated so far."""
        return self.num_tokens - self.num_prompt_tokens

    @property
    def is_finished(self) -> bool:
        """Whether it is over, one way or the other."""
        return self.status >= RequestStatus.FINISHED

    def append_output_token(self) -> None:
        """One sampled token; a block that it fills gets its hash."""
        self.num_tokens += 1
        full, rest = divmod(self.num_tokens - self.hash_lookahead_tokens, self.block_size)
        if rest == 0 and full > 0:
            self.block_hashes += self.content.block_hashes(full - 1, full)

    def continue_with(
        self, content: Content, *, num_prompt_tokens: int, max_tokens: int, arrival: int, demands: Demands
    ) -> int:
        """The next part of a streaming session: everything so far but the last sampled token is its prompt now.

        vLLM 0.33.0 v1/core/sched/scheduler.py (_update_request_as_session): the last sampled token, which has no KV
        yet, is dropped; a client that wants it in the prompt sends it again.

        Returns:
            Tokens kept.
        """
        kept = self.num_tokens - 1
        full = kept // self.block_size
        del self.block_hashes[full:]
        self.block_hashes += content.block_hashes(full, num_prompt_tokens // self.block_size)
        self.content, self.demands, self.gated = content, demands, demands != PLAIN
        self.num_prompt_tokens = self.num_tokens = num_prompt_tokens
        self.max_tokens, self.arrival = max_tokens, arrival
        self.status = RequestStatus.WAITING
        return kept

    def __lt__(self, other: Request) -> bool:
        # vLLM 0.33.0 v1/request.py: smaller priority first, then earlier arrival, then the id as a string.
        return (self.priority, self.arrival, self.request_id) < (
            other.priority,
            other.arrival,
            other.request_id,
        )

    def __repr__(self) -> str:
        return f"<{self.request_id} {self.status.name} {self.num_computed_tokens}/{self.num_tokens} tokens>"
