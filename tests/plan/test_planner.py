"""Plans carried out with real simulations of a small trace."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from plan_builder import RUN, Serial, carried_out, small_trace, task_of

from kvsim.errors import UserError
from kvsim.plan.plan_text import neighbour_rows
from kvsim.plan.planner import Planned, carry_out, without_memory
from kvsim.plan.recommend import advise, pareto_front
from kvsim.plan.search import neighbours
from kvsim.resolve import read_whole_trace_of

GIB = 2**30
SPACE: dict[str, Any] = {
    "replicas": [1, 2, 3],
    "cpu": ["0GiB", "1GiB", "2GiB", "4GiB", "6GiB"],
    "eviction_policy": ["lru", "arc"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a trace of eight sessions, whose 51 prompts have 5.9 GiB of different KV."""
    place = tmp_path_factory.mktemp("plan")
    small_trace(place, sessions=8)
    return place


@pytest.fixture(scope="module")
def runs(folder: Path) -> Serial:
    """Every point is simulated once for all tests."""
    return Serial(task_of(folder, space=SPACE))


def name_of(planned: Planned) -> str:
    """The answer's point."""
    assert planned.found.best is not None
    return planned.space.name(planned.found.best)


@pytest.mark.parametrize("limit", ["120ms", "100ms", "70ms", "64.2ms", "63.5ms", "63ms"])
@pytest.mark.parametrize("objective", ["cost_per_1m_output_tokens", "least_dram"])
def test_the_answer_is_that_of_trying_everything(folder: Path, runs: Serial, limit: str, objective: str) -> None:
    """The search's answer has the score of the best of all points, of which fewer are run; also if none is good."""
    task = task_of(folder, space=SPACE, slo={"ttft_p90": limit}, objective=objective)
    everything = carried_out(
        task_of(
            folder, space=SPACE, slo={"ttft_p90": limit}, objective=objective,
            budget={"search": "exhaustive", "points": 1000},
        ),
        runs,
    )  # fmt: skip
    assert everything.found.is_exhaustive
    planned = carried_out(task, runs)
    best, truth = planned.found.best, everything.found.best
    assert best is not None
    assert truth is not None
    assert planned.rated[best].is_met == everything.rated[truth].is_met
    if planned.rated[best].is_met:
        assert planned.score(best) == everything.score(truth)
    else:
        assert planned.rated[best].strain == everything.rated[truth].strain
    assert len(planned.rated) < len(everything.rated) == 3 * (1 + 4 * 2)


def test_neighbours_are_simulated_and_none_is_better(folder: Path, runs: Serial) -> None:
    """The recommended point meets the SLO; one step on each axis either misses it or costs no less."""
    planned = carried_out(task_of(folder, space=SPACE, slo={"ttft_p90": "100ms"}), runs)
    best = planned.found.best
    assert best is not None
    assert planned.found.is_local_best
    near = [point for _, point in neighbours(planned.space, best)]
    assert len(near) == 4  # 2 replicas, a smaller and a larger CPU tier, the other policy
    for point in near:
        rated = planned.rated[point]
        assert not rated.is_met or planned.score(point) >= planned.score(best)
    advice = advise(planned)
    assert advice.verdict == "offload"
    assert [each.axis for each in advice.neighbours] == ["replicas", "cpu", "cpu", "eviction_policy"]
    assert "all 4 neighbours of this one are among them, and none is better" in " ".join(advice.reasons)


def test_offloading_is_compared_with_none(folder: Path, runs: Serial) -> None:
    """An answer that offloads says what the same point is without CPU memory, which is simulated for that."""
    planned = carried_out(task_of(folder, space=SPACE, slo={"ttft_p90": "70ms"}), runs)
    assert name_of(planned).startswith("replicas 1, cpu 6GiB")
    advice = advise(planned)
    assert (0, 0, 0) in planned.rated
    assert "Without CPU memory TTFT P90 is 109 ms" in " ".join(advice.reasons)
    assert "1 x h100-sxm, 6.00 GiB of CPU memory in all" in advice.text


