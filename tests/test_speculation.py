"""Speculative decoding: how many drafts hold, what that costs and brings, and what EAGLE does to prefix hits."""

from __future__ import annotations

from typing import Any

import pytest
from engine_builder import BLOCK, make_request, scheduled
from worlds import MS, TraceBuilder, config, run

from kvsim.cache.block_pool import BlockPool
from kvsim.cache.kv_cache_manager import KVCacheManager
from kvsim.connectors.base import SchedulerOutput
from kvsim.errors import ConfigError
from kvsim.limits import SchedulerLimits
from kvsim.request import Request
from kvsim.results.records import RunRecord
from kvsim.spec_scheduler import SpeculativeScheduler
from kvsim.speculation import Method, RandomAcceptance, Speculation
from kvsim.steptime.drafting import WithDrafting
from kvsim.steptime.fixed import FixedStep


class Always:
    """So many drafts hold every time."""

    def __init__(self, count: int) -> None:
        self._count = count

    def accepted(self, request: Request, drafts: int) -> int:
        """See `Acceptance`."""
        return min(self._count, drafts)


def make(accepted: int, method: Method = "ngram", drafts: int = 3, num_blocks: int = 101) -> SpeculativeScheduler:
    """A scheduler over blocks of 4 tokens."""
    speculation = Speculation(method, drafts, lookahead_block_hashes=False, acceptance=Always(accepted))
    kv = KVCacheManager(
        BlockPool(num_blocks),
        block_size=BLOCK,
        max_model_len=1000,
        num_lookahead_tokens=speculation.num_lookahead_tokens,
    )
    return SpeculativeScheduler(SchedulerLimits(64, 8, 1000), kv, speculation=speculation)


def step(scheduler: SpeculativeScheduler) -> SchedulerOutput:
    """One step."""
    output = scheduler.schedule()
    scheduler.update_from_output(output, None)
    scheduler.check()
    return output


def test_rejected_drafts_are_rolled_back() -> None:
    """A step computes the last token and three drafts; one holds: two tokens are new, two were in vain."""
    scheduler = make(accepted=1)
    request = make_request("a", prompt=6, out=20)
    scheduler.add_request(request)
    assert scheduled(step(scheduler)) == [("a", 6)]
    assert scheduled(step(scheduler)) == [("a", 4)]
    assert (request.num_output_tokens, request.num_computed_tokens, request.num_tokens) == (3, 8, 9)


def test_what_is_beyond_the_last_token_counts_for_nothing() -> None:
    """With all drafts accepted and two tokens to go, the request ends with two, not with four."""
    scheduler = make(accepted=3)
    request = make_request("a", prompt=6, out=3)
    scheduler.add_request(request)
    step(scheduler)
    step(scheduler)
    assert (request.num_output_tokens, request.is_finished, request.num_computed_tokens) == (3, True, 8)


@pytest.mark.parametrize(("method", "blocks"), [("ngram", 2), ("eagle", 3), ("draft_model", 3)])
def test_drafters_with_kv_get_slots_ahead(method: Method, blocks: int) -> None:
    """A prompt of 6 tokens takes 2 blocks of 4; a drafter that writes 3 positions further takes a third."""
    scheduler = make(accepted=0, method=method)
    request = make_request("a", prompt=6, out=9)
    scheduler.add_request(request)
    scheduler.schedule()
    assert len(scheduler.kv.tables[request]) == blocks


def test_a_draft_model_takes_a_slot_of_the_budget() -> None:
    """A budget of 64 tokens computes 63 of a long prompt."""
    scheduler = make(accepted=0, method="draft_model")
    scheduler.add_request(make_request("a", prompt=200, out=2))
    assert scheduled(scheduler.schedule()) == [("a", 63)]


def test_draws_belong_to_positions() -> None:
    """The same position draws the same for every rate: a higher one accepts at least as many; 0 and 1 are certain."""
    requests = [make_request(f"r{i}", prompt=8 + i, out=9) for i in range(300)]

    def counts(rate: float) -> list[int]:
        return [RandomAcceptance(rate, 1).accepted(request, 4) for request in requests]

    low, high = counts(0.4), counts(0.8)
    assert all(a <= b for a, b in zip(low, high, strict=True))
    assert (set(counts(0.0)), set(counts(1.0))) == ({0}, {4})
    expected = 0.8 + 0.8**2 + 0.8**3 + 0.8**4  # = 2.36
    assert expected - 0.2 < sum(high) / len(high) < expected + 0.2
    assert counts(0.8) != [RandomAcceptance(0.8, 2).accepted(request, 4) for request in requests]


