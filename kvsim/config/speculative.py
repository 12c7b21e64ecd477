"""Speculative decoding: what the drafter is, and how good its drafts are."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from kvsim.checked import Component
from kvsim.units import Duration


class SpeculativeConfig(Component):
    """vLLM's --speculative-config, and what its drafter would do. Weights and KV of a drafter take no memory here."""

    method: Literal["ngram", "eagle", "draft_model"] = Field(
        description="who drafts: decides KV slots, token budget and prefix hits"
    )
    num_speculative_tokens: int = Field(3, ge=1, le=100, description="drafts per request and step")
    acceptance_rate: float = Field(
        0.7, ge=0, le=1, description="probability that a draft holds, if those before it do; drawn from the run's seed"
    )
    draft_time: Duration = Field(
        0, description="time that drafting adds to every step; 0 = none: the drafter itself is not modelled"
    )
    lookahead_block_hashes: bool = Field(
        True,
        description="eagle: a block's hash covers the next token; false = vLLM's disable_lookahead_block_hashes: "
        "the last block of a hit is computed again",
    )
