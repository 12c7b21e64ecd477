"""Under load the laws do not hold: what helps one request can be in the way of another. Two worlds, and how often."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

from serial import Prompt, at_times, diary, offloading, play
from worlds import MS

from kvsim.config import RunConfig
from kvsim.results.records import RunRecord
from kvsim.trace.session import Trace

BURST_NS = 300 * MS
FLUSH = "".join(map(chr, range(1000, 1030)))  # pushes everything else out of 30 GPU blocks


def e2e_us(record: RunRecord) -> list[int]:
    """End-to-end times of the burst, in order of arrival."""
    return [(entry.finish_ns - entry.arrival_ns) // 1000 for entry in record.requests if entry.arrival_ns >= BURST_NS]


def makespan_us(record: RunRecord) -> int:
    """From the start of the burst to its end."""
    return (max(entry.finish_ns for entry in record.requests) - BURST_NS) // 1000


def test_a_faster_link_makes_a_newcomer_wait() -> None:
    """On a link eight times as fast s2, whose load is over sooner, is ahead of s3, which then waits: 1.3 ms become 3.8.

    The token budget is 64. s2 loads four blocks and computes eight, s3 comes 1 ms later with two blocks. While the slow
    link is at it s3 has the engine to itself. On the fast link s2 takes the whole budget of two steps before s3 has
    its turn. The sum of both times rises as well, from 16.0 to 16.6 ms.
    """
    trace = at_times(
        [
            (0, "ABCD"),
            (200 * MS, FLUSH),
            (BURST_NS + 2 * MS, Prompt("ABCDEFGHIJKL", out=10)),
            (BURST_NS + 3 * MS, "MN"),
        ]
    )
    settings = offloading(200, gpu_blocks=30, engine={"max_num_batched_tokens": 64})
    assert diary(trace, settings, 8, BURST_NS)[:3] == [
        (3000, [("s3", 32)]),
        (4320, [("s2", 64)]),
        (5960, [("s2", 64)]),
    ]
    assert diary(trace, settings, 1, BURST_NS)[:3] == [
        (2171, [("s2", 64)]),
        (3811, [("s2", 64)]),
        (5451, [("s2", 1), ("s3", 32)]),
    ]
    assert e2e_us(play(trace, settings, 8)) == [14_690, 1_320]
    assert e2e_us(play(trace, settings, 1)) == [12_861, 3_781]


def test_a_faster_link_lengthens_the_whole() -> None:
    """On a link eight times as fast everything is over 0.4 ms later, because the two prompts share one step less.

    s3 comes at 2.0 ms. On the slow link s2 computes its prompt until 2.5 ms, and s3 joins the step after it. On the
    fast link s2 is at its first generated token then, whose step ends at 2.9 ms: s3 starts later, and ends alone, one
    step more in all.
    """
    trace = at_times(
        [
            (0, "AB"),
            (200 * MS, FLUSH),
            (BURST_NS, Prompt("ABCDEFG", out=10)),
            (BURST_NS + 2 * MS, Prompt("HIJKLMNO", out=10)),
        ]
    )
    settings = offloading(200, gpu_blocks=30)
    slow, fast = (diary(trace, settings, times, BURST_NS) for times in (8, 1))
    assert slow[:2] == [(703, [("s2", 80)]), (2503, [("s2", 1), ("s3", 128)])]
    assert fast[:3] == [(87, [("s2", 80)]), (1887, [("s2", 1)]), (2897, [("s2", 1), ("s3", 128)])]
    assert (len(slow), len(fast)) == (11, 12)
    assert (makespan_us(play(trace, settings, 8)), makespan_us(play(trace, settings, 1))) == (13_963, 14_347)


def busy_world(seed: int) -> tuple[Trace, Callable[..., RunConfig]]:
    """A few warm prompts, a flush of the GPU, then a burst of three to six prompts within 4 ms; tight limits."""
    rng = random.Random(seed)
    warm = ["".join(map(chr, range(start, start + rng.randint(4, 20)))) for start in (100, 200, 300)]
    arrivals: list[tuple[int, Prompt | str]] = [(i * 50 * MS, word) for i, word in enumerate(warm)]
    arrivals.append((200 * MS, FLUSH))
    for i in range(rng.randint(3, 6)):
        known = rng.choice([*warm, ""])
        new = "".join(map(chr, range(2000 + 20 * i, 2000 + 20 * i + rng.randint(1, 8))))
        word = known[: rng.randint(0, len(known))] + new
        arrivals.append((BURST_NS + rng.randint(0, 4) * MS, Prompt(word, rng.choice([0, 1]), rng.choice([1, 5, 20]))))
    engine = {"max_num_batched_tokens": rng.choice([64, 256, 1024]), "max_num_seqs": rng.choice([2, 8])}
    policy = rng.choice(["lru", "arc"])

    def settings(cpu: int, gpu: int) -> RunConfig:
        connector: dict[str, Any] = {"eviction_policy": policy}
        return offloading(cpu, gpu_blocks=gpu, engine=engine, connector=connector, debug=False)

    return at_times(sorted(arrivals, key=lambda arrival: arrival[0])), settings


def test_more_is_often_worse_for_somebody() -> None:
    """In 60 busy worlds, more of a thing lengthens some request often, everything at times, and costs hits rarely.

    Each compares the same workload, at the same times: 60 CPU blocks, 40 GPU blocks and the H100's link, against a link
    four times as slow, against 45 CPU blocks, against 32 GPU blocks, and against no tier. When this was written it was
    (longer for a request, longer in all, fewer hits): link 11, 4, 1; CPU 28, 6, 0; GPU 20, 2, 1; tier 33, 7, 0.
    """
    found: Counter[tuple[str, str]] = Counter()
    for seed in range(60):
        trace, settings = busy_world(seed)
        after = play(trace, settings(60, 40))
        worse = {
            "link": play(trace, settings(60, 40), 4),
            "cpu": play(trace, settings(45, 40)),
            "gpu": play(trace, settings(60, 32)),
            "tier": play(trace, settings(0, 40)),
        }
        for what, before in worse.items():
            found[what, "a request"] += any(a > b for a, b in zip(e2e_us(after), e2e_us(before), strict=True))
            found[what, "makespan"] += makespan_us(after) > makespan_us(before)
            found[what, "hits"] += hit_tokens(after) < hit_tokens(before)
    for what in ("link", "cpu", "gpu", "tier"):
        assert 5 <= found[what, "a request"] <= 45, found
        assert 1 <= found[what, "makespan"] <= 12, found
        assert found[what, "hits"] <= 3, found


def hit_tokens(record: RunRecord) -> int:
    """Tokens hit by all requests."""
    return sum(entry.local_hit_tokens + entry.external_hit_tokens for entry in record.requests)
