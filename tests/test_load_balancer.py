"""vLLM's internal load balancer: scores, ties, and how old its knowledge may be."""

from __future__ import annotations

from kvsim.clock import Clock
from kvsim.load_balancer import Coordinator, Counts, LoadBalancer, LoadBalancer023

MS = 1_000_000


def test_a_burst_goes_round() -> None:
    """Without news from the ranks, requests are spread evenly: the place of the first look moves on."""
    balancer = LoadBalancer(3)
    assert [balancer.choose() for _ in range(7)] == [0, 1, 2, 0, 1, 2, 0]


def test_requests_in_flight_count_although_the_ranks_say_otherwise() -> None:
    """0.33.0: news that were sent before the requests arrived don't make their rank look empty."""
    balancer = LoadBalancer(2)
    assert balancer.choose() == 0
    balancer.hear([(0, 0, 0.0), (0, 0, 0.0)])
    assert [balancer.score(0), balancer.score(1)] == [1, 0]
    balancer.ended(0)
    assert [balancer.score(0), balancer.score(1)] == [0, 0]


def test_waiting_requests_weigh_more_where_the_cache_is_full() -> None:
    """0.33.0: (waiting + running) + waiting x 6 x (usage - 0.5), nothing below half."""
    balancer = LoadBalancer(3)
    balancer.hear([(2, 3, 0.75), (2, 3, 0.4), (0, 6, 1.0)])
    assert [balancer.score(rank) for rank in range(3)] == [8.0, 5.0, 6.0]
    assert balancer.choose() == 1


def test_0_23_counts_waiting_requests_four_times() -> None:
    """0.23.0: 4 x waiting + running as last heard of, one more for each request sent since; ties to the first rank."""
    balancer = LoadBalancer023(2)
    balancer.hear([(1, 0, 0.9), (0, 4, 0.9)])
    assert [balancer.score(0), balancer.score(1)] == [4, 4]
    assert [balancer.choose() for _ in range(3)] == [0, 1, 0]


def test_news_come_at_most_every_100_ms() -> None:
    """The first change is heard at once, the next ones together after 100 ms, as they were then."""
    clock = Clock()
    heard: list[list[Counts]] = []
    coordinator = Coordinator(clock, 2, heard.append)

    def at(moment: int) -> None:
        clock.run(until=moment * MS)

    coordinator.tell(0, (1, 0, 0.0))
    assert heard == [[(1, 0, 0.0), (0, 0, 0.0)]]
    at(10)
    coordinator.tell(0, (0, 1, 0.1))
    at(60)
    coordinator.tell(1, (1, 0, 0.2))
    coordinator.catch_up()
    assert len(heard) == 1
    at(150)
    coordinator.tell(1, (2, 0, 0.9))
    assert heard[1:] == [[(0, 1, 0.1), (1, 0, 0.2)]]
    at(200)
    coordinator.catch_up()
    assert heard[2:] == [[(0, 1, 0.1), (2, 0, 0.9)]]


def test_unchanged_counts_are_no_news() -> None:
    """A rank whose numbers of requests are the same tells nothing, whatever its cache does."""
    clock = Clock()
    heard: list[list[Counts]] = []
    coordinator = Coordinator(clock, 1, heard.append)
    coordinator.tell(0, (0, 0, 0.7))
    coordinator.catch_up()
    assert heard == []
