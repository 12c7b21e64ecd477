"""A run, written down: one frozen component per part of the simulator, and YAML in and out.

YAML keys are the field names and ``kind:`` selects the class of a component. Sizes, times and rates carry
their unit in the file and are integers here: bytes, nanoseconds, bytes per second.
"""

from kvsim.config.cluster import ClusterConfig, ClusterEvent, InstanceGroup
from kvsim.config.connector import (
    Connector,
    InstantTransfer,
    MultiConnectorConfig,
    NoConnector,
    OffloadingConnectorConfig,
    ProfileTransfer,
    SimpleCPUConnectorConfig,
    Transfer,
)
from kvsim.config.custom import CustomConnector, CustomStepTime, CustomTier
from kvsim.config.engine import (
    EngineConfig,
    FixedStepTime,
    HardwareConfig,
    ModelConfig,
    RooflineStepTime,
    StepTime,
)
from kvsim.config.faults import FaultsConfig, MediumFaults
from kvsim.config.frontend import FrontendConfig
from kvsim.config.gates import ImagesConfig, StructuredOutputConfig
from kvsim.config.host import HostConfig
from kvsim.config.lmcache_mp import LMCacheL2, LMCacheMPConnectorConfig
from kvsim.config.network import NetworkConfig
from kvsim.config.remote import (
    DecodeBenchConnectorConfig,
    MooncakeConnectorConfig,
    NixlConnectorConfig,
    P2pNcclConnectorConfig,
)
from kvsim.config.routers import CustomRouter, RouterConfig, options_of
from kvsim.config.run import Given, OutputConfig, RunConfig, dump_config, load_config, make_config
from kvsim.config.store import MooncakeStoreConnectorConfig, StoreConfig
from kvsim.config.synchronous import ExampleConnectorConfig, LMCacheConnectorConfig, LMCacheDisk, LMCacheRemote
from kvsim.config.tiers import ExampleTierConfig, FsTierConfig, ObjTierConfig, tier_names
from kvsim.config.trace import TraceConfig

__all__ = [
    "ClusterConfig",
    "ClusterEvent",
    "Connector",
    "CustomConnector",
    "CustomRouter",
    "CustomStepTime",
    "CustomTier",
    "DecodeBenchConnectorConfig",
    "EngineConfig",
    "ExampleConnectorConfig",
    "ExampleTierConfig",
    "FaultsConfig",
    "FixedStepTime",
    "FrontendConfig",
    "FsTierConfig",
    "Given",
    "HardwareConfig",
    "HostConfig",
    "ImagesConfig",
    "InstanceGroup",
    "InstantTransfer",
    "LMCacheConnectorConfig",
    "LMCacheDisk",
    "LMCacheL2",
    "LMCacheMPConnectorConfig",
    "LMCacheRemote",
    "MediumFaults",
    "ModelConfig",
    "MooncakeConnectorConfig",
    "MooncakeStoreConnectorConfig",
    "MultiConnectorConfig",
    "NetworkConfig",
    "NixlConnectorConfig",
    "NoConnector",
    "ObjTierConfig",
    "OffloadingConnectorConfig",
    "OutputConfig",
    "P2pNcclConnectorConfig",
    "ProfileTransfer",
    "RooflineStepTime",
    "RouterConfig",
    "RunConfig",
    "SimpleCPUConnectorConfig",
    "StepTime",
    "StoreConfig",
    "StructuredOutputConfig",
    "TraceConfig",
    "Transfer",
    "dump_config",
    "load_config",
    "make_config",
    "options_of",
    "tier_names",
]
