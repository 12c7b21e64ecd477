"""One vLLM server as its clients see it: it takes the turns of a trace and refuses what can never run."""

from __future__ import annotations

from typing import Any, cast

import simpy

from kvsim.books import Books
from kvsim.chain import BlockIds, Chain
from kvsim.demands import AdapterContent
from kvsim.engine import Engine
from kvsim.extents.content import PathContent
from kvsim.faults.clients import Clients
from kvsim.handoff import Handoff
from kvsim.reception import Reception
from kvsim.request import ChainContent, Content, Request, Salted
from kvsim.results.records import RequestRecord
from kvsim.scheduler import Scheduler
from kvsim.trace.session import Session, Turn


class Instance:
    """Turns become requests of the engine, each with a record.

    Args:
        reception: enters them.
        name: among the instances of a cluster.
        rank: number among the data-parallel ranks of its server.
        clients: those who may give requests up.
        in_runs: the engine knows blocks by the run (see `kvsim.extents`).
        block_ids: numbers of the blocks, if others use the same; of the engine's block size.
    """

    def __init__(
        self,
        engine: Engine,
        books: Books,
        reception: Reception,
        *,
        name: str = "",
        rank: int = 0,
        clients: Clients | None = None,
        in_runs: bool = False,
        block_ids: BlockIds | None = None,
    ) -> None:
        self.engine, self.name, self.rank = engine, name, rank  # a dead engine may be replaced
        self._clients, self._books, self._reception = clients, books, reception
        kv = engine.scheduler.kv
        self._block_ids = block_ids or BlockIds(kv.block_size, kv.hash_lookahead_tokens)
        self._in_runs = in_runs

    @property
    def scheduler(self) -> Scheduler:
        """The engine's scheduler."""
        return self.engine.scheduler

    def submit(self, session: Session, stream: str, index: int, turn: Turn) -> simpy.Event:
        """One turn of a session arrives; the event fires when it has ended."""
        entry = self._new_entry(session, stream, index, turn)
        reason = self.refusal(turn.input_tokens, turn.output_tokens)
        if reason:
            return self._reception.refuse(entry, "rejected", reason)
        if self.engine.is_dead:
            return self._reception.refuse(entry, "failed", "the engine was down")
        number, request = len(self._reception.records) - 1, self._new_request(entry, session, turn)
        self._books.open(request, entry)
        ended = self._reception.told(self.engine.submit(request))
        if self._clients is not None:
            self._clients.watch(number, request, ended, self.abort)
        return ended

    def serve(
        self, entry: RequestRecord, session: Session, turn: Turn, handoff: Handoff
    ) -> simpy.Event | tuple[str, str]:
        """One part of a turn whose prefill and decode are apart arrives; whoever sends it keeps its record.

        Returns:
            An event that fires, with the request, when it has ended; or status and reason, if it is refused.
        """
        # vLLM's proxies (tests/v1/kv_connector/nixl_integration/toy_proxy_server.py): a prefill makes one token.
        output_tokens = 1 if handoff.role == "prefill" else turn.output_tokens
        reason = self.refusal(turn.input_tokens, output_tokens)
        if reason:
            return "rejected", reason
        if self.engine.is_dead:
            return "failed", "the engine was down"
        request = self._new_request(entry, session, turn, output_tokens, handoff)
        self._books.open(request, entry)
        return self.engine.submit(request)

    def _new_entry(self, session: Session, stream: str, index: int, turn: Turn) -> RequestRecord:
        return self._reception.enter(session, stream, index, turn, rank=self.rank, instance=self.name)

    def _content(self, session: Session, turn: Turn) -> Content:
        size, total = self.scheduler.kv.block_size, turn.input_tokens + turn.output_tokens
        salt = self._reception.salt_of(session)
        if self._in_runs:
            number, num_salts = len(self._reception.records) - 1, max(self._reception.num_salts, 1)
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

    def _new_request(
        self, entry: RequestRecord, session: Session, turn: Turn, max_tokens: int = 0, handoff: Handoff | None = None
    ) -> Request:
        return Request(
            entry.request_id,
            self._content(session, turn),
            block_size=self.scheduler.kv.block_size,
            num_prompt_tokens=turn.input_tokens,
            max_tokens=max_tokens or turn.output_tokens,
            arrival=self.engine.env.now,
            hash_lookahead_tokens=self.scheduler.kv.hash_lookahead_tokens,
            demands=turn.demands,
            handoff=handoff,
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
