"""One scenario on the reference engine, compared with its recording."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from kvsim.conform.compare import Difference, Record, first_difference
from kvsim.conform.files import Recording
from kvsim.conform.order import SetOrder
from kvsim.conform.scenario import Conformance
from kvsim.garbage import rarely_collected
from kvsim.releases import RELEASES
from kvsim.request import Request

CONTEXT_STEPS = 2


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the comparison of one scenario found. Equal if there is no difference."""

    name: str
    vllm: str  # version that was recorded
    profile: str  # version that ours followed
    steps: int  # equal ones, from the first
    difference: Difference | None = None
    context: list[Record] = field(default_factory=list)  # the last equal steps
    deadlock: bool = False  # both made no progress any more
    reordered: int = 0  # steps in which a set's order was not the order of finishing
    failure: str = ""  # ours broke off with this error


def check(name: str, scenario: dict[str, Any], recording: Recording, *, profile: str, finish_order: bool) -> Outcome:
    """Run the scenario and compare every field of every step.

    Args:
        name: of the pair, for reports.
        scenario: as `kvsim.conform.files.check_scenario` lets pass.
        recording: what vLLM did.
        profile: a key of `kvsim.releases.RELEASES`.
        finish_order: commit finished requests in the order of finishing, not in that of vLLM's set.
    """
    order = SetOrder()
    ordering: Callable[[list[Request]], list[Request]] = list if finish_order else order
    world = Conformance(scenario, profile, ordering)
    failure, deadlock = "", False
    try:
        with rarely_collected():
            ours, deadlock = world.run()
    except Exception as error:  # noqa: BLE001 - whatever breaks our engine is a finding about this scenario
        failure, ours = f"{type(error).__name__}: {error}", world.recorder.records
    theirs = recording.records
    difference = first_difference(theirs, ours)
    if difference is None and (failure or deadlock != recording.deadlock):
        last = theirs[-1]["step"] if theirs else 0
        difference = Difference(last, len(theirs), {"deadlock": (recording.deadlock, failure or deadlock)})
    equal = len(theirs) if difference is None else difference.index
    context = theirs[max(0, equal - CONTEXT_STEPS) : equal] if difference else []
    return Outcome(
        name, recording.vllm, profile, equal, difference, context, deadlock, order.reordered, failure
    )  # fmt: skip


def profile_for(vllm_version: str) -> str:
    """The release that a version is compared under: itself, or the closest that we know, or the newest."""
    if vllm_version in RELEASES:
        return vllm_version
    number = _number(vllm_version)
    newest = max(RELEASES, key=_number)
    return min(RELEASES, key=lambda known: abs(_number(known) - number)) if number else newest


def _number(version: str) -> int:
    """Versions in order: 0.33.1 is 33001. 0 for what says nothing, such as a build from source without git tags."""
    if version.startswith("0.1.dev"):
        return 0
    parts = [int("".join(filter(str.isdigit, part)) or 0) for part in version.partition("+")[0].split(".")[:3]]
    major, minor, patch = (*parts, *[0] * (3 - len(parts)))
    return major * 1_000_000 + minor * 1000 + patch
