"""Events, streams and memory of a GPU, as a replay needs them.

Event times have half a microsecond and are differences; each event is measured from an anchor at most a second older,
since the driver gives milliseconds in 32 bits, and anchors are chained to one moment that is known on the host's clock.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from hwreplay.layout import Bytes, PagedMemory
from hwreplay.machine import Event


class CudaEvent:
    """A torch event with a clock."""

    def __init__(self, event: Any, anchor: Anchor) -> None:
        self.event = event
        self._anchor = anchor

    def done(self) -> bool:
        return bool(self.event.query())

    def wait(self) -> None:
        self.event.synchronize()

    def ns(self) -> int:
        return self._anchor.ns + ns_between(self._anchor.event, self.event)


class Anchor:
    """An event whose time is known: from the one before it, and so on to one that the host saw happen."""

    def __init__(self, event: Any, ns: int | None = None, before: Anchor | None = None) -> None:
        self.event = event
        self._known_ns = ns
        self._before = before

    @cached_property
    def ns(self) -> int:
        """Its moment on the host's clock."""
        if self._known_ns is not None:
            return self._known_ns
        assert self._before is not None
        self.event.synchronize()
        found = self._before.ns + ns_between(self._before.event, self.event)
        self._before = None
        return found


def ns_between(first: Any, second: Any) -> int:
    """Time from one torch event to another; negative if the second was first."""
    return int(round(first.elapsed_time(second) * 10**6))  # noqa: RUF046 - torch has no types


class CudaStream:
    """A torch stream."""

    def __init__(self, name: str, stream: Any, record: Callable[[CudaStream], CudaEvent]) -> None:
        self.name = name
        self.stream = stream
        self._record = record

    @property
    def handle(self) -> int:
        """The driver's CUstream."""
        return int(self.stream.cuda_stream)

    def record(self) -> CudaEvent:
        return self._record(self)

    def wait(self, event: Event) -> None:
        assert isinstance(event, CudaEvent)
        self.stream.wait_event(event.event)


class CudaMemory:
    """Memory of the GPU: a tensor of bytes, which begins as zeros."""

    def __init__(self, tensor: Any, size: int) -> None:
        self.tensor = tensor
        self.address = int(tensor.data_ptr())
        self.bytes = size

    def read(self, offset: int, size: int) -> Bytes:
        found: Bytes = self.tensor[offset : offset + size].cpu().numpy()
        return found

    def blocks(self, paged: PagedMemory, blocks: Sequence[int]) -> Bytes:
        import torch

        strides = (paged.piece_stride, paged.block_stride, 1)
        view = self.tensor.as_strided((paged.pieces, paged.num_blocks, paged.piece_bytes), strides, paged.start)
        ids = torch.tensor(list(blocks), dtype=torch.int64, device=self.tensor.device)
        found: Bytes = view.index_select(1, ids).cpu().numpy()
        return found

    def write(self, offset: int, data: Bytes) -> None:
        import torch

        self.tensor[offset : offset + data.size] = torch.from_numpy(data.copy()).to(self.tensor.device)

    def close(self) -> None:
        self.tensor = None
