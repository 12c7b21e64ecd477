"""Data-parallel ranks of a run: what they share, and what they can't."""

from __future__ import annotations

from kvsim.config import OffloadingConnectorConfig, RunConfig
from kvsim.errors import UserError
from kvsim.steptime.spec import ModelSpec


def check_ranks(config: RunConfig, model: ModelSpec) -> None:
    """Refuse what several ranks can't do here.

    Raises:
        UserError: they would share storage, or decide ahead in lockstep.
    """
    ranks, connector = config.engine.data_parallel_size, config.connector
    has_tiers = isinstance(connector, OffloadingConnectorConfig) and bool(connector.tiers)
    if ranks > 1 and (has_tiers or connector.kind not in {"none", "offloading", "simple_cpu"}):
        what = "connector.tiers" if has_tiers else f"connector.kind {connector.kind}"
        raise UserError(
            f"engine.data_parallel_size: {ranks}: expected 1 with {what}: ranks that share storage are not simulated"
        )
    if ranks > 1 and model.moe and config.engine.async_scheduling:
        raise UserError(
            f"engine.data_parallel_size: {ranks}: expected 1 with async_scheduling and a model with experts: its ranks"
            " step together"
        )


def expert_ranks(config: RunConfig, model: ModelSpec) -> int:
    """Ranks that share the experts. VLLM: under data parallelism all of them do, as whole experts or as slices."""
    tp, dp = config.hardware.tensor_parallel_size, config.engine.data_parallel_size
    if model.moe and dp > 1:
        return tp * dp
    return tp if config.hardware.expert_parallel else 1


def notes_of_ranks(config: RunConfig) -> list[str]:
    """What a reader of the results has to know."""
    ranks = config.engine.data_parallel_size
    if ranks == 1:
        return []
    note = f"{ranks} data-parallel ranks, each with its own KV cache and CPU tier; busy times are means over the ranks;"
    return [f"{note} the host's memory bandwidth is not shared between them"]
