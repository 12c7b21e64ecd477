"""Gates of a run: what its config and its trace ask for, and the objects that it takes."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.clock import Clock
from kvsim.config import RunConfig
from kvsim.errors import UserError
from kvsim.gates.base import Gate, Gates
from kvsim.gates.grammar import GrammarGate, ThreadPoolCompiler
from kvsim.gates.loras import LoraGate
from kvsim.gates.streaming import StreamingGate
from kvsim.limits import SchedulerLimits
from kvsim.releases import Release
from kvsim.trace.demands import Demanded, Wishes, settle
from kvsim.trace.session import Trace


@dataclass(frozen=True, slots=True)
class GatePlan:
    """Sizes of the gates; a gate that no request asks about has size 0 and is not built."""

    max_loras: int = 0
    grammars: int = 0  # requests with one
    streaming: bool = False
    compile_ns: int = 0
    compile_threads: int = 1
    cache_grammars: bool = True
    encoder_budget_tokens: int = 0
    encoder_cache_tokens: int = 0
    whole_inputs: bool = False
    encoder_token_ns: int = 0
    notes: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()

    def build(self, clock: Clock, release: Release) -> tuple[Gate, ThreadPoolCompiler | None]:
        """The gates of one scheduler. The engine has to be told when the compiler (if any) has something ready."""
        gates: list[Gate] = [StreamingGate()] if self.streaming else []
        compiler = None
        if self.grammars:
            compiler = ThreadPoolCompiler(
                clock, compile_ns=self.compile_ns, threads=self.compile_threads, cache=self.cache_grammars
            )
            gates.append(GrammarGate(compiler))
        if self.max_loras:
            gates.append(LoraGate(self.max_loras))
        if self.encoder_budget_tokens:
            cache = release.encoder_cache(self.encoder_cache_tokens)
            gates.append(release.encoder_gate(cache, self.encoder_budget_tokens, whole_inputs=self.whole_inputs))
        return Gates(gates), compiler


def plan_gates(config: RunConfig, limits: SchedulerLimits, trace: Trace) -> tuple[Trace, GatePlan]:
    """The trace with its requests' demands, and the gates for them.

    vLLM 0.33.0 v1/core/encoder_cache_manager.py (compute_mm_encoder_budget): the largest input always fits.

    Raises:
        UserError: an image that may not be cut exceeds a step's budget.
    """
    engine, output, images = config.engine, config.engine.structured_output, config.trace.images
    trace, demanded = settle(
        trace,
        Wishes(
            adapters=config.trace.loras or 0,
            grammar_share=output.share,
            num_grammars=output.grammars,
            image_share=images.share if images else 0.0,
            image_tokens=images.tokens if images else 0,
            seed=config.seed,
        ),
    )
    largest, default = demanded.largest_input_tokens, limits.max_num_batched_tokens
    if engine.disable_chunked_mm_input and largest > default:
        raise UserError(
            f"engine.disable_chunked_mm_input: an image of {largest} tokens exceeds max_num_batched_tokens ({default}),"
            " expected false or a larger budget"
        )
    _check_streaming(config)
    notes, assumptions = _explain(config, demanded)
    return trace, GatePlan(
        max_loras=engine.max_loras if demanded.adapters else 0,
        grammars=demanded.grammars,
        streaming=config.trace.streaming_sessions,
        compile_ns=output.compile_time,
        compile_threads=output.compile_threads,
        cache_grammars=output.cache,
        encoder_budget_tokens=max(engine.max_num_encoder_input_tokens or default, largest) if largest else 0,
        encoder_cache_tokens=max(engine.encoder_cache_size or default, largest) if largest else 0,
        whole_inputs=engine.disable_chunked_mm_input,
        encoder_token_ns=engine.encoder_time_per_token,
        notes=tuple(notes),
        assumptions=tuple(assumptions),
    )


def _check_streaming(config: RunConfig) -> None:
    """Refuse streaming sessions with what they are not simulated with."""
    if not config.trace.streaming_sessions:
        return
    engine = config.engine
    obstacles = {
        # It would generate as many tokens in each part as in the first.
        "engine.vllm_version 0.23.0, which ignores max_tokens of later parts": engine.vllm_version == "0.23.0",
        # vLLM's heap is not put in order when a waiting session gets a new arrival time.
        "engine.scheduling_policy priority": engine.scheduling_policy == "priority",
        "engine.async_scheduling": engine.async_scheduling,
        "engine.speculative": engine.speculative is not None,
        "engine.data_parallel_size": engine.data_parallel_size > 1,
        f"connector.kind {config.connector.kind}": config.connector.kind not in {"none", "offloading", "simple_cpu"},
    }
    for what, is_given in obstacles.items():
        if is_given:
            raise UserError(f"trace.streaming_sessions: true: expected false with {what}: not simulated")


def _explain(config: RunConfig, demanded: Demanded) -> tuple[list[str], list[str]]:
    """(notes, assumptions)."""
    engine = config.engine
    notes: list[str] = []
    assumptions: list[str] = []
    if demanded.adapters:
        notes.append(f"{demanded.adapters} LoRA adapters, at most {engine.max_loras} in a batch (engine.max_loras)")
        assumptions.append("LoRA adapters take no memory and no time; what they do here is to keep prefixes apart")
    if demanded.grammars:
        notes.append(f"{demanded.grammars} requests wait for a grammar")
        time = f"{engine.structured_output.compile_time / 1e6:g} ms"
        assumptions.append(f"a grammar compiles in {time} (engine.structured_output.compile_time); masks take no time")
    if demanded.encoder_inputs:
        count, largest = demanded.encoder_inputs, demanded.largest_input_tokens
        notes.append(f"{count} images or audio inputs, the largest of {largest} tokens")
        if not engine.encoder_time_per_token:
            assumptions.append("the encoder takes no time (engine.encoder_time_per_token)")
    return notes, assumptions
