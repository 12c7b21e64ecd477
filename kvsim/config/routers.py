"""Which instance of a cluster a turn goes to."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, Tag

from kvsim.checked import Component
from kvsim.config.custom import BY_KIND, CUSTOM, ClassOptions, ClassPath
from kvsim.config.fields import Count
from kvsim.units import Duration

MS = 1_000_000
Share = Annotated[float, Field(ge=0, le=1)]


class RoundRobinRouter(Component):
    """One instance after the other."""

    kind: Literal["round_robin"] = Field("round_robin", description="one instance after the other")


class RandomRouter(Component):
    """Any instance."""

    kind: Literal["random"] = Field("random", description="any instance, drawn with the run's seed")


class LeastRequestsRouter(Component):
    """Where the fewest requests are."""

    kind: Literal["least_requests"] = Field(
        "least_requests", description="where the fewest requests are that this router has sent"
    )


class LeastTokensRouter(Component):
    """Where the fewest prompt tokens are."""

    kind: Literal["least_tokens"] = Field(
        "least_tokens", description="where the fewest prompt tokens are that this router has sent"
    )


class SessionAffinityRouter(Component):
    """All turns of a session to one instance."""

    kind: Literal["session_affinity"] = Field("session_affinity", description="all turns of a session to one instance")
    placement: Literal["hash", "least_requests"] = Field(
        "hash", description="which one: by a hash of the session's name, or where the fewest requests are at its start"
    )


class _WithIndex(Component):
    """A router that knows, or guesses, what the instances keep."""

    index: Literal["history", "kv_events"] = Field(
        "history",
        description="what instances keep: guessed from what was sent there, or told by their KV events (which takes the"
        " reference engine)",
    )
    event_delay: Duration = Field(10 * MS, description="a KV event is known to the router so long after its step")
    capacity_tokens: Count | None = Field(
        None, description="with history: tokens that an instance is believed to keep, least recently used first out"
        " of it; null = as many as its GPU and CPU memory hold",
    )  # fmt: skip


class PrefixAwareRouter(_WithIndex):
    """Where the longest prefix of the prompt is."""

    kind: Literal["prefix_aware"] = Field("prefix_aware", description="where the longest prefix of the prompt is")
    min_match: Share = Field(
        0.3, description="share of the prompt that must be there; else it goes where the fewest requests are"
    )
    max_imbalance: int = Field(
        64, ge=0, description="with so many requests more on the busiest instance than on the idlest, and max_ratio"
        " times as many, prefixes don't count: it goes where the fewest requests are",
    )  # fmt: skip
    max_ratio: Annotated[float, Field(ge=1)] = Field(1.5, description="see max_imbalance")


class CostBasedRouter(_WithIndex):
    """Where the first token is expected soonest."""

    kind: Literal["cost_based"] = Field("cost_based", description="where the first token is expected soonest")
    load_weight: Share = Field(
        0.02, description="cost of a prompt token that is there already (and may have to be loaded), in computed tokens"
    )


class CustomRouter(Component):
    """A router of your own (see `kvsim.cluster.routers.base`)."""

    kind: ClassPath = Field(description="module_path:Class of a Router, found on sys.path or beside this file")
    options: ClassOptions = Field(description="what the class gets; checked against its Config if it has one")
    event_delay: Duration = Field(10 * MS, description="a KV event is known to the router so long after its step")


RouterConfig = Annotated[
    Annotated[RoundRobinRouter, Tag("round_robin")]
    | Annotated[RandomRouter, Tag("random")]
    | Annotated[LeastRequestsRouter, Tag("least_requests")]
    | Annotated[LeastTokensRouter, Tag("least_tokens")]
    | Annotated[SessionAffinityRouter, Tag("session_affinity")]
    | Annotated[PrefixAwareRouter, Tag("prefix_aware")]
    | Annotated[CostBasedRouter, Tag("cost_based")]
    | Annotated[CustomRouter, Tag(CUSTOM)],
    BY_KIND,
]


def options_of(router: Any) -> dict[str, Any]:
    """What the router's class gets."""
    if isinstance(router, CustomRouter):
        return dict(router.options)
    return dict(router.model_dump(exclude={"kind", "event_delay"}))
