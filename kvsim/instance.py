"""One vLLM server as its clients see it: it takes the turns of a trace and refuses what can never run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import simpy

from kvsim.books import Books
from kvsim.chain import BlockIds
from kvsim.demands import AdapterContent
from kvsim.engine import Engine
from kvsim.extents.content import PathContent
from kvsim.faults.clients import Clients
from kvsim.request import ChainContent, Content, Request, Salted
from kvsim.results.records import RequestRecord
from kvsim.scheduler import Scheduler
from kvsim.trace.session import Session, Turn


class Instance:
    """Turns become requests of the engine, each with a record.

    Args:
        records: of all requests, in order of arrival; grows.
        on_ended: called once for every request that has ended, whichever way.
        tenants: their names; none = all sessions are of one.
        tenant_of: number of the tenant of each session, by its name.
        rank: number among the data-parallel ranks of its server.
        clients: those who may give requests up.
        in_runs: the engine knows blocks by the run (see `kvsim.extents`).
    """

    def __init__(
        self,
        engine: Engine,
        books: Books,
        records: list[RequestRecord],
        on_ended: Callable[[], None],
        tenants: Sequence[str] = (),
        tenant_of: Mapping[str, int] | None = None,
        *,
        rank: int = 0,
        clients: Clients | None = None,
        in_runs: bool = False,
    ) -> None:
        self.engine, self.rank = engine, rank  # a dead engine may be replaced
        self._tenants, self._tenant_of, self._clients = tenants, tenant_of or {}, clients
        self._books, self._records, self._on_ended = books, records, on_ended
        kv = engine.scheduler.kv
        self._block_ids = BlockIds(kv.block_size, kv.hash_lookahead_tokens)
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
            return self._refuse(entry, "rejected", reason)
        if self.engine.is_dead:
            return self._refuse(entry, "failed", "the engine was down")
        number, request = len(self._records) - 1, self._new_request(entry, session, turn)
        self._books.open(request, entry)
        ended = self._told(self.engine.submit(request))
        if self._clients is not None:
            self._clients.watch(number, request, ended, self.abort)
        return ended

    def _new_entry(self, session: Session, stream: str, index: int, turn: Turn) -> RequestRecord:
        number = len(self._records)
        entry = RequestRecord(
            request_id=f"{number:06d}:{session.name}{'/' + stream if stream else ''}#{index}",
            session=session.name,
            stream=stream,
            turn=index,
            arrival_ns=self.engine.env.now,
            prompt_tokens=turn.input_tokens,
            rank=self.rank,
        )
        if self._tenants:
            entry.tenant = self._tenants[self._tenant_of[session.name]]
        self._records.append(entry)
        return entry

    def _refuse(self, entry: RequestRecord, status: str, reason: str) -> simpy.Event:
        entry.status, entry.reason = status, reason
        self._on_ended()
        return self.engine.env.event().succeed()

    def _told(self, ended: simpy.Event) -> simpy.Event:
        assert ended.callbacks is not None
        ended.callbacks.append(lambda _event: self._on_ended())
        return ended

    def _content(self, session: Session, turn: Turn) -> Content:
        size, total = self.scheduler.kv.block_size, turn.input_tokens + turn.output_tokens
        if self._in_runs:
            salt = self._tenant_of[session.name] if self._tenants else 0
            number = len(self._records) - 1
            in_runs: Any = PathContent(turn.chain, size, total, number, salt=salt, num_salts=max(len(self._tenants), 1))
            return cast("Content", in_runs)
        content: Content = ChainContent(turn.chain, self._block_ids, size, total)
        if turn.demands.adapter:
            content = AdapterContent(content, turn.demands.adapter)
        if self._tenants:
            content = Salted(content, self._tenant_of[session.name], len(self._tenants))
        return content

    def _new_request(self, entry: RequestRecord, session: Session, turn: Turn) -> Request:
        return Request(
            entry.request_id,
            self._content(session, turn),
            block_size=self.scheduler.kv.block_size,
            num_prompt_tokens=turn.input_tokens,
            max_tokens=turn.output_tokens,
            arrival=entry.arrival_ns,
            hash_lookahead_tokens=self.scheduler.kv.hash_lookahead_tokens,
            demands=turn.demands,
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
