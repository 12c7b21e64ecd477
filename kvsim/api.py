"""The Python interface: run a config in memory and look at what came out.

::

    import kvsim

    result = kvsim.run("run.yaml", overrides=["connector.cpu_bytes_to_use=256GiB"])
    result.summary["latency"]["ttft_ms"]["p90"]
    result.requests.groupby("session")["external_hit_tokens"].sum()
    result.plot("ttft_cdf").savefig("ttft.png")

Runs that play the same trace can share it: ``trace = kvsim.read_trace("run.yaml")``, then
``kvsim.run("run.yaml", trace=trace)`` any number of times.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from kvsim.checked import closest, show
from kvsim.config import RunConfig, load_config, make_config
from kvsim.errors import UserError
from kvsim.overrides import parse_override
from kvsim.report.plots import plots_of
from kvsim.resolve import read_whole_trace_of
from kvsim.results.run import Run
from kvsim.results.runfolder import RunFolder
from kvsim.runner import run_of, simulate, write_run
from kvsim.trace.session import Trace
from kvsim.yamlfile import Document

Config = RunConfig | str | Path | Mapping[str, Any]
Progress = Callable[[int, int], None]


@dataclass(frozen=True, repr=False)
class Result:
    """What a run has left behind.

    Attributes:
        config: with every default, as it was run.
        kv_events: a KVEventBatch per line, if ``output.kv_events`` asks for them.
    """

    config: RunConfig
    _run: Run
    kv_events: str | None = None

    @property
    def summary(self) -> dict[str, Any]:
        """All figures: the content of ``summary.json``."""
        return self._run.summary

    @property
    def requests(self) -> pd.DataFrame:
        """One row per request, in order of arrival; times in ns, -1 where the event never came."""
        return self._run.requests

    @property
    def series(self) -> pd.DataFrame:
        """Samples over time; from ``prompt_tokens`` on they count from the start."""
        return self._run.series

    @property
    def tiers(self) -> pd.DataFrame:
        """Samples of each secondary tier over time; empty if there are none."""
        return self._run.tiers

    @property
    def instances(self) -> pd.DataFrame:
        """Samples of each instance of a cluster over time; empty without one."""
        return self._run.instances

    @property
    def notes(self) -> list[str]:
        """Choices and assumptions behind the numbers."""
        return list(self.summary["notes"])

    @property
    def warnings(self) -> list[str]:
        """What a careful reader should know before believing the numbers, gravest first."""
        return list(self.summary["warnings"])

    @property
    def digest(self) -> str:
        """SHA-256 of the per-request results: equal configs on equal traces give equal digests."""
        return str(self.summary["digest"])

    @property
    def plots(self) -> dict[str, str]:
        """The names of all plots of this run, each with what it shows."""
        return {name: text for name, (_, text) in plots_of(self._run).items()}

    def plot(self, name: str) -> Figure:
        """One plot, as a figure of matplotlib (`plots` has the names).

        Raises:
            UserError: there is no such plot of this run.
        """
        known = plots_of(self._run)
        if name not in known:
            guess = closest(name, known)
            hint = f", did you mean {guess}?" if guess else ""
            raise UserError(f"plot: expected one of {', '.join(known)}, found {name!r}{hint}")
        return known[name][0](self._run)

    def save(self, folder: str | Path, overwrite: bool = False) -> Path:
        """Write the run folder that ``kvsim run`` writes; it appears whole or not at all.

        Args:
            folder: where.
            overwrite: replace a run folder that is there. Anything else that is there is refused always.

        Raises:
            UserError: the place is taken, or cannot be written.
        """
        with RunFolder.create(folder, overwrite=overwrite) as target:
            if self.kv_events is not None:
                with target.kv_events() as file:
                    file.write(self.kv_events)
            write_run(self._run, target, plots=self.config.output.plots)
        return Path(folder)

    def __repr__(self) -> str:
        counts = self.summary["requests"]
        return (
            f"<kvsim.Result {self._run.name}: {counts['finished']:,} of {counts['arrived']:,} requests finished,"
            f" digest {self.digest[:12]}>"
        )


def run(
    config: Config, *, overrides: Sequence[str] = (), progress: Progress | None = None, trace: Trace | None = None
) -> Result:
    """Simulate a vLLM server, or a cluster, on a trace. Nothing is written.

    Args:
        config: path of a YAML file, its content as a mapping (paths in it are relative to the current folder), or a
            `RunConfig`.
        overrides: as on the command line: ``["engine.block_size=32", "connector.kind=none"]``; later ones win.
        progress: called with how many of how many requests have ended.
        trace: what `read_trace` has read, to be played without reading it again; a note says so where the config
            names another one.

    Raises:
        UserError: one line about what the user can mend.
    """
    settings = config_of(config, overrides)
    if trace is not None:
        trace = _given(trace, settings)
    kv_events = io.StringIO() if settings.output.kv_events else None
    plan, record = simulate(settings, progress, kv_events, trace=trace)
    return Result(plan.config, run_of(plan, record), None if kv_events is None else kv_events.getvalue())


def read_trace(config: Config, *, overrides: Sequence[str] = (), progress: Progress | None = None) -> Trace:
    """Read the trace that a config names, once for many runs. No run changes it.

    All sessions are read: how many of them are played (``trace.max_sessions``), and how, is up to each run.
    ``progress`` is called with how many of how many files have been read.

    Raises:
        UserError: one line about what is wrong in which file.
    """
    return read_whole_trace_of(config_of(config, overrides), progress)


def config_of(config: Config, overrides: Sequence[str] = ()) -> RunConfig:
    """A checked config (see `run`).

    Raises:
        UserError: one line about the first problem.
    """
    overrides = [overrides] if isinstance(overrides, str) else overrides
    changes = [parse_override(each, f"override {each}") for each in overrides]
    if isinstance(config, RunConfig):
        if not changes:
            return config
        return make_config(Document("config", config.model_dump(mode="json")), Path.cwd(), changes)
    if isinstance(config, str | Path):
        return load_config(config, changes)
    return make_config(Document("config", _plain(config)), Path.cwd(), changes)


def _given(trace: Trace, config: RunConfig) -> Trace:
    """A trace to be played instead of the config's, with a note if it is not the one that the config names.

    Raises:
        UserError: it is no trace.
    """
    if not isinstance(trace, Trace):
        raise UserError(f"trace: expected what kvsim.read_trace gives, found {show(trace)}")
    named = tuple(Path(path) for path in config.trace.path)
    if trace.paths in {(), named}:
        return trace
    note = f"played the trace that was given, of {_listed(trace.paths)}, and not trace.path: {_listed(named)}"
    return replace(trace, notes=(*trace.notes, note))


def _listed(paths: Sequence[Path]) -> str:
    return ", ".join(map(str, paths))


def _plain(value: Any) -> Any:
    """Mappings and lists of our own, as YAML would give them: they are going to be changed."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return str(value) if isinstance(value, Path) else value
