"""One rank of a vLLM server: it turns the turns of a trace into requests and refuses what can never run."""

from __future__ import annotations

from typing import Any, cast

import simpy

from kvsim.books import Books
from kvsim.chain import BlockIds, Chain
from kvsim.demands import AdapterContent
from kvsim.door import WAS_DOWN, Guest, Refusal
from kvsim.engine import Engine
from kvsim.extents.content import PathContent
from kvsim.handoff import RemoteBlocks
from kvsim.reception import Reception
from kvsim.request import ChainContent, Content, Request, Salted
from kvsim.scheduler import Scheduler


class Instance:
    """Turns become requests of the engine, each with a record.

    Args:
        reception: has entered them.
        in_runs: the engine knows blocks by the run (see `kvsim.extents`).
        block_ids: numbers of the blocks, if others use the same; of the engine's block size.
    """

    def __init__(
        self,
        engine: Engine,
        books: Books,
        reception: Reception,
        *,
        in_runs: bool = False,
        block_ids: BlockIds | None = None,
    ) -> None:
        self.engine = engine  # a dead one may be replaced
        self._books, self._reception = books, reception
        kv = engine.scheduler.kv
        self._block_ids = block_ids or BlockIds(kv.block_size, kv.hash_lookahead_tokens)
        self._in_runs = in_runs

    @property
    def scheduler(self) -> Scheduler:
        """The engine's scheduler."""
        return self.engine.scheduler

    @property
    def is_dead(self) -> bool:
        """Whether its engine has died and nobody has taken over."""
        return self.engine.is_dead

    def admit(self, guest: Guest) -> simpy.Event | Refusal:
        """A guest's turn becomes a request of the engine now.

        Returns:
            An event that fires, with the request, when it has ended; or status and reason, if it is refused.
        """
        reason = self.refusal(guest.turn.input_tokens, guest.max_tokens)
        if reason:
            return "rejected", reason
        if self.engine.is_dead:
            return "failed", WAS_DOWN
        request = self._new_request(guest)
        guest.served_by = (self, request)
        self._books.open(request, guest.entry)
        return self.engine.submit(request)

    def answer_to(self, request_id: str) -> RemoteBlocks | None:
        """See `Host.answer_to`."""
        connector = self.scheduler.connector
        return None if connector is None else connector.answer_to(request_id)

    def _content(self, guest: Guest) -> Content:
        turn, number = guest.turn, guest.number
        size, total = self.scheduler.kv.block_size, turn.input_tokens + turn.output_tokens
        salt = self._reception.salt_of(guest.session)
        if self._in_runs:
            num_salts = max(self._reception.num_salts, 1)
            in_runs: Any = PathContent(turn.chain, size, total, number, salt=salt, num_salts=num_salts)
            return cast("Content", in_runs)
        return self._distinct(ChainContent(turn.chain, self._block_ids, size, total), turn.demands.adapter, salt)

    def _distinct(self, content: Content, adapter: int, salt: int) -> Content:
        """Content as this adapter and this tenant have it."""
        if adapter:
            content = AdapterContent(content, adapter)
        return Salted(content, salt, self._reception.num_salts) if self._reception.num_salts else content

    def block_hashes(self, chain: Chain, adapter: int, salt: int) -> list[int]:
        """Hashes of the full blocks of a prompt, as the reference engine names them in KV events."""
        known = ChainContent(chain, self._block_ids, self.scheduler.kv.block_size, 0)
        return self._distinct(known, adapter, salt).block_hashes(0, self._block_ids.full(chain.num_tokens))

    def _new_request(self, guest: Guest) -> Request:
        return Request(
            guest.entry.request_id,
            self._content(guest),
            block_size=self.scheduler.kv.block_size,
            num_prompt_tokens=guest.turn.input_tokens,
            max_tokens=guest.max_tokens,
            arrival=guest.arrival_ns,
            hash_lookahead_tokens=self.scheduler.kv.hash_lookahead_tokens,
            demands=guest.turn.demands,
            handoff=guest.handoff,
        )

    def abort(self, request: Request, reason: str) -> None:
        """The client of a request has gone, and this is why."""
        self._books.expect_abort(request, reason)
        self.engine.abort(request)

    def refusal(self, prompt_tokens: int, output_tokens: int) -> str | None:
        """Why a request of this size can never run here; None if it can.

        A request that would pass ``max_model_len`` while it generates is not refused, it ends there.
        """
        longest, kv = self.scheduler.limits.max_model_len, self.scheduler.kv
        if prompt_tokens >= longest:  # vLLM answers with an error: no room for a single new token
            return f"prompt too long for max_model_len {longest}"
        last = min(prompt_tokens + output_tokens, longest) - 1  # the last sampled token has no KV
        slots = min(max(prompt_tokens, last) + self.scheduler.num_spec_slots, longest)
        need, have = kv.max_blocks(slots), kv.pool.num_blocks - 1
        return f"needs more KV blocks than the {have} of the GPU" if need > have else None
