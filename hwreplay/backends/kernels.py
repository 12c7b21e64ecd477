"""What the kernels that copy have in common: their descriptors have to be on the GPU."""

from __future__ import annotations

from typing import Any

import numpy as np

from hwreplay.backends.base import Batch
from hwreplay.cuda_machine import CudaMachine

PROGRAMS = 12
"""Thread blocks of a launch, as many as vLLM's kernel uses: enough for the link, few enough for the forward pass."""


_ALIGNED = 16  # words: each row begins at the same alignment, whatever their number, or triton compiles anew


def descriptors_on_gpu(machine: CudaMachine, batch: Batch) -> Any:
    """Sources, destinations and sizes as an int64 tensor of three rows, copied on the current stream.

    The tensor may be dropped once what uses it is queued on that stream: torch gives its memory to nobody before.
    """
    torch = machine.torch
    count = len(batch.sizes)
    rows = np.zeros((3, -(-count // _ALIGNED) * _ALIGNED), dtype=np.uint64)
    rows[:, :count] = batch
    host = torch.from_numpy(rows.view(np.int64))
    if machine.device == "cpu":  # a test without a GPU
        return host
    return host.pin_memory().to(machine.device, non_blocking=True)
