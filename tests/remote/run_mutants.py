"""Break one rule of prefill and decode apart at a time and see whether a test notices. Run with `make remote-mutants`.

Each mutant is a copy of the package with one text replaced; the tests of this folder run over it, until one fails.
Exit code 1 if a mutant is not noticed.
"""

from __future__ import annotations

import contextlib
import io
import signal
import sys
from pathlib import Path
from types import FrameType

TESTS = Path(__file__).resolve().parents[1]
sys.path += [str(TESTS), str(TESTS / "mutation")]

from mutants import MUTANTS  # noqa: E402 - found by the line above
from run import run_all  # noqa: E402

FILES = (
    "remote/test_rules.py",
    "remote/test_prefill_decode.py",
    "connectors/test_path_split.py",
    "remote/test_split.py",
    "remote/test_random_faults.py",
)
PATIENCE_SECONDS = 60  # with one test, of this process's time; a rule that is broken may keep it going for ever


def _out_of_patience(_signal: int, _frame: FrameType | None) -> None:
    raise TimeoutError


class _First:
    """Notes the first test that fails."""

    def __init__(self) -> None:
        self.name = ""

    def pytest_runtest_setup(self) -> None:
        """Of pytest: a test begins."""
        signal.setitimer(signal.ITIMER_PROF, PATIENCE_SECONDS)

    def pytest_runtest_logreport(self, report: object) -> None:
        """Of pytest: a part of a test is over."""
        if getattr(report, "failed", False) and not self.name:
            self.name = str(getattr(report, "nodeid", "?")).rpartition("::")[2]


def first_to_notice() -> str:
    """In a process with the mutant on its path: the first test that fails, or nothing."""
    import pytest  # noqa: PLC0415 - over the mutant

    first = _First()
    signal.signal(signal.SIGPROF, _out_of_patience)
    quiet = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        code = pytest.main([*quiet, *(str(TESTS / name) for name in FILES)], plugins=[first])
    return first.name or ("" if code == pytest.ExitCode.OK else f"pytest: {code!r}")


if __name__ == "__main__":
    run_all(MUTANTS, __file__, first_to_notice, __doc__)
