"""Laws about times when requests come one after another, in a fixed order, and every copy is over in between."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st
from serial import Prompt, hits, offloading, one_after_another, play, prompts

from kvsim.results.records import RunRecord

LONGEST = 12 + 2  # blocks of the longest request
TIMES = st.sampled_from([1.0, 3.0, 10.0, 100.0, 1000.0])  # as long as on the H100's link


def e2e_ns(record: RunRecord) -> list[int]:
    """End-to-end time of each request."""
    return [entry.finish_ns - entry.arrival_ns for entry in record.requests]


@settings(max_examples=40)
@given(
    prompts(),
    st.integers(LONGEST, 17),
    st.integers(LONGEST, 28),
    TIMES,
    st.sampled_from([1.5, 2.0, 7.0]),
    st.sampled_from(["0.33.0", "0.23.0"]),
    st.sampled_from([48, 1024]),
)
def test_a_faster_link_never_lengthens_a_request(
    sequence: list[Prompt], gpu: int, cpu: int, times: float, slower: float, version: str, budget: int
) -> None:
    """With all copy times scaled down, every request takes at most as long, and hits the same (LRU).

    It holds for tiers that hold the longest prompt, so that no store is refused while an earlier one of the same
    prompt is on its way. ARC is another matter: in 0.23.0 a chunk that is touched while it is being written stays in
    T1, one that is written moves to T2, so what is evicted depends on the link (in 10 of 60 worlds like these).
    """
    trace = one_after_another(sequence)
    settings_ = offloading(cpu, version, gpu_blocks=gpu, engine={"max_num_batched_tokens": budget})
    slow, fast = (play(trace, settings_, factor) for factor in (times * slower, times))
    assert hits(slow) == hits(fast)
    assert all(one >= other for one, other in zip(e2e_ns(slow), e2e_ns(fast), strict=True))


def test_a_load_takes_as_long_as_the_link_says() -> None:
    """The last prompt is loaded whole: its time falls with the link's, down to that of its one computed token."""
    sequence = ["ABCDEFGHIJ", "KLMNOPQRST", "ABCDEFGHIJ"]
    trace = one_after_another(sequence)
    times = [e2e_ns(play(trace, offloading(40, gpu_blocks=10), times))[2] for times in (1000, 100, 10, 1)]
    instant = e2e_ns(play(trace, offloading(40, gpu_blocks=10, transfer={"kind": "instant"})))[2]
    assert all(before > after for before, after in pairwise([*times, instant]))
    assert instant == 1_010_000  # a step, a token
    assert times[-1] - instant == 4_000 + 20 * 2**20 // 50  # submit, then 10 blocks of 2 MiB at 50 GB/s


@settings(max_examples=40)
@given(prompts(), st.integers(LONGEST, 17), st.integers(LONGEST, 28), st.sampled_from(["0.33.0", "0.23.0"]))
def test_offloading_never_lengthens_a_request_where_loads_beat_computing(
    sequence: list[Prompt], gpu: int, cpu: int, version: str
) -> None:
    """BLIS#1699: a request that hits more is served sooner, by the computing that it saves less the copy.

    A block takes 42 us over the link and 160 us to compute; a load costs 4 us more, and is seen at a step's end.
    """
    trace = one_after_another(sequence)
    engine = {"max_num_batched_tokens": 1024}
    without, with_tier = (play(trace, offloading(size, version, gpu_blocks=gpu, engine=engine)) for size in (0, cpu))
    for (_, external), before, after in zip(hits(with_tier), e2e_ns(without), e2e_ns(with_tier), strict=True):
        blocks = external // 16
        copy_ns = 4_000 + -(-blocks * 2 * 2**20 // 50) if blocks else 0
        assert after <= before
        assert before - after <= blocks * 160_000
        assert abs(before - after - blocks * 160_000 + copy_ns) <= 10_000 * 16


def test_a_faster_link_can_lengthen_a_request_if_a_prompt_exceeds_the_tier() -> None:
    """0.33.0: a link twice as fast costs the last prompt its hit, when the prompt before it does not fit the tier.

    Seven CPU blocks: A, and room for CDEFGH, which the second prompt stores while its second step computes IJ. Chunks
    that are being written cannot be evicted, so IJ is refused in that step. It is offered once more after the end.
    On the fast link CDEFGH is written by then: A and H are evicted for IJ. On the slow one IJ is refused for good, A
    stays, and loading it is quicker than computing it, even on the slow link.
    """
    trace = one_after_another([Prompt("A", rest=1), "CDEFGHIJ", Prompt("A", rest=1)])
    settings_ = offloading(7, gpu_blocks=8, engine={"max_num_batched_tokens": 96}, step_time={"per_step": "1us"})
    slow, fast = (play(trace, settings_, times) for times in (2, 1))
    assert (hits(slow)[2], hits(fast)[2]) == ((0, 16), (0, 0))
    assert (slow.totals.cannot_store, fast.totals.cannot_store) == (2, 1)
    assert (e2e_ns(slow)[2], e2e_ns(fast)[2]) == (102_886, 171_000)
