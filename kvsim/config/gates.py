"""What requests ask for beside tokens: grammars for structured output, images and audio."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from kvsim.checked import Component
from kvsim.config.fields import Count
from kvsim.units import Duration

Share = Annotated[float, Field(ge=0, le=1)]
MS_NS = 10**6


class StructuredOutputConfig(Component):
    """Requests whose output follows a grammar wait until it is compiled, beside the engine."""

    share: Share = Field(0.0, description="share of requests that get a grammar (drawn with the seed)")
    grammars: Count = Field(1, description="different grammars that these requests ask for")
    compile_time: Duration = Field(50 * MS_NS, description="time to compile one grammar (assumed, not measured)")
    compile_threads: Count = Field(16, description="grammars compiled at a time; vLLM: half of the host's CPUs")
    cache: bool = Field(True, description="compile equal grammars once, as the xgrammar backend does")


class ImagesConfig(Component):
    """Images (or audio) at the end of some prompts; they stay in the prompts that keep them."""

    share: Share = Field(description="share of turns that bring an image (drawn with the seed)")
    tokens: Count = Field(description="prompt positions of an image, each an embedding of the encoder")
