"""Files: what is visible, what fits, what goes."""

from __future__ import annotations

from kvsim.tiers.files import Files


def test_a_file_is_visible_once_it_is_published() -> None:
    """Reserved space holds nothing that a lookup could find."""
    files = Files()
    assert files.reserve(2) == 2
    assert 7 not in files
    files.publish([7, 8])
    assert (7 in files, 8 in files, len(files), files.num_reserved) == (True, True, 2, 0)


def test_a_full_disk_refuses() -> None:
    """Without eviction, what does not fit is refused; files that are still being written take space too."""
    files = Files(3)
    assert files.reserve(2) == 2
    assert files.reserve(2) == 1
    files.publish([1, 2])
    files.publish([3])
    assert files.reserve(1) == 0
    assert 1 in files


def test_least_recently_used_files_go_tail_first() -> None:
    """The tail of a prefix goes before its head, a file that was read later stays, one that is being read too."""
    files = Files(4, evict=True)
    files.reserve(4)
    files.publish([1, 2, 3, 4])  # 4 is the tail
    files.open([4])
    assert files.reserve(1) == 1  # 4 is being read
    assert [key for key in (1, 2, 3, 4) if key in files] == [1, 2, 4]
    files.close([4])
    files.publish([5])
    assert files.reserve(2) == 2
    assert [key for key in (1, 2, 3, 4, 5) if key in files] == [4, 5]
    assert files.num_evicted == 3


def test_room_is_made_as_far_as_it_goes() -> None:
    """Where readers hold everything, only the free space is given."""
    files = Files(2, evict=True)
    files.reserve(1)
    files.publish([1])
    files.open([1])
    assert files.reserve(3) == 1
    assert 1 in files


def test_every_change_can_be_noticed() -> None:
    """The epoch grows when files appear or go, not when they are read."""
    files = Files(1, evict=True)
    files.reserve(1)
    epochs = [files.epoch]
    files.publish([1])
    epochs.append(files.epoch)
    files.open([1])
    files.close([1])
    epochs.append(files.epoch)
    files.reserve(1)
    epochs.append(files.epoch)
    files.publish([2])
    epochs.append(files.epoch)
    assert epochs == [0, 1, 1, 2, 3]