def test_sizes_beyond_the_working_set_are_left_out(folder: Path, runs: Serial) -> None:
    """All prompts together have 5.9 GiB of different KV, so that 8 GiB is the last size that is tried."""
    space = SPACE | {"cpu": ["0GiB", "4GiB", "8GiB", "64GiB", "1TiB"]}
    planned = carried_out(task_of(folder, space=space, slo={"ttft_p90": "100ms"}), runs)
    assert planned.space.axes[1].labels == ("0", "4GiB", "8GiB")
    assert planned.bounds.notes == ("cpu above 8GiB is left out: all prompts together have 6 GiB of different KV",)


def test_dont_offload_when_the_slo_is_met_without(folder: Path, runs: Serial) -> None:
    """Where GPUs alone meet the SLO, memory only costs: the answer says so, and compares with the least of it."""
    planned = carried_out(task_of(folder, space=SPACE, slo={"ttft_p90": "1s"}), runs)
    advice = advise(planned)
    assert advice.verdict == "no_offload"
    assert advice.text.startswith("Don't offload: replicas 1, cpu 0 (1 x h100-sxm in all). TTFT P90 109 ms")
    assert "With 1GiB of CPU memory TTFT P90 is 109 ms" in " ".join(advice.reasons)


def test_dont_offload_when_the_working_set_fits_the_gpu(folder: Path) -> None:
    """Where the GPU's pool holds all different KV, nothing can be gained: said, and shown by none against the least."""
    run = {"engine": RUN["engine"] | {"num_gpu_blocks_override": 4000}}
    task = task_of(folder, run, space={"cpu": ["0GiB", "1GiB", "8GiB"]}, slo={"ttft_p90": "1s"})
    planned = carried_out(task)
    advice = advise(planned)
    assert advice.verdict == "no_offload"
    assert planned.bounds.working_set is not None
    assert planned.bounds.working_set.fits_the_gpu
    assert {planned.space.labels(point)["cpu"] for point in planned.rated} >= {"0", "1GiB"}
    assert planned.rated[(0,)].summary["latency"] == planned.rated[(1,)].summary["latency"]
    assert "All different KV of the trace (5.92 GiB) fits the KV pool of one instance's GPUs (7.81 GiB)." in (
        advice.reasons
    )


def test_dont_offload_when_loading_is_slower_than_computing(folder: Path) -> None:
    """With a model that computes a token in no time, loads only delay: the answer names both times."""
    run = {"step_time": {"kind": "fixed", "per_step": "1ms", "per_token": "1ns"}}
    task = task_of(folder, run, space={"cpu": ["0GiB", "2GiB", "8GiB"]}, slo={"ttft_p99": "1s"})
    planned = carried_out(task)
    advice = advise(planned)
    assert advice.verdict == "no_offload"
    assert planned.bounds.break_even is not None
    assert planned.bounds.break_even.ratio < 1
    assert any("loading is 14.3 times slower" in reason or "times slower." in reason for reason in advice.reasons)
    without, with_memory = planned.rated[(0,)], planned.rated[(1,)]
    assert with_memory.usd_per_1m_tokens > without.usd_per_1m_tokens


def test_no_point_meets_the_slo(folder: Path, runs: Serial) -> None:
    """Where nothing is good enough, the closest point is named with what it misses."""
    planned = carried_out(task_of(folder, space=SPACE, slo={"ttft_p90": "20ms"}), runs)
    advice = advise(planned)
    assert advice.verdict == "nothing_meets_the_slo"
    assert not advice.meets_slo
    assert advice.text.startswith("No point meets the SLO; the closest is replicas 3, cpu ")
    assert "TTFT P90 63.2 ms (limit 20.0 ms)" in advice.text
    assert advice.bottleneck is not None
    assert advice.bottleneck.text.startswith("TTFT P90 is missed: 63.2 ms of 20.0 ms")


def test_prices_decide(folder: Path, runs: Serial) -> None:
    """With dear memory the same SLO is met by another replica instead; with list prices by CPU memory."""
    slo = {"ttft_p90": "65ms"}
    assert name_of(carried_out(task_of(folder, space=SPACE, slo=slo), runs)).startswith("replicas 1, cpu 6GiB")
    dear = {"dram_gib_hour": "10 USD"}
    assert name_of(carried_out(task_of(folder, space=SPACE, slo=slo, prices=dear), runs)) == "replicas 2, cpu 0"


