"""Chains, segments and the numbers of engine blocks."""

from __future__ import annotations

import random

import pytest

from kvsim.chain import ROOT, BlockIds, Chain, ChainError, Kept, Leaf, PrefixTree


def _edges(tree: PrefixTree) -> list[tuple[int, int, int | None]]:
    return [(s.start_tokens, s.end_tokens, s.parent.index if s.parent else None) for s in tree.segments]


def _lead(a: list[int], b: list[int]) -> int:
    same = 0
    while same < min(len(a), len(b)) and a[same] == b[same]:
        same += 1
    return same


def test_growing_conversation_is_one_segment() -> None:
    """Prompts that only append share one segment, however many there are."""
    tree = PrefixTree()
    first = tree.add("f", [1, 2], 64)
    second = tree.add("f", [1, 2, 3], 64)
    third = tree.add("f", [1, 2, 3, 4, 5], 64)
    assert _edges(tree) == [(0, 320, None)]
    lengths = [tree.chain(leaf, leaf.num_tokens).num_tokens for leaf in (first, second, third)]
    assert lengths == [128, 192, 320]


def test_branch_splits_only_the_lower_part_off() -> None:
    """A prompt that leaves another one half-way keeps the upper part's segment and makes two below it."""
    tree = PrefixTree()
    old = tree.add("f", [1, 2, 3, 4], 16)
    upper = tree.segments[0]
    new = tree.add("f", [1, 2, 9], 16)
    assert _edges(tree) == [(0, 32, None), (32, 64, 0), (32, 48, 0)]
    assert tree.segments[0] is upper
    assert [s.index for s in tree.chain(old, 64).segments] == [0, 1]
    assert [s.index for s in tree.chain(new, 48).segments] == [0, 2]


def test_leaf_taken_before_two_splits_still_leads_to_its_own_chain() -> None:
    """A leaf handed out early is valid after its segment was split twice."""
    tree = PrefixTree()
    leaf = tree.add("f", [1, 2, 3, 4, 5, 6], 1)
    tree.add("f", [1, 2, 3, 4, 7], 1)
    tree.add("f", [1, 2, 8], 1)
    chain = tree.chain(leaf, 6)
    assert [(s.start_tokens, s.end_tokens) for s in chain.segments] == [(0, 2), (2, 4), (4, 6)]
    assert [(s.start_tokens, s.end_tokens) for s in tree.chain(leaf, 3).segments] == [(0, 2), (2, 4)]


def test_prompt_inside_a_known_one_adds_nothing() -> None:
    """A prompt that is the beginning of a known one ends inside the known segment."""
    tree = PrefixTree()
    tree.add("f", [1, 2, 3], 8)
    leaf = tree.add("f", [1, 2], 8)
    assert _edges(tree) == [(0, 24, None)]
    assert tree.chain(leaf, 16) == Chain((tree.segments[0],), 16)


def test_namespaces_share_nothing() -> None:
    """Equal ids in two namespaces are different content."""
    tree = PrefixTree()
    one, two = tree.add("a", [1, 2], 8), tree.add("b", [1, 2], 8)
    assert tree.chain(one, 16).shared_tokens(tree.chain(two, 16)) == 0


def test_prompt_without_ids_has_the_empty_chain() -> None:
    """No ids, nothing to share."""
    tree = PrefixTree()
    assert tree.add("f", [], 64) == ROOT
    assert tree.chain(ROOT, 0) == Chain()


@pytest.mark.parametrize(
    ("before", "ids", "message"),
    [
        ([1, 2, 3], [1, 3], "id 3 at position 1 was at position 2 before"),
        ([1, 2, 3], [9, 2], "id 2 at position 1 follows id 9, but another id before"),
        ([1, 2], [1, 2, 1], "id 1 at position 2 was at position 0 before"),
        ([1], [1, 7, 8, 7], "id 7 occurs twice in one prompt, at position 1 and further on"),
        ([1, 2, 3], [5, 6, 3], "id 3 at position 2 follows id 6, but another id before"),
    ],
)
def test_ids_that_are_not_chained_are_refused(before: list[int], ids: list[int], message: str) -> None:
    """An id at two positions, after two predecessors or twice in a prompt breaks the promise of the trace."""
    tree = PrefixTree()
    tree.add("f", before, 16)
    with pytest.raises(ChainError) as error:
        tree.add("f", ids, 16)
    assert str(error.value) == message
    tree.add("f", [*before, 50], 16)  # the tree is as it was
    assert _edges(tree) == [(0, 16 * (len(before) + 1), None)]


