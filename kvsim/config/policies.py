"""Options of the eviction policies that come with kvsim: what `eviction_policy_options` may hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from kvsim.checked import Component, check
from kvsim.config.fields import SECOND_NS, Count
from kvsim.units import Duration
from kvsim.yamlfile import Document

Share = Annotated[float, Field(gt=0, lt=1)]


class S3FifoOptions(Component):
    """S3-FIFO; the defaults are those of its authors."""

    small_share: Share = Field(0.1, description="share of the tier for chunks on probation")
    ghost_share: float = Field(
        0.9, ge=0, le=10, description="evicted chunks that are remembered, as a share of the tier's chunks"
    )
    threshold: Count = Field(2, description="reuses that end a chunk's probation")


class SlruOptions(Component):
    """Segmented LRU."""

    protected_uses: int = Field(2, ge=2, description="requests that must have used a chunk for it to be protected")


class TtlFixedOptions(Component):
    """A fixed time to live."""

    ttl: Annotated[Duration, Field(gt=0)] = Field(
        60 * SECOND_NS, description="how long a turn's chunks are pinned after its end (the default is assumed)"
    )


class ContinuumOptions(Component):
    """Continuum's time to live."""

    expected_pause: Annotated[Duration, Field(gt=0)] = Field(
        10 * SECOND_NS, description="mean pause between turns until ten have been seen (the default is assumed)"
    )


class QueueLruOptions(Component):
    """Queue-informed LRU."""

    first_waiting: Count = Field(16, description="requests at the head of the queue that are looked at (assumed)")


_OPTIONS: dict[str, type[Component]] = {
    "s3fifo": S3FifoOptions,
    "slru": SlruOptions,
    "ttl_fixed": TtlFixedOptions,
    "continuum": ContinuumOptions,
    "queue_lru": QueueLruOptions,
}


def options_model(policy: str) -> type[Component]:
    """What the options of a policy of ours are checked against; most have none."""
    return _OPTIONS.get(policy, Component)


def options_of_policy(policy: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """All options of a policy of ours, with defaults and in plain numbers (times in ns).

    Raises:
        UserError: one is unknown, or wrong.
    """
    name = "connector.eviction_policy_options"
    found = check(options_model(policy), Document(name, dict(options)), lambda _keys: name)
    return {name: getattr(found, name) for name in type(found).model_fields}
