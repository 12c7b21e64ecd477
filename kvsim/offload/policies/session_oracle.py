"""Session oracle: whoever comes back last loses first."""

from __future__ import annotations

from kvsim.offload.context import RequestContext
from kvsim.offload.policies.leaves import Chunk, LeafPolicy, Score
from kvsim.offload.policies.view import NEVER
from kvsim.offload.slot import Slots

Streams = frozenset[str]


class SessionOraclePolicy(LeafPolicy):
    """The leaf whose streams all come back later than those of the others goes first.

    The pause between a turn's end and the stream's next turn is known from the turn's beginning (`TurnFacts.pause_ns`);
    while the turn is under way its KV is on the GPU, and the next one comes a pause from now at the earliest. Whoever
    should be back but waits in the queue comes before all others; a stream in its last turn never comes back. A chunk
    is needed when the first of the streams that have used it is. New sessions are not foreseen.
    Definition: KVFlow, arXiv 2507.07400: the minimum over the agents below a node of the steps until each runs again;
    here in time instead of steps, as an upper bound of what hints from clients can give (vLLM issue 52113, RFC).
    """

    scores_age = True  # streams begin and end

    def __init__(self, capacity: int, slots: Slots) -> None:
        super().__init__(capacity, slots)
        self._next_ns: dict[str, int] = {}  # when the next turn of a stream comes that has none under way
        self._pauses_ns: dict[str, int] = {}  # of streams with a turn under way, after its end
        self._living: dict[str, str] = {}  # streams of requests that have begun and not ended
        self._last: tuple[Streams, str, Streams] = (frozenset(), "", frozenset())

    def score(self, chunk: Chunk) -> Score:
        return -min(map(self._needed_ns, chunk.note))

    def _needed_ns(self, stream: str) -> int:
        pause_ns = self._pauses_ns.get(stream)
        return self._next_ns[stream] if pause_ns is None else _later(self.view.now_ns(), pause_ns)

    def on_request_begins(self, context: RequestContext) -> None:
        facts = self.view.turn(context.request_id)
        stream = self._living[context.request_id] = context.request_id if facts is None else facts.stream
        self._pauses_ns[stream] = NEVER if facts is None else facts.pause_ns

    def on_inserted(self, chunk: Chunk, context: RequestContext, position: int) -> None:
        chunk.note = self._joined(frozenset(), self._living[context.request_id])

    def on_used(self, chunk: Chunk, context: RequestContext, position: int) -> None:
        chunk.note = self._joined(chunk.note, self._living[context.request_id])

    def on_request_finished(self, context: RequestContext) -> None:
        stream = self._living.pop(context.request_id, None)
        if stream is not None:
            self._next_ns[stream] = _later(self.view.now_ns(), self._pauses_ns.pop(stream, NEVER))
        super().on_request_finished(context)

    def _joined(self, streams: Streams, another: str) -> Streams:
        """Neighbours in a prompt mostly have the same streams: one object for all of them."""
        if another in streams:
            return streams
        before, joined, after = self._last
        if before is not streams or joined != another:
            after = streams | {another}
            self._last = (streams, another, after)
        return after


def _later(now_ns: int, pause_ns: int) -> int:
    return NEVER if pause_ns == NEVER else now_ns + pause_ns