def test_known_ids_in_another_order_are_refused() -> None:
    """Two known ids at their old positions, but from different branches, do not make a chain."""
    tree = PrefixTree()
    tree.add("f", [1, 2, 3], 16)
    tree.add("f", [1, 4, 5], 16)
    with pytest.raises(ChainError, match="id 5 at position 2 follows id 2, but another id before"):
        tree.add("f", [1, 2, 5], 16)


def test_hash_like_ids_work_and_mix_with_small_ones() -> None:
    """Ids of 64 bits and negative ones are chained like small ones, also when they appear late."""
    tree = PrefixTree()
    small = tree.add("f", [7, 3, 5], 16)
    large = tree.add("f", [7, 3, 2**64 - 1, -4], 16)
    again = tree.add("f", [7, 3, 5, 2**63], 16)
    assert tree.chain(small, 48).shared_tokens(tree.chain(large, 64)) == 32
    assert tree.chain(small, 48).shared_tokens(tree.chain(again, 64)) == 48
    with pytest.raises(ChainError, match="id 5 at position 1 was at position 2 before"):
        tree.add("f", [7, 5], 16)


def test_one_namespace_has_one_block_size() -> None:
    """Ids of two block sizes cannot be compared."""
    tree = PrefixTree()
    tree.add("f", [1], 16)
    with pytest.raises(ValueError, match="64 tokens per id, 16 before"):
        tree.add("f", [1, 2], 64)


def test_kept_ids_need_not_be_given_again() -> None:
    """A prompt may be told as what it keeps of another one and what follows, also in the middle of an edge."""
    tree = PrefixTree()
    tree.add("f", [1, 2, 3, 4], 16)
    assert tree.add("f", [3, 4, 5], 16, Kept(2, 2)) == Leaf(0, 80)
    assert tree.add("f", [], 16, Kept(3, 3)) == Leaf(0, 48)
    assert tree.add("f", [9], 16, Kept(3, 3)) == Leaf(2, 64)
    assert _edges(tree) == [(0, 48, None), (48, 80, 0), (48, 64, 0)]
    with pytest.raises(ChainError, match="id 4 at position 2 was at position 3 before"):
        tree.add("f", [4], 16, Kept(2, 2))


def test_forgotten_ids_are_new_again() -> None:
    """Once a scope is forgotten its ids may come again, and have nothing in common with the old ones."""
    tree = PrefixTree()
    old = tree.add("f", [1, 2], 16)
    tree.forget("f")
    new = tree.add("f", [1, 7], 16)
    assert tree.chain(old, 32).shared_tokens(tree.chain(new, 32)) == 0


def test_grow_branches_at_any_token() -> None:
    """Lengths alone grow the tree: what is kept is shared, what is added is fresh every time."""
    tree = PrefixTree()
    system = tree.grow(ROOT, 0, 100)
    one = tree.grow(system, 100, 50)
    two = tree.grow(system, 60, 40)
    longer = tree.grow(one, 150, 7)
    assert tree.chain(one, 150).shared_tokens(tree.chain(two, 100)) == 60
    assert tree.chain(one, 150).shared_tokens(tree.chain(longer, 157)) == 150
    assert tree.grow(one, 0, 0) == ROOT
    with pytest.raises(ValueError, match="cannot keep 200 of 150 tokens"):
        tree.grow(one, 200, 1)


def test_chain_longer_than_its_leaf_is_refused() -> None:
    """A leaf says nothing about tokens behind it."""
    tree = PrefixTree()
    leaf = tree.add("f", [1, 2], 8)
    tree.add("f", [1, 2, 3], 8)
    with pytest.raises(ValueError, match="a leaf of 16 tokens has no chain of 17"):
        tree.chain(leaf, 17)


def test_truncated_chain_drops_segments_it_does_not_reach() -> None:
    """Cutting a chain keeps the segments that still hold a token of it."""
    tree = PrefixTree()
    leaf = tree.add("f", [1, 2, 3, 4], 10)
    tree.add("f", [1, 2, 9], 10)
    chain = tree.chain(leaf, 40)
    assert chain.truncated(20) == Chain((tree.segments[0],), 20)
    assert chain.truncated(21).segments == chain.segments
    assert chain.truncated(0) == Chain()
    assert chain.truncated(99) is chain


