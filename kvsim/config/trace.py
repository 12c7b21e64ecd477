"""Which requests arrive, and when."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from kvsim.checked import Component, Misfit
from kvsim.config.fields import SECOND_NS, Count, Paths, Text, YesNo
from kvsim.config.gates import ImagesConfig
from kvsim.units import Duration


class TraceConfig(Component):
    """Which requests arrive, and how their sessions are spread over time."""

    path: Paths = Field(description="trace file, folder, or a list of them, relative to this file's folder")
    kind: Literal["auto", "kv-cache-tester", "mooncake", "sessions"] = Field(
        "auto", description="format of the trace; auto tells by its content"
    )
    outputs_return: YesNo = Field(
        "auto", description="whether generated tokens come back in the next prompt of the session"
    )
    max_sessions: Count | None = Field(None, description="play only the first so many sessions of the trace")
    session_interval: Duration = Field(
        60 * SECOND_NS, description="time between the starts of sessions that carry no arrival time"
    )
    max_think_time: Duration | None = Field(
        60 * SECOND_NS, description="cap on the pause between two turns of a session; null = as recorded"
    )
    max_concurrent_sessions: Count | None = Field(
        None, description="sessions at the same time, later ones wait; null = no limit"
    )
    tenants: list[Text] = Field(
        default_factory=list,
        description="names of tenants, each with its own cache_salt; sessions belong to them in turn",
    )
    time_scale: float = Field(1.0, gt=0, le=1e6, description="recorded pauses and arrival times are multiplied by this")
    spread_arrivals: bool = Field(
        False, description="spread requests that share an arrival time evenly up to the next arrival time"
    )
    streaming_sessions: bool = Field(
        False,
        description="turns that go on from the last answer are more input for one request, which keeps its blocks",
    )
    loras: Count | None = Field(
        None, description="LoRA adapters that the sessions take turns with; null = those that the trace names"
    )
    images: ImagesConfig | None = Field(None, description="images in some prompts; null = those of the trace")

    @model_validator(mode="after")
    def _fits(self) -> TraceConfig:
        if len(set(self.tenants)) < len(self.tenants):
            raise Misfit("tenants", f"expected different names, found {', '.join(self.tenants)}")
        return self
