"""A forward pass that loads and saves its KV: pipelines computed by hand."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from engine_builder import ScriptedConnector, make_request, make_scheduler

from kvsim.clock import Clock
from kvsim.connectors.base import WorkerOutput
from kvsim.engine import Engine
from kvsim.hardware import CopyCost, DuplexLink, Transfer
from kvsim.observer import EngineObserver

SOLO = 1_000_000


class Compute:
    """Every forward pass computes for so long."""

    def __init__(self, forward_ns: int) -> None:
        self._forward_ns = forward_ns

    def step_ns(self, prefill: Any, decode: Any) -> int:
        """See `StepTime`."""
        return self._forward_ns


class Stalls(EngineObserver):
    """Writes down how much longer forward passes took."""

    def __init__(self) -> None:
        self.waits: list[int] = []

    def on_sync_stall(self, waited_ns: int) -> None:
        self.waits.append(waited_ns)


class Pipeline:
    """In the first step, loads and saves each layer in a given time, layer by layer; afterwards nothing."""

    def __init__(
        self, link: DuplexLink, layers: int, load_ns: int, save_ns: int, *, in_front: bool, shared_ppm: int = SOLO
    ) -> None:
        self.num_layers, self._shared_ppm = layers, shared_ppm
        self._link, self._load_ns, self._save_ns, self._in_front = link, load_ns, save_ns, in_front
        self._loads: list[Transfer] = []
        self._saves: list[Transfer] = []
        self.steps = 0

    def _cost(self, alone_ns: int) -> CopyCost:
        return CopyCost(alone_ns, self._shared_ppm)

    def handle_preemptions(self, meta: Any) -> list[Any]:
        return []

    def start_load_kv(self, meta: Any) -> None:
        self.steps += 1

    def is_done(self, job: Transfer) -> bool:
        return job.is_done

    def has_finished(self) -> bool:
        return False

    def get_finished(self) -> WorkerOutput:
        return WorkerOutput()

    def has_layer_work(self) -> bool:
        return self.steps == 1

    def before_forward(self) -> Iterator[Transfer]:
        if self._load_ns:
            self._loads = [self._link.submit("h2d", self._cost(self._load_ns), 1) for _ in range(self.num_layers)]
        if self._in_front:
            yield from self._loads

    def wait_for_layer_load(self, layer: int) -> Iterator[Transfer]:
        yield from self._loads[layer : layer + 1]

    def save_kv_layer(self, layer: int) -> Iterator[Transfer]:
        if self._save_ns:
            self._saves.append(self._link.submit("d2h", self._cost(self._save_ns), 1))
        yield from ()

    def wait_for_save(self) -> Iterator[Transfer]:
        yield from self._saves[-1:]


def first_step(
    forward_ns: int,
    *,
    layers: int,
    load_ns: int,
    save_ns: int,
    in_front: bool = False,
    shared_ppm: int = SOLO,
) -> tuple[int, int]:
    """(end of the step, stall that was told) of one step with such a pipeline."""
    clock, stalls = Clock(), Stalls()
    link = DuplexLink(clock)
    worker = Pipeline(link, layers, load_ns, save_ns, in_front=in_front, shared_ppm=shared_ppm)
    scheduler = make_scheduler(connector=ScriptedConnector())
    engine = Engine(clock, scheduler, Compute(forward_ns), worker, observer=stalls)
    link.on_finish = engine.notify
    ends: list[int] = []
    ended = engine.submit(make_request("a", "a", out=1))
    assert ended.callbacks is not None
    ended.callbacks.append(lambda _event: ends.append(clock.now))
    clock.run()
    return ends[0], sum(stalls.waits)


@pytest.mark.parametrize(
    ("load_ns", "save_ns", "end_ns"),
    [
        # Four layers of 25 ns. Loads end at 10, 20, 30, 40: only the first is waited for.
        (10, 0, 110),
        # Loads end at 40, 80, 120, 160: each layer waits for its own, 25 ns are left after the last.
        (40, 0, 185),
        # Saves start at 25, 50, 75, 100 and end 10 later: the last one hangs over.
        (0, 10, 110),
        # Saves end at 25 + 40 x (1, 2, 3, 4).
        (0, 40, 185),
        # Computing ends at 35, 60, 85, 110; saves end at 75, 115, 155, 195.
        (10, 40, 195),
        # Computing ends at 65, 105, 145, 185; saves end at 75, 115, 155, 195.
        (40, 10, 195),
    ],
)
def test_layers_pipeline(load_ns: int, save_ns: int, end_ns: int) -> None:
    """compute[i] follows compute[i-1] and load[i]; save[i] follows save[i-1] and compute[i]; the last save ends it."""
    assert first_step(100, layers=4, load_ns=load_ns, save_ns=save_ns) == (end_ns, end_ns - 100)


def test_loading_in_front_of_the_forward_pass() -> None:
    """When everything is loaded first nothing overlaps: 4 x 40 ns, then 100 ns."""
    assert first_step(100, layers=4, load_ns=40, save_ns=0, in_front=True) == (260, 160)


def test_layers_need_not_divide_the_step() -> None:
    """101 ns in 4 layers are 25 + 25 + 25 + 26: the parts add up to the nanosecond."""
    assert first_step(101, layers=4, load_ns=0, save_ns=1) == (102, 1)
    assert first_step(101, layers=4, load_ns=25, save_ns=0) == (126, 25)


def test_loads_and_saves_share_the_link() -> None:
    """With both directions at half speed: loads end at 40 and 80 alone; the rest overlaps with saves.

    Two layers of 10 ns. Load 0 ends at 40. Layer 0 is computed until 50 and its save of 40 starts, with 30 of load 1
    left: both at half speed until load 1 ends at 110. Then the save has 10 left, alone, until 120, when layer 1 has
    just been computed; its save ends at 160.
    """
    assert first_step(20, layers=2, load_ns=40, save_ns=40, shared_ppm=500_000) == (160, 140)


def test_a_step_without_work_is_left_alone() -> None:
    """Hooks of a step that neither loads nor saves are not called, and nothing is told."""
    clock, stalls = Clock(), Stalls()
    link = DuplexLink(clock)
    worker = Pipeline(link, 4, 40, 40, in_front=True)
    worker.steps = 1  # the first one is over
    engine = Engine(clock, make_scheduler(connector=ScriptedConnector()), Compute(100), worker, observer=stalls)
    engine.submit(make_request("a", "a", out=3))
    clock.run()
    assert (clock.now, stalls.waits) == (300, [])
