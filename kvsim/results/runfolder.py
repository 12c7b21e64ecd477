"""The folder that a run leaves: written whole or not at all, and read back with every piece checked."""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TextIO

from kvsim import __version__
from kvsim.errors import UserError
from kvsim.results.instances import INSTANCE_COLUMNS, instances_frame
from kvsim.results.parquet import read_parquet, write_parquet
from kvsim.results.run import KIND, SCHEMA, Run, no_tiers
from kvsim.results.summary import REQUEST_COLUMNS, SERIES_COLUMNS, digest
from kvsim.results.tiers import TIER_COLUMNS

SUMMARY, REQUESTS, SERIES, TIERS = "summary.json", "requests.parquet", "series.parquet", "tiers.parquet"
INSTANCES = "instances.parquet"
CONFIG, PLOTS, REPORT = "config.resolved.yaml", "plots", "report.html"
KV_EVENTS, TIMELINE = "kv_events.jsonl", "timeline.json"
OWN_NAMES = frozenset(
    (
        SUMMARY,
        REQUESTS,
        SERIES,
        TIERS,
        INSTANCES,
        CONFIG,
        PLOTS,
        REPORT,
        KV_EVENTS,
        "steps.parquet",
        TIMELINE,
        "schedule.jsonl",
        "schedule.jsonl.gz",
    )
)
"""Everything a run folder may hold; a folder with anything else in it is never overwritten."""

_SECTIONS = (
    *(
        "requests",
        "hit_rate",
        "latency",
        "throughput",
        "preemptions",
        "gpu",
        "transfers",
        "tiers",
        "sessions",
    ),
    *("totals", "digest", "info", "notes", "warnings", "versions"),
)


class RunFolder:
    """A run folder being written, under a temporary name beside the final one.

    ::

        with RunFolder.create(path) as folder:
            run = folder.write(assemble(requests=..., series=..., totals=..., config_text=...))
            ...  # plots and report go into folder.plots and folder.report

    The folder takes its final name when the block ends well; when it does not, nothing is left. Only a
    process that is killed outright leaves the temporary folder (hidden, ``.<name>.partial-<pid>``), never
    half a run; the next run to the same place removes it.
    """

    def __init__(self, path: Path, target: Path) -> None:
        self.path = path
        self.target = target
        self._written = False

    @classmethod
    @contextlib.contextmanager
    def create(cls, path: str | os.PathLike[str], overwrite: bool = False) -> Iterator[RunFolder]:
        """Open a new run folder at ``path``; parent folders are made as needed.

        Args:
            path: Where the run shall be found afterwards.
            overwrite: Replace a run folder that is there. Anything else that is there is refused always.

        Raises:
            UserError: ``path`` is taken, or cannot be written.
        """
        target = Path(path).absolute()
        _refuse(target, overwrite)
        temporary = target.with_name(f".{target.name}.partial-{os.getpid()}")
        parents = [parent for parent in target.parents if not parent.exists()]
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(temporary, ignore_errors=True)
            temporary.mkdir()
            lock = _locked(temporary)
        except OSError as error:
            _remove_empty(parents)
            raise UserError(f"{target}: cannot make the run folder: {error.strerror}") from error
        folder = cls(temporary, target)
        try:
            _remove_deserted(target)
            yield folder
            folder._commit(overwrite)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            _remove_empty(parents)
            raise
        finally:
            os.close(lock)

    @property
    def plots(self) -> Path:
        """Folder for plots, made when asked for."""
        folder = self.path / PLOTS
        folder.mkdir(exist_ok=True)
        return folder

    @property
    def report(self) -> Path:
        """Path for the HTML report."""
        return self.path / REPORT

    @property
    def timeline(self) -> Path:
        """Path for the timeline."""
        return self.path / TIMELINE

    def kv_events(self) -> TextIO:
        """A new file for KV events, one batch per line."""
        return (self.path / KV_EVENTS).open("w", encoding="utf-8", newline="\n")

    def write(self, run: Run) -> Run:
        """Write the tables, the resolved config and the summary of a run.

        Returns:
            The run, as :func:`load_run` will give it back once the folder has its final name.
        """
        text = json.dumps(run.summary, indent=1, allow_nan=False, ensure_ascii=False) + "\n"
        try:
            write_parquet(run.requests, REQUEST_COLUMNS, self.path / REQUESTS)
            write_parquet(run.series, SERIES_COLUMNS, self.path / SERIES)
            if run.summary["secondary_tiers"]:
                write_parquet(run.tiers, TIER_COLUMNS, self.path / TIERS)
            if run.summary.get("instances"):
                write_parquet(run.instances, INSTANCE_COLUMNS, self.path / INSTANCES)
            (self.path / CONFIG).write_text(run.config_text, encoding="utf-8", newline="\n")
            (self.path / SUMMARY).write_text(text, encoding="utf-8", newline="\n")
        except OSError as error:
            raise UserError(f"{self.target}: cannot write the run folder: {error.strerror or error}") from error
        self._written = True
        return replace(run, path=self.path, name=self.target.name)

    def _commit(self, overwrite: bool) -> None:
        if not self._written:
            raise RuntimeError("the run folder was never written")
        _refuse(self.target, overwrite)  # again: a long run may have passed since
        old = self.target.with_name(f".{self.target.name}.old-{os.getpid()}")
        replaced = self.target.exists()
        try:
            if replaced:
                self.target.rename(old)
            try:
                self.path.rename(self.target)
            except OSError:
                if replaced:
                    old.rename(self.target)
                raise
        except OSError as error:
            raise UserError(f"{self.target}: cannot put the run folder in place: {error.strerror}") from error
        shutil.rmtree(old, ignore_errors=True)


