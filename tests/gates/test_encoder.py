"""Encoder budget and cache: where a prompt's chunk ends before an image, and which embeddings are kept."""

from __future__ import annotations

import pytest
from engine_builder import make_request, make_scheduler, scheduled, step

from kvsim.demands import Demands, EncoderInput
from kvsim.gates.encoder import EncoderGate, EncoderGate023
from kvsim.gates.encoder_cache import EncoderCache, EncoderCache023
from kvsim.request import Request
from kvsim.scheduler import Scheduler
from kvsim.scheduler_023 import Scheduler023


def with_images(name: str, *images: tuple[str, int, int], prompt: int = 100, out: int = 1) -> Request:
    """A prompt with images (identity, first token, tokens)."""
    content = make_request(name, prompt=prompt).content
    return Request(
        name,
        content,
        block_size=4,
        num_prompt_tokens=prompt,
        max_tokens=out,
        arrival=0,
        demands=Demands(encoder_inputs=tuple(EncoderInput(*image) for image in images)),
    )


def chunks(scheduler: Scheduler, steps: int) -> list[list[tuple[str, int]]]:
    """What each of the next steps computes."""
    return [scheduled(step(scheduler)[0]) for _ in range(steps)]


def test_a_chunk_ends_before_an_image_that_exceeds_the_budget() -> None:
    """Two images of 20 with a budget of 30: the first step stops before the second image, the next computes it."""
    scheduler = make_scheduler(gates=EncoderGate(EncoderCache(100), 30), max_num_batched_tokens=200)
    scheduler.add_request(with_images("a", ("x", 10, 20), ("y", 50, 20)))
    first = scheduler.schedule()
    assert (scheduled(first), first.encoder_tokens) == ([("a", 50)], 20)
    scheduler.update_from_output(first, None)
    second = scheduler.schedule()
    assert (scheduled(second), second.encoder_tokens) == ([("a", 50)], 20)


def test_the_budget_is_shared_by_the_requests_of_a_step() -> None:
    """What the first request's image takes, the second's lacks: its chunk ends before its image."""
    scheduler = make_scheduler(gates=EncoderGate(EncoderCache(100), 30), max_num_batched_tokens=200)
    scheduler.add_request(with_images("a", ("x", 10, 20), prompt=40))
    scheduler.add_request(with_images("b", ("y", 10, 20), prompt=40))
    assert chunks(scheduler, 2) == [[("a", 40), ("b", 10)], [("b", 30)]]


def test_what_stands_in_the_cache_costs_no_budget() -> None:
    """The same image in another prompt is not computed again, though the budget would not allow for both."""
    scheduler = make_scheduler(gates=EncoderGate(EncoderCache(100), 20), max_num_batched_tokens=200)
    scheduler.add_request(with_images("a", ("x", 10, 20), prompt=40))
    scheduler.add_request(with_images("b", ("x", 10, 20), prompt=40))
    assert chunks(scheduler, 1) == [[("a", 40), ("b", 40)]]


@pytest.mark.parametrize(
    ("release", "gate", "cache", "expected"),
    [
        (Scheduler, EncoderGate, EncoderCache, [("a", 30), ("plain", 8)]),
        (Scheduler023, EncoderGate023, EncoderCache023, [("a", 30)]),
    ],
)
def test_a_request_that_may_compute_nothing(
    release: type[Scheduler],
    gate: type[EncoderGate],
    cache: type[EncoderCache],
    expected: list[tuple[str, int]],
) -> None:
    """A prompt that begins with an image without budget is skipped in 0.33.0, and ends the scan in 0.23.0."""
    scheduler = make_scheduler(release, gates=gate(cache(100), 20), max_num_batched_tokens=200)
    scheduler.add_request(with_images("a", ("x", 10, 20), prompt=30))
    scheduler.add_request(with_images("b", ("y", 0, 20), prompt=30))
    scheduler.add_request(make_request("plain", prompt=8))
    assert chunks(scheduler, 1) == [expected]


def test_a_whole_image_or_none() -> None:
    """disable_chunked_mm_input: a step of 64 tokens that would cut the image at 50..80 ends at 50."""
    scheduler = make_scheduler(gates=EncoderGate(EncoderCache(100), 64, whole_inputs=True))
    scheduler.add_request(with_images("a", ("x", 50, 30)))
    assert chunks(scheduler, 2) == [[("a", 50)], [("a", 50)]]
    scheduler = make_scheduler(gates=EncoderGate(EncoderCache(100), 64))
    scheduler.add_request(with_images("a", ("x", 50, 30)))
    assert chunks(scheduler, 2) == [[("a", 64)], [("a", 36)]]


def test_embeddings_are_kept_until_the_image_is_computed() -> None:
    """A cache of 30: the second image of 20 has to wait until the first, cut by the step's end, is computed."""
    cache = EncoderCache(30)
    scheduler = make_scheduler(gates=EncoderGate(cache, 64), max_num_batched_tokens=20)
    scheduler.add_request(with_images("a", ("x", 10, 20), ("y", 30, 20), prompt=60))
    assert chunks(scheduler, 4) == [[("a", 20)], [("a", 10)], [("a", 20)], [("a", 10)]]
    assert cache.take_evicted() == ["x"]
    cache.check(at_end=True)


def test_the_cache_evicts_what_was_released_first() -> None:
    """Nobody's embeddings go in the order of their release, and only as far as room is needed."""
    cache = EncoderCache(60)
    request = with_images("a", ("x", 0, 20), ("y", 20, 20), ("z", 40, 20))
    for index in range(3):
        cache.add(request, index)
    assert not cache.make_room(1)
    request.num_computed_tokens = 40
    cache.release_computed(request)
    assert (cache.free_tokens, cache.reclaimable_tokens) == (0, 40)
    assert cache.make_room(20)
    assert cache.take_evicted() == ["x"]
    assert cache.hold(request, 1)
    assert not cache.make_room(40)
    cache.check()


@pytest.mark.parametrize(("cache", "reclaimable"), [(EncoderCache(50), 30), (EncoderCache023(50), 50)])
def test_a_repeated_image_is_kept_for_its_last_position(cache: EncoderCache, reclaimable: int) -> None:
    """In 0.33.0 the first of two computed positions doesn't release the image; in 0.23.0 it does."""
    request = with_images("a", ("x", 0, 20), ("x", 60, 20))
    cache.add(request, 0)
    cache.hold(request, 1)
    request.num_computed_tokens = 30
    cache.release_computed(request)
    assert cache.reclaimable_tokens == reclaimable
