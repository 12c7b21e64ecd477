"""What a request asks of the engine beside tokens: an adapter, a grammar, images or audio, a place to go on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class EncoderInput:
    """An image or a piece of audio in a prompt (vLLM: MultiModalFeatureSpec with its placeholder range).

    Attributes:
        identity: equal for equal content, whoever sends it (vLLM: ``identifier``, the mm hash).
        start_tokens: its first position in the prompt.
        num_tokens: positions that it fills; each of them takes one embedding that the encoder computes.
    """

    identity: str
    start_tokens: int
    num_tokens: int

    @property
    def end_tokens(self) -> int:
        """One past its last position."""
        return self.start_tokens + self.num_tokens


@dataclass(frozen=True, slots=True)
class Demands:
    """What the scheduler's gates look at.

    Attributes:
        adapter: number of the LoRA adapter; 0 = the base model.
        grammar: what structured output must follow; equal texts are equal grammars; empty = none.
        encoder_inputs: in order of their positions, without overlap.
        resumable: a streaming session: after its output it waits for more input, and keeps its blocks.
    """

    adapter: int = 0
    grammar: str = ""
    encoder_inputs: tuple[EncoderInput, ...] = ()
    resumable: bool = False


PLAIN = Demands()
"""Nothing but tokens."""

# Far more blocks than any run numbers, so that the numbers of two adapters never meet.
_ADAPTER_BITS = 40


class BlockHashes(Protocol):
    """See `kvsim.request.Content`."""

    def block_hashes(self, first: int, last: int) -> list[int]: ...


class AdapterContent:
    """Content that was computed with an adapter: the same tokens give another KV, so the blocks have other hashes.

    vLLM 0.33.0 v1/core/kv_cache_utils.py (_gen_lora_extra_hash_keys): the adapter's name is part of every block hash.
    """

    def __init__(self, content: BlockHashes, adapter: int) -> None:
        self._content, self._offset = content, adapter << _ADAPTER_BITS

    def block_hashes(self, first: int, last: int) -> list[int]:
        """See `kvsim.request.Content`."""
        return [self._offset + number for number in self._content.block_hashes(first, last)]
