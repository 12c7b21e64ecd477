"""Synthetic coding-agent sessions that look like the published Codex runs on SWE-bench Pro.

Published (vLLM and Mooncake blog of 2026-05-06), and reproduced by the defaults: 610 sessions, median 33
turns; first context 12 K tokens, about 80 K at turn 30, above 180 K at most; 2,242 tokens more context per
turn, the previous answer included; input to output 131 to 1; 94.2 % of the prompt tokens found in an
unlimited prefix cache; time between turns 5.2 s in the median and 81.4 s at P99.

Our choice, because nothing is published: how turns, first contexts, pace and answers spread; that 8 K tokens
of the first context are the same for all (system prompt and tools); exponential tool results; and that 3.6 %
of the turns rewrite their history behind a random point without shortening it. Only the last one brings the
hit rate from 95.7 % down to the published one; in 60 recorded sessions of another agent 2.7 % of the turns
keep less than nine tenths of the previous prompt.

Draws that decide a whole session (turns, pace, first context) are stratified: every session gets another
quantile of the distribution, in random order. So few sessions already have the right median and spread.
"""

from __future__ import annotations

import gzip
import io
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from statistics import NormalDist

from kvsim.errors import UserError
from kvsim.trace.sessions import SessionLengths, TurnLengths, write_sessions

_NORMAL = NormalDist()
_P99 = 2.3263478740408408  # 99 % quantile of the standard normal distribution


@dataclass(frozen=True, slots=True)
class GeneratorParameters:
    """What the sessions look like; defaults as in the module's description.

    Attributes:
        sessions: how many.
        seed: of the random numbers; the same seed gives the same bytes.
        median_turns: turns per session, log-normal.
        turns_sigma: its sigma.
        first_context_tokens: mean length of a session's first prompt.
        shared_prefix_tokens: part of it that all sessions have in common.
        first_context_sigma: sigma of the rest of it, log-normal.
        added_tokens: mean growth of the context per turn: the previous answer and what a tool returned.
        pace_sigma: sigma of a session's own factor on its growth, log-normal with mean 1.
        input_output_ratio: prompt tokens per generated token, over all requests.
        answer_sigma: sigma of the answer's length, log-normal.
        think_median_s: time between a response and the next prompt, log-normal.
        think_p99_s: its 99th percentile.
        rewrite_share: share of turns that keep only a random part of the previous prompt: the shared prefix
            and a uniform share of the rest.
    """

    sessions: int = 610
    seed: int = 0
    median_turns: int = 33
    turns_sigma: float = 0.30
    first_context_tokens: int = 12_000
    shared_prefix_tokens: int = 8_000
    first_context_sigma: float = 0.5
    added_tokens: int = 2_242
    pace_sigma: float = 0.25
    input_output_ratio: float = 131.0
    answer_sigma: float = 0.8
    think_median_s: float = 5.2
    think_p99_s: float = 81.4
    rewrite_share: float = 0.036

    def check(self) -> None:
        """Raises a `UserError` for the first parameter that makes no sense."""
        _within("sessions", self.sessions, 1, 1_000_000)
        _within("median_turns", self.median_turns, 1, 100_000)
        _within("first_context_tokens", self.first_context_tokens, 1, 10_000_000)
        _within("shared_prefix_tokens", self.shared_prefix_tokens, 0, self.first_context_tokens - 1)
        _within("added_tokens", self.added_tokens, 1, 1_000_000)
        _within("input_output_ratio", self.input_output_ratio, 0.01, 1e6)
        _within("think_median_s", self.think_median_s, 0.001, 1e6)
        _within("think_p99_s", self.think_p99_s, self.think_median_s, 1e7)
        _within("rewrite_share", self.rewrite_share, 0, 1)
        for name in ("turns_sigma", "first_context_sigma", "pace_sigma", "answer_sigma"):
            _within(name, getattr(self, name), 0, 3)


