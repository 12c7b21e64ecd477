"""What a config says about steps in flight and drafts, as plain values."""

from __future__ import annotations

from kvsim.config import RunConfig
from kvsim.errors import UserError
from kvsim.results.records import ASSUMED
from kvsim.speculation import RandomAcceptance, Speculation

ASYNC_CONNECTORS = ("none", "offloading", "simple_cpu")  # others do not wait for the steps in flight


def check_async_scheduling(config: RunConfig) -> None:
    """Raise UserError where asynchronous scheduling is not simulated."""
    if config.engine.async_scheduling and config.connector.kind not in ASYNC_CONNECTORS:
        raise UserError(
            f"engine.async_scheduling: true: expected false with connector {config.connector.kind}:"
            f" it is simulated with {', '.join(ASYNC_CONNECTORS)}"
        )


def speculation(config: RunConfig) -> Speculation | None:
    """What drafts and accepts, if anything does.

    vLLM 0.33.0 config/vllm.py: with a KV connector hashes never look ahead.
    """
    wanted = config.engine.speculative
    if wanted is None:
        return None
    if wanted.method == "eagle" and config.connector.kind != "none":
        raise UserError(
            f"engine.speculative.method: eagle: expected ngram or draft_model with connector {config.connector.kind},"
            " whose own rules for eagle are not simulated"
        )
    acceptance = RandomAcceptance(wanted.acceptance_rate, config.seed)
    return Speculation(wanted.method, wanted.num_speculative_tokens, wanted.lookahead_block_hashes, acceptance)


def drafting_notes(config: RunConfig) -> list[str]:
    """What is assumed about drafts."""
    drafts = config.engine.speculative
    if drafts is None:
        return []
    cost = "no time (draft_time)" if not drafts.draft_time else "draft_time"
    return [f"{ASSUMED}drafts hold with probability {drafts.acceptance_rate:g}; drafting takes {cost} and no memory"]