def test_cost_of_a_point_is_its_resources_over_its_makespan(folder: Path, runs: Serial) -> None:
    """USD per 1M output tokens = makespan in hours x (GPUs x price + GiB x price) / output tokens x 1e6."""
    prices = {"gpu_hour": {"h100-sxm": 2.0}, "dram_gib_hour": 0.5}
    planned = carried_out(task_of(folder, space={"cpu": ["8GiB"]}, slo={"ttft_p90": "1s"}, prices=prices), runs)
    rated = planned.rated[(0,)]
    hours, tokens = rated.makespan_s / 3600, rated.output_tokens
    assert rated.usd_per_1m_tokens == pytest.approx(hours * (1 * 2.0 + 8 * 0.5) / tokens * 1e6)
    assert tokens == rated.summary["throughput"]["output_tokens"]


def test_most_sessions(folder: Path) -> None:
    """The most sessions at a time within the SLO: one more misses it, and CPU memory allows more of them."""
    task = task_of(
        folder, space={"cpu": ["0GiB", "8GiB"]}, slo={"ttft_p90": "80ms"}, objective="max_sessions",
    )  # fmt: skip
    assert task.space.axes[1].values == (8, 7, 6, 5, 4, 3, 2, 1)
    shared = Serial(task)
    planned = carried_out(task, shared)
    best = planned.found.best
    assert best is not None
    assert planned.space.labels(best) == {"cpu": "8GiB", "sessions": "8"}
    alone = carried_out(
        task_of(folder, space={"cpu": ["0GiB"]}, slo={"ttft_p90": "80ms"}, objective="max_sessions"), shared
    )
    assert alone.found.best is not None
    sessions = alone.space.value(alone.found.best, "sessions")
    more = alone.space.place("sessions")
    harder = tuple(index - 1 if place == more else index for place, index in enumerate(alone.found.best))
    assert 1 <= sessions < 8
    assert not alone.rated[harder].is_met


def test_what_vllm_would_not_start_is_not_recommended(folder: Path) -> None:
    """A pool that max_model_len does not fit is a point that cannot be run, with vLLM's reason."""
    planned = carried_out(task_of(folder, space={"gpu_blocks": [800, 1200]}, slo={"ttft_p90": "1s"}))
    assert planned.rated[(0,)].reason == (
        "vLLM would refuse to start: max_model_len 16,384 does not fit the 12,784 tokens of GPU KV"
    )
    assert name_of(planned) == "gpu_blocks 1200"
    assert "1 point could not be run, because: vLLM would refuse to start" in " ".join(advise(planned).reasons)


def test_the_budget_ends_the_search(folder: Path, runs: Serial) -> None:
    """With three points allowed three are simulated, the best of them is the answer, and that it is unsure is said."""
    planned = carried_out(task_of(folder, space=SPACE, slo={"ttft_p90": "70ms"}, budget={"points": 3}), runs)
    assert len(planned.rated) == 3
    assert not planned.found.is_local_best
    assert "The budget ended the search after 3 points" in " ".join(advise(planned).reasons)


def test_time_ends_the_search(folder: Path, runs: Serial) -> None:
    """Once the time is over no new point is begun; those that were simulated still give an answer."""
    task = task_of(folder, space=SPACE, slo={"ttft_p90": "70ms"}, budget={"time": "10s"})
    ticks = iter(range(0, 10_000, 4))
    planned = carry_out(task, read_whole_trace_of(task.base), runs, clock=lambda: float(next(ticks)))
    assert 1 <= len(planned.rated) <= 2
    assert not planned.found.is_complete


def test_pareto_front_is_what_nothing_beats(folder: Path, runs: Serial) -> None:
    """Along the front cost rises and the SLO's figure falls, and every point off it is beaten in both."""
    planned = carried_out(
        task_of(folder, space=SPACE, slo={"ttft_p90": "70ms"}, budget={"search": "exhaustive", "points": 100}), runs
    )
    front = pareto_front(planned)
    figures = {
        point: (rated.usd_per_1m_tokens, rated.checks[0].measured or math.inf) for point, rated in planned.rated.items()
    }
    on_it = [figures[point] for point in front]
    assert on_it == sorted(on_it)
    assert [ttft for _, ttft in on_it] == sorted((ttft for _, ttft in on_it), reverse=True)
    for usd, ttft in figures.values():
        assert any(other_usd <= usd and other_ttft <= ttft for other_usd, other_ttft in on_it)


