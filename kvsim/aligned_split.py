"""Where a chunk of prefill has to end so that recurrent states can be kept: at block boundaries."""

from __future__ import annotations

from collections.abc import Callable

from kvsim.cache.groups import Mamba
from kvsim.cache.mamba_group import has_checkpoint
from kvsim.request import Request


class AlignedSplit:
    """Cuts a chunk of prefill so that it ends where a state is worth keeping.

    A state exists at the end of a chunk only. So chunks end at block boundaries, and the last one is split at the
    prompt's last boundary (unless the kernel exports the state there from inside the chunk: ``checkpoints``) and where
    other groups hold a prefix that the states don't reach (`Request.shared_prefix_boundary`). Blocks longer than any
    chunk are filled by several.
    Rule: vLLM 0.33.0 v1/core/sched/scheduler.py, _mamba_block_aligned_split.

    Args:
        block_size: tokens per state.
        checkpoints: see `kvsim.cache.groups.Mamba`.
        longest_chunk: tokens that a step can compute of one request.
    """

    def __init__(self, block_size: int, longest_chunk: int, *, checkpoints: bool) -> None:
        self._block_size, self._longest_chunk, self._checkpoints = block_size, longest_chunk, checkpoints

    def __call__(self, request: Request, start: int, num_tokens: int) -> int:
        """How many of ``num_tokens`` tokens from ``start`` on to compute now; may be none."""
        size = self._block_size
        prefill_end = max(request.num_prompt_tokens, request.num_tokens - 1)
        if start >= prefill_end:
            return num_tokens
        end = start + num_tokens
        exported = self._checkpoints and end >= prefill_end and self._exports(start, end, prefill_end)
        last_boundary = 0 if exported else (request.num_tokens - 1) // size * size
        if end < prefill_end:
            aligned = end // size * size
            if aligned > start or size <= self._longest_chunk:
                end = aligned
        inside_block = start % size != 0 and not exported
        stops = [(start // size + 1) * size if inside_block else 0, last_boundary]
        junction = request.shared_prefix_boundary
        if start < junction < end:
            stops.append(start + (junction - start) // size * size)
        end = min((stop for stop in stops if start < stop < end), default=end)
        return max(end - start, 0)

    def _exports(self, start: int, end: int, prefill_end: int) -> bool:
        """Whether the state at the prompt's last boundary comes out of the middle of this chunk."""
        size = self._block_size
        position = (prefill_end - 1) // size * size
        return has_checkpoint(start, end, position, size)


Split = Callable[[Request, int, int], int]


def split_for(states: Mamba | None, max_num_batched_tokens: int, long_prefill_token_threshold: int) -> Split:
    """The split that an engine's states need under its limits; without states, none."""
    if states is None:
        return lambda _request, _start, num_tokens: num_tokens
    longest_chunk = min(max_num_batched_tokens, long_prefill_token_threshold or max_num_batched_tokens)
    return AlignedSplit(states.block_size, longest_chunk, checkpoints=states.checkpoints)
