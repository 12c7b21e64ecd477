"""Step time from the roofline of a model on a GPU: fast, no tables, exact sums over decode windows.

One step over n tokens of R requests costs, in float seconds,

    step + request * R + slack * ( layers * (GEMM + ELEM + 2 ALLREDUCE) + moe_layers * MOE + HEAD
                                   + prefill attention of each chunk + decode attention )

Every component is a roofline (a smooth maximum of compute and memory time) plus a fixed time per kernel.
Decode attention is linear in the summed contexts and everything else depends on the batch size alone. So a
pure decode step is kept as integers, ``base(R) + sum over attention groups of rate * attended tokens`` in
units of 2**-40 ns, rounded to nanoseconds once; and the sum of k such steps, whose contexts grow by one each,
is a sum of floors of a line, for which there is an exact logarithmic algorithm (:func:`floor_sum`).

Sources of the form: roofline model (Williams, Waterman, Patterson 2009); distinct experts touched by n tokens
with gamma-distributed popularity; all-reduce as latency plus 2 (p-1)/p bytes over bandwidth.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvsim.errors import UserError
from kvsim.steptime.gpu import GpuSpec
from kvsim.steptime.kernels import Kernels
from kvsim.steptime.spec import ModelSpec

_SHIFT = 40  # fixed point: 2**-40 ns; a rate of 1e-3 ns per token keeps nine digits
_ONE = 1 << _SHIFT
_HALF = _ONE >> 1
_NS = 1e9
_MAX_CACHED = 1 << 17  # batch shapes of mixed steps kept; the cache starts anew beyond it
_SHORT_WINDOW = 6  # steps up to which adding them one by one is faster than the closed form


class Roofline:
    """Step times of one model on ``tp`` GPUs of one kind (one vLLM engine, one pipeline stage).

    Args:
        model: dimensions and dtypes.
        gpu: peaks and constants; ``gpu.fidelity`` says how far to trust them.
        tp: tensor-parallel ranks; every figure is that of one rank, all ranks run alike.
        ep: expert-parallel ranks; 1 = experts are sliced like everything else. ``ep`` = ``tp`` moves the same
            bytes. ``ep`` > ``tp`` means data-parallel attention over ``ep / tp`` engines with the same batch
            each. No load imbalance and no all-to-all time is modelled.
        factor: on every step time: measured over predicted, where somebody has measured.

    Raises:
        UserError: the heads cannot be sharded over ``tp`` ranks, or ``ep`` is not a multiple of ``tp``.
    """

    def __init__(self, model: ModelSpec, gpu: GpuSpec, tp: int = 1, ep: int = 1, factor: float = 1.0) -> None:
        model.check_tp(tp)
        if ep < 1 or (ep > 1 and (ep % tp or not model.moe)):
            raise UserError(
                f"expert_parallel_size: {ep}: expected 1, or a multiple of tensor_parallel_size {tp} for a"
                f" model with experts ({model.name} has {model.moe.experts if model.moe else 0})"
            )
        self.model, self.gpu, self.tp, self.ep = model, gpu, tp, ep
        self._kernels = Kernels(model, gpu, tp, ep)
        self._factor = factor
        self._scale = scale = factor * gpu.host.slack * _NS * _ONE
        full = 0  # every layer that attends to the whole context has the same unit: one token of context
        windows: dict[int, int] = {}
        for group in model.groups:
            if group.kind == "linear":
                continue
            rate = round(scale * group.layers * self._kernels.decode_attention_per_token(group))
            if group.kind == "sliding":
                windows[group.window] = windows.get(group.window, 0) + rate
            else:
                full += rate
        self._full_rate = full
        self._window_rates = tuple(sorted(windows.items()))
        # batch size -> everything but attention, half a nanosecond for rounding included
        self._decode_base: dict[int, int] = {}
        self._hosts: dict[int, int] = {}  # batch size -> host time
        # (tokens, requests) -> the same of a mixed step, in seconds and without attention
        self._linear: dict[tuple[int, int], float] = {}

    # ---- the methods of StepTimeModel

    @property
    def contexts_add_up(self) -> bool:
        """See :class:`~kvsim.steptime.base.StepTimeModel`: not where a layer's window caps what a request attends."""
        return not self._window_rates

    def step_ns(self, prefill: Sequence[tuple[int, int]], decode: Sequence[int]) -> int:
        """See :class:`~kvsim.steptime.base.StepTimeModel`."""
        rows = len(decode)
        if not prefill:
            return (self._base(rows) + self._attention(decode)) >> _SHIFT if rows else 0
        chunks, tokens = self._chunks(prefill, rows)
        rows += len(prefill)
        fixed = round(self._scale * (chunks + self._rest(tokens, rows))) + self._host(rows)
        return (fixed + self._attention(decode) + _HALF) >> _SHIFT

    def shared_step_ns(self, prefill: Sequence[tuple[int, int]], decode: Sequence[int], all_tokens: int) -> int:
        """See :class:`~kvsim.steptime.base.StepTimeModel`. No load imbalance, no all-to-all time."""
        rows = len(decode)
        if not prefill and not rows:
            return 0
        chunks, tokens = self._chunks(prefill, rows)
        rows += len(prefill)
        rest = self._kernels.all_but_attention(tokens, rows, all_tokens)
        return (round(self._scale * (chunks + rest)) + self._host(rows) + self._attention(decode) + _HALF) >> _SHIFT

    def window_ns(self, decode: Sequence[int], k: int) -> int:
        """See :class:`~kvsim.steptime.base.StepTimeModel`."""
        rows = len(decode)
        if not rows or k <= 0:
            return 0
        start = self._base(rows) + self._attention(decode)
        slope = self._full_rate * rows
        bends: list[tuple[int, int]] = []  # (step from which a request has filled the window, rate it stops adding)
        for window, rate in self._window_rates:
            for context in decode:
                room = window - context
                if room > 0:
                    slope += rate
                    if room < k:
                        bends.append((room, rate))
        if not bends:
            return _sum_of_line(start, slope, k)
        bends.sort()
        total, at = 0, 0
        for bend, rate in bends:
            if bend > at:
                total += _sum_of_line(start, slope, bend - at)
                start += slope * (bend - at)
                at = bend
            slope -= rate
        return total + _sum_of_line(start, slope, k - at)

    def steps_ns(self, decode: Sequence[int], k: int) -> list[int]:
        """See :class:`~kvsim.steptime.base.StepTimeModel`."""
        rows = len(decode)
        if self._window_rates or not rows:
            return [self.step_ns((), [context + i for context in decode]) for i in range(k)]
        start, slope = self._base(rows) + self._attention(decode), self._full_rate * rows
        return [(start + slope * i) >> _SHIFT for i in range(k)]

    # ---- parts, in fixed point

    def _attention(self, decode: Sequence[int]) -> int:
        """Decode attention: linear in the tokens attended, window by window."""
        total = self._full_rate * sum(decode) if self._full_rate else 0
        for window, rate in self._window_rates:
            total += rate * sum([min(window, c) for c in decode])
        return total

    def _chunks(self, prefill: Sequence[tuple[int, int]], rows: int) -> tuple[float, int]:
        """(seconds of attention but for the decoding contexts, tokens) of a batch with ``rows`` decoding requests."""
        chunks = self._kernels.prefill_attention_fixed() if prefill else 0.0
        tokens = rows
        for new, computed in prefill:
            tokens += new
            chunks += self._kernels.prefill_attention(new, computed)
        return chunks + (self._kernels.decode_attention_fixed(rows) if rows else 0.0), tokens

    def _base(self, rows: int) -> int:
        """Everything in a pure decode step that does not depend on the contexts, plus half a nanosecond."""
        base = self._decode_base.get(rows)
        if base is None:
            seconds = self._kernels.decode_attention_fixed(rows) + self._rest(rows, rows)
            base = round(self._scale * seconds) + self._host(rows) + _HALF
            self._decode_base[rows] = base
        return base

    def _rest(self, tokens: int, rows: int) -> float:
        key = (tokens, rows)
        seconds = self._linear.get(key)
        if seconds is None:
            if len(self._linear) >= _MAX_CACHED:
                self._linear.clear()
            seconds = self._linear[key] = self._kernels.all_but_attention(tokens, rows)
        return seconds

    def _host(self, rows: int) -> int:
        cached = self._hosts.get(rows)
        if cached is None:
            host = self.gpu.host
            cached = self._hosts[rows] = round(self._factor * (host.step_us + host.request_us * rows) * 1e3 * _ONE)
        return cached


def floor_sum(n: int, m: int, a: int, b: int) -> int:
    """Sum of floor((a * i + b) / m) for i = 0 .. n-1, for a, b >= 0 and m > 0, in O(log) steps.

    Counts lattice points under a line; swapping the axes turns (a, m) into (m, a mod m), as in Euclid's
    algorithm (see e.g. Graham, Knuth, Patashnik, Concrete Mathematics, 3.5).
    """
    total = 0
    while n > 0:
        total += (n - 1) * n // 2 * (a // m) + n * (b // m)
        a %= m
        b %= m
        top = a * n + b
        if top < m:
            break
        n, b = divmod(top, m)
        a, m = m, a
    return total


def _sum_of_line(start: int, slope: int, k: int) -> int:
    """Sum of (start + slope * i) >> _SHIFT for i = 0 .. k-1."""
    if k <= _SHORT_WINDOW:
        return sum([(start + slope * i) >> _SHIFT for i in range(k)])
    return floor_sum(k, _ONE, slope, start)
