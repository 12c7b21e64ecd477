"""Where chunks of prefill end so that recurrent states can be kept."""

from __future__ import annotations

import pytest

from kvsim.aligned_split import AlignedSplit
from kvsim.request import Request


class NoContent:
    """No block has content."""

    def block_hashes(self, first: int, last: int) -> list[int]:
        """See `kvsim.request.Content`."""
        return [0] * (last - first)


def request(prompt: int, boundary: int = 0) -> Request:
    """A prompt; other groups hold ``boundary`` tokens of it."""
    req = Request("r", NoContent(), block_size=16, num_prompt_tokens=prompt, max_tokens=9, arrival=0)
    req.shared_prefix_boundary = boundary
    return req


@pytest.mark.parametrize(
    ("start", "tokens", "expected"),
    [
        (0, 100, 96),  # the last boundary of the prompt
        (96, 4, 4),  # the rest
        (0, 40, 32),  # a chunk ends at a boundary
        (0, 15, 0),  # less than a block: wait for more budget
        (100, 1, 1),  # decoding
    ],
)
def test_chunks_end_at_boundaries(start: int, tokens: int, expected: int) -> None:
    """A prompt of 100 tokens in blocks of 16."""
    assert AlignedSplit(16, 64, checkpoints=False)(request(100), start, tokens) == expected


def test_a_kernel_that_exports_states_needs_no_stop() -> None:
    """The state after 96 tokens comes out of the chunk's middle; from inside a block it cannot."""
    split = AlignedSplit(16, 128, checkpoints=True)
    assert split(request(100), 0, 100) == 100
    assert split(request(100), 90, 10) == 6


def test_a_block_longer_than_a_step_is_filled_by_several() -> None:
    """Blocks of 64, steps of 32: two chunks, and none runs over the boundary."""
    split = AlignedSplit(64, 32, checkpoints=False)
    assert [split(request(200), start, 32) for start in (0, 32, 64)] == [32, 32, 32]
    assert split(request(200), 50, 32) == 14


def test_a_prefix_that_others_hold_is_worth_a_stop() -> None:
    """Full attention has 48 tokens that somebody computed: end there, so that the state is kept too."""
    split = AlignedSplit(16, 128, checkpoints=False)
    assert split(request(100, boundary=48), 0, 90) == 48
    assert split(request(100, boundary=48), 48, 40) == 32
