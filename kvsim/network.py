"""NICs and the fabric between them: flows of bytes that share bandwidth fairly, on SimPy, in integer nanoseconds."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import log

import simpy

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
    work: int  # that was left at ``updated_ns``, when its rate changed last
    rate: int = 0
    updated_ns: int = 0
    ends_ns: int = -1  # at this rate
    begun: int = -1  # number among all that have begun
    finished_ns: int = -1
    failed: bool = False

    @property
    def is_done(self) -> bool:
        """Whether it is over: its last byte has arrived, or it has failed."""
        return self.finished_ns >= 0


class Fabric:
    """All endpoints of a cluster and what flows between them.

    Every flow gets a max-min fair share of the sender's NICs, the receiver's NICs and, if the fabric is
    oversubscribed, its core. Shares depend on the flows that are on their way only, not on the order in which they
    were started; so if one begins or ends, only those change that share something with it, directly or through others.
    A flow begins after its setup and the fabric's latency, and is striped over all NICs of its ends
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
        self._flows: dict[Flow, None] = {}  # on their way, in the order in which they have begun
        self._out: dict[Endpoint, dict[Flow, None]] = {}  # the same by source, and by target
        self._in: dict[Endpoint, dict[Flow, None]] = {}
        self._changed: list[Flow] = []  # have begun or ended since rates were shared out
        self._ends: list[tuple[int, int, Flow]] = []  # heap; stale if that is not its end any more
        self._num_begun = 0
        self._waiting: dict[Flow, None] = {}  # for their setup
        self._num_flows = 0
        self._updated_ns = 0
        self._wake: tuple[int, simpy.Event] | None = None  # when the first flow ends
        self._is_due = False  # rates are shared out later in this instant

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
        self._add(flow)
        if not self._is_due:  # many may begin at one instant
            self._is_due = True
            self._clock.alarm(0, self._share)

    def _add(self, flow: Flow) -> None:
        self._num_begun += 1
        flow.begun, flow.updated_ns = self._num_begun, self._clock.now
        self._flows[flow] = None
        self._out.setdefault(flow.source, {})[flow] = None
        self._in.setdefault(flow.target, {})[flow] = None
        self._changed.append(flow)

    def _remove(self, flow: Flow) -> None:
        del self._flows[flow]
        for flows, end in ((self._out, flow.source), (self._in, flow.target)):
            del flows[end][flow]
            if not flows[end]:
                del flows[end]
        self._changed.append(flow)

    def _end_early(self, flows: Sequence[Flow]) -> None:
        self._advance()
        for flow in flows:
            if flow in self._flows:
                self._remove(flow)
            else:
                self._waiting.pop(flow, None)
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
        """Bring the times up to date during which endpoints were busy."""
        elapsed = self._clock.now - self._updated_ns
        if elapsed:
            for endpoint in self._out:
                endpoint.busy_out_ns += elapsed
            for endpoint in self._in:
                endpoint.busy_in_ns += elapsed
            self._updated_ns = self._clock.now

    def _share(self) -> None:
        """New rates where flows have begun or ended, and a wake-up for the first flow that will be there."""
        self._is_due = False
        core, now = self._core(), self._clock.now
        concerned = self._flows if core is not None else self._neighbours()
        self._changed = []
        for flow, rate in fair_rates(concerned, core):
            if rate != flow.rate:
                flow.work -= (now - flow.updated_ns) * flow.rate
                flow.rate, flow.updated_ns = rate, now
                flow.ends_ns = now + -(-max(flow.work, 0) // rate)
                heappush(self._ends, (flow.ends_ns, flow.begun, flow))
        self._wake_at_first_end()

    def _neighbours(self) -> dict[Flow, None]:
        """Flows that share something with those that have changed, directly or through others."""
        found: dict[Flow, None] = {}
        sources = dict.fromkeys(flow.source for flow in self._changed)
        targets = dict.fromkeys(flow.target for flow in self._changed)
        new_sources, new_targets = list(sources), list(targets)
        while new_sources or new_targets:
            flows = self._out.get(new_sources.pop(), {}) if new_sources else self._in.get(new_targets.pop(), {})
            for flow in flows:
                if flow not in found:
                    found[flow] = None
                    if flow.source not in sources:
                        sources[flow.source] = None
                        new_sources.append(flow.source)
                    if flow.target not in targets:
                        targets[flow.target] = None
                        new_targets.append(flow.target)
        return found

    def _wake_at_first_end(self) -> None:
        ends = self._ends
        while ends and (ends[0][0] != ends[0][2].ends_ns or ends[0][2] not in self._flows):
            heappop(ends)
        first = ends[0][0] if ends else None
        if self._wake is not None:
            if self._wake[0] == first:
                return
            self._clock.cancel(self._wake[1])
            self._wake = None
        if first is not None:
            self._wake = first, self._clock.alarm(first - self._clock.now, self._on_wake)

    def _core(self) -> int | None:
        if self._oversubscription_ppm == PPM:
            return None
        total = sum(endpoint.bytes_per_s for endpoint in self.endpoints.values())
        return max(1, total * PPM // self._oversubscription_ppm)

    def _on_wake(self) -> None:
        self._wake = None
        self._advance()
        done: list[Flow] = []
        ends, now = self._ends, self._clock.now
        while ends and ends[0][0] <= now:
            ends_ns, _, flow = heappop(ends)
            if flow in self._flows and flow.ends_ns == ends_ns:
                self._remove(flow)
                done.append(flow)
        self._share()
        for flow in done:
            self._finish(flow, failed=False)


class _Pool:
    """Something that flows share: what is left of it, and for how many of them."""

    __slots__ = ("flows", "left", "num_open")

    def __init__(self, left: int) -> None:
        self.left, self.num_open = left, 0
        self.flows: list[Flow] = []


def fair_rates(flows: Iterable[Flow], core: int | None) -> list[tuple[Flow, int]]:
    """Max-min fair rates by progressive filling, whole bytes per second, at least 1.

    Whoever is held back most comes first: a flow by its own cap, or all flows of the pool with the smallest share.
    """
    of, open_pools = _pools(flows)
    middle = None if core is None else _Pool(core)
    if middle is not None:
        middle.flows = list(of)
        open_pools.append(middle)
    for pool in open_pools:
        pool.num_open = len(pool.flows)
    smallest_cap = min((flow.cap for flow in of), default=0)  # of those without a rate, or less
    rates: list[tuple[Flow, int]] = []
    while of:
        shares = [pool.left // pool.num_open for pool in open_pools]
        rate, settled = min(shares), list[Flow]()
        if smallest_cap <= rate:
            smallest_cap = min(flow.cap for flow in of)
        if smallest_cap <= rate:
            rate = smallest_cap
            settled = [flow for flow in of if flow.cap == rate]
        else:
            for pool, share in zip(open_pools, shares, strict=True):
                if share == rate:
                    settled += pool.flows
        for flow in settled:
            pools = of.pop(flow, None)
            if pools is None:
                continue  # it has got its rate before, or is in two such pools
            rates.append((flow, rate or 1))
            for pool in pools:
                pool.left -= rate
                pool.num_open -= 1
            if middle is not None:
                middle.left -= rate
                middle.num_open -= 1
        open_pools = [pool for pool in open_pools if pool.num_open]
    return rates


def _pools(flows: Iterable[Flow]) -> tuple[dict[Flow, tuple[_Pool, _Pool]], list[_Pool]]:
    """The NICs that each flow leaves and enters by, and all of these, with their flows."""
    sources: dict[Endpoint, _Pool] = {}
    targets: dict[Endpoint, _Pool] = {}
    of: dict[Flow, tuple[_Pool, _Pool]] = {}
    for flow in flows:
        source, target = sources.get(flow.source), targets.get(flow.target)
        if source is None:
            source = sources[flow.source] = _Pool(flow.source.bytes_per_s)
        if target is None:
            target = targets[flow.target] = _Pool(flow.target.bytes_per_s)
        source.flows.append(flow)
        target.flows.append(flow)
        of[flow] = source, target
    return of, [*sources.values(), *targets.values()]
