"""The command line as a user types it: in a process of its own, or in this one, which starts nothing and is as good.

A process costs a quarter of a second before it does anything. One per command is enough to show that it can be
started; whatever else is to be seen of a command (what is printed and written, the exit code, how it reads the
environment) is the same in this process, from `kvsim.cli.main` on.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from contextlib import chdir, redirect_stderr, redirect_stdout
from pathlib import Path
from unittest.mock import patch

from kvsim.cli import main

REPO = Path(__file__).resolve().parent.parent

Done = subprocess.CompletedProcess[str]


def kvsim_process(*words: object, cwd: Path, **environment: str) -> Done:
    """Run the command line in its own process; keywords are environment variables."""
    variables = {**os.environ, "PYTHONPATH": str(REPO), "COLUMNS": "100", "PYTHONHASHSEED": "0", **environment}
    return subprocess.run(  # noqa: S603 - our own interpreter
        [sys.executable, "-m", "kvsim", *map(str, words)],
        cwd=cwd, env=variables, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip


def kvsim(*words: object, cwd: Path, **environment: str) -> Done:
    """Run the command line in this process, which is left as it was; processes that it starts have the environment."""
    typed = ["kvsim", *map(str, words)]
    variables = {"PYTHONPATH": str(REPO), "COLUMNS": "100", **environment}
    out, err, code, terminated = io.StringIO(), io.StringIO(), 0, signal.getsignal(signal.SIGTERM)
    with (
        patch.dict(os.environ, variables), patch.object(sys, "argv", typed), chdir(cwd),
        redirect_stdout(out), redirect_stderr(err),
    ):  # fmt: skip
        try:
            main()
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        finally:
            signal.signal(signal.SIGTERM, terminated)
    return Done(typed, code, out.getvalue(), err.getvalue())
