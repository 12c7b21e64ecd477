"""Several ranks behind one load balancer: who serves whom, what they share, and how long their steps take."""

from __future__ import annotations

import random
from typing import Any

import pytest
from worlds import MS, TraceBuilder, config, random_config, random_trace, run

from kvsim.errors import ConfigError
from kvsim.results.records import RunRecord
from kvsim.results.summary import digest
from kvsim.runner import requests_frame
from kvsim.steptime.gpu import load_gpu
from kvsim.steptime.model import load_model
from kvsim.steptime.roofline import Roofline
from kvsim.trace.session import Trace

MOE = {"name": "gpt-oss-20b"}


def sessions(*turns: tuple[int, list[tuple[int, int, int]]], model: dict[str, Any] | None = None) -> Any:
    """(start in ms, turns) of each session, on two ranks."""
    builder = TraceBuilder()
    for number, (start, each) in enumerate(turns):
        builder.session(f"s{number}", each, start_ns=start * MS)
    parts: dict[str, Any] = {"engine": {"data_parallel_size": 2}}
    if model:
        parts["model"] = model
    return run(builder.build(), config(**parts))


def times(record: RunRecord) -> list[tuple[int, int, int]]:
    """(rank, first scheduled, finished) of each request, in microseconds."""
    return [(entry.rank, entry.first_scheduled_ns // 1000, entry.finish_ns // 1000) for entry in record.requests]


def test_dense_ranks_are_independent() -> None:
    """Two prompts of one instant go to two ranks, and neither waits for the other: 1 ms per step, 10 us per token."""
    _, record = sessions((0, [(200, 1, 0)]), (0, [(100, 1, 0)]))
    assert times(record) == [(0, 0, 3000), (1, 0, 2000)]


def test_moe_ranks_step_together() -> None:
    """The rank with the shorter prompt has its token when the longer one has; both steps last 3 ms."""
    _, record = sessions((0, [(200, 1, 0)]), (0, [(100, 1, 0)]), model=MOE)
    assert times(record) == [(0, 0, 3000), (1, 0, 3000)]
    assert record.totals.steps == 2


def test_an_idle_moe_rank_is_bound_to_the_others_step() -> None:
    """A request that arrives 1 ms after the other rank's step began is scheduled at that step's end."""
    _, record = sessions((0, [(200, 1, 0)]), (1, [(100, 1, 0)]), model=MOE)
    assert times(record) == [(0, 0, 3000), (1, 3000, 5000)]
    _, record = sessions((0, [(200, 1, 0)]), (1, [(100, 1, 0)]))
    assert times(record) == [(0, 0, 3000), (1, 1000, 3000)]


def test_each_rank_has_its_own_cache() -> None:
    """The second turn goes to the other rank (the start of the search has moved on), which knows nothing of it."""
    _, record = sessions((0, [(160, 1, 0), (16, 1, 200 * MS), (16, 1, 200 * MS)]))
    assert [(entry.rank, entry.local_hit_tokens) for entry in record.requests] == [(0, 0), (1, 0), (0, 160)]


def test_what_can_never_run_is_refused_in_front_of_the_balancer() -> None:
    """A rejected request doesn't count as sent to a rank."""
    _, record = sessions((0, [(3000, 1, 0)]), (1, [(100, 1, 0)]), (1, [(100, 1, 0)]))
    assert [(entry.status, entry.rank) for entry in record.requests] == [
        ("rejected", 0),
        ("finished", 0),
        ("finished", 1),
    ]


def test_capacity_and_totals_are_those_of_all_ranks() -> None:
    """Two ranks have twice the blocks; tokens and steps add up; a rank that idles halves the busy time."""
    _, record = sessions((0, [(200, 1, 0)]))
    totals = record.totals
    assert (totals.num_gpu_blocks, totals.prompt_tokens, totals.steps) == (398, 200, 1)
    assert (totals.gpu_busy_ns, totals.end_ns) == (3 * MS // 2, 3 * MS)
    last = record.series.samples[-1]
    assert (last.prompt_tokens, last.gpu_busy_ns, last.gpu_cached_blocks) == (200, 3 * MS // 2, 12)


@pytest.mark.parametrize("seed", range(6))
def test_every_request_is_accounted_for(seed: int) -> None:
    """Random worlds on three ranks, dense and MoE, with checks at every step: all requests end; twice is the same."""
    rng = random.Random(seed)
    settings, trace = random_config(rng), random_trace(rng)
    settings = settings.model_copy(
        update={
            "engine": settings.engine.model_copy(update={"data_parallel_size": 3}),
            "model": settings.model.model_copy(update={"name": MOE["name"] if seed % 2 else settings.model.name}),
        }
    )
    _, record = run(trace, settings)
    assert len(record.requests) == trace.num_requests
    assert {entry.status for entry in record.requests} <= {"finished", "rejected"}
    assert {entry.rank for entry in record.requests} == {0, 1, 2}
    frame = requests_frame(record)
    assert digest(requests_frame(run(trace, settings)[1])) == digest(frame)


def test_experts_serve_the_tokens_of_all_ranks() -> None:
    """A rank's step takes longer the more tokens the others send to its experts, and as long as its own attention."""
    roofline = Roofline(load_model("gpt-oss-20b"), load_gpu("h100-sxm"), tp=1, ep=4)
    alone, among = (roofline.shared_step_ns([], [1000] * 8, tokens) for tokens in (8, 2000))
    assert alone < among
    assert roofline.shared_step_ns([], [1000] * 8, 32) == pytest.approx(roofline.step_ns([], [1000] * 8), abs=2)


@pytest.mark.parametrize(
    ("connector", "what"),
    [
        ({"kind": "offloading", "cpu_bytes_to_use": "1GiB", "tiers": [{"kind": "fs"}]}, "connector.tiers"),
        ({"kind": "example"}, "connector.kind example"),
    ],
)
def test_ranks_that_share_storage_are_refused(connector: dict[str, Any], what: str) -> None:
    """Storage behind several ranks is an error in one line."""
    with pytest.raises(ConfigError) as error:
        run(sessions_of_one(), config(engine={"data_parallel_size": 2}, connector=connector))
    assert str(error.value) == (
        f"engine.data_parallel_size: 2: expected 1 with {what}: ranks that share storage are not simulated"
    )


def sessions_of_one() -> Trace:
    """A trace of one request."""
    builder = TraceBuilder()
    builder.session("s", [(100, 1, 0)])
    return builder.build()
