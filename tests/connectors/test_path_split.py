"""How much of a prefix comes over which path: against trying all, and never worse than one path alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.connectors.path_split import Path, best_split, shares

GB = 10**9
MIB = 2**20


def path(
    gb_per_s: float, block_bytes: int = MIB, setup_ns: int = 0, block_ns: int = 0, part: float = 1, flows: int = 1
) -> Path:
    """A way of this line rate."""
    return Path(int(gb_per_s * GB), int(part * 1_000_000), block_bytes, setup_ns, block_ns, flows)


@pytest.mark.parametrize(
    ("rates", "flows", "expected"),
    [
        ((1, 1, 2), 1, (1, 1)),
        ((1, 1, 1), 1, (0.5, 0.5)),
        ((1, 5, 4), 1, (1, 3)),
        ((5, 1, 4), 1, (3, 1)),
        ((9, 9, 4), 1, (2, 2)),
        ((1, 2, 9), 1, (1, 2)),
        ((4, 4, 4), 3, (3, 1)),
        ((2, 4, 4), 3, (2, 2)),
    ],
)
def test_shares(rates: tuple[int, int, int], flows: int, expected: tuple[float, float]) -> None:
    """Who can take less than its part gets it, the other the rest; a path of three senders has three parts."""
    first, second, whole = rates
    assert shares(path(first, flows=flows), path(second), whole * GB) == tuple(int(each * GB) for each in expected)


@pytest.mark.parametrize(
    ("store", "peer", "own", "expected"),
    [
        (path(1), path(1), 2, 50),  # two equal paths: half each
        (path(3), path(1), 4, 75),
        (path(1), path(1), 1, 0),  # the own NICs are full either way
        (path(1, setup_ns=10**9), path(1), 2, 0),  # the peer is through before the store begins
        (path(1), path(1, setup_ns=10**9), 2, 99),  # the last one always comes from the peer
        (path(1, block_ns=MIB), path(1), 2, 33),  # the host takes as long for a block of the store as the line
        (path(2, flows=4), path(1), 2, 80),  # of five senders into full NICs, four are the store's
        (path(1, part=0.5), path(1), 2, 33),
    ],
)
def test_splits(store: Path, peer: Path, own: int, expected: int) -> None:
    """100 blocks of 1 MiB that both have, literal numbers."""
    assert best_split(store, peer, 100, 100, own * GB) == expected


def test_what_is_outstanding_counts() -> None:
    """50 MiB that are to come on a path put as many blocks on the other one."""
    assert best_split(path(1), path(1), 100, 100, 2 * GB, (50 * MIB, 0)) == 25
    assert best_split(path(1), path(1), 100, 100, 2 * GB, (0, 50 * MIB)) == 75


def test_the_store_brings_no_more_than_it_has() -> None:
    """Nor anything of a load of one block."""
    assert best_split(path(1), path(1), 100, 20, 2 * GB) == 20
    assert best_split(path(1), path(1), 100, 0, 2 * GB) == 0
    assert best_split(path(9), path(1), 1, 1, 10 * GB) == 0


paths = st.builds(
    path, st.floats(0.1, 50), st.integers(10_000, 10 * MIB), st.integers(0, 5_000_000), st.integers(0, 100_000),
    st.floats(0.01, 1), st.integers(1, 20),
)  # fmt: skip


@given(
    paths, paths, st.integers(2, 300), st.integers(0, 300), st.floats(0.1, 100),
    st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)),
)  # fmt: skip
def test_no_split_is_better(
    store: Path, peer: Path, blocks: int, in_store: int, own: float, outstanding: tuple[int, int]
) -> None:
    """Of all possible splits none is expected to end earlier; the peer alone is one of them."""
    own_rate = int(own * GB)
    lines = shares(store, peer, own_rate)
    alone = min(peer.line_bytes_per_s, own_rate)

    def ends(count: int) -> float:
        if not count:
            return peer.ends_ns(blocks, outstanding[1], alone)
        return max(
            store.ends_ns(count, outstanding[0], lines[0]), peer.ends_ns(blocks - count, outstanding[1], lines[1])
        )

    chosen = best_split(store, peer, blocks, in_store, own_rate, outstanding)
    most = max(min(in_store, blocks - 1), 0)
    assert 0 <= chosen <= most
    assert ends(chosen) <= min(map(ends, range(most + 1))) * (1 + 1e-9)
