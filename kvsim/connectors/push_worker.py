"""Worker side of connectors whose prefill instance writes: NixlPushConnector and MooncakeConnector.

The decode instance registers its blocks with the prefill instance, which writes into them when the prompt's KV is
complete, and says so. Rules: vLLM 0.33.0 nixl/push_worker.py; mooncake/mooncake_connector.py (send_kv_to_decode,
receive_kv_from_single_worker).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from kvsim.connectors.alarm import Alarm
from kvsim.connectors.base import Copier
from kvsim.connectors.exchange import Exchange, Peer, Port
from kvsim.connectors.handshakes import Handshakes
from kvsim.connectors.nixl import NixlMeta, Receive
from kvsim.connectors.nixl_worker import NixlWorker


@dataclass(frozen=True, slots=True)
class PushRules:
    """In what the two differ.

    Attributes:
        writer_shakes_hands: the prefill instance gets to know the decode instance before it writes there.
        coalesces: blocks that are neighbours on both sides are one message (mooncake_connector.py,
            group_concurrent_contiguous).
        writers: threads that write, each one request at a time; None = all at once.
        patience_ns: a decode instance that has heard nothing for so long gives up; None = it waits for ever.
        says_no_need: who needs none of the KV says so, else the lease has to end.
        tells_failures: the decode instance hears of a write that has failed.
    """

    writer_shakes_hands: bool
    coalesces: bool
    writers: int | None
    patience_ns: int | None
    says_no_need: bool
    tells_failures: bool


RECEIVER_PATIENCE_NS = 60 * 10**9  # mooncake_connector.py (receive_kv_from_single_worker): RCVTIMEO

# push_scheduler.py (update_state_after_alloc): nothing is sent on a full local hit; its watchdog only forgets.
NIXL_PUSH = PushRules(
    writer_shakes_hands=True, coalesces=False, writers=None, patience_ns=None, says_no_need=False, tells_failures=False
)
# mooncake_connector.py: num_workers 10; VLLM_MOONCAKE_ABORT_REQUEST_TIMEOUT 480 s, and 60 s more for the receiver.
MOONCAKE = PushRules(
    writer_shakes_hands=False,
    coalesces=True,
    writers=10,
    patience_ns=480 * 10**9 + RECEIVER_PATIENCE_NS,
    says_no_need=True,
    tells_failures=True,
)


class PushWorker(NixlWorker):
    """See `NixlWorker` for the arguments, and `PushRules`."""

    def __init__(
        self,
        port: Port,
        exchange: Exchange,
        handshakes: Handshakes,
        rules: PushRules,
        *,
        wake: Callable[[], None],
        alarm: Alarm,
        lease_ns: int,
        host: Copier | None = None,
    ) -> None:
        super().__init__(port, exchange, handshakes, wake=wake, alarm=alarm, lease_ns=lease_ns, host=host)
        self._rules = rules
        self._registered: dict[str, tuple[PushWorker, Receive]] = {}  # wait for their prompt
        self._queue: deque[tuple[PushWorker, Receive]] = deque()  # for a writer
        self._num_writing = 0
        self._patience: dict[Receive, Alarm] = {}  # with those who have been asked
        self._writing: dict[str, None] = {}

    def start_load_kv(self, meta: NixlMeta) -> None:
        """As ever; and who has registered for a prompt that has ended gets it."""
        super().start_load_kv(meta)
        for request in meta.leases:
            found = self._registered.pop(request.request_id, None)
            if found is not None and request.request_id in self._leases:
                self._write(*found)

    def close(self) -> None:
        """The engine has died."""
        super().close()
        for alarm in self._patience.values():
            alarm.set(None)

    # -- where it is wanted
    def _start(self, receive: Receive) -> None:
        engine_id, request_id = receive.remote.engine_id, receive.remote.request_id
        if not receive.blocks and not self._rules.says_no_need:
            return
        if not self._handshakes.is_done(engine_id):
            self._handshakes.begin(engine_id, partial(self._shook_hands, receive))
        elif not receive.blocks:
            self._exchange.tell(engine_id, lambda peer: peer.on_read(request_id))
        else:
            self._exchange.tell(engine_id, _registration(self, receive))
            if self._rules.patience_ns is not None:
                alarm = Alarm(self._exchange.clock, lambda: self.on_written(receive, ok=False))
                alarm.set(self._exchange.clock.now + self._rules.patience_ns)
                self._patience[receive] = alarm

    def on_written(self, receive: Receive, *, ok: bool) -> None:
        """The other side has written, or never will."""
        request = receive.request
        is_open = self._receiving.get(request) is receive and request not in self._arrived
        if self._is_closed or not is_open or request in self._failed:
            return
        if receive in self._patience:
            self._patience.pop(receive).set(None)
        (self._arrived if ok else self._failed).append(request)
        self._wake()

    # -- where it is
    def on_registration(self, reader: PushWorker, receive: Receive) -> None:
        """Somebody has made room for a prompt of ours."""
        request_id = receive.remote.request_id
        if request_id in self._leases:
            self._write(reader, receive)
        else:
            self._registered[request_id] = (reader, receive)

    def _write(self, reader: PushWorker, receive: Receive) -> None:
        rules, engine_id = self._rules, reader.port.engine_id
        if rules.writer_shakes_hands and not self._handshakes.is_done(engine_id):
            self._handshakes.begin(engine_id, lambda ok: self._write(reader, receive) if ok else None)
            return
        if rules.writers is not None and self._num_writing >= rules.writers:
            self._queue.append((reader, receive))
            return
        request_id = receive.remote.request_id
        if self._is_closed or request_id not in self._leases:
            return  # it has expired meanwhile
        ours = _blocks_of(self._to_process[request_id].handoff)
        shape, theirs = reader.port.shape, receive.blocks
        ratio = shape.block_tokens // self.port.shape.block_tokens
        pieces = min(len(theirs) * ratio, len(ours))
        run = _mean_run(ours[-len(theirs) :], theirs) if rules.coalesces and ratio == 1 else 1
        self._num_writing += 1
        self._writing[request_id] = None
        if self._exchange.find(engine_id) is None:
            self._exchange.miss(reader.port, len(theirs), partial(self._written, reader, receive))
            return
        self._exchange.move(
            self.port,
            reader.port,
            request_id,
            len(theirs),
            -(-pieces * shape.block_bytes // ratio),
            partial(self._written, reader, receive),
            blocks_per_message=run,
        )

    def _written(self, reader: PushWorker, receive: Receive, ok: bool) -> None:
        if self._is_closed:
            return
        self._num_writing -= 1
        del self._writing[receive.remote.request_id]
        if self._queue:
            self._write(*self._queue.popleft())
        engine_id = reader.port.engine_id
        if ok:
            self.on_read(receive.remote.request_id)
            self._exchange.tell(engine_id, lambda _peer: reader.on_written(receive, ok=True))
        else:
            self._arm()  # what is not being sent any more may expire
            self._handshakes.forget(engine_id)
            if self._rules.tells_failures:
                self._exchange.tell(engine_id, lambda _peer: reader.on_written(receive, ok=False))

    def _may_expire(self, request_id: str) -> bool:
        """mooncake_connector.py (send_kv_to_decode): what is being sent does not expire."""
        return not self._rules.coalesces or request_id not in self._writing


def _registration(reader: PushWorker, receive: Receive) -> Callable[[Peer], None]:
    def say(peer: Peer) -> None:
        assert isinstance(peer, PushWorker)
        peer.on_registration(reader, receive)

    return say


def _blocks_of(handoff: object) -> Sequence[int]:
    answer = getattr(handoff, "answer", None)
    return () if answer is None else tuple(answer.block_ids)


def _mean_run(ours: Sequence[int], theirs: Sequence[int]) -> int:
    """Blocks of a message, on average: neighbours here that are neighbours there."""
    pairs = list(zip(ours, theirs, strict=False))
    breaks = sum(b[0] - a[0] != 1 or b[1] - a[1] != 1 for a, b in pairwise(pairs))
    return max(1, len(pairs) // (breaks + 1))
