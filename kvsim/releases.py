"""Which objects a vLLM release is made of. Nothing else in the project asks for a version."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.async_scheduler import AsyncScheduler
from kvsim.async_spec_scheduler import AsyncSpeculativeScheduler
from kvsim.cache.block_pool import BlockPool, BlockPool023
from kvsim.cohort_scheduler import CohortScheduler, CohortScheduler023
from kvsim.connectors.offloading import OffloadingConnector
from kvsim.connectors.offloading_023 import OffloadingConnector023
from kvsim.connectors.offloading_groups import GroupedOffloadingConnector
from kvsim.connectors.offloading_runs import RunOffloadingConnector, RunOffloadingConnector023
from kvsim.connectors.offloading_worker import OffloadingWorker, OffloadingWorker023
from kvsim.connectors.simple_cpu import SimpleCPUOffloadConnector, SimpleCPUOffloadConnector023
from kvsim.connectors.simple_cpu_worker import SimpleCPUOffloadWorker
from kvsim.extents.arc import RunArcPolicy, RunArcPolicy023
from kvsim.extents.chunk_piece import RunPolicy
from kvsim.extents.extent_pool import ExtentPool, ExtentPool023
from kvsim.extents.ledger import RunOffloadingManager, RunOffloadingManager023
from kvsim.extents.lru import RunLruPolicy
from kvsim.extents.lru_023 import RunLruPolicy023
from kvsim.extents.tiering import RunTieringManager, RunTieringManager023
from kvsim.gates.encoder import EncoderGate, EncoderGate023
from kvsim.gates.encoder_cache import EncoderCache, EncoderCache023
from kvsim.host_region import RegionKind
from kvsim.load_balancer import LoadBalancer, LoadBalancer023
from kvsim.offload.manager import OffloadingManager, OffloadingManager023
from kvsim.offload.policies.arc import ArcPolicy, ArcPolicy023
from kvsim.offload.policies.base import EvictionPolicy
from kvsim.offload.policies.lru import LruPolicy, LruPolicy023
from kvsim.offload.tiering import TieringManager, TieringManager023
from kvsim.scheduler import Scheduler
from kvsim.scheduler_023 import Scheduler023
from kvsim.spec_scheduler import SpeculativeScheduler


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The classes that differ between releases; everything else is common."""

    block_pool: type[BlockPool]
    extent_pool: type[ExtentPool]
    cohort_scheduler: type[CohortScheduler]
    run_manager: type[RunOffloadingManager]
    run_tiering_manager: type[RunTieringManager]
    run_policies: dict[str, type[RunPolicy]]
    run_offloading_connector: type[RunOffloadingConnector]
    kv_groups: bool  # several KV cache groups, or one of another kind than full attention, are simulated
    scheduler: type[Scheduler]
    async_scheduler: type[AsyncScheduler] | None  # None: asynchronous scheduling of this release is not simulated
    speculative_scheduler: type[SpeculativeScheduler] | None  # likewise
    async_speculative_scheduler: type[AsyncSpeculativeScheduler] | None
    policies: dict[str, type[EvictionPolicy]]
    tells_uses_per_request: bool  # policies hear of each use once per request, not at every lookup of a waiting one
    manager: type[OffloadingManager]
    tiering_manager: type[TieringManager]
    partial_promotions: bool  # a tier tells which keys of a failed load have arrived (tiering/base.py)
    background_lookups: bool  # tiers look for chunks in the background (tiering/async_lookup.py), not in the scheduler
    file_tasks_per_job: int | None  # threads that work on one job of the file system tier; None = one per chunk
    offloading_connector: type[OffloadingConnector]
    grouped_offloading_connector: type[GroupedOffloadingConnector]
    offloading_worker: type[OffloadingWorker]
    cpu_chunk_alignment_bytes: int  # a chunk's copy in CPU memory is rounded up to this (kv_offload/cpu/spec.py)
    shares_replicated_kv: bool  # MLA under TP on one node: one copy in CPU memory for all ranks
    offloading_region: RegionKind  # how OffloadingConnector gets its memory (kv_offload/cpu/spec.py)
    region_files: int  # that many files make up a shared region (kv_offload/cpu/spec.py, _REGION_SEGMENTS)
    pins_in_chunks: bool  # of at most 64 GiB; else the whole region in one call (kv_offload/cpu/gpu_worker.py)
    cross_layer_kv: bool  # OffloadingConnector asks for blocks that hold all layers (prefer_cross_layer_blocks)
    loads_behind_forward: bool  # a load waits for the step's forward pass (kv_offload/cpu/gpu_worker.py, wait_stream)
    limits_batch_descriptors: bool  # VLLM_KV_OFFLOAD_MAX_BATCH_DESCRIPTORS (simple_kv_offload/cuda_mem_ops.py)
    simple_cpu_connector: type[SimpleCPUOffloadConnector]
    simple_cpu_worker: type[SimpleCPUOffloadWorker]
    encoder_cache: type[EncoderCache]
    encoder_gate: type[EncoderGate]
    load_balancer: type[LoadBalancer]


