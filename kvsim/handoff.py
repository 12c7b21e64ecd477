"""What a request of disaggregated prefill carries: vLLM's kv_transfer_params."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class RemoteBlocks:
    """KV of an ended request that its engine keeps until somebody has read it.

    Attributes:
        engine_id: of the engine, which another one takes over from has not.
        request_id: what it is called there.
        block_ids: its blocks there, of all ranks alike.
        num_tokens: tokens with KV.
        block_tokens: of a block there.
    """

    engine_id: str
    request_id: str
    block_ids: tuple[int, ...]
    num_tokens: int
    block_tokens: int


@dataclass(slots=True)
class Handoff:
    """One of the two parts of a turn that one engine prefills and another one decodes.

    Attributes:
        role: prefill = vLLM's do_remote_decode; decode = do_remote_prefill.
        remote: of the decode part: where its prompt's KV is, as the prefill's answer said.
        is_open: of the decode part: nobody has asked for the remote KV so far (do_remote_prefill is still true).
        answer: of the prefill part, when it has ended: what its engine keeps for the decode part.
        target: of the prefill part: the engine that will decode, if it was chosen before.
    """

    role: Literal["prefill", "decode"]
    remote: RemoteBlocks | None = None
    is_open: bool = True
    answer: RemoteBlocks | None = None
    target: str = ""
