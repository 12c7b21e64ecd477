"""A connector that loads synchronously from a store without end; only its loads may fail."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata
from vllm.v1.request import RequestStatus

NAME = "KvsimStubConnector"
_NORMAL_ENDS = (RequestStatus.FINISHED_STOPPED, RequestStatus.FINISHED_LENGTH_CAPPED)


@dataclass
class StubMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """GPU blocks of each load of a step."""

    loads: list[list[int]] = field(default_factory=list)


class StubConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """Keeps the hashes of requests that have ended well; a load is complete before its forward pass."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any = None) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._block_size = vllm_config.cache_config.block_size
        self._stored: set[bytes] = set()
        self._local: dict[str, int] = {}  # request -> tokens found in the GPU's cache at its last lookup
        self._loads: list[list[int]] = []

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        self._local[request.request_id] = num_computed_tokens
        blocks = 0
        for content in request.block_hashes[: (request.num_tokens - 1) // self._block_size]:
            if content not in self._stored:
                break
            blocks += 1
        return max(blocks * self._block_size - num_computed_tokens, 0), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        if num_external_tokens:
            first = self._local[request.request_id] // self._block_size
            table = blocks.get_block_ids()[0]
            self._loads.append(table[first : first + num_external_tokens // self._block_size])

    def build_connector_meta(self, scheduler_output: Any) -> StubMetadata:
        loads, self._loads = self._loads, []
        return StubMetadata(loads)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, None]:
        if request.status in _NORMAL_ENDS:
            self._stored.update(request.block_hashes[: (request.num_tokens - 1) // self._block_size])
        return False, None

    def start_load_kv(self, forward_context: Any, **_options: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, *_args: Any, **_options: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        pass


if NAME not in KVConnectorFactory._registry:
    KVConnectorFactory.register_connector(NAME, __name__, StubConnector.__name__)
