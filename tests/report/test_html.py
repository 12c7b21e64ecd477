"""HTML reports: well-formed, whole without a network, escaped, and the same bytes each time."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from kvsim.errors import UserError
from kvsim.report.html import write_comparison, write_report
from kvsim.report.plots import save_plots
from kvsim.results.run import Run

VOID = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Reads a page and keeps what the tests ask about."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.resources: list[str] = []
        self.headings: list[int] = []
        self.seen: set[str] = set()
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note ids and everything that could be fetched."""
        self.seen.add(tag)
        if tag not in VOID:
            self.open.append(tag)
        if re.fullmatch(r"h[1-6]", tag):
            self.headings.append(int(tag[1]))
        for name, value in attrs:
            if name == "id" and value:
                self.ids.append(value)
            if name in ("href", "src", "xlink:href", "srcset", "data", "poster", "action"):
                (self.targets if value and value.startswith("#") else self.resources).append(value or "")
            if name == "style" and value:
                self.targets += re.findall(r"url\((#[^)]*)\)", value)
            if name == "clip-path" and value:
                self.targets += re.findall(r"url\((#[^)]*)\)", value)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """A tag that closes itself, as SVG has them."""
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        """Tags must close in order."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Note the text, apart from styles."""
        if not self.open or self.open[-1] != "style":
            self.words.append(data)

    @property
    def text(self) -> str:
        """All words of the page with single spaces."""
        return " ".join(" ".join(self.words).split())


def check(path: Path) -> Page:
    """Parse a page and check what holds for all of them."""
    raw = path.read_text(encoding="utf-8")
    page = Page(raw)
    assert page.resources == []
    assert not page.seen & {"link", "img", "iframe", "object"}
    assert raw.count("<script") == ('class="sortable"' in raw)
    assert "@import" not in raw
    assert not re.search(r"""(src|href|xmlns[:\w]*)\s*=\s*["']?\s*(https?:)?//""", raw)
    assert not re.search(r"""url\(["']?(?!#)""", raw)
    assert len(page.ids) == len(set(page.ids))
    assert {target[1:] for target in page.targets} <= set(page.ids)
    assert page.headings[0] == 1
    assert page.headings.count(1) == 1
    assert all(after - before <= 1 for before, after in zip(page.headings, page.headings[1:], strict=False))
    assert "prefers-color-scheme: dark" in raw
    assert "@media print" in raw
    assert re.findall(r"[^-]max-width: (\d+)px", raw)[1:] == ["900", "900", "600"]  # tables, figures, phones
    return page


def test_run(run_page: Path, offload: Run) -> None:
    """A run's report has the summary in words, the numbers, six plots, notes with sources, and the config."""
    page = check(run_page)
    assert "All 400 requests finished in 6.37 min of simulated time" in page.text.replace("\xa0", " ")
    assert page.text.count("Which share of the requests were complete within a time.") == 1
    assert run_page.read_text().count("<svg") == 6
    assert "PCIe bandwidth of 55 GB/s comes from the profile h100-pcie5 (https://example.com/measured)." in page.text
    assert "swe-40 <synthetic>" in page.text
    assert "cpu_bytes: 128GiB" in page.text
    assert offload.summary["digest"] in page.text
    assert "TTFT 234 ms 181 ms 468 ms 788 ms" in page.text


def test_saved_plots_are_not_drawn_again(tmp_path: Path, offload: Run, run_page: Path) -> None:
    """A report made from the plots in a folder is the one whose plots are drawn for it."""
    save_plots(offload, tmp_path / "plots")
    write_report(offload, tmp_path / "saved.html", plots=tmp_path / "plots")
    assert (tmp_path / "saved.html").read_bytes() == run_page.read_bytes()


def test_a_report_without_plots(tmp_path: Path, offload: Run) -> None:
    """Nothing is drawn, nothing leads to plots, and all the rest is there."""
    write_report(offload, tmp_path / "report.html", draws=False)
    page, text = check(tmp_path / "report.html"), (tmp_path / "report.html").read_text()
    assert "<svg" not in text
    assert "#plots" not in text
    assert "TTFT 234 ms 181 ms 468 ms 788 ms" in page.text


def test_escaping(tmp_path: Path, small: Run) -> None:
    """Names, reasons and configs are text, whatever signs are in them; warnings are shown."""
    write_report(small, tmp_path / "report.html")
    page = check(tmp_path / "report.html")
    assert "b" not in page.seen
    assert "kvsim run small <b>[red]&" in page.text
    assert "a: <x>" in page.text
    assert "2 of 7 requests (29 %) were rejected" in page.text


def test_nothing(tmp_path: Path, empty: Run) -> None:
    """A run in which nothing happened has a report that says so."""
    write_report(empty, tmp_path / "report.html")
    page = check(tmp_path / "report.html")
    assert "No request arrived. There is nothing to report." in page.text
    assert "nan" not in page.text.lower().split()


def test_comparison(comparison_page: Path) -> None:
    """A comparison says in words which run is faster, and has the changes and plots over both and of each."""
    page = check(comparison_page)
    text = page.text.replace("\xa0", " ")
    assert "cpu-128GiB has the lowest P90 time to first token, 468 ms against 1.75 s in baseline (-73.3 %)" in text
    assert "Caches served 62.1 % in baseline and 92.7 % in cpu-128GiB of the prompt tokens." in text
    assert comparison_page.read_text().count("<svg") == 7
    assert "Nothing: the configurations are the same." in text


def test_comparison_of_many(tmp_path: Path, baseline: Run, offload: Run, small: Run, empty: Run) -> None:
    """Many runs go into several tables of four columns; differing requests and configs are shown."""
    write_comparison([baseline, offload, small, empty, baseline, small], tmp_path / "compare.html")
    page = check(tmp_path / "compare.html")
    assert "table 1 of 2" in page.text
    assert "table 2 of 2" in page.text
    assert "These runs share only a part of their requests with runs" in page.text
    assert "+a: <x>" in page.text


def test_same_bytes(tmp_path: Path, baseline: Run, offload: Run, run_page: Path, comparison_page: Path) -> None:
    """Writing a report twice gives the same bytes."""
    write_report(offload, tmp_path / "run.html")
    write_comparison([baseline, offload], tmp_path / "compare.html")
    assert (tmp_path / "run.html").read_bytes() == run_page.read_bytes()
    assert (tmp_path / "compare.html").read_bytes() == comparison_page.read_bytes()


def test_errors(tmp_path: Path, empty: Run) -> None:
    """A comparison of one run and a place that cannot be written are users' errors."""
    with pytest.raises(UserError, match="a comparison needs at least two runs, found 1"):
        write_comparison([empty], tmp_path / "x.html")
    with pytest.raises(UserError, match=r"gone/x\.html: cannot write the report: No such file"):
        write_report(empty, tmp_path / "gone" / "x.html")