def test_drafting_makes_steps_longer() -> None:
    """Both methods of the step-time model agree, and an empty step takes no time."""
    model = WithDrafting(FixedStep(100, 1), 7)
    assert (model.step_ns([], [9, 9]), model.step_ns([], []), model.window_ns([9, 9], 3)) == (109, 0, 327)


def play(rate: float | None, **speculative: Any) -> RunRecord:
    """Two requests that generate 200 tokens each."""
    builder = TraceBuilder()
    builder.session("s", [(300, 200, 0)])
    builder.session("t", [(500, 200, 0)])
    wanted = {"method": "ngram", "acceptance_rate": rate, **speculative}
    settings = config(engine={} if rate is None else {"speculative": wanted})
    return run(builder.build(), settings)[1]


def tpot_ns(record: RunRecord) -> float:
    """Time per output token of the first request."""
    entry = record.requests[0]
    return (entry.finish_ns - entry.first_token_ns) / (entry.output_tokens - 1)


def test_tpot_improves_with_acceptance() -> None:
    """Useless drafts cost time, good ones save steps: with all three accepted a quarter of the decode steps is left."""
    plain, useless, fair, perfect = (play(rate) for rate in (None, 0.0, 0.7, 1.0))
    assert tpot_ns(useless) > tpot_ns(plain) > tpot_ns(fair) > tpot_ns(perfect)
    assert (plain.totals.steps, useless.totals.steps) == (203, 203)
    assert perfect.totals.steps == 54
    assert {entry.output_tokens for entry in fair.requests} == {200}
    assert perfect.notes[-1] == "speculative decoding: 300 of 300 drafts were accepted"


def test_drafting_takes_its_time() -> None:
    """A millisecond of drafting per step makes the run longer by its steps."""
    fast, slow = play(0.7), play(0.7, draft_time="1ms")
    assert slow.totals.end_ns - fast.totals.end_ns == fast.totals.steps * MS


@pytest.mark.parametrize(
    ("prefix_tokens", "lookahead", "hit"),
    [(1600, False, 0), (3071, False, 0), (3080, False, 1536), (1536, True, 0), (1600, True, 1536), (3080, True, 3072)],
)
def test_vllm_ascend_16639_eagle_drops_short_prefixes(prefix_tokens: int, *, lookahead: bool, hit: int) -> None:
    """EAGLE with blocks of 1,536 tokens: what two prompts share is of no use below 3,072 tokens.

    The last block of a hit is computed again. Since vLLM 0.33.0 hashes cover the next token instead (without a
    connector), and one block is enough.
    """
    builder = TraceBuilder()
    builder.common_prefix(prefix_tokens)
    builder.session("a", [(100, 2, 0)], start_ns=0)
    builder.session("b", [(100, 2, 0)], start_ns=500 * MS)
    engine = {
        "block_size": 1536,
        "num_gpu_blocks_override": 20,
        "max_model_len": 8192,
        "max_num_batched_tokens": 8192,
        "speculative": {"method": "eagle", "lookahead_block_hashes": lookahead},
    }
    _, record = run(builder.build(), config(engine=engine))
    assert [entry.local_hit_tokens for entry in record.requests] == [0, hit]


def test_eagle_with_a_connector_is_refused() -> None:
    """The connectors have rules of their own for EAGLE, which are not simulated."""
    builder = TraceBuilder()
    builder.session("s", [(30, 2, 0)])
    settings = config(
        engine={"speculative": {"method": "eagle"}}, connector={"kind": "offloading", "cpu_bytes_to_use": "1GiB"}
    )
    with pytest.raises(ConfigError, match="expected ngram or draft_model with connector offloading"):
        run(builder.build(), settings)


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("kind", ["none", "offloading", "simple_cpu"])
def test_drafts_and_connectors(kind: str, *, asynchronous: bool) -> None:
    """With scarce blocks, in both modes and with every connector, every request gets its tokens and nothing leaks."""
    builder = TraceBuilder()
    for name in "abcd":
        builder.session(name, [(300, 60, 0), (100, 60, 0)])
    settings = config(
        engine={
            "num_gpu_blocks_override": 70,
            "async_scheduling": asynchronous,
            "speculative": {"method": "draft_model", "num_speculative_tokens": 5},
        },
        connector={"kind": kind} | ({} if kind == "none" else {"cpu_bytes_to_use": "1GiB"}),
    )
    _, record = run(builder.build(), settings)
    assert [(entry.status, entry.output_tokens) for entry in record.requests] == [("finished", 60)] * 8
