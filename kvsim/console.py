"""What the commands print with: tables, progress, JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

WIDTH = 100


def output_console(widest: int | None = None) -> Console:
    """Standard output; where it is not a terminal, as wide as COLUMNS says, else 100."""
    console = Console()
    width = console.width if console.is_terminal else int(os.environ.get("COLUMNS") or WIDTH)
    return Console(width=width if widest is None else min(width, widest))


@contextmanager
def progress(what: str, unit: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error, if that is a terminal. Call what it yields with (done, total)."""
    console = Console(stderr=True)
    columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TextColumn(unit), TimeRemainingColumn())
    with Progress(*columns, console=console, disable=not console.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def print_json(value: Any) -> None:
    """For machines: NaN is no JSON."""
    typer.echo(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False))
