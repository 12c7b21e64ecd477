"""What vLLM's scheduler asks about beside room: adapters, grammars and images, without any of them."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

from copies import CLOCK
from settings import Options
from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

Demands = dict[
    str, Any
]  # "streaming": flag, "lora": number, "grammar_steps": until it is compiled, "images": [start, tokens, name]


NO_DEMANDS: Demands = {"streaming": False, "lora": 0, "grammar_steps": None, "images": []}


class _AnyGrammar:
    """Accepts every token."""

    def accept_tokens(self, request_id: str, tokens: list[int]) -> bool:
        """Yes."""
        return True

    def is_terminated(self) -> bool:
        """Never."""
        return False


def limit(scheduler: Any, options: Options) -> None:
    """Give a scheduler the scenario's limits; a text model without adapters has none."""
    if options["max_loras"] is not None:
        scheduler.lora_config = SimpleNamespace(max_loras=options["max_loras"])
    if options["encoder_budget"] is not None:
        scheduler.max_num_encoder_input_tokens = options["encoder_budget"]
        scheduler.encoder_cache_manager = EncoderCacheManager(options["encoder_cache"] or options["encoder_budget"])
        scheduler.scheduler_config.disable_chunked_mm_input = bool(options["disable_chunked_mm_input"])


def request_arguments(demands: Demands) -> dict[str, Any]:
    """Arguments of vLLM's Request."""
    lora, images = demands["lora"], demands["images"]
    found: dict[str, Any] = {"resumable": True} if demands["streaming"] else {}
    if lora:
        found["lora_request"] = LoRARequest(f"lora{lora}", lora, "/nowhere")
    if images:
        found["mm_features"] = [
            MultiModalFeatureSpec(None, "image", name, PlaceholderRange(start, tokens))
            for start, tokens, name in images
        ]
    return found


def part_from(demands: Demands, kept: int) -> Demands:
    """What the next part of a streaming session asks for: images behind the first tokens, counted from there."""
    images = [[start - kept, tokens, name] for start, tokens, name in demands["images"] if start >= kept]
    return {**demands, "images": images}


def sampling_arguments(demands: Demands) -> dict[str, Any]:
    """Arguments of vLLM's SamplingParams."""
    if demands["grammar_steps"] is None:
        return {}
    return {"structured_outputs": StructuredOutputsParams(json="{}")}


class Compiler:
    """Compiles grammars: they are ready so many steps after the request's arrival."""

    def __init__(self) -> None:
        self._due: list[tuple[int, Future[Any]]] = []

    def start(self, request: Any, steps: int | None) -> None:
        """The request arrives now."""
        if steps is not None:
            grammar: Future[Any] = Future()
            request.structured_output_request.grammar = grammar
            self._due.append((CLOCK.step + steps, grammar))

    def begin_step(self) -> None:
        """What is due now is ready."""
        for due, grammar in self._due:
            if due <= CLOCK.step:
                grammar.set_result(_AnyGrammar())
        self._due = [entry for entry in self._due if entry[0] > CLOCK.step]


def describe(output: Any, options: Options) -> dict[str, Any]:
    """What a step's record says about images."""
    if options["encoder_budget"] is None:
        return {}
    return {
        "encoder": {name: list(inputs) for name, inputs in output.scheduled_encoder_inputs.items()},
        "encoder_freed": list(output.free_encoder_mm_hashes),
    }
