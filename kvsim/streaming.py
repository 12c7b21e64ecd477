"""Streaming sessions: the turns of a session as parts of one request that keeps its blocks between them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import simpy

from kvsim.door import Guest
from kvsim.instance import Instance
from kvsim.request import Request
from kvsim.trace.session import Session, Turn


class StreamingInstance(Instance):
    """A server whose clients stream: a turn that goes on from the last one's answer is more input for its request.

    A turn that drops or rewrites what came before ends the request and begins another one; so does the end of a stream.
    The client sends the last token of the answer again, because vLLM drops it (see `Request.continue_with`). Every turn
    has a record of its own; tokens that its request brought along count as local hits.
    Rules: vLLM 0.33.0 v1/core/sched/scheduler.py (resumable requests), clients that wait for the answer.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._streams: dict[tuple[str, str], tuple[Request, Turn]] = {}  # open ones: request, last turn

    def submit(self, session: Session, stream: str, index: int, turn: Turn) -> simpy.Event:
        """See `kvsim.door.Door.submit`."""
        key = (session.name, stream)
        entry = self._reception.enter(session, stream, index, turn)
        number = len(self._reception.records) - 1
        reason = self.refusal(turn.input_tokens, turn.output_tokens)
        if key in self._streams and (reason or not _goes_on(self._streams[key][1], turn)):
            self._end(key)
        if reason:
            return self._reception.refuse(entry, "rejected", reason)
        demands = replace(turn.demands, resumable=True)
        guest = Guest(entry, number, session, replace(turn, demands=demands), self.engine.env.now)
        if key not in self._streams:
            request = self._new_request(guest)
            self._books.open(request, entry)
            ended = self.engine.submit(request)
        else:
            request, _before = self._streams[key]
            kept = request.continue_with(
                self._content(guest),
                num_prompt_tokens=turn.input_tokens,
                max_tokens=turn.output_tokens,
                arrival=guest.arrival_ns,
                demands=demands,
            )
            self._books.open(request, entry, kept_tokens=kept)
            ended = self.engine.continue_session(request)
        self._streams[key] = (request, turn)
        if index == self._last_of(session, stream):
            assert ended.callbacks is not None
            ended.callbacks.append(lambda _event: self._end(key))
        return self._reception.told(ended)

    def _end(self, key: tuple[str, str]) -> None:
        request, _turn = self._streams.pop(key, (None, None))
        if request is not None and not request.is_finished:
            self.engine.end_session(request)

    @staticmethod
    def _last_of(session: Session, stream: str) -> int:
        return next(len(turns) for name, turns in session.streams if name == stream) - 1


def _goes_on(before: Turn, turn: Turn) -> bool:
    """Whether a prompt begins with the one before and its answer; the answer's last token may be missing."""
    kept = before.input_tokens + before.output_tokens - 1
    return turn.input_tokens > kept and before.chain.shared_tokens(turn.chain) >= kept
