"""Summaries of the instances of a cluster, and what a careful reader would notice."""

from __future__ import annotations

from typing import Any

from run_builder import small_requests, small_series, small_totals

from kvsim.results.findings import warnings
from kvsim.results.instances import InstanceTables, instances_frame, summarize_cluster, summarize_instances
from kvsim.results.summary import digest, summarize


def tables(name: str, **totals: int) -> InstanceTables:
    """An instance with the samples of the small run."""
    return InstanceTables(name, "g", "4 x h100-sxm", "up", small_totals() | totals, small_series(), ())


def test_each_instance_has_a_summary_of_its_own() -> None:
    """Over the requests that name it; one that served nobody has one too."""
    requests = small_requests()
    requests["instance"] = ["a-0" if number % 2 else "a-1" for number in range(len(requests))]
    found = summarize_instances(requests, [tables("a-0"), tables("a-1"), tables("a-2")])
    arrived = [(each["name"], each["requests"]["arrived"]) for each in found]
    assert arrived == [("a-0", len(requests) // 2), ("a-1", -(-len(requests) // 2)), ("a-2", 0)]
    own = requests[requests["instance"] == "a-1"]
    assert found[1]["hit_rate"] == summarize(own, small_totals(), small_series())["hit_rate"]
    frame = instances_frame([tables("a-0"), tables("a-1")])
    assert len(frame) == 2 * len(small_series())
    assert list(frame["instance"].unique()) == ["a-0", "a-1"]


def instance(name: str, requests: int, busy_ns: int, rate: float | None) -> dict[str, Any]:
    """What `summarize_cluster` looks at."""
    return {
        "name": name,
        "requests": {"arrived": requests},
        "totals": {"gpu_busy_ns": busy_ns},
        "hit_rate": {"total": rate},
    }


def test_how_even_the_load_was() -> None:
    """The busiest over the mean of all, and the extremes of the hit rates."""
    each = [instance("a", 30, 900, 0.5), instance("b", 10, 300, 0.8), instance("c", 0, 0, None)]
    assert summarize_cluster("random", each) == {
        "router": "random",
        "instances": 3,
        "busiest": 2.25,
        "most_requests": 2.25,
        "hit_rate": {"lowest": 0.5, "highest": 0.8},
    }
    assert summarize_cluster("random", [instance("a", 0, 0, None)])["busiest"] is None


def test_uneven_load_is_said() -> None:
    """From one and a half times the mean on, with the name of the busiest."""
    plain = summarize(small_requests(), small_totals(), small_series())

    def said(*busy: int) -> list[str]:
        each = [instance(f"a-{number}", 1, ns, 0.5) for number, ns in enumerate(busy)]
        cluster = {"cluster": summarize_cluster("random", each), "instances": each}
        return [line for line in warnings(plain | cluster) if "uneven" in line]

    assert said(100, 140) == []
    assert said(50, 350) == ["The GPUs of a-1 were busy 1.8 times as long as those of the mean: the load is uneven."]


def test_the_digest_without_a_cluster_is_as_ever() -> None:
    """A column without names changes nothing, names do."""
    requests = small_requests()
    plain = digest(requests)
    requests["instance"] = ""
    assert digest(requests) == plain
    requests["instance"] = "a-0"
    assert digest(requests) != plain
