"""What a connector of the user's own is told of the engine that it serves, and the means to take time."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from kvsim.cache.block_pool import BlockPool
from kvsim.clock import Clock
from kvsim.compute import ComputeStream
from kvsim.connectors.base import CopyJob, KVConnector
from kvsim.connectors.link_copier import CopyTime, LinkCopier
from kvsim.errors import UserError
from kvsim.hardware import CopyCost, DuplexLink, LinkDirection
from kvsim.host_memory import HostMemory
from kvsim.request import Request

NS = 10**9


@dataclass(slots=True)
class Site:
    """One engine, seen by its connector.

    Attributes:
        clock: simulated time, in ns.
        block_size: tokens in a KV block.
        block_bytes: KV of one block on all TP ranks together.
        num_gpu_blocks: blocks of the GPU's pool, the null block included.
        tensor_parallel_size: ranks.
        enable_caching: vLLM's enable_prefix_caching.
        seed: of every random choice.
        pool: the GPU's blocks; touch what you keep beside the requests' tables, and name it in `gpu_holds`.
        memory: bandwidth of the host's memory, to be shared with whatever else moves bytes through it.
        compute: forward passes, which copies by kernel slow down.
    """

    clock: Clock
    block_size: int
    block_bytes: int
    num_gpu_blocks: int
    tensor_parallel_size: int
    enable_caching: bool
    seed: int
    pool: BlockPool
    gpu_copy_time: CopyTime
    memory: HostMemory
    compute: ComputeStream
    instant: bool = False  # copies take no time
    links: list[DuplexLink] = field(default_factory=list)
    _on_wake: list[Callable[[], None]] = field(default_factory=list)

    def wake(self) -> None:
        """Something has changed that a sleeping engine should look at."""
        for callback in self._on_wake:
            callback()

    def wakes(self, callback: Callable[[], None]) -> None:
        """Call this at every `wake`."""
        self._on_wake.append(callback)

    def gpu_copier(self) -> LinkCopier:
        """Copies between GPU and host over the engine's own link, timed by its profile, one descriptor per block."""
        disturb = self.compute.disturber()
        link = DuplexLink(self.clock, self.wake, disturb, memory=self.memory, ranks=self.tensor_parallel_size)
        return self._copier(link, self.gpu_copy_time)

    def copier(self, bytes_per_s: int, latency_ns: int = 0) -> LinkCopier:
        """Copies over a link of its own: latency, then bytes at this rate, one after the other in each direction."""

        def cost(job: CopyJob, _direction: LinkDirection) -> CopyCost:
            return CopyCost(latency_ns + -(-len(job.gpu_blocks) * self.block_bytes * NS // bytes_per_s))

        link = DuplexLink(self.clock, self.wake)
        return self._copier(link, (lambda _job, _direction: CopyCost(0)) if self.instant else cost)

    def _copier(self, link: DuplexLink, copy_time: CopyTime) -> LinkCopier:
        self.links.append(link)
        return LinkCopier(link, copy_time, {"h2d": self.block_bytes, "d2h": self.block_bytes})


class HeldToProtocol:
    """Asks a connector of the user's own what the scheduler asks, and refuses answers that cannot be.

    A wrong count would break the scheduler's books much later, where nothing tells whose fault it was.
    """

    def __init__(self, name: str, connector: KVConnector) -> None:
        self._name, self._ask = name, connector.get_num_new_matched_tokens

    def __call__(self, request: Request, num_local_tokens: int) -> tuple[int | None, bool]:
        """As `KVConnector.get_num_new_matched_tokens`."""
        answer: object = self._ask(request, num_local_tokens)
        if isinstance(answer, tuple) and len(answer) == 2:
            tokens, is_async = answer
            most = max(request.num_tokens - num_local_tokens - (not is_async), 0)
            if isinstance(is_async, bool) and (tokens is None or (type(tokens) is int and 0 <= tokens <= most)):
                return tokens, is_async
        call = f"{self._name}.get_num_new_matched_tokens({request.request_id}, {num_local_tokens})"
        raise UserError(
            f"connector.kind: {call} returned {answer!r}, expected (None or a number, whether asynchronous), at most"
            f" {request.num_tokens - num_local_tokens} tokens, or one less if synchronous"
        )


class Moves(Protocol):
    """What moves KV to and from the GPU."""

    @property
    def bytes(self) -> Mapping[LinkDirection, int]:
        """Bytes of finished transfers."""
        ...

    def busy_ns(self, direction: LinkDirection) -> int:
        """Time in which it moved bytes this way."""
        ...


class Traffic:
    """What several of them have moved, as one."""

    def __init__(self, links: Sequence[Moves]) -> None:
        self._links = links

    @property
    def bytes(self) -> dict[LinkDirection, int]:
        """Bytes of finished transfers."""
        return {
            "h2d": sum(link.bytes["h2d"] for link in self._links),
            "d2h": sum(link.bytes["d2h"] for link in self._links),
        }

    def busy_ns(self, direction: LinkDirection) -> int:
        """Time in which the links moved bytes this way, added up."""
        return sum(link.busy_ns(direction) for link in self._links)
