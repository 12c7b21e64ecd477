"""Both engines play the same, and everything that they leave behind is compared."""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest.mock import patch

from fast_orders import Names, orders
from fast_worlds import World, presets_read_once, random_world, with_frontend, with_tier_faults

from kvsim.build import Simulation
from kvsim.cohort_members import InexactError
from kvsim.cohort_scheduler import CohortScheduler
from kvsim.extents.pool_copies import Copies
from kvsim.fast_engine import FastEngine
from kvsim.resolve import Plan, resolve
from kvsim.results.records import RunRecord, as_row

ABOUT_THE_ENGINE = ("fast engine", "reference engine")  # notes that begin so


@dataclass
class Verdict:
    """What one world has shown; ``difference`` is empty if there is none."""

    seed: int
    shape: str = ""
    difference: str = ""
    seen: Counter[str] = field(default_factory=Counter)


def compare_seed(
    seed: int,
    *,
    scale: int = 1,
    spoil: Callable[[Plan], Plan] = lambda plan: plan,
    frontend: bool = False,
    tier_faults: bool = False,
) -> Verdict:
    """The world of a seed. ``spoil``: makes a plan for the reference that is not quite the same."""
    with presets_read_once():
        world = random_world(seed, scale=scale)
        if tier_faults:
            world = with_tier_faults(world)
        plan = resolve(with_frontend(world.config, seed) if frontend else world.config, world.trace)
    if not plan.fast:
        return Verdict(seed, world.shape, f"the fast engine does not run this: {plan.notes[0]}")
    verdict = Verdict(seed, world.shape)
    try:
        verdict.difference, verdict.seen = compare(plan, world.num_priorities, spoil)
    except InexactError:  # the product plays it on the reference engine then, and says so
        verdict.seen["handed to the reference"] = 1
    except Exception as error:  # noqa: BLE001 - whatever breaks is what we look for
        where = traceback.extract_tb(error.__traceback__)[-1]
        at = f"{where.filename.rpartition('/')[2]}:{where.lineno}"
        verdict.difference = f"{type(error).__name__}: {error} ({at})"
    verdict.seen[world.shape] = 1
    return verdict


def compare(
    plan: Plan, num_priorities: int = 1, spoil: Callable[[Plan], Plan] = lambda plan: plan
) -> tuple[str, Counter[str]]:
    """Play a plan of the fast engine with both.

    Returns:
        The first difference ("" if there is none), and what has happened.
    """
    seen: Counter[str] = Counter()
    with _counted(seen):
        fast = Simulation(plan)
        give_priorities(fast, num_priorities)
        record = fast.run()
    reference, names = Simulation(spoil(replace(plan, fast=False))), Names()
    give_priorities(reference, num_priorities)
    names.listen(reference)
    expected = reference.run()
    seen.update(happened(record))
    difference = first_difference(digest(expected), digest(record))
    if not difference:
        fast.instance.scheduler.check()
        difference = first_difference(orders(reference, names), orders(fast, names))
    return difference, seen


def give_priorities(simulation: Simulation, count: int) -> None:
    """No trace has any."""
    instance = simulation.instance
    new_request = instance._new_request

    def with_priority(*args: Any) -> Any:
        request = new_request(*args)
        request.priority = len(simulation.record.requests) * 7 % count
        return request

    if count > 1:
        setattr(instance, "_new_request", with_priority)  # noqa: B010 - mypy


def digest(record: RunRecord) -> dict[str, Any]:
    """All that a run has written down, but which engine it was."""
    return {
        "requests": {entry.request_id: as_row(entry) for entry in record.requests},
        "totals": as_row(record.totals),
        "tiers": {entry.name: as_row(entry) for entry in record.tiers},
        "series": [as_row(sample) for sample in record.series.samples],
        "instances": {
            entry.name: {
                "state": entry.state,
                "totals": as_row(entry.totals),
                "tiers": {tier.name: as_row(tier) for tier in entry.tiers},
                "series": [as_row(sample) for sample in entry.series.samples],
            }
            for entry in record.instances
        },
        "faults": as_row(record.faults),
        "notes": [note for note in record.notes if not note.startswith(ABOUT_THE_ENGINE)],
        "cautions": record.cautions,
    }


