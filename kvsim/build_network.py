"""From a cluster's network config to NICs and a fabric on its clock."""

from __future__ import annotations

from kvsim.clock import Clock
from kvsim.config import NetworkConfig
from kvsim.network import Fabric, Nic
from kvsim.nics import NicProfile, load_nic

PPM = 1_000_000


def nic_of(config: NetworkConfig) -> tuple[NicProfile, Nic]:
    """The NIC of all instances, and its profile.

    Raises:
        UserError: there is no such profile.
    """
    profile = load_nic(config.nic)
    nic = Nic(
        profile.bandwidth.used if config.bandwidth is None else config.bandwidth,
        profile.setup.used if config.setup is None else config.setup,
        tuple((size, round(part * PPM)) for size, part in profile.efficiency.parts.items()),
    )
    return profile, nic


def fabric_of(clock: Clock, config: NetworkConfig) -> Fabric:
    """The fabric between them."""
    latency = load_nic(config.nic).latency.used if config.latency is None else config.latency
    return Fabric(clock, latency, config.oversubscription)
