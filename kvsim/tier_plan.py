"""What the secondary tiers of a config mean: their storage profiles, and what is assumed about them."""

from __future__ import annotations

from kvsim.config import Connector, CustomTier, ExampleTierConfig, OffloadingConnectorConfig, tier_names
from kvsim.errors import UserError
from kvsim.storage import StorageProfile, load_storage

Storages = tuple[StorageProfile | None, ...]
"""Of each tier, in order; None = it needs none."""


def storages_of(connector: Connector) -> Storages:
    """Look up the storage of each tier.

    Raises:
        UserError: there is no such profile.
    """
    found: list[StorageProfile | None] = []
    tiers = connector.tiers if isinstance(connector, OffloadingConnectorConfig) else ()
    for number, tier in enumerate(tiers):
        try:
            found.append(None if isinstance(tier, CustomTier | ExampleTierConfig) else load_storage(tier.storage))
        except UserError as error:
            raise UserError(f"connector.tiers.{number}.storage: {error}") from None
    return tuple(found)


def check_tiers(connector: Connector, chunk_bytes: int) -> None:
    """Each tier must hold a chunk.

    Raises:
        UserError: one does not.
    """
    for number, tier in enumerate(connector.tiers if isinstance(connector, OffloadingConnectorConfig) else ()):
        capacity = None if isinstance(tier, CustomTier | ExampleTierConfig) else tier.capacity
        if capacity is not None and capacity < chunk_bytes:
            raise UserError(
                f"connector.tiers.{number}.capacity: {capacity} B: one offloaded block of all ranks takes"
                f" {chunk_bytes} B, expected room for at least one"
            )


def assumed_of_tiers(connector: Connector, storages: Storages) -> list[str]:
    """A line for each number of the tiers that nobody has measured and the config does not give."""
    lines: list[str] = []
    if not isinstance(connector, OffloadingConnectorConfig):
        return lines
    for name, tier, storage in zip(tier_names(connector.tiers), connector.tiers, storages, strict=True):
        if storage is None or isinstance(tier, CustomTier | ExampleTierConfig):
            continue
        given = {"read.bandwidth": tier.read_bandwidth, "write.bandwidth": tier.write_bandwidth}
        given |= {"read.latency": tier.latency, "write.latency": tier.latency}
        assumed = [line for line in storage.assumptions() if given.get(line.partition(":")[0]) is None]
        lines += [f"tier {name}, {storage.name} {line}" for line in assumed]
    return lines