def load_run(path: str | os.PathLike[str]) -> Run:
    """Read a run folder and check that its pieces are whole and belong together.

    Raises:
        UserError: The folder or a piece of it is missing, damaged, or of another schema version.
    """
    folder = Path(path).absolute()
    if not folder.is_dir():
        what = "is a file" if folder.exists() else "does not exist"
        raise UserError(f"{path}: {what}; expected a run folder as `kvsim run` writes it")
    summary = _read_summary(folder)
    requests = read_parquet(folder / REQUESTS, REQUEST_COLUMNS)
    series = read_parquet(folder / SERIES, SERIES_COLUMNS)
    secondary = summary.get("secondary_tiers")  # missing in runs of older versions
    tiers = read_parquet(folder / TIERS, TIER_COLUMNS) if secondary else no_tiers()
    has_instances = summary.get("instances")
    instances = read_parquet(folder / INSTANCES, INSTANCE_COLUMNS) if has_instances else instances_frame(())
    try:
        found = digest(requests)
    except ValueError as error:
        raise UserError(f"{folder / REQUESTS}: {error}") from error
    if found != summary["digest"]:
        raise UserError(
            f"{folder}: {REQUESTS} (digest {found[:12]}) does not belong to {SUMMARY} "
            f"(digest {str(summary['digest'])[:12]}); expected the same digest"
        )
    return Run(folder, folder.name, summary, requests, series, tiers, instances, _read_config(folder))


def _read_config(folder: Path) -> str:
    try:
        return (folder / CONFIG).read_text(encoding="utf-8")
    except OSError:
        return ""


def _read_summary(folder: Path) -> dict[str, Any]:
    file = folder / SUMMARY
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{folder}: not a run folder: {SUMMARY} is missing") from None
    except json.JSONDecodeError as error:
        raise UserError(f"{file}: line {error.lineno}: not JSON ({error.msg}); the file is damaged") from error
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{file}: cannot be read: {error}") from error
    if not isinstance(summary, dict) or summary.get("kind") != KIND:
        raise UserError(f'{file}: not the summary of a run; expected a JSON object with "kind": "{KIND}"')
    if summary.get("schema") != SCHEMA:
        raise UserError(f"{file}: schema version {summary.get('schema')!r}; kvsim {__version__} reads version {SCHEMA}")
    missing = [name for name in _SECTIONS if name not in summary]
    if missing:
        raise UserError(f"{file}: the field {missing[0]!r} is missing; the file is damaged")
    return summary


def _is_run_folder(folder: Path) -> bool:
    """A folder with the summary of a run in it and nothing that a run does not write."""
    if folder.is_symlink() or not folder.is_dir() or {entry.name for entry in folder.iterdir()} - OWN_NAMES:
        return False
    try:
        summary = json.loads((folder / SUMMARY).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(summary, dict) and summary.get("kind") == KIND


def _refuse(target: Path, overwrite: bool) -> None:
    if not target.exists() and not target.is_symlink():
        return
    if not _is_run_folder(target):
        raise UserError(f"{target}: exists and is not a run folder (or holds other files too); expected a new name")
    if not overwrite:
        raise UserError(
            f"{target}: a run is there already; expected a new name, or --overwrite (overwrite=True) to replace it"
        )


def _locked(folder: Path) -> int:
    """An open folder that is locked, where the file system can do it, until it is closed or the process ends."""
    opened = os.open(folder, os.O_RDONLY)
    with contextlib.suppress(OSError):
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    return opened


def _remove_deserted(target: Path) -> None:
    """Remove what killed processes have left of a run to the same place.

    The process in the name has to be gone and the folder unlocked: a number says nothing about other machines.
    """
    for folder in target.parent.glob(f".{glob.escape(target.name)}.partial-*"):
        number = folder.name.rpartition("-")[2]
        if not number.isdecimal() or Path("/proc", number).exists() or not folder.is_dir():
            continue
        with contextlib.suppress(OSError):
            opened = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder)
            finally:
                os.close(opened)


def _remove_empty(folders: Sequence[Path]) -> None:
    for folder in folders:  # innermost first, as Path.parents gives them
        with contextlib.suppress(OSError):
            folder.rmdir()
