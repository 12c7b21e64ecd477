"""The time before the scheduler: API servers with chat template and tokenizer, and the way to the engine."""

from __future__ import annotations

from pydantic import Field, model_validator

from kvsim.checked import Component, Misfit
from kvsim.config.fields import Count, Text
from kvsim.units import Duration


class FrontendConfig(Component):
    """What happens to a request before the engine's scheduler hears of it."""

    preset: Text | None = Field(None, description="times by name, or by the path of a file; keys given beside it win")
    request_time: Duration | None = Field(None, description="of an API server for each request; null = the preset's, 0")
    token_time: Duration | None = Field(
        None, description="of an API server for each token of the prompt, such as 2us; null = the preset's, 0"
    )
    api_servers: Count | None = Field(
        None, description="vLLM's --api-server-count; null = as vLLM: data_parallel_size of them"
    )

    @model_validator(mode="after")
    def _says_how_long(self) -> FrontendConfig:
        if self.preset is None and self.request_time is None and self.token_time is None:
            raise Misfit("preset", "expected one, or request_time or token_time, where there is a frontend")
        return self
