"""A folder of results that appears whole or not at all, and replaces only an earlier one of its kind; and a file."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from kvsim.errors import UserError


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yields a temporary name beside the final one, whose file takes its place when the block ends well.

    Args:
        path: the final one, in a folder that is there.
    """
    partial = path.with_name(f".{path.name}.partial-{os.getpid()}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def whole_folder(folder: Path, names: Collection[str], what: str) -> Iterator[Path]:
    """Yields an empty temporary folder beside the final one, which it becomes when the block ends well.

    Args:
        folder: the final one. One that is there may hold only files of these names; they are replaced.
        names: of all files that may be written.
        what: is written, for messages.

    Raises:
        UserError: the folder holds something else, is a file, or cannot be written.
    """
    target = folder.absolute()
    _check(target, names, what)
    temporary = target.with_name(f".{target.name}.partial-{os.getpid()}")
    old = target.with_name(f".{target.name}.old-{os.getpid()}")
    new = [parent for parent in target.parents if not parent.exists()]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        yield temporary
        _check(target, names, what)
        if target.exists():
            target.rename(old)
        temporary.rename(target)
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        if old.exists() and not target.exists():
            old.rename(target)
        for parent in new:  # innermost first
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()
        if isinstance(error, OSError):
            raise UserError(f"{folder}: cannot write {what}: {error.strerror or error}") from error
        raise
    shutil.rmtree(old, ignore_errors=True)


def _check(target: Path, names: Collection[str], what: str) -> None:
    if not target.exists() and not target.is_symlink():
        return
    if not target.is_dir() or target.is_symlink() or {entry.name for entry in target.iterdir()} - set(names):
        raise UserError(f"{target}: expected a new folder, or one that holds only {what}")
