"""What of a run's copies is to be exported as a schedule, and where to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvsim.errors import UserError
from kvsim.results.schedule import check_path
from kvsim.units import parse_size, parse_time

OPTION = "--export-schedule"


@dataclass(frozen=True, slots=True)
class ScheduleExport:
    """Where the schedule goes, and what of it.

    Attributes:
        path: ends in ``.jsonl`` or ``.jsonl.gz``.
        start_ns, end_ns: steps that start in this stretch of simulated time only; None = no limit.
        requests: jobs of these only, and of what they read; None = of all.
        max_bytes: steps up to so many copied bytes; None = no limit.
    """

    path: Path
    start_ns: int | None = None
    end_ns: int | None = None
    requests: tuple[str, ...] | None = None
    max_bytes: int | None = None

    @classmethod
    def from_options(
        cls,
        path: Path | None,
        start: str | None,
        end: str | None,
        requests: Sequence[str] | None,
        max_bytes: str | None,
    ) -> ScheduleExport | None:
        """What the options of ``kvsim run`` say; None = no schedule is wanted.

        Raises:
            UserError: a value is none, or says which part of a schedule that is not wanted.
        """
        given = {
            "--schedule-from": start,
            "--schedule-until": end,
            "--schedule-request": requests or None,
            "--schedule-max-bytes": max_bytes,
        }
        if path is None:
            alone = [name for name, value in given.items() if value is not None]
            if alone:
                raise UserError(f"{alone[0]}: expected {OPTION} beside it")
            return None
        return cls(
            path,
            _quantity("--schedule-from", start, parse_time),
            _quantity("--schedule-until", end, parse_time),
            tuple(requests) if requests else None,
            _quantity("--schedule-max-bytes", max_bytes, parse_size),
        )

    def check(self, run_folder: Path, own_names: frozenset[str], *, overwrite: bool) -> None:
        """Raise UserError if it cannot be written, before anything is simulated.

        Args:
            run_folder: of the same run, which need not exist.
            own_names: what may lie in it.
            overwrite: replace a file that is there.
        """
        check_path(self.path)
        if self.start_ns is not None and self.end_ns is not None and self.end_ns <= self.start_ns:
            raise UserError("--schedule-until: expected a time after --schedule-from")
        folder = self.path.absolute().parent
        if folder == run_folder.absolute():
            if self.path.name not in own_names:
                raise UserError(f"{self.path}: expected schedule.jsonl or schedule.jsonl.gz inside the run folder")
            return
        if not folder.is_dir():
            raise UserError(f"{self.path}: cannot be written: there is no folder {folder}")
        if self.path.exists() and not overwrite:
            raise UserError(f"{self.path}: is there already; expected a new name, or --overwrite to replace it")


def _quantity(option: str, text: str | None, parse: Callable[[object], int]) -> int | None:
    if text is None:
        return None
    try:
        return parse(text)
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None
