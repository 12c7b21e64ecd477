"""What a config says of the time before the scheduler, looked up."""

from __future__ import annotations

from pydantic import Field

from kvsim.checked import Component
from kvsim.config import RunConfig
from kvsim.frontend import FrontendTimes
from kvsim.profile import IsoDate, TimeFigure
from kvsim.profile.presets import Shelf
from kvsim.results.records import ASSUMED
from kvsim.units import format_time


class FrontendProfile(Component):
    """CPU time of one tokenizer with all that is around it."""

    name: str = Field(min_length=1, description="name of the profile")
    about: str = Field(min_length=1, description="what it stands for, in a line")
    device: str = Field(min_length=1, description="the CPU that it was measured on")
    date: IsoDate = Field(description="when measured, such as 2026-11-30")
    method: str = Field(min_length=1, description="how the numbers were got")
    request: TimeFigure = Field(description="for each request")
    token: TimeFigure = Field(description="for each token of the prompt")
    notes: list[str] = Field(default_factory=list, description="anything else worth knowing")


FRONTENDS = Shelf("frontend", FrontendProfile, "frontends", ".frontend.yaml")
load_frontend, frontend_names = FRONTENDS.load, FRONTENDS.names


def plan_frontend(config: RunConfig) -> tuple[FrontendTimes | None, tuple[str, ...]]:
    """The times, if any, and what to tell about them.

    Raises:
        UserError: there is no such preset.
    """
    wanted = config.frontend
    if wanted is None:
        return None, ()
    request_ns, token_ns, source = wanted.request_time, wanted.token_time, "as the config says"
    notes: list[str] = []
    if wanted.preset is not None:
        profile = load_frontend(wanted.preset)
        request_ns = profile.request.used if request_ns is None else request_ns
        token_ns = profile.token.used if token_ns is None else token_ns
        source = f"{profile.name}: {profile.about}"
        notes.append(f"{ASSUMED}frontend {profile.name}: the CPU is as fast as the one measured, {profile.device}")
    servers = wanted.api_servers or config.engine.data_parallel_size
    times = FrontendTimes(request_ns or 0, token_ns or 0, servers)
    if not times.request_ns and not times.token_ns:
        return None, ()
    count = f"{servers} API server{'s' if servers > 1 else ''}"
    what = f"{format_time(times.request_ns)} per request and {format_time(times.token_ns)} per prompt token"
    return times, (f"frontend: {count}, {what} ({source})", *notes)
