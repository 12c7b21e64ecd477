"""Which requests arrive, and when."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kvsim.checked import Component
from kvsim.config.fields import SECOND_NS, Count, Paths, YesNo
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
    time_scale: float = Field(1.0, gt=0, le=1e6, description="recorded pauses and arrival times are multiplied by this")
    spread_arrivals: bool = Field(
        False, description="spread requests that share an arrival time evenly up to the next arrival time"
    )
