"""One vLLM server as its clients see it: it takes the turns of a trace and refuses what can never run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import simpy

from kvsim.books import Books
from kvsim.chain import BlockIds
from kvsim.demands import AdapterContent
from kvsim.engine import Engine
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
    ) -> None:
        self.engine, self.rank = engine, rank
        self._tenants, self._tenant_of = tenants, tenant_of or {}
        self._books, self._records, self._on_ended = books, records, on_ended
        kv = engine.scheduler.kv
        self._block_ids = BlockIds(kv.block_size, kv.hash_lookahead_tokens)

    @property
    def scheduler(self) -> Scheduler:
        """The engine's scheduler."""
        return self.engine.scheduler

    def submit(self, session: Session, stream: str, index: int, turn: Turn) -> simpy.Event:
        """One turn of a session arrives; the event fires when it has ended."""
        now, number = self.engine.env.now, len(self._records)
        entry = RequestRecord(
            request_id=f"{number:06d}:{session.name}{'/' + stream if stream else ''}#{index}",
            session=session.name,
            stream=stream,
            turn=index,
            arrival_ns=now,
            prompt_tokens=turn.input_tokens,
            rank=self.rank,
        )
        self._records.append(entry)
        reason = self.refusal(turn.input_tokens, turn.output_tokens)
        if reason:
            entry.status, entry.reason = "rejected", reason
            self._on_ended()
            return self.engine.env.event().succeed()
        size = self.scheduler.kv.block_size
        total = turn.input_tokens + turn.output_tokens
        content: Content = ChainContent(turn.chain, self._block_ids, size, total)
        if turn.demands.adapter:
            content = AdapterContent(content, turn.demands.adapter)
        if self._tenants:
            salt = self._tenant_of[session.name]
            entry.tenant = self._tenants[salt]
            content = Salted(content, salt, len(self._tenants))
        request = Request(
            entry.request_id,
            content,
            block_size=size,
            num_prompt_tokens=turn.input_tokens,
            max_tokens=turn.output_tokens,
            arrival=now,
            hash_lookahead_tokens=self.scheduler.kv.hash_lookahead_tokens,
            demands=turn.demands,
        )
        self._books.open(request, entry)
        ended = self.engine.submit(request)
        assert ended.callbacks is not None
        ended.callbacks.append(lambda _event: self._on_ended())
        return ended

    def refusal(self, prompt_tokens: int, output_tokens: int) -> str | None:
        """Why a request of this size can never run here; None if it can.

        A request that would pass ``max_model_len`` while it generates is not refused, it ends there.
        """
        longest, kv = self.scheduler.limits.max_model_len, self.scheduler.kv
        if prompt_tokens >= longest:  # vLLM answers with an error: no room for a single new token
            return f"prompt too long for max_model_len {longest}"
        last = min(prompt_tokens + output_tokens, longest) - 1  # the last sampled token has no KV
        slots = min(max(prompt_tokens, last) + self.scheduler.num_spec_slots, longest)
        need, have = -(-slots // kv.block_size), kv.pool.num_blocks - 1
        return f"needs more KV blocks than the {have} of the GPU" if need > have else None