def test_many_policies_are_tried_with_fewer_sessions_first(folder: Path) -> None:
    """Of six combinations of choices, most are only simulated with two of the eight sessions, and reported as such."""
    space = {
        "cpu": ["0GiB", "4GiB", "8GiB"],
        "eviction_policy": ["lru", "arc"],
        "engine.max_num_batched_tokens": [2048, 4096, 8192],
    }
    planned = carried_out(task_of(folder, space=space, slo={"ttft_p90": "100ms"}))
    assert planned.thinned
    assert {rated.share for rated in planned.thinned.values()} <= {0.25, 0.5}
    assert {rated.summary["sessions"]["count"] for rated in planned.thinned.values()} <= {2, 4}
    assert all(rated.summary["sessions"]["count"] == 8 for rated in planned.rated.values())
    assert planned.found.is_local_best


@pytest.mark.parametrize(
    "space",
    [
        {"cpu": ["1GiB"], "nvme": ["0GiB", "4GiB"]},
        {"cpu": ["0GiB", "2GiB"], "pd": [{"prefill": 1, "decode": 1}]},
        {"replicas": [2], "cpu": ["0GiB", "2GiB"], "shared_store": ["0GiB", "2GiB"]},
        {"gpu_memory": ["3GiB", "4GiB"], "max_num_seqs": [8, 64]},
    ],
    ids="-".join,
)
def test_every_axis_is_simulated(folder: Path, space: dict[str, Any]) -> None:
    """All points of every kind of axis run to their end, and more of the hardware costs more per hour."""
    budget = {"search": "exhaustive"}
    planned = carried_out(task_of(folder, space=space, slo={"ttft_p90": "10s"}, budget=budget))
    assert planned.found.is_exhaustive
    assert [rated.reason for rated in planned.rated.values()] == [""] * len(planned.rated)
    first = tuple(0 for _ in planned.space.axes)
    most = tuple(length - 1 for length in planned.space.lengths)
    per_hour = [planned.rated[point].usd_per_hour(planned.task.prices) for point in (first, most)]
    assert per_hour[0] < per_hour[1] or "gpu_memory" in space


def test_a_missing_price_is_told_first(folder: Path) -> None:
    """A GPU without a price stops the plan before anything is simulated."""
    task = task_of(folder, {"hardware": {"gpu": "l40s"}}, space={"replicas": [1, 2]})
    runs = Serial(task)
    with pytest.raises(UserError, match=r"prices.gpu_hour.l40s is missing"):
        carried_out(task, runs)
    assert runs.simulated == 0


def test_a_base_that_cannot_run_is_told_first(folder: Path) -> None:
    """Weights that do not fit the GPU are the user's mistake, not a point that failed."""
    with pytest.raises(UserError, match="GiB"):
        carried_out(task_of(folder, {"model": "llama-3.1-70b", "engine": {}}, space={"replicas": [1, 2]}))


@pytest.mark.parametrize("lengths", [[4096, 16384], [16384, 4096]])
def test_who_refuses_more_does_not_meet_the_slo(folder: Path, lengths: list[int]) -> None:
    """A max_model_len that refuses what another one serves misses the SLO, however fast; the order does not matter."""
    space = {"cpu": ["0GiB", "64GiB"], "engine.max_model_len": lengths}
    planned = carried_out(task_of(folder, space=space, slo={"ttft_p90": "1s"}))
    assert name_of(planned) == "cpu 0, engine.max_model_len 16384"
    short = next(rated for rated in planned.rated.values() if rated.config.engine.max_model_len == 4096)
    assert [check.key for check in short.checks if not check.is_met] == ["finished"]
    rejected, arrived = short.rejected
    assert 0 < rejected < arrived
    assert short.checks[-1].measured == pytest.approx(1 - rejected / arrived)
    names = [row.name for row in neighbour_rows(planned, advise(planned))]
    assert f"  engine.max_model_len 4096 ({rejected} of {arrived} requests rejected)" in names
    assert planned.bounds.working_set is not None
    assert planned.space.axes[0].labels == ("0", "64GiB")
    assert planned.bounds.working_set.distinct_bytes > 5 * GIB


