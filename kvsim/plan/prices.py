"""What hardware costs, and what a run on it costs.

Cost of a run in USD = its makespan in hours, times the sum over all instances of

- GPUs x price of a GPU-hour,
- GiB of host memory lent to KV x price of a GiB-hour (CPU tier, or what the node lends to a shared store),
- TiB of NVMe lent to KV x price of a TiB-hour (file system tiers, disks of a shared store),
- Gbit/s of NICs x price, where instances talk to each other.

Divided by the output tokens of finished requests, times a million: USD per 1M output tokens. The makespan is first
arrival to last finish, as in `kvsim.results.summary`: whoever serves the same sessions sooner pays for fewer hours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from kvsim.checked import Component, check
from kvsim.config import (
    FsTierConfig,
    LMCacheConnectorConfig,
    LMCacheMPConnectorConfig,
    MultiConnectorConfig,
    OffloadingConnectorConfig,
    RunConfig,
    SimpleCPUConnectorConfig,
)
from kvsim.errors import UserError
from kvsim.network_plan import kinds_of, plan_network
from kvsim.steptime.gpu import load_gpu
from kvsim.yamlfile import read_yaml

GIB, TIB = 2**30, 2**40
YOURS = "given in the plan"
_FILE = Path(__file__).parents[1] / "presets" / "prices.yaml"
_TALKING = {"nixl", "mooncake", "p2p_nccl", "mooncake_store"}


def _usd(value: object) -> object:
    """``2.99 USD`` or a plain number."""
    if isinstance(value, str):
        number, _, unit = value.strip().partition(" ")
        try:
            amount = float(number)
        except ValueError:
            amount = -1.0
        if unit.strip() not in ("", "USD") or not 0 <= amount < float("inf"):
            raise ValueError(f"expected a price such as 2.99 USD, found {value!r:.60}")
        return amount
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _price(value: object) -> object:
    return value if isinstance(value, Mapping) else {"usd": value, "source": YOURS}


class Price(Component):
    """USD for one unit and hour, and where that is from."""

    usd: Annotated[float, BeforeValidator(_usd), Field(ge=0)] = Field(description="USD, such as 2.99 or 2.99 USD")
    source: str = Field(YOURS, description="who asks for so much")
    date: str = Field("", description="when that was read")


Priced = Annotated[Price, BeforeValidator(_price)]


class PricesConfig(Component):
    """Prices that a plan gives; the others are the shipped ones."""

    gpu_hour: dict[str, Priced] = Field(default_factory=dict, description="of a GPU, by the GPU's name")
    dram_gib_hour: Priced | None = Field(None, description="of a GiB of host memory")
    nvme_tib_hour: Priced | None = Field(None, description="of a TiB of NVMe")
    network_gbps_hour: Priced | None = Field(None, description="of a Gbit/s of NIC, each way")


@dataclass(frozen=True, slots=True)
class Resources:
    """What a config takes, over all of its instances."""

    instances: int = 1
    gpus: Mapping[str, int] = field(default_factory=dict)  # by the GPU's name
    dram_bytes: int = 0
    nvme_bytes: int = 0
    network_gbps: float = 0.0
    unbounded_tiers: int = 0  # file system tiers without a capacity, which are charged for what they come to hold

    def plus(self, other: Resources) -> Resources:
        """Both together."""
        names = [*self.gpus, *(name for name in other.gpus if name not in self.gpus)]
        return Resources(
            self.instances + other.instances,
            {name: self.gpus.get(name, 0) + other.gpus.get(name, 0) for name in names},
            self.dram_bytes + other.dram_bytes,
            self.nvme_bytes + other.nvme_bytes,
            self.network_gbps + other.network_gbps,
            self.unbounded_tiers + other.unbounded_tiers,
        )

    def times(self, count: int) -> Resources:
        """So many of it."""
        return Resources(
            self.instances * count,
            {name: number * count for name, number in self.gpus.items()},
            self.dram_bytes * count,
            self.nvme_bytes * count,
            self.network_gbps * count,
            self.unbounded_tiers * count,
        )


@dataclass(frozen=True, slots=True)
class Prices:
    """All prices in USD, with their sources."""

    gpu_hour: Mapping[str, Price]
    dram_gib_hour: Price
    nvme_tib_hour: Price
    network_gbps_hour: Price

    def per_hour(self, resources: Resources) -> dict[str, float]:
        """USD per hour by part: gpu, dram, nvme, network.

        Raises:
            UserError: a GPU has no price.
        """
        for name in resources.gpus:
            if name not in self.gpu_hour:
                raise UserError(
                    f"prices.gpu_hour.{name} is missing: no list price of this GPU is known here, expected yours, such"
                    f" as prices: {{gpu_hour: {{{name}: 2.99 USD}}}}"
                )
        return {
            "gpu": sum(count * self.gpu_hour[name].usd for name, count in resources.gpus.items()),
            "dram": resources.dram_bytes / GIB * self.dram_gib_hour.usd,
            "nvme": resources.nvme_bytes / TIB * self.nvme_tib_hour.usd,
            "network": resources.network_gbps * self.network_gbps_hour.usd,
        }

    def sources(self, resources: Resources) -> list[str]:
        """One line per price that these resources are charged with."""
        used = [(f"GPU-hour of {name}", self.gpu_hour[name]) for name in resources.gpus if name in self.gpu_hour]
        if resources.dram_bytes:
            used.append(("GiB-hour of host memory", self.dram_gib_hour))
        if resources.nvme_bytes or resources.unbounded_tiers:
            used.append(("TiB-hour of NVMe", self.nvme_tib_hour))
        if resources.network_gbps:
            used.append(("Gbit/s-hour of network", self.network_gbps_hour))
        return [
            f"price of a {what}: {price.usd:g} USD ({', '.join(part for part in (price.source, price.date) if part)})"
            for what, price in used
        ]


@cache
def default_prices() -> Prices:
    """The shipped list prices."""
    config = check(PricesConfig, read_yaml(_FILE))
    assert config.dram_gib_hour is not None
    assert config.nvme_tib_hour is not None
    assert config.network_gbps_hour is not None
    return Prices(config.gpu_hour, config.dram_gib_hour, config.nvme_tib_hour, config.network_gbps_hour)


def prices_of(config: PricesConfig) -> Prices:
    """The shipped prices, with those of a plan in their place.

    Raises:
        UserError: a price for a GPU that is not known.
    """
    shipped = default_prices()
    gpus = dict(shipped.gpu_hour)
    for name, price in config.gpu_hour.items():
        try:
            gpus[load_gpu(name).name] = price
        except UserError as error:
            raise UserError(f"prices.gpu_hour.{name}: {error}") from None
    return Prices(
        gpus,
        config.dram_gib_hour or shipped.dram_gib_hour,
        config.nvme_tib_hour or shipped.nvme_tib_hour,
        config.network_gbps_hour or shipped.network_gbps_hour,
    )


def resources_of(config: RunConfig) -> Resources:
    """What a config takes."""
    if config.cluster is None:
        return _of_server(config)
    found = Resources(instances=0)
    for number, group in enumerate(config.cluster.instances):
        found = found.plus(_of_server(config.of_group(number)).times(group.count))
    return found


def cost_usd(prices: Prices, resources: Resources, makespan_s: float, unbounded_bytes: int = 0) -> dict[str, float]:
    """What a run costs, by part and in ``total``.

    Args:
        prices: of everything.
        resources: what the run took.
        makespan_s: for how long.
        unbounded_bytes: the most that its tiers without a capacity held.
    """
    hours = makespan_s / 3600
    parts = {name: usd * hours for name, usd in prices.per_hour(resources).items()}
    parts["nvme"] += unbounded_bytes / TIB * prices.nvme_tib_hour.usd * hours
    return parts | {"total": sum(parts.values())}


def _of_server(config: RunConfig) -> Resources:
    """One instance."""
    ranks = config.engine.data_parallel_size
    gpus = config.hardware.tensor_parallel_size * ranks
    dram, nvme, unbounded, gbps = 0, 0, 0, 0.0
    connector = config.connector
    parts: tuple[Any, ...] = connector.connectors if isinstance(connector, MultiConnectorConfig) else (connector,)
    for part in parts:
        dram += _dram_bytes(part, config.hardware.tensor_parallel_size) * ranks
        tiers = [tier for tier in getattr(part, "tiers", ()) if isinstance(tier, FsTierConfig)]
        nvme += sum(tier.capacity or 0 for tier in tiers)
        unbounded += sum(tier.capacity is None for tier in tiers)
        if isinstance(part, LMCacheConnectorConfig) and part.local_disk is not None:
            nvme += part.local_disk.max_local_disk_size * gpus
    kinds = kinds_of(connector)
    if config.cluster is not None:
        if config.cluster.store is not None and "mooncake_store" in kinds:
            dram += config.cluster.store.memory_per_node
            nvme += config.cluster.store.disk_per_node
        if kinds & _TALKING:
            gbps = _nic_gbps(config, gpus)
    return Resources(1, {load_gpu(config.hardware.gpu).name: gpus}, dram, nvme, gbps, unbounded)


def _dram_bytes(connector: object, tensor_parallel_size: int) -> int:
    """Host memory that a connector keeps KV in, over the ranks of one engine."""
    if isinstance(connector, OffloadingConnectorConfig):
        return connector.cpu_bytes_to_use
    if isinstance(connector, SimpleCPUConnectorConfig):
        per_rank = connector.cpu_bytes_to_use_per_rank
        return connector.cpu_bytes_to_use if per_rank is None else per_rank * tensor_parallel_size
    if isinstance(connector, LMCacheConnectorConfig):
        return connector.max_local_cpu_size * tensor_parallel_size
    if isinstance(connector, LMCacheMPConnectorConfig):
        return connector.l1_size
    return 0


def _nic_gbps(config: RunConfig, gpus: int) -> float:
    """Line rate of an instance's NICs, one way."""
    assert config.cluster is not None
    network = plan_network(config.cluster.network)
    return network.nic.bytes_per_s * 8 / 1e9 * network.nics_of(gpus)
