"""A forward pass that loads and saves KV by itself: layer by layer, with the hooks of a synchronous connector."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from typing import Any

import simpy

from kvsim.clock import Clock
from kvsim.compute import ComputeStream
from kvsim.connectors.base import Awaited, LayerHooks

Steps = Generator[simpy.Event, Any, None]


def forward_by_layer(
    env: Clock, compute: ComputeStream, hooks: LayerHooks, forward_ns: int, wait: Callable[[], Steps]
) -> Steps:
    """One forward pass of ``forward_ns`` of computing, in equal parts for the layers that have KV.

    A layer starts when the one before has ended, what `wait_for_layer_load` names is over, and the host is through
    with `save_kv_layer` of the layer before. The pass is over when all that `wait_for_save` names is over. With loads
    and saves of one layer behind the other on a link of their own this is the pipeline

        compute[i] starts at max(end of compute[i-1], end of load[i], end of what save_kv_layer[i-1] waits for)
        save[i]    starts at max(end of save[i-1], end of compute[i])

    Rules: vLLM 0.33.0 model_executor/layers/attention/kv_transfer_utils.py (the hooks around each attention layer)
    and v1/worker/kv_connector_model_runner_mixin.py (synchronous loads start before the forward pass).

    Args:
        env: the clock.
        compute: where the layers are computed, more slowly while copies take SMs from them.
        hooks: the worker side of the connector.
        forward_ns: time of the pass without any waiting.
        wait: until something on a link has finished (or anything else has happened).
    """

    def wait_each(hook: Iterator[Awaited]) -> Steps:
        for awaited in hook:
            while not awaited.is_done:
                yield from wait()

    yield from wait_each(hooks.before_forward())
    computed_ns = 0
    for layer in range(hooks.num_layers):
        yield from wait_each(hooks.wait_for_layer_load(layer))
        until_ns = forward_ns * (layer + 1) // hooks.num_layers  # parts differ by 1 ns at most; the sum is exact
        yield compute.forward(until_ns - computed_ns)
        computed_ns = until_ns
        yield from wait_each(hooks.save_kv_layer(layer))
    yield from wait_each(hooks.wait_for_save())
    yield env.at(0)  # behind whatever else happens at this instant, as any end of a step