RELEASES = {
    "0.33.0": Release(
        block_pool=BlockPool,
        extent_pool=ExtentPool,
        cohort_scheduler=CohortScheduler,
        run_manager=RunOffloadingManager,
        run_tiering_manager=RunTieringManager,
        run_policies={"lru": RunLruPolicy, "arc": RunArcPolicy},
        run_offloading_connector=RunOffloadingConnector,
        kv_groups=True,
        scheduler=Scheduler,
        async_scheduler=AsyncScheduler,
        speculative_scheduler=SpeculativeScheduler,
        async_speculative_scheduler=AsyncSpeculativeScheduler,
        policies={"lru": LruPolicy, "arc": ArcPolicy},
        tells_uses_per_request=True,
        manager=OffloadingManager,
        tiering_manager=TieringManager,
        partial_promotions=True,
        background_lookups=True,
        file_tasks_per_job=1,
        offloading_connector=OffloadingConnector,
        grouped_offloading_connector=GroupedOffloadingConnector,
        offloading_worker=OffloadingWorker,
        cpu_chunk_alignment_bytes=4096,
        shares_replicated_kv=True,
        offloading_region="shared_map",
        region_files=32,
        pins_in_chunks=True,
        cross_layer_kv=False,
        loads_behind_forward=True,
        limits_batch_descriptors=True,
        simple_cpu_connector=SimpleCPUOffloadConnector,
        simple_cpu_worker=SimpleCPUOffloadWorker,
        encoder_cache=EncoderCache,
        encoder_gate=EncoderGate,
        load_balancer=LoadBalancer,
    ),
    "0.23.0": Release(
        block_pool=BlockPool023,
        extent_pool=ExtentPool023,
        cohort_scheduler=CohortScheduler023,
        run_manager=RunOffloadingManager023,
        run_tiering_manager=RunTieringManager023,
        run_policies={"lru": RunLruPolicy023, "arc": RunArcPolicy023},
        run_offloading_connector=RunOffloadingConnector023,
        kv_groups=False,
        scheduler=Scheduler023,
        async_scheduler=None,
        speculative_scheduler=None,
        async_speculative_scheduler=None,
        policies={"lru": LruPolicy023, "arc": ArcPolicy023},
        tells_uses_per_request=False,
        manager=OffloadingManager023,
        tiering_manager=TieringManager023,
        partial_promotions=False,
        background_lookups=False,
        file_tasks_per_job=None,
        offloading_connector=OffloadingConnector023,
        grouped_offloading_connector=GroupedOffloadingConnector,
        offloading_worker=OffloadingWorker023,
        cpu_chunk_alignment_bytes=1,
        shares_replicated_kv=False,
        offloading_region="pinned_tensors",
        region_files=1,
        pins_in_chunks=False,
        cross_layer_kv=True,
        loads_behind_forward=False,
        limits_batch_descriptors=False,
        simple_cpu_connector=SimpleCPUOffloadConnector023,
        simple_cpu_worker=SimpleCPUOffloadWorker,
        encoder_cache=EncoderCache023,
        encoder_gate=EncoderGate023,
        load_balancer=LoadBalancer023,
    ),
}
