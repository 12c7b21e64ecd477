"""NICs and the fabric between them: flows of bytes that share bandwidth fairly, on SimPy, in integer nanoseconds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import log

from kvsim.clock import Clock

NS = 10**9
PPM = 1_000_000


@dataclass(frozen=True, slots=True)
class Nic:
    """What a NIC and the software that drives it can do.

    Attributes:
        bytes_per_s: line rate, in each direction.
        setup_ns: from the submission of a transfer to its first byte, once per transfer.
        efficiency: (bytes of a message, part of the line rate that such messages reach in ppm), sizes rising; between
            two sizes linear in the logarithm of the size, constant outside.
    """

    bytes_per_s: int
    setup_ns: int = 0
    efficiency: tuple[tuple[int, int], ...] = ()

    def efficiency_ppm(self, message_bytes: int) -> int:
        """Part of the line rate that messages of this size reach."""
        if not self.efficiency:
            return PPM
        sizes = [size for size, _ in self.efficiency]
        high = bisect_right(sizes, message_bytes)
        if high in (0, len(sizes)):
            return self.efficiency[min(high, len(sizes) - 1)][1]
        (size, below), (next_size, above) = self.efficiency[high - 1], self.efficiency[high]
        return round(below + (above - below) * log(message_bytes / size) / log(next_size / size))


@dataclass(eq=False, slots=True)
class Endpoint:
    """The NICs of one server or of one storage node; full duplex.

    Attributes:
        bytes_sent, bytes_received: of flows that have arrived.
        bytes_failed: of flows from here that have not.
    """

    name: str
    nic: Nic
    nics: int
    is_down: bool = False
    bytes_sent: int = 0
    bytes_received: int = 0
    bytes_failed: int = 0
    # Time during which anything was on its way out or in, up to the last change.
    busy_out_ns: int = 0
    busy_in_ns: int = 0

    @property
    def bytes_per_s(self) -> int:
        """Line rate of all its NICs, in each direction."""
        return self.nic.bytes_per_s * self.nics


@dataclass(eq=False, slots=True)
class Flow:
    """Bytes on their way from one endpoint to another.

    ``work``: line bytes that are left, times 10^9. A message that reaches a part of the line rate takes the line for
    more bytes than it has.
    """

    number: int
    source: Endpoint
    target: Endpoint
    num_bytes: int
    submitted_ns: int
    on_done: Callable[[Flow], None] | None
    cap: int  # line bytes per second that it can use at most
    work: int
    rate: int = 0
    finished_ns: int = -1
    failed: bool = False

    @property
    def is_done(self) -> bool:
        """Whether it is over: its last byte has arrived, or it has failed."""
        return self.finished_ns >= 0


_Resource = tuple[str, Endpoint | None]


class Fabric:
    """All endpoints of a cluster and what flows between them.

    Every flow gets a max-min fair share of the sender's NICs, the receiver's NICs and, if the fabric is
    oversubscribed, its core. Shares depend on the flows that are on their way only, not on the order in which they
    were started. A flow begins after its setup and the fabric's latency, and is striped over all NICs of its ends
    unless it says over how many.

    To move bytes::

        node = fabric.endpoint("node-0", nic, 8)
        flow = fabric.send(node, other, 1 << 30, message_bytes=64 << 10, on_done=arrived)
        fabric.fail(other)       # every flow from or to it fails now: on_done is called with flow.failed set

    Args:
        latency_ns: one way through the fabric, of anything.
        oversubscription: bandwidth of all endpoints together, as a multiple of that of the core; 1 = no core.
    """

    def __init__(self, clock: Clock, latency_ns: int = 0, oversubscription: float = 1.0) -> None:
        self._clock, self.latency_ns = clock, latency_ns
        self._oversubscription_ppm = round(oversubscription * PPM)
        self.endpoints: dict[str, Endpoint] = {}
        self._flows: dict[Flow, None] = {}  # on their way, in the order of their numbers
        self._waiting: dict[Flow, None] = {}  # for their setup
        self._num_flows = 0
        self._updated_ns = 0
        self._plan = 0  # number of the latest wake-up; older ones are void

    def endpoint(self, name: str, nic: Nic, nics: int) -> Endpoint:
        """A new endpoint; names differ."""
        if name in self.endpoints:
            raise ValueError(f"endpoint {name!r} exists already")
        self.endpoints[name] = endpoint = Endpoint(name, nic, nics)
        return endpoint

    def send(
        self,
        source: Endpoint,
        target: Endpoint,
        num_bytes: int,
        *,
        message_bytes: int = 0,
        setup_ns: int | None = None,
        nics: int | None = None,
        on_done: Callable[[Flow], None] | None = None,
    ) -> Flow:
        """Start a transfer.

        Args:
            source: whose NICs send it.
            target: whose NICs receive it.
            num_bytes: how much.
            message_bytes: size of its messages (RDMA descriptors); 0 = one message.
            setup_ns: before its first byte; None = as the slower of both NICs needs.
            nics: over how many NICs of each end it is striped; None = all.
            on_done: called once when it has arrived or failed.
        """
        size = message_bytes or max(num_bytes, 1)
        efficiency = min(source.nic.efficiency_ppm(size), target.nic.efficiency_ppm(size))
        caps = [end.nic.bytes_per_s * min(nics or end.nics, end.nics) for end in (source, target)]
        work = -(-num_bytes * PPM // efficiency) * NS
        flow = Flow(self._num_flows, source, target, num_bytes, self._clock.now, on_done, min(caps), work)
        self._num_flows += 1
        self._waiting[flow] = None
        setup = max(source.nic.setup_ns, target.nic.setup_ns) if setup_ns is None else setup_ns
        self._clock.alarm(setup + self.latency_ns, lambda: self._begin(flow))
        return flow

    def tell(self, action: Callable[[], None]) -> None:
        """Do something when a small message has crossed the fabric."""
        self._clock.alarm(self.latency_ns, action)

    def cancel(self, flow: Flow) -> None:
        """Nobody wants it any more: it fails now, and nobody is told."""
        flow.on_done = None
        if not flow.is_done:
            self._end_early([flow])

    def fail(self, endpoint: Endpoint) -> None:
        """It is gone: flows from and to it fail now, and those that come, after their setup."""
        endpoint.is_down = True
        self._end_early([f for f in (*self._waiting, *self._flows) if endpoint in (f.source, f.target)])

    def recover(self, endpoint: Endpoint) -> None:
        """It is there again."""
        endpoint.is_down = False

    @property
    def num_flows(self) -> int:
        """Transfers that are not over."""
        return len(self._flows) + len(self._waiting)

    # -- inside
    def _begin(self, flow: Flow) -> None:
        if flow.is_done:
            return  # it has failed meanwhile
        del self._waiting[flow]
        if flow.source.is_down or flow.target.is_down:
            self._finish(flow, failed=True)
            return
        self._advance()
        self._flows[flow] = None
        self._share()

    def _end_early(self, flows: Sequence[Flow]) -> None:
        self._advance()
        for flow in flows:
            self._waiting.pop(flow, None)
            self._flows.pop(flow, None)
        self._share()
        for flow in flows:
            self._finish(flow, failed=True)

    def _finish(self, flow: Flow, *, failed: bool) -> None:
        flow.finished_ns, flow.failed = self._clock.now, failed
        if failed:
            flow.source.bytes_failed += flow.num_bytes
        else:
            flow.source.bytes_sent += flow.num_bytes
            flow.target.bytes_received += flow.num_bytes
        if flow.on_done is not None:
            flow.on_done(flow)

    def _advance(self) -> None:
        elapsed = self._clock.now - self._updated_ns
        if elapsed:
            for flow in self._flows:
                flow.work -= elapsed * flow.rate
            for endpoint in {flow.source for flow in self._flows}:
                endpoint.busy_out_ns += elapsed
            for endpoint in {flow.target for flow in self._flows}:
                endpoint.busy_in_ns += elapsed
            self._updated_ns = self._clock.now

    def _share(self) -> None:
        """New rates, and a wake-up for the first flow that will be there."""
        for flow, rate in fair_rates(self._flows, self._core()):
            flow.rate = rate
        self._plan += 1
        if self._flows:
            plan = self._plan
            first = min(-(-max(flow.work, 0) // flow.rate) for flow in self._flows)
            self._clock.alarm(first, lambda: self._on_wake(plan))

    def _core(self) -> int | None:
        if self._oversubscription_ppm == PPM:
            return None
        total = sum(endpoint.bytes_per_s for endpoint in self.endpoints.values())
        return max(1, total * PPM // self._oversubscription_ppm)

    def _on_wake(self, plan: int) -> None:
        if plan != self._plan:
            return  # the rates have changed since
        self._advance()
        done = [flow for flow in self._flows if flow.work <= 0]
        for flow in done:
            del self._flows[flow]
        self._share()
        for flow in done:
            self._finish(flow, failed=False)


@dataclass(slots=True)
class _Pool:
    """Something that flows share."""

    left: int
    flows: dict[Flow, None] = field(default_factory=dict)

    @property
    def share(self) -> int:
        return self.left // len(self.flows)


def fair_rates(flows: Sequence[Flow] | dict[Flow, None], core: int | None) -> list[tuple[Flow, int]]:
    """Max-min fair rates by progressive filling, whole bytes per second, at least 1.

    Whoever is held back most comes first: a flow by its own cap, or all flows of the pool with the smallest share.
    """
    pools: dict[_Resource, _Pool] = {}
    for flow in flows:
        for key, capacity in (
            (("out", flow.source), flow.source.bytes_per_s),
            (("in", flow.target), flow.target.bytes_per_s),
            (("core", None), core),
        ):
            if capacity is not None:
                pools.setdefault(key, _Pool(capacity)).flows[flow] = None
    rates: dict[Flow, int] = {}
    open_flows = dict.fromkeys(flows)
    while open_flows:
        share = min(pool.share for pool in pools.values() if pool.flows)
        capped = [flow for flow in open_flows if flow.cap <= share]
        if capped:
            smallest = min(flow.cap for flow in capped)
            settled = {flow: smallest for flow in capped if flow.cap == smallest}
        else:
            tight = [pool for pool in pools.values() if pool.flows and pool.share == share]
            settled = {flow: share for pool in tight for flow in pool.flows}
        for flow, rate in settled.items():
            rates[flow] = max(1, rate)
            del open_flows[flow]
            for pool in pools.values():
                if flow in pool.flows:
                    pool.left -= rate
                    del pool.flows[flow]
    return [(flow, rates[flow]) for flow in flows]
