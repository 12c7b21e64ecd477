"""Host regions: chunks below the limit on row borders, registered and unregistered cleanly, nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from hwreplay.region import Region, chunks
from kvsim.errors import UserError

GIB = 2**30
PAGE = 4096


class Fake:
    """Remembers what is locked; refuses the n-th chunk if asked to."""

    def __init__(self, refuse: int = -1, fail_unlock: bool = False) -> None:
        self.locked: dict[int, int] = {}
        self.calls: list[str] = []
        self._refuse = refuse
        self._fail_unlock = fail_unlock

    def register(self, address: int, size: int) -> None:
        if len(self.locked) == self._refuse:
            raise RuntimeError("CUDA_ERROR_OUT_OF_MEMORY")
        self.locked[address] = size

    def unregister(self, address: int) -> None:
        del self.locked[address]
        if self._fail_unlock:
            raise RuntimeError("CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED")


@pytest.mark.parametrize(
    ("size", "row", "limit", "expected"),
    [
        (10 * PAGE, PAGE, 4 * PAGE, [(0, 3 * PAGE), (3 * PAGE, 3 * PAGE), (6 * PAGE, 3 * PAGE), (9 * PAGE, PAGE)]),
        (10 * PAGE, 2 * PAGE, 5 * PAGE, [(0, 4 * PAGE), (4 * PAGE, 4 * PAGE), (8 * PAGE, 2 * PAGE)]),
        (6 * PAGE, 3 * PAGE // 2, 4 * PAGE, [(0, 3 * PAGE), (3 * PAGE, 3 * PAGE)]),  # two rows are three pages
        (100, 8 * PAGE, 4 * PAGE, [(0, 100)]),
        (8 * PAGE, 8 * PAGE, 4 * PAGE, [(0, 3 * PAGE), (3 * PAGE, 3 * PAGE), (6 * PAGE, 2 * PAGE)]),
        (0, PAGE, 4 * PAGE, []),
    ],
)
def test_chunks(size: int, row: int, limit: int, expected: list[tuple[int, int]]) -> None:
    """They cover everything, begin where a row and a page begin, and stay below the limit."""
    assert chunks(size, row, limit) == expected


def test_chunks_of_a_real_region() -> None:
    """200 GiB of 2 MiB blocks: three chunks of 64 GiB less a block, and the rest."""
    block = 2 * 2**20
    found = chunks(200 * GIB, block)
    assert [size for _, size in found] == [64 * GIB - block] * 3 + [8 * GIB + 3 * block]


def test_register_and_close() -> None:
    """All is locked chunk by chunk, and unlocked when the region is closed."""
    region, fake = Region(10 * PAGE), Fake()
    region.register(fake, PAGE, 4 * PAGE)
    assert [address - region.address for address in fake.locked] == [0, 3 * PAGE, 6 * PAGE, 9 * PAGE]
    region.close()
    assert fake.locked == {}


def test_a_failed_chunk_leaves_nothing_locked() -> None:
    """The error is the driver's, and the chunks before are unlocked."""
    region, fake = Region(10 * PAGE), Fake(refuse=2)
    with pytest.raises(RuntimeError, match="OUT_OF_MEMORY"):
        region.register(fake, PAGE, 4 * PAGE)
    assert fake.locked == {}
    region.close()


def test_an_error_while_unlocking_does_not_keep_the_others_locked() -> None:
    """All chunks are unlocked, then the first error is raised."""
    region, fake = Region(10 * PAGE), Fake(fail_unlock=True)
    region.register(fake, PAGE, 4 * PAGE)
    with pytest.raises(RuntimeError, match="NOT_REGISTERED"):
        region.close()
    assert fake.locked == {}


def test_memory_is_ours_and_leaves_no_file(tmp_path: Path) -> None:
    """A view for files shares the bytes; the folder is empty while the region is in use."""
    region = Region(3 * PAGE, tmp_path)
    region.array[PAGE] = 7
    assert region.memoryview(PAGE, 2)[0] == 7
    assert list(tmp_path.iterdir()) == []
    assert not region.array[:PAGE].any()
    region.close()


def test_elsewhere_if_the_folder_has_no_room(tmp_path: Path) -> None:
    """Memory comes from nowhere in particular then, and the region says so."""
    region = Region(PAGE, tmp_path / "absent")
    assert region.note is not None
    assert "No such file" in region.note
    region.array[:] = 1
    region.close()


def test_more_than_there_is() -> None:
    """Refused before anything is mapped."""
    with pytest.raises(UserError, match="GiB are available: --max-bytes"):
        Region(2**60)