def generate(parameters: GeneratorParameters) -> list[SessionLengths]:
    """Draws the sessions.

    Raises:
        UserError: a parameter makes no sense, or the answers alone would exceed the growth of the context.
    """
    parameters.check()
    p = parameters
    draw = _Draw(p.seed)
    turns = [max(1, round(p.median_turns * math.exp(p.turns_sigma * z))) for z in draw.stratified(p.sessions)]
    paces = [_log_normal(p.pace_sigma, z) for z in draw.stratified(p.sessions)]
    own_tokens = p.first_context_tokens - p.shared_prefix_tokens
    first = [max(1, round(own_tokens * _log_normal(p.first_context_sigma, z))) for z in draw.stratified(p.sessions)]
    # The ratio fixes the mean answer: expected prompt tokens, by the length and pace of every session.
    expected = sum(
        count * (p.shared_prefix_tokens + own) + pace * p.added_tokens * count * (count - 1) / 2
        for count, pace, own in zip(turns, paces, first, strict=True)
    )
    answer_tokens = expected / p.input_output_ratio / sum(turns)
    if answer_tokens > p.added_tokens:
        raise UserError(
            f"input_output_ratio is {p.input_output_ratio:g}, so {answer_tokens:,.0f} tokens per answer; "
            f"expected at most added_tokens = {p.added_tokens:,}, which include the answer"
        )
    digits = len(str(p.sessions - 1))
    return [
        SessionLengths(
            f"s{number:0{digits}}",
            _session(p, draw, count=count, pace=pace, own=own, answer_tokens=answer_tokens),
        )
        for number, (count, pace, own) in enumerate(zip(turns, paces, first, strict=True))
    ]


def trace_text(parameters: GeneratorParameters) -> str:
    """A whole trace file in the session format."""
    origin = {"generator": "swe-bench-like", **asdict(parameters)}
    lines = write_sessions(generate(parameters), shared_prefix_tokens=parameters.shared_prefix_tokens, origin=origin)
    return "".join(lines)


def write_trace(path: Path, parameters: GeneratorParameters) -> None:
    """Writes a trace file, packed if its name ends in ``.gz``; the same parameters give the same bytes."""
    data = trace_text(parameters).encode()
    if path.name.endswith(".gz"):
        packed = io.BytesIO()
        # No name and no time in the gzip header, which would differ from run to run.
        with gzip.GzipFile(filename="", mode="wb", fileobj=packed, compresslevel=9, mtime=0) as stream:
            stream.write(data)
        data = packed.getvalue()
    try:
        path.write_bytes(data)
    except OSError as error:
        raise UserError(f"{path}: cannot be written ({error.strerror}), expected a writable place") from error


def _session(
    p: GeneratorParameters, draw: _Draw, *, count: int, pace: float, own: int, answer_tokens: float
) -> tuple[TurnLengths, ...]:
    think_sigma = math.log(p.think_p99_s / p.think_median_s) / _P99
    result_tokens = p.added_tokens - answer_tokens
    turns: list[TurnLengths] = []
    for place in range(count):
        think_ms = 0
        keep, new = p.shared_prefix_tokens, own
        if place:
            before = turns[-1]
            think_ms = max(1, round(1000 * p.think_median_s * math.exp(think_sigma * draw.normal())))
            keep = before.input_tokens + before.output_tokens
            new = max(1, round(pace * result_tokens * draw.exponential()))
            if draw.uniform() < p.rewrite_share:
                length = keep + new
                common = p.shared_prefix_tokens
                keep = common + int((before.input_tokens - common) * draw.uniform())
                new = length - keep
        answer = max(1, round(pace * answer_tokens * _log_normal(p.answer_sigma, draw.normal())))
        turns.append(TurnLengths(keep, new, answer, think_ms))
    return tuple(turns)


class _Draw:
    """Random numbers from `Random.random` alone, the one method whose sequence Python promises to keep."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def uniform(self) -> float:
        return self._random.random()

    def normal(self) -> float:
        return _NORMAL.inv_cdf(max(self._random.random(), 1e-12))

    def exponential(self) -> float:
        return -math.log(1.0 - self._random.random())

    def stratified(self, count: int) -> Sequence[float]:
        """One standard normal quantile per stratum, in random order."""
        order = sorted((self._random.random(), place) for place in range(count))
        return [_NORMAL.inv_cdf((place + 0.5) / count) for _, place in order]


def _log_normal(sigma: float, z: float) -> float:
    """Log-normal value with mean 1 at quantile `z`."""
    return math.exp(sigma * z - sigma * sigma / 2)


def _within(name: str, value: float, low: float, high: float) -> None:
    if not low <= value <= high:
        raise UserError(f"{name} is {value:g}, expected {low:g} to {high:g}")
