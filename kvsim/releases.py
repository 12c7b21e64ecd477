"""Which objects a vLLM release is made of. Nothing else in the project asks for a version."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.cache.block_pool import BlockPool, BlockPool023
from kvsim.connectors.offloading import OffloadingConnector, OffloadingConnector023
from kvsim.connectors.offloading_worker import OffloadingWorker, OffloadingWorker023
from kvsim.offload.manager import OffloadingManager, OffloadingManager023
from kvsim.offload.policies.arc import ArcPolicy, ArcPolicy023
from kvsim.offload.policies.base import EvictionPolicy
from kvsim.offload.policies.lru import LruPolicy, LruPolicy023
from kvsim.scheduler import Scheduler, Scheduler023


@dataclass(frozen=True, slots=True)
class Release:
    """The classes that differ between releases; everything else is common."""

    block_pool: type[BlockPool]
    scheduler: type[Scheduler]
    manager: type[OffloadingManager]
    policies: dict[str, type[EvictionPolicy]]
    offloading_connector: type[OffloadingConnector]
    offloading_worker: type[OffloadingWorker]


RELEASES = {
    "0.33.0": Release(
        BlockPool,
        Scheduler,
        OffloadingManager,
        {"lru": LruPolicy, "arc": ArcPolicy},
        OffloadingConnector,
        OffloadingWorker,
    ),
    "0.23.0": Release(
        BlockPool023,
        Scheduler023,
        OffloadingManager023,
        {"lru": LruPolicy023, "arc": ArcPolicy023},
        OffloadingConnector023,
        OffloadingWorker023,
    ),
}
