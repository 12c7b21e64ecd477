"""What goes wrong in a run, on purpose. Nothing does unless it is said here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, model_validator

from kvsim.checked import Component, Misfit
from kvsim.config.fields import SECOND_NS, Text
from kvsim.units import Duration


def _as_tuple(value: object) -> object:
    return tuple(value) if isinstance(value, list) else value


Share = Annotated[float, Field(ge=0, le=1)]
Number = Annotated[int, Field(ge=0)]


class Window(Component):
    """A stretch of simulated time."""

    start: Duration = Field(description="from this moment of the run")
    end: Duration = Field(description="up to this moment")

    @model_validator(mode="after")
    def _fits(self) -> Window:
        if self.end <= self.start:
            raise Misfit("end", "expected a moment after start")
        return self


class Losses(Component):
    """Copies that do not arrive."""

    rate: Share = Field(0.0, description="share of blocks that are lost, each for itself")
    windows: Annotated[tuple[Window, ...], BeforeValidator(_as_tuple)] = Field(
        (), description="only then; none = always"
    )
    jobs: Annotated[tuple[Number, ...], BeforeValidator(_as_tuple)] = Field(
        (), description="copies that lose everything, by their number in their direction, from 0"
    )


class Stalls(Component):
    """Copies that never end, and hold up those behind them."""

    load_rate: Share = Field(0.0, description="share of loads that stall")
    store_rate: Share = Field(0.0, description="share of stores that stall")
    windows: Annotated[tuple[Window, ...], BeforeValidator(_as_tuple)] = Field(
        (), description="only then; none = always"
    )
    loads: Annotated[tuple[Number, ...], BeforeValidator(_as_tuple)] = Field((), description="loads that stall")
    stores: Annotated[tuple[Number, ...], BeforeValidator(_as_tuple)] = Field((), description="stores that stall")
    deadline: Duration = Field(0, description="a stalled copy counts as failed after so long; 0 = never, as in vLLM")


class MediumFaults(Component):
    """What happens to the copies of one medium."""

    load_failures: Losses = Field(default_factory=Losses, description="loads that lose blocks")
    store_failures: Losses = Field(default_factory=Losses, description="stores that lose blocks, hence everything")
    stalls: Stalls = Field(default_factory=Stalls, description="copies that never end")


class TierFaults(MediumFaults):
    """What happens to the promotions (loads) and cascades (stores) of a secondary tier."""

    tier: Text = Field(description="its name")


class Outage(Window):
    """A tier that goes away and comes back."""

    tier: Text = Field("cpu", description="cpu, or the name of a secondary tier")
    contents: Literal["kept", "lost"] = Field("lost", description="what it holds when it comes back")


class ScriptedAbort(Component):
    """One client that goes away."""

    request: Number = Field(description="number of the request in order of arrival, from 0")
    after: Duration = Field(description="so long after its arrival")


class Aborts(Component):
    """Clients that go away before their request has ended."""

    rate: Share = Field(0.0, description="share of clients that go at a random moment")
    within: Annotated[Duration, Field(gt=0)] = Field(
        30 * SECOND_NS, description="they go within so long after the request's arrival"
    )
    script: Annotated[tuple[ScriptedAbort, ...], BeforeValidator(_as_tuple)] = Field((), description="single clients")


class FaultsConfig(Component):
    """Faults of all kinds; their dice are thrown with the run's seed."""

    cpu: MediumFaults = Field(default_factory=MediumFaults, description="copies between GPU and CPU memory")
    tiers: Annotated[tuple[TierFaults, ...], BeforeValidator(_as_tuple)] = Field(
        (), description="promotions and cascades of secondary tiers"
    )
    failed_copies: Literal["reported", "fatal"] = Field(
        "reported",
        description="a failed copy between GPU and CPU is reported to the scheduler, or ends the engine, as it does "
        "with vLLM's own connectors",
    )
    outages: Annotated[tuple[Outage, ...], BeforeValidator(_as_tuple)] = Field((), description="tiers that go away")
    restarts: Annotated[tuple[Duration, ...], BeforeValidator(_as_tuple)] = Field(
        (), description="moments at which the engine dies; its requests fail, its GPU and CPU memory are lost"
    )
    restart_time: Duration = Field(
        60 * SECOND_NS, description="a dead engine is back after so long; requests fail meanwhile"
    )
    aborts: Aborts = Field(default_factory=Aborts, description="clients that go away")
    client_timeout: Annotated[Duration, Field(gt=0)] | None = Field(
        None, description="every client goes away after so long; null = never"
    )
