"""Folders that appear whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.errors import UserError
from kvsim.results.whole_folder import whole_folder


def _names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_appears_at_the_end(tmp_path: Path) -> None:
    """Nothing has the final name before everything is written; folders above are made."""
    target = tmp_path / "a" / "b"
    with whole_folder(target, {"x"}, "tests") as folder:
        (folder / "x").write_text("1")
        assert not target.exists()
    assert _names(target) == ["x"]
    assert _names(tmp_path / "a") == ["b"]


def test_failure_leaves_what_was_there(tmp_path: Path) -> None:
    """An error inside leaves no trace of the new folder, and the old one as it was."""
    target = tmp_path / "t"
    with whole_folder(target, {"x"}, "tests") as folder:
        (folder / "x").write_text("old")
    with pytest.raises(TypeError), whole_folder(target, {"x"}, "tests") as folder:
        (folder / "x").write_text(7)  # type: ignore[arg-type]
    assert _names(tmp_path) == ["t"]
    assert (target / "x").read_text() == "old"
    with pytest.raises(RuntimeError), whole_folder(tmp_path / "n" / "m", {"x"}, "tests"):
        raise RuntimeError
    assert _names(tmp_path) == ["t"]


def test_file_put_there_meanwhile_is_kept(tmp_path: Path) -> None:
    """What somebody adds to the old folder while the new one is written is not thrown away."""
    target = tmp_path / "t"
    target.mkdir()
    with pytest.raises(UserError, match="holds only tests"), whole_folder(target, {"x"}, "tests"):
        (target / "theirs").write_text("kept")
    assert (target / "theirs").read_text() == "kept"
    assert _names(tmp_path) == ["t"]


def test_what_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    """A folder inside a file, and an error of the disk, are the user's to mend."""
    (tmp_path / "file").write_text("")
    for target in (tmp_path / "file" / "t",):
        with pytest.raises(UserError, match=r"cannot write tests: "), whole_folder(target, {"x"}, "tests"):
            pass
    with pytest.raises(UserError, match="cannot write tests: no space"), whole_folder(tmp_path / "t", {"x"}, "tests"):
        raise OSError(28, "no space")
