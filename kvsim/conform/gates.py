"""A scenario's adapters, grammars and images, for the reference engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsim.clock import Clock
from kvsim.demands import Demands, EncoderInput
from kvsim.gates.base import Gate, Gates
from kvsim.gates.encoder import EncoderGate
from kvsim.gates.grammar import GrammarGate
from kvsim.gates.loras import LoraGate
from kvsim.gates.streaming import StreamingGate
from kvsim.releases import Release
from kvsim.request import Request


class StepCompiler:
    """Compiles grammars on a clock of steps: a grammar is called ``request:steps`` and takes so many steps."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: dict[Request, int] = {}

    def compile(self, request: Request) -> None:
        """See `kvsim.gates.grammar.Compiler`."""
        self._due[request] = self._clock.now + int(request.demands.grammar.rpartition(":")[2])

    def is_ready(self, request: Request) -> bool:
        """Whether its step has come."""
        return self._due[request] <= self._clock.now


def build_gates(options: Mapping[str, Any], release: Release, clock: Clock) -> tuple[Gate, EncoderGate | None]:
    """The gates of a scenario, and among them the one whose decisions are recorded."""
    gates: list[Gate] = [StreamingGate(), GrammarGate(StepCompiler(clock))]
    encoder = None
    if options["max_loras"] is not None:
        gates.append(LoraGate(options["max_loras"]))
    if options["encoder_budget"] is not None:
        budget = options["encoder_budget"]
        cache = release.encoder_cache(options["encoder_cache"] or budget)
        encoder = release.encoder_gate(cache, budget, whole_inputs=options["disable_chunked_mm_input"])
        gates.append(encoder)
    return Gates(gates), encoder


def demands_of(spec: Mapping[str, Any], turn: int, request_id: str, system_tokens: int) -> Demands:
    """What a turn of a scenario session asks for: its own grammar, and all images up to it."""
    steps = dict(spec.get("grammars", ())).get(turn)
    before = [system_tokens]  # tokens before each turn's own ones
    for user, out in spec["turns"]:
        before.append(before[-1] + user + out)
    images = sorted(image for image in spec.get("images", ()) if image[0] <= turn)
    return Demands(
        adapter=spec.get("lora", 0),
        grammar="" if steps is None else f"{request_id}:{steps}",
        encoder_inputs=tuple(EncoderInput(name, before[at] + start, tokens) for at, start, tokens, name in images),
        resumable=spec.get("streaming", False),
    )
