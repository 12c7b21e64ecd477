"""Which chunks the CPU tier of OffloadingConnector takes in."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from kvsim.checked import Component
from kvsim.config.fields import Count

# vLLM 0.33.0 v1/kv_offload/cpu/manager.py: keys whose offers are counted for store_threshold.
TRACKED_KEYS = 64_000


class AlwaysAdmission(Component):
    """Everything that is offered."""

    kind: Literal["always"] = Field("always", description="everything that is offered")


class SecondTouchAdmission(Component):
    """What several requests have offered."""

    kind: Literal["second_touch"] = Field("second_touch", description="what several requests have offered")
    uses: int = Field(2, ge=2, description="so many of them; each counts once")
    tracked_keys: Count = Field(TRACKED_KEYS, description="chunks whose offers are remembered (the default is vLLM's)")


class MinLengthAdmission(Component):
    """What is shorter is not worth its reload."""

    kind: Literal["min_length"] = Field("min_length", description="requests of some length")
    tokens: Count | None = Field(
        None, description="so many tokens; null = from where on loading is faster than computing, by link and step time"
    )


def _with_kind(value: object) -> object:
    """A name stands for its kind with all defaults."""
    kind = value.get("kind") if isinstance(value, dict) else value
    if kind == "write_behind":
        raise ValueError(
            "write_behind: OffloadingConnector offers blocks when they are computed, not when they leave the GPU;"
            " expected always, second_touch or min_length here, or connector.kind: simple_cpu with lazy_offload: true"
        )
    return {"kind": value} if isinstance(value, str) else value


Admission = Annotated[
    Annotated[AlwaysAdmission | SecondTouchAdmission | MinLengthAdmission, Field(discriminator="kind")],
    BeforeValidator(_with_kind),
]
