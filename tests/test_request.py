"""Requests: block hashes as they grow, contents from chains, and their order of priority."""

from __future__ import annotations

from engine_builder import hashes, make_request

from kvsim.chain import BlockIds, PrefixTree
from kvsim.request import ChainContent, RequestStatus


def test_only_full_prompt_blocks_have_a_hash() -> None:
    """A prompt of ten tokens in blocks of four has two hashes."""
    request = make_request("r", "abc", prompt=10)
    assert request.block_hashes == hashes("ab")
    assert (request.num_tokens, request.num_computed_tokens) == (10, 0)
    assert request.status is RequestStatus.WAITING


def test_generated_tokens_fill_blocks() -> None:
    """A block gets its hash with the token that fills it, prompt and output tokens alike."""
    request = make_request("r", "abcd", prompt=10)
    request.append_output_token()
    assert request.block_hashes == hashes("ab")
    request.append_output_token()
    assert request.block_hashes == hashes("abc")
    for _ in range(4):
        request.append_output_token()
    assert request.block_hashes == hashes("abcd")
    assert (request.num_tokens, request.num_output_tokens) == (16, 6)


def test_order_is_priority_then_arrival_then_id_as_a_string() -> None:
    """Smaller priority first, then earlier arrival, then the id: request 10 comes before request 9."""
    requests = [
        make_request("9", arrival=5),
        make_request("10", arrival=5),
        make_request("z", arrival=4),
        make_request("a", arrival=0, priority=1),
        make_request("b", arrival=9, priority=-1),
    ]
    assert [r.request_id for r in sorted(requests)] == ["b", "z", "10", "9", "a"]


def _contents(*, shared_tokens: int) -> tuple[ChainContent, ChainContent]:
    """Two requests of 24 tokens over the same chain, which covers the first ``shared_tokens``."""
    tree, ids = PrefixTree(), BlockIds(4)
    leaf = tree.add("", [1, 2, 3], 4)
    chain = tree.chain(leaf, shared_tokens)
    return ChainContent(chain, ids, 4, 24), ChainContent(chain, ids, 4, 24)


def test_chain_content_shares_full_blocks_of_the_chain_only() -> None:
    """Blocks inside the chain are equal, the block that the chain ends in and all later ones are private."""
    first, second = _contents(shared_tokens=10)
    a, b = first.block_hashes(0, 6), second.block_hashes(0, 6)
    assert a[:2] == b[:2]
    assert set(a[2:]).isdisjoint(b[2:])
    assert len(set(a)) == 6


def test_private_blocks_are_reserved() -> None:
    """Private blocks have exactly the numbers that were set aside: whoever comes later gets others."""
    tree, ids = PrefixTree(), BlockIds(4)
    chain = tree.chain(tree.add("", [1, 2, 3], 4), 8)
    assert ChainContent(chain, ids, 4, 24).block_hashes(2, 6) == [0, 1, 2, 3]
    assert ChainContent(chain, ids, 4, 20).block_hashes(2, 5) == [4, 5, 6]
    assert ids.count == 7


def test_chain_content_answers_any_range_alike() -> None:
    """Any range of blocks, on either side of the chain's end or across it, is that part of the whole."""
    content, _ = _contents(shared_tokens=12)
    whole = content.block_hashes(0, 6)
    for first in range(7):
        for last in range(first, 7):
            assert content.block_hashes(first, last) == whole[first:last]


def test_content_without_chain_is_private() -> None:
    """A chain of no tokens shares nothing."""
    first, second = _contents(shared_tokens=0)
    assert set(first.block_hashes(0, 6)).isdisjoint(second.block_hashes(0, 6))
