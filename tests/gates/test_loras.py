"""max_loras: whose turn it is when the batch has no place for another adapter."""

from __future__ import annotations

from dataclasses import replace

import pytest
from engine_builder import ids, make_request, make_scheduler, scheduled, step

from kvsim.demands import AdapterContent, Demands
from kvsim.gates.loras import LoraGate
from kvsim.request import Request
from kvsim.scheduler import Scheduler
from kvsim.scheduler_023 import Scheduler023


def with_adapter(name: str, adapter: int, *, out: int = 3) -> Request:
    """A prompt of 8 tokens for an adapter (0 = the base model)."""
    plain = make_request(name, prompt=8, out=out)
    return Request(
        name,
        plain.content,
        block_size=4,
        num_prompt_tokens=8,
        max_tokens=out,
        arrival=0,
        demands=replace(Demands(), adapter=adapter),
    )


@pytest.mark.parametrize("release", [Scheduler, Scheduler023])
def test_another_adapter_waits_and_others_pass_it(release: type[Scheduler]) -> None:
    """With one adapter in the batch, the second one is skipped; the first one again and the base model are admitted."""
    scheduler = make_scheduler(release, gates=LoraGate(1))
    for name, adapter in (("a", 1), ("b", 2), ("c", 1), ("base", 0)):
        scheduler.add_request(with_adapter(name, adapter))
    assert scheduled(step(scheduler)[0]) == [("a", 8), ("c", 8), ("base", 8)]
    assert ids(scheduler.waiting) == ["b"]


def test_the_adapter_is_admitted_when_the_last_request_of_the_other_has_ended() -> None:
    """``b`` waits for ``a`` and ``c`` to end and is then the first of the queue."""
    scheduler = make_scheduler(gates=LoraGate(1))
    for name, adapter, out in (("a", 1, 1), ("b", 2, 1), ("c", 1, 2), ("d", 2, 1)):
        scheduler.add_request(with_adapter(name, adapter, out=out))
    steps = [scheduled(step(scheduler)[0]) for _ in range(3)]
    assert steps == [[("a", 8), ("c", 8)], [("c", 1)], [("b", 8), ("d", 8)]]


def test_two_places_take_two_adapters() -> None:
    """max_loras 2 admits two adapters and skips the third."""
    scheduler = make_scheduler(gates=LoraGate(2))
    for name, adapter in (("a", 1), ("b", 2), ("c", 3)):
        scheduler.add_request(with_adapter(name, adapter))
    assert scheduled(step(scheduler)[0]) == [("a", 8), ("b", 8)]


def test_adapters_never_share_blocks() -> None:
    """The same tokens under two adapters have no block hash in common; under one adapter all of them."""
    content = make_request("x", "abc").content
    one, two = AdapterContent(content, 1), AdapterContent(content, 2)
    assert one.block_hashes(0, 3) == AdapterContent(content, 1).block_hashes(0, 3)
    assert not set(one.block_hashes(0, 3)) & set(two.block_hashes(0, 3))
    assert not set(one.block_hashes(0, 3)) & set(content.block_hashes(0, 3))
