"""Reports in a real browser: they render without an error and without asking for anything, and tables can be sorted.

Skipped without Chromium (`chromium`, `chromium-browser`, `google-chrome`): CI installs it.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kvsim.report.html import write_points
from kvsim.report.points import points_of
from kvsim.results.sweep import load_sweep

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
ITS_OWN = ("google.com", "googleapis.com", "gvt1.com", "gstatic.com")  # what the browser asks for by itself


@dataclass(frozen=True)
class Visit:
    """What a browser made of a page."""

    dom: str
    console: list[str]
    requests: list[str]


@pytest.fixture(scope="module")
def chromium() -> str:
    """Its path."""
    found = next((path for name in BROWSERS if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is installed")
    return found


def visit(browser: str, page: Path, folder: Path) -> Visit:
    """Open a page, let its script run, and look at what it has become."""
    log = folder / "net.json"
    options = (
        "--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update",
        "--no-first-run", "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", "--v=0", "--dump-dom",
        f"--user-data-dir={folder / 'profile'}", f"--log-net-log={log}",
    )  # fmt: skip
    done = subprocess.run([browser, *options, page.as_uri()], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    urls = [
        str(event["params"]["url"])
        for event in json.loads(log.read_text())["events"]
        if isinstance(event.get("params"), dict) and "url" in event["params"]
    ]
    hosts = [urlsplit(url).hostname or "" for url in urls]
    asked = [url for url, host in zip(urls, hosts, strict=True) if host and not host.endswith(ITS_OWN)]
    return Visit(done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line], asked)


def test_the_check_sees_errors_and_requests(chromium: str, tmp_path: Path) -> None:
    """A page with an error and a picture from elsewhere is found out: the other tests can fail."""
    page = tmp_path / "bad.html"
    page.write_text('<p id="x">a</p><img src="http://example.invalid/a.png"><script>nothing.there()</script>')
    found = visit(chromium, page, tmp_path)
    assert any("nothing is not defined" in line for line in found.console)
    assert set(found.requests) == {"http://example.invalid/a.png"}


def check(found: Visit, svgs: int) -> None:
    """Rendered, with nothing to complain about and nothing fetched."""
    assert found.console == []
    assert found.requests == []
    assert found.dom.count("<svg") == svgs
    assert '<button type="button">' in found.dom


def test_run(chromium: str, tmp_path: Path, run_page: Path) -> None:
    """The report of a run renders: six plots, and a script that has made the headings of its tables buttons."""
    check(visit(chromium, run_page, tmp_path), 6)


def test_comparison(chromium: str, tmp_path: Path, comparison_page: Path) -> None:
    """A comparison renders with its plots."""
    check(visit(chromium, comparison_page, tmp_path), 7)


def test_sweep(chromium: str, tmp_path: Path, sweep_folder: Path) -> None:
    """The report of a sweep renders: hit rate by size and what it costs."""
    write_points(points_of((), [load_sweep(sweep_folder)]), tmp_path / "report.html", "sweep")
    check(visit(chromium, tmp_path / "report.html", tmp_path), 2)


CLICKS = """
const table = document.querySelector("#sessions ~ .table table");
const column = (number) => [...table.tBodies[0].rows].map((row) => row.cells[number].textContent);
const found = [column(4)];
for (const number of [4, 4, 0]) {
  table.tHead.querySelectorAll("button")[number].click();
  found.push(column(number), [...table.tHead.querySelectorAll("[aria-sort]")].map((head) => head.ariaSort));
}
const told = document.createElement("pre");
told.id = "told";
told.textContent = JSON.stringify(found);
document.body.append(told);
"""


def test_sorting(chromium: str, tmp_path: Path, run_page: Path) -> None:
    """A click on a heading sorts by numbers, not by texts; a second click turns it round; the first column is text."""
    page = tmp_path / "report.html"
    text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", run_page.read_text(encoding="utf-8"))
    page.write_text(text.replace("</body>", f"<script>{CLICKS}</script></body>"), encoding="utf-8")
    dom = visit(chromium, page, tmp_path).dom
    told = json.loads(dom.partition('<pre id="told">')[2].partition("</pre>")[0])
    written, once, way_once, twice, way_twice, names, way_names = told
    assert (way_once, way_twice, way_names) == (["ascending"], ["descending"], ["ascending"])
    assert len(written) == 40
    assert seconds(written) == sorted(seconds(written), reverse=True)
    assert seconds(once) == sorted(seconds(written))
    assert seconds(twice) == sorted(seconds(written), reverse=True)
    assert names == [f"session-{number:02d}" for number in range(40)]


def seconds(texts: list[str]) -> list[float]:
    """Durations as a table shows them."""
    units = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0}
    return [float(number) * units[unit] for number, unit in (text.split() for text in texts)]


def test_a_script_that_is_not_ours_does_not_run(chromium: str, tmp_path: Path, run_page: Path) -> None:
    """The page's policy allows its own script only, so nothing that a trace smuggles in could run."""
    page = tmp_path / "report.html"
    alien = "<script>document.title = 'taken'</script></body>"
    page.write_text(run_page.read_text(encoding="utf-8").replace("</body>", alien), encoding="utf-8")
    found = visit(chromium, page, tmp_path)
    assert "<title>kvsim run cpu-128GiB</title>" in found.dom
    assert any("Content Security Policy" in line for line in found.console)
