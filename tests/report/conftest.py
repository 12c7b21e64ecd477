"""Synthetic runs for the tests of reports, made once."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "results"))

from run_builder import big_run, requests_of, series_of, small_requests, small_series, small_totals
from sweep_points import SIZES_AND_POLICIES, sweep_at

from kvsim.report.html import write_comparison, write_report
from kvsim.results.run import Run, assemble
from kvsim.results.runfolder import RunFolder, load_run


@pytest.fixture(scope="session")
def offload(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A lifelike run with a CPU tier."""
    return big_run(tmp_path_factory.mktemp("runs"))


@pytest.fixture(scope="session")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same requests without a CPU tier."""
    return big_run(tmp_path_factory.mktemp("runs"), offload=False)


@pytest.fixture(scope="session")
def run_page(tmp_path_factory: pytest.TempPathFactory, offload: Run) -> Path:
    """The report of the run with a CPU tier; not to be changed."""
    page = tmp_path_factory.mktemp("page") / "report.html"
    write_report(offload, page)
    return page


@pytest.fixture(scope="session")
def comparison_page(tmp_path_factory: pytest.TempPathFactory, baseline: Run, offload: Run) -> Path:
    """The comparison of both; not to be changed."""
    page = tmp_path_factory.mktemp("page") / "compare.html"
    write_comparison([baseline, offload], page)
    return page


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The run made by hand, with requests of every status; its name wants escaping in HTML and in rich."""
    path = tmp_path_factory.mktemp("runs") / "small <b>[red]&"
    with RunFolder.create(path) as folder:
        folder.write(
            assemble(requests=small_requests(), series=small_series(), totals=small_totals(), config_text="a: <x>\n")
        )
    return load_run(path)


@pytest.fixture(scope="session")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run in which nothing happened."""
    path = tmp_path_factory.mktemp("runs") / "empty"
    with RunFolder.create(path) as folder:
        folder.write(assemble(requests=requests_of([]), series=series_of([]), totals={}, config_text=""))
    return load_run(path)


@pytest.fixture(scope="session")
def sweep_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sweep over sizes and policies."""
    return sweep_at(tmp_path_factory.mktemp("sweeps") / "sizes", SIZES_AND_POLICIES)
