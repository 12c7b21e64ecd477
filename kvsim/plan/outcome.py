"""What became of a point, and where it is kept: one file per point, which appears whole or not at all."""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from kvsim.errors import UserError
from kvsim.plan.point_key import SCHEMA

KIND = "kvsim-point"
Status = Literal["ok", "unserved", "stuck", "failed"]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a point.

    Attributes:
        key: see `kvsim.plan.point_key`.
        status: "unserved": it was run, but no request finished; "stuck": it was run, but some requests had not ended
            when nothing could happen any more; "failed": it could not be run to its end.
        reason: of that; "" if all is well.
        config: the resolved config, as YAML.
        summary: as in ``summary.json`` of a run; None if it failed.
        measured: what else was asked for of its requests, see `kvsim.plan.task.Measure`.
        is_reused: it had been stored before.
    """

    key: str
    status: Status
    reason: str
    config: str
    summary: dict[str, Any] | None
    measured: dict[str, float | None] = field(default_factory=dict)
    is_reused: bool = field(default=False, compare=False)

    @property
    def ok(self) -> bool:
        """Whether its figures may be believed."""
        return self.status == "ok"

    @property
    def digest(self) -> str:
        """Of the per-request results; "" if it failed."""
        return "" if self.summary is None else str(self.summary["digest"])


class PointFiles:
    """Outcomes in a folder, ``KEY.json`` each. Any number of processes may write to it.

    Args:
        folder: made when something is kept; None = nothing is kept.
    """

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def get(self, key: str) -> Outcome | None:
        """The outcome of a key; None if there is none, or its file is damaged or of another version."""
        if self.folder is None:
            return None
        try:
            data = json.loads(self._path(key).read_text(encoding="utf-8"))
            if (data.pop("kind"), data.pop("schema"), data["key"]) != (KIND, SCHEMA, key):
                return None
            return Outcome(**data, is_reused=True)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def make_folder(self) -> None:
        """Make the folder, where there is to be one.

        Raises:
            UserError: it cannot be made.
        """
        if self.folder is not None:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"{self.folder}: cannot be made: {error.strerror or error}") from error

    def put(self, outcome: Outcome) -> None:
        """Keep an outcome, unless it is there: whoever comes second has the same.

        Raises:
            UserError: the folder cannot be written.
        """
        if self.folder is None or self.get(outcome.key) == outcome:
            return
        self.make_folder()
        path = self._path(outcome.key)
        partial = path.with_name(f".{path.name}.partial-{os.getpid()}-{threading.get_ident()}")
        data = {"kind": KIND, "schema": SCHEMA} | asdict(outcome)
        del data["is_reused"]
        try:
            with partial.open("w", encoding="utf-8", newline="\n") as file:
                json.dump(data, file, indent=1, allow_nan=False, ensure_ascii=False)
                file.write("\n")
                file.flush()
                os.fsync(file.fileno())  # a name without content must not survive a power cut
            partial.replace(path)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise UserError(f"{path}: cannot keep a finished point: {error.strerror or error}") from error

    def _path(self, key: str) -> Path:
        assert self.folder is not None
        return self.folder / f"{key}.json"
