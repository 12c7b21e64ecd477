"""Random clusters for the random worlds, and what must be the same whichever way they are simulated."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace
from typing import Any

from fast_compare import Verdict, digest, first_difference, happened
from fast_worlds import presets_read_once, random_world, with_frontend

from kvsim.build import Simulation
from kvsim.cluster_plan import ClusterPlan, resolve_run
from kvsim.cohort_members import InexactError
from kvsim.config import RunConfig
from kvsim.results.records import RunRecord
from kvsim.trace.session import Trace

ROUTERS: tuple[dict[str, Any], ...] = (
    {"kind": "round_robin"},
    {"kind": "random"},
    {"kind": "least_requests"},
    {"kind": "least_tokens"},
    {"kind": "session_affinity"},
    {"kind": "session_affinity", "placement": "least_requests"},
    {"kind": "prefix_aware"},
    {"kind": "prefix_aware", "min_match": 0.0, "max_imbalance": 1},
    {"kind": "prefix_aware", "capacity_tokens": 200},
    {"kind": "cost_based"},
    {"kind": "cost_based", "load_weight": 0.5, "capacity_tokens": 500},
)
CLIENTS = ("aborts", "client_timeout")  # all faults that clusters have


@dataclass(frozen=True)
class ClusterWorld:
    """What is played."""

    seed: int
    trace: Trace
    config: RunConfig

    def plan(self) -> ClusterPlan:
        """Resolved."""
        with presets_read_once():
            plan = resolve_run(self.config, self.trace)
        assert isinstance(plan, ClusterPlan)
        return plan


def random_cluster(seed: int, **router: Any) -> ClusterWorld:
    """The cluster of a seed, over the world of that seed. ``router``: if it shall be a certain one."""
    world, rng = random_world(seed), random.Random(f"cluster {seed}")
    data = world.config.model_dump(mode="json")
    data["faults"] = {name: data["faults"][name] for name in CLIENTS}
    room = data["engine"]["num_gpu_blocks_override"]
    groups: list[dict[str, Any]] = [{"name": "a", "count": rng.randint(1, 3)}]
    if rng.random() < 0.6:
        groups.append({"name": "b", "count": rng.randint(1, 2), "engine": {"num_gpu_blocks_override": room * 2}})
    if rng.random() < 0.4:
        slow = {"kind": "fixed", "per_step": "2ms", "per_token": "1us"}
        groups.append({"name": "c", "step_time": slow, "connector": {"kind": "none"}})
    names = [f"{group['name']}-{number}" for group in groups for number in range(group.get("count", 1))]
    data["cluster"] = {
        "instances": groups,
        "router": router or rng.choice(ROUTERS),
        "events": random_events(rng, names),
    }
    return ClusterWorld(seed, world.trace, RunConfig.model_validate(data))


def random_events(rng: random.Random, names: list[str]) -> list[dict[str, Any]]:
    """The first instance stays, or is away for a moment; others come and go."""
    found: list[dict[str, Any]] = []
    for number, name in enumerate(names):
        chance, at = rng.random(), rng.choice([0, 1, 5, 20, 60])
        if number and chance < 0.15:
            found.append({"at": f"{at}ms", "instance": name, "action": "join"})
        elif chance < 0.4:
            found.append({"at": f"{at}ms", "instance": name, "action": rng.choice(["drain", "fail"])})
            if not number or rng.random() < 0.5:
                found.append({"at": f"{at + rng.randint(0, 40)}ms", "instance": name, "action": "join"})
    return found


def in_other_order(world: ClusterWorld) -> ClusterWorld:
    """The same with the groups listed, and so built, the other way round."""
    cluster = world.config.cluster
    assert cluster is not None
    turned = cluster.model_copy(update={"instances": cluster.instances[::-1]})
    return replace(world, config=world.config.model_copy(update={"cluster": turned}))


def played(plan: ClusterPlan) -> RunRecord:
    """Simulate it."""
    return Simulation(plan).run()


def reference(plan: ClusterPlan) -> ClusterPlan:
    """The same on the reference engine, with all checks of each instance at the end."""
    return plan.changed(lambda each: replace(each, fast=False))


def difference(expected: RunRecord, found: RunRecord) -> str:
    """Between what two runs of one cluster have written down; the order of the instances does not count."""
    return first_difference(_spelled(expected), _spelled(found))


def compare_cluster(seed: int, *, frontend: bool = False) -> Verdict:
    """The cluster of a seed on both engines, and with its groups in another order."""
    verdict = Verdict(seed, "cluster")
    try:
        world = random_cluster(seed)
        if frontend:
            world = replace(world, config=with_frontend(world.config, seed))
        plan = world.plan()
        found = played(plan)
        verdict.difference = difference(played(reference(plan)), found)
        if not verdict.difference:
            verdict.difference = difference(found, played(in_other_order(world).plan()))
            verdict.difference = verdict.difference and f"groups in another order: {verdict.difference}"
    except InexactError:  # the product plays it on the reference engine then, and says so
        verdict.seen["handed to the reference"] = 1
        return verdict
    except Exception as error:  # noqa: BLE001 - whatever breaks is what we look for
        verdict.difference = f"{type(error).__name__}: {error}"
        return verdict
    assert world.config.cluster is not None
    verdict.seen.update(happened(found))
    verdict.seen[f"router {world.config.cluster.router.kind}"] = verdict.seen["clusters"] = 1
    for state in ("up", "draining", "failed"):
        verdict.seen[f"instances that became {state}"] = sum(note.endswith(f"is {state}") for note in found.notes)
    return verdict


def _spelled(record: RunRecord) -> dict[str, Any]:
    all_of_it = digest(record)
    for part in ("instances", "totals", "tiers", "faults"):
        all_of_it[part] = dict(sorted(all_of_it[part].items()))
    return {**all_of_it, "notes": sorted(all_of_it["notes"]), "cautions": sorted(all_of_it["cautions"])}
