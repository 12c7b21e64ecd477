"""ExampleConnector's worker side on one small layer in memory: its real files, written and read by its real hooks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

Log = list[list[Any]]
LAYER = "layer0"


class Files:
    """The hooks of one forward pass. A load that breaks is written down, and the others go on."""

    def __init__(self, connector: Any, num_blocks: int, block_size: int, log: Log) -> None:
        self._connector, self._log = connector, log
        self._cache = torch.zeros(num_blocks, 1, block_size, 1)
        layers = {LAYER: SimpleNamespace(kv_cache=self._cache)}
        self._context = SimpleNamespace(attn_metadata={LAYER: object()}, no_compile_layers=layers)

    def forward(self, meta: Any) -> None:
        """Loads, one at a time, then stores."""
        requests = meta.requests
        for request in requests:
            if not request.is_store:
                meta.requests = [request]
                self._log.append(["load", len(request.slot_mapping), self._load()])
        meta.requests = requests
        self._log += [["store", len(request.slot_mapping)] for request in requests if request.is_store]
        self._connector.save_kv_layer(LAYER, self._cache, self._context.attn_metadata[LAYER])

    def _load(self) -> bool:
        try:
            self._connector.start_load_kv(self._context)
        except (FileNotFoundError, RuntimeError, IndexError):  # no such file; fewer tokens than the prompt has
            return False
        return True