def first_difference(expected: Any, found: Any, at: str = "") -> str:
    """Where two of a kind first differ, and how; "" if nowhere."""
    if expected == found:
        return ""
    if isinstance(expected, dict) and isinstance(found, dict) and list(expected) == list(found):
        pairs = [(str(key), expected[key], found[key]) for key in expected]
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = [(str(number), *both) for number, both in enumerate(zip(expected, found, strict=True))]
    else:
        return f"{at}: expected {_short(expected)}, found {_short(found)}"
    for key, one, other in pairs:
        if difference := first_difference(one, other, f"{at}.{key}" if at else key):
            return difference
    return f"{at}: expected {_short(expected)}, found {_short(found)}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 150 else f"{text[:100]} ... {text[-40:]}"


# -- what has happened
def happened(record: RunRecord) -> Counter[str]:
    """Counts of what there was to go wrong."""
    totals, tiers = record.totals, record.tiers
    seen = Counter({f"requests {status}": n for status, n in Counter(e.status for e in record.requests).items()})
    seen["steps"] = totals.steps
    seen["preemptions"] = totals.preemptions
    seen["GPU evictions"] = totals.gpu_evicted_blocks
    seen["CPU evictions"] = totals.cpu_evicted_blocks
    seen["tier evictions"] = sum(tier.evicted_chunks for tier in tiers)
    seen["loads"], seen["stores"] = totals.load_jobs, totals.store_jobs
    seen["stores refused"] = totals.cannot_store
    seen["promotion jobs"] = sum(tier.read_jobs for tier in tiers)
    seen["promoted chunks"] = sum(tier.read_bytes // tier.chunk_bytes for tier in tiers)
    seen["chunks refused by tiers"] = sum(tier.refused_chunks for tier in tiers)
    seen["chunks deduplicated"] = sum(tier.deduplicated_chunks for tier in tiers)
    seen["runs with load stalls"] = bool(totals.stall_ns)
    seen["runs with flush stalls"] = bool(totals.flush_stall_ns)
    seen["runs slowed down by copies"] = bool(totals.slowdown_ns)
    seen["requests that spent time in front"] = sum(entry.frontend_ns > 0 for entry in record.requests)
    seen["samples"] = len(record.series.samples)
    seen["engine deaths"], seen["client aborts"] = record.faults.engine_deaths, record.faults.client_aborts
    seen |= Counter({name.replace("_", " "): count for name, count in record.faults.happened.items()})
    seen["runs given up"] = any("stopped" in line for line in record.cautions)
    return seen


@contextmanager
def _counted(seen: Counter[str]) -> Iterator[None]:
    """Count what the fast engine does not tell."""

    def spied(kind: type[Any], name: str, note: Callable[..., Callable[[Any], None]]) -> Any:
        original = getattr(kind, name)

        def method(self: Any, *args: Any, **options: Any) -> Any:
            after = note(self, *args, **options)
            result = original(self, *args, **options)
            after(result)
            return result

        return patch.object(kind, name, method)

    def window(_self: Any, _output: Any) -> Callable[[Any], None]:
        return lambda steps: seen.update({"windows": steps > 1, "steps planned in windows": steps if steps > 1 else 0})

    def news(engine: FastEngine) -> Callable[[Any], None]:
        under_way = engine._window
        before = 0 if under_way is None else under_way.last
        return lambda _none: seen.update({"windows cut short": under_way is not None and under_way.last < before})

    def duplicate(_self: Any, _segment: int, first: int, last: int) -> Callable[[Any], None]:
        return lambda _piece: seen.update({"duplicate blocks": last - first})

    def decision(_self: Any, _output: Any) -> Callable[[Any], None]:
        return lambda _steps: seen.update({"forward passes decided": 1})

    def repeated(_self: Any, count: int) -> Callable[[Any], None]:
        return lambda _none: seen.update({"refusals repeated": count})

    from kvsim.connectors.offloading_runs import RunOffloadingConnector  # noqa: PLC0415 - the mutant's

    with (
        spied(CohortScheduler, "num_quiet_steps", window),
        spied(FastEngine, "notify", news),
        spied(FastEngine, "_forward", decision),
        spied(Copies, "add_duplicate", duplicate),
        spied(RunOffloadingConnector, "repeat_refusals", repeated),
    ):
        yield


__all__ = ["Verdict", "World", "compare", "compare_seed", "digest", "first_difference", "happened", "random_world"]