def test_who_refuses_more_is_not_the_closest(folder: Path) -> None:
    """Where nothing meets the SLO, a point that is faster because it refuses requests is not the closest."""
    space = {"cpu": ["0GiB"], "engine.max_model_len": [4096, 16384]}
    planned = carried_out(task_of(folder, space=space, slo={"ttft_p90": "1ms"}))
    assert name_of(planned) == "cpu 0, engine.max_model_len 16384"
    fast, slow = (planned.rated[point] for point in ((0, 0), (0, 1)))
    assert fast.strain < slow.strain


def test_what_every_point_refuses_counts_nowhere(folder: Path) -> None:
    """Requests too long for all points are rejected and do not miss the SLO; the answer says how many they are."""
    run = {"engine": RUN["engine"] | {"max_model_len": 6000}}
    planned = carried_out(task_of(folder, run, space={"cpu": ["0GiB", "1GiB"]}, slo={"ttft_p90": "1s"}))
    best = planned.found.best
    assert best is not None
    rejected, arrived = planned.rated[best].rejected
    assert rejected > 0
    assert planned.rated[best].is_met
    assert advise(planned).text.endswith(f" {rejected} of {arrived} requests are rejected.")


def test_a_limit_with_room_does_not_bind(folder: Path, runs: Serial) -> None:
    """Only a limit that is nearly used up is said to bind."""
    far, near = (
        advise(carried_out(task_of(folder, space=SPACE, slo={"ttft_p90": limit}), runs)) for limit in ("10s", "110ms")
    )
    assert far.bottleneck is not None
    assert near.bottleneck is not None
    assert far.bottleneck.text.startswith("No limit binds, TTFT P90 is the closest: 109 ms of 10.0 s; ")
    assert near.bottleneck.text.startswith("TTFT P90 binds: 109 ms of 110 ms; ")


def test_gaps_of_the_space_are_told(folder: Path, runs: Serial) -> None:
    """Sizes and counts between the space's values were not tried, and the answer says which values were."""
    space = {"replicas": [1, 2, 4], "cpu": ["0GiB", "6GiB"]}
    reasons = advise(carried_out(task_of(folder, space=space, slo={"ttft_p90": "1s"}), runs)).reasons
    assert reasons[-1] == (
        "What lies between the values of the space was not tried: replicas 1, 2, 4; cpu 0, 6GiB."
    )  # fmt: skip
    assert "between" not in advise(carried_out(task_of(folder, space={"replicas": [1, 2]}), runs)).reasons[-1]


def test_replicas_without_memory_are_tried(folder: Path) -> None:
    """For every number of replicas there is a point without memory that the search does not leave out on a belief."""
    space = task_of(folder, space=SPACE | {"gpu_blocks": [1200, 2400]}).space
    assert [space.name(point) for point in without_memory(space)] == [
        f"replicas {count}, gpu_blocks 2400, cpu 0" for count in (1, 2, 3)
    ]
    assert without_memory(task_of(folder, space={"replicas": [1, 2]}).space) == []


def test_a_price_of_a_gpu_that_is_not_there_is_told(folder: Path, runs: Serial) -> None:
    """A price that changes nothing is named, with the GPUs that there are."""
    task = task_of(folder, space={"replicas": [1]}, prices={"gpu_hour": {"h200-sxm": 3, "h100-sxm": 2}})
    assert carried_out(task, runs).bounds.notes == ("prices.gpu_hour.h200-sxm has no effect: GPUs here are h100-sxm",)


def test_more_sessions_than_are_played_are_refused(folder: Path) -> None:
    """So many sessions at a time were never there, so they are no answer."""
    space = {"sessions": [1, 2, 64]}
    with pytest.raises(UserError, match=r"space.sessions: expected at most 8, .* found 64 at a time"):
        task_of(folder, space=space, objective="max_sessions")