def test_block_ids_are_ranges_shared_up_to_the_branch() -> None:
    """Blocks of the common part have equal numbers, the others have not; numbers are dense."""
    tree = PrefixTree()
    one, two = tree.add("f", [1, 2, 3], 64), tree.add("f", [1, 9], 64)
    ids = BlockIds(16)
    assert ids.of(tree.chain(one, 192), 0, 12) == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11]
    assert ids.of(tree.chain(two, 128), 0, 8) == [0, 1, 2, 3, 12, 13, 14, 15]
    assert ids.of(tree.chain(one, 192), 3, 6) == [3, 4, 5]
    assert ids.of(tree.chain(one, 192), 6, 6) == []
    assert ids.private(3) == 16
    assert ids.count == 19


def test_block_across_a_branch_belongs_to_the_branch() -> None:
    """A block whose last token lies behind the branch differs between the branches."""
    tree = PrefixTree()
    one, two = tree.add("f", [1, 2], 10), tree.add("f", [1, 3], 10)
    ids = BlockIds(16)
    assert ids.of(tree.chain(one, 20), 0, 1) == [0]
    assert ids.of(tree.chain(two, 20), 0, 1) == [1]


def test_blocks_behind_the_chain_have_no_number() -> None:
    """Only full blocks of the chain can be named."""
    tree = PrefixTree()
    chain = tree.chain(tree.add("f", [1, 2], 16), 30)
    assert BlockIds(16).of(chain, 0, 1) == [0]
    with pytest.raises(ValueError, match="of a chain of 1 full blocks"):
        BlockIds(16).of(chain, 0, 2)


@pytest.mark.parametrize("seed", range(40))
def test_random_worlds_equal_a_comparison_of_id_lists(seed: int) -> None:
    """Shared lengths and block numbers are those of comparing the id lists themselves, for any block size."""
    rng = random.Random(seed)
    trace_block = rng.choice([1, 3, 16, 64])
    engine_block = rng.choice([1, 5, 16, 48])
    prompts: list[list[int]] = []
    fresh = 0
    for _ in range(25):
        base = rng.choice(prompts) if prompts and rng.random() < 0.9 else []
        keep = rng.randrange(len(base) + 1)
        add = rng.randrange(1, 9)
        prompts.append(base[:keep] + list(range(fresh, fresh + add)))
        fresh += add
    tree = PrefixTree()
    leaves = [tree.add("f", prompt, trace_block) for prompt in prompts]
    # Also cut inside the last block, as a partial id does.
    lengths = [len(prompt) * trace_block - rng.randrange(trace_block) for prompt in prompts]
    chains = [tree.chain(leaf, length) for leaf, length in zip(leaves, lengths, strict=True)]
    ids = BlockIds(engine_block)
    numbers: dict[tuple[int, ...], int] = {}
    for prompt, chain in zip(prompts, chains, strict=True):
        edges = [(s.start_tokens, s.end_tokens) for s in chain.segments]
        assert [end for _, end in edges[:-1]] == [start for start, _ in edges[1:]]
        assert edges[0][0] == 0
        assert edges[-1][0] < chain.num_tokens <= edges[-1][1]
        full = chain.num_tokens // engine_block
        given = ids.of(chain, 0, full)
        middle = rng.randrange(full + 1)
        assert ids.of(chain, middle, full) == given[middle:]
        for block, number in enumerate(given):
            content = tuple(prompt[: ((block + 1) * engine_block - 1) // trace_block + 1])
            content = (*content, block)
            assert numbers.setdefault(content, number) == number
    assert len(set(numbers.values())) == len(numbers)
    for a, chain_a in zip(prompts, chains, strict=True):
        for b, chain_b in zip(prompts, chains, strict=True):
            same = min(_lead(a, b) * trace_block, chain_a.num_tokens, chain_b.num_tokens)
            assert chain_a.shared_tokens(chain_b) == same


@pytest.mark.parametrize("seed", range(20))
def test_growing_by_lengths_equals_a_comparison_of_tokens(seed: int) -> None:
    """`grow` shares exactly the tokens kept."""
    rng = random.Random(seed)
    tree = PrefixTree()
    tokens: list[list[int]] = [[]]
    leaves: list[Leaf] = [ROOT]
    fresh = 0
    for _ in range(30):
        at = rng.randrange(len(leaves))
        keep = rng.randrange(len(tokens[at]) + 1)
        add = rng.choice([0, 1, 7, 30])
        tokens.append(tokens[at][:keep] + list(range(fresh, fresh + add)))
        leaves.append(tree.grow(leaves[at], keep, add))
        fresh += add
    chains = [tree.chain(leaf, leaf.num_tokens) for leaf in leaves]
    for a, chain_a in zip(tokens, chains, strict=True):
        assert chain_a.num_tokens == len(a)
        for b, chain_b in zip(tokens, chains, strict=True):
            assert chain_a.shared_tokens(chain_b) == _lead(a, b)
