"""What a pasted vLLM command line says: model, GPUs, limits, and where KV goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from kvsim.errors import UserError
from kvsim.vllm_line.transfer import KVTransfer


@dataclass(frozen=True)
class Ranks:
    """How a model is spread over GPUs; None = a variable that nobody assigned."""

    tensor: int | None = 1
    pipeline: int | None = 1
    prefill_context: int | None = 1
    decode_context: int | None = 1
    data: int | None = 1
    expert: bool = False

    @property
    def world_size(self) -> int | None:
        """Ranks of one engine; a data-parallel rank is an engine of its own."""
        return _product(self.tensor, self.pipeline, self.prefill_context)

    @property
    def gpus(self) -> int | None:
        """Of all engines. Decode context parallelism adds none."""
        return _product(self.world_size, self.data)


@dataclass(frozen=True)
class CommandLine:
    """What a line says and what follows from it, for a release and a GPU.

    Attributes:
        version: the release whose rules and defaults hold.
        gpu: name of the GPU preset, whose memory decides some defaults.
        model: as the line names it.
        served_names: what clients call it.
        ranks: how it is spread.
        max_model_len: tokens of a request; None = the model's own.
        fits_model_len: ``--max-model-len auto``: as long as GPU memory has room for.
        max_num_batched_tokens: token budget of a step, vLLM's default where the line gives none.
        max_num_seqs: running requests of each data-parallel rank, likewise.
        async_scheduling: whether vLLM decides a step while the last one is computed.
        transfer: where KV goes; None = nowhere.
        transfer_config: the ``--kv-transfer-config`` that takes effect.
        sections: of a run's config, as its YAML would have them.
        speculative: what drafts, by vLLM's keys; None = nothing does.
        kept: words of the flags without effect here, which another line of the same server keeps.
        environment: what the server sees of the variables in the paste.
        notes: what was ignored or assumed.
        refusals: what vLLM's argument parser refuses.
        start_failures: what vLLM refuses later, when the engine starts.
        not_simulated: what changes decisions and has no counterpart here.
    """

    version: str
    gpu: str
    model: str
    served_names: tuple[str, ...]
    ranks: Ranks
    max_model_len: int | None
    fits_model_len: bool
    max_num_batched_tokens: int | None
    max_num_seqs: int | None
    async_scheduling: bool
    transfer: KVTransfer | None
    transfer_config: Mapping[str, Any] = field(default_factory=dict)
    sections: Mapping[str, Any] = field(default_factory=dict)
    speculative: Mapping[str, Any] | None = None
    kept: tuple[tuple[str, ...], ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    refusals: tuple[str, ...] = ()
    start_failures: tuple[str, ...] = ()
    not_simulated: tuple[str, ...] = ()

    @property
    def gpus(self) -> int | None:
        """GPUs of all engines; None = a variable decides that nobody assigned."""
        return self.ranks.gpus

    @property
    def problems(self) -> list[str]:
        """Why it cannot be simulated, each with who says so."""
        refused = [f"vLLM {self.version} refuses the line: {text}" for text in self.refusals]
        fails = [f"vLLM {self.version} would not start: {text}" for text in self.start_failures]
        return [*refused, *fails, *(f"not simulated: {text}" for text in self.not_simulated)]

    def checked_sections(self) -> dict[str, Any]:
        """The sections, if they say all that the line says.

        Raises:
            UserError: the first reason why not, and how many more there are.
        """
        if self.problems:
            more = len(self.problems) - 1
            raise UserError(self.problems[0] + (f" (and {more} more; kvsim from-vllm shows all)" if more else ""))
        return dict(self.sections)


def _product(*factors: int | None) -> int | None:
    known = [factor for factor in factors if factor is not None]
    return prod(known) if len(known) == len(factors) else None
