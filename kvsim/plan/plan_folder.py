"""What a plan leaves behind: the answer, every point, one plot, and the recommended config, ready to run."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from kvsim import __version__
from kvsim.config import dump_config
from kvsim.errors import UserError
from kvsim.plan.plan_answer import ANSWER, KIND, SCHEMA
from kvsim.plan.plan_table import points_frame, thinned_frame
from kvsim.plan.planner import Planned
from kvsim.plan.prices import Resources
from kvsim.plan.rated import Rated
from kvsim.plan.recommend import Advice
from kvsim.plan.reporting import read_report, write_page
from kvsim.plan.search import Point
from kvsim.plan.sweep import POINTS
from kvsim.plan.sweep_results import RESULTS, write_results
from kvsim.report.plan_plots import against, pareto, with_plot_column
from kvsim.report.style import as_png, as_svg
from kvsim.results.whole_folder import whole_file
from kvsim.vllm_line import to_command_line

RECOMMENDED, PNG, SVG, REPORT = "recommended.yaml", "pareto.png", "pareto.svg", "report.html"
THINNED = "fewer_sessions.csv"
_OWN_NAMES = frozenset((ANSWER, THINNED, RECOMMENDED, PNG, SVG, REPORT, POINTS, *RESULTS))


def claim(folder: Path) -> None:
    """Raise UserError if a folder is something else than a plan's, before anything is simulated."""
    if not folder.exists() and not folder.is_symlink():
        return
    if folder.is_dir():
        names = {path.name for path in folder.iterdir()}
        if {name for name in names if ".partial-" not in name} <= _OWN_NAMES:  # what a killed plan may have left
            return
    raise UserError(f"{folder}: exists and is not a plan's folder (or holds other files too); expected a new name")


def save_plan(planned: Planned, advice: Advice, serve_line: str, folder: Path) -> None:
    """Write everything but the points, which are there already. Files of an earlier plan are replaced.

    Raises:
        UserError: the folder cannot be written.
    """
    table = points_frame(planned, advice)
    limit = planned.task.slo.limits[0]
    drawn = against(limit.key, limit.limit)
    plot = pareto(with_plot_column(table, drawn), drawn)
    texts: dict[str, bytes] = {
        PNG: as_png(plot),
        SVG: as_svg(plot).encode(),
        ANSWER: (json.dumps(answer(planned, advice, serve_line), indent=1, ensure_ascii=False) + "\n").encode(),
    }
    if planned.thinned:
        thinned = thinned_frame(planned, advice)
        texts[THINNED] = thinned.to_csv(index=False, lineterminator="\n").encode()
    if advice.meets_slo and advice.best is not None:
        texts[RECOMMENDED] = _recommended(planned, advice.best, serve_line).encode()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_results(table, folder)
        for name in (RECOMMENDED, THINNED, REPORT):  # of an earlier plan
            (folder / name).unlink(missing_ok=True)
        for name, content in texts.items():
            with whole_file(folder / name) as partial:
                partial.write_bytes(content)
        found = read_report([folder]) if planned.rated else None
        if found is not None and found.baseline is not None:
            with whole_file(folder / REPORT) as partial:
                write_page(found, partial, f"kvsim plan: {planned.task.name}")
    except OSError as error:
        raise UserError(f"{folder}: cannot write the plan: {error.strerror or error}") from error


def serve_line(planned: Planned, advice: Advice) -> str:
    """The ``vllm serve`` line of the recommended config, with what vLLM has no flag for as comments; or nothing."""
    if not advice.meets_slo or advice.best is None:
        return ""
    return to_command_line(planned.rated[advice.best].config)


def answer(planned: Planned, advice: Advice, serve_line: str = "") -> dict[str, Any]:
    """The content of ``plan.json``: plain data, no infinities."""
    task, best = planned.task, advice.best
    rated = None if best is None else planned.rated[best]
    return {
        "kind": KIND,
        "schema": SCHEMA,
        "name": task.name,
        "verdict": advice.verdict,
        "meets_slo": advice.meets_slo,
        "answer": advice.text,
        "reasons": list(advice.reasons),
        "objective": task.config.objective,
        "slo": task.slo.plain(),
        "space": {axis.name: list(axis.labels) for axis in planned.space.axes},
        "recommended" if advice.meets_slo else "closest": None if best is None else _point(planned, best),
        "bottleneck": None
        if advice.bottleneck is None
        else {"resource": advice.bottleneck.resource, "text": advice.bottleneck.text},
        "vllm_serve": serve_line or None,
        "neighbours": [
            {"axis": each.axis, "simulated": each.rated is not None}
            | ({"point": planned.space.labels(each.point)} if each.rated is None else _point(planned, each.point))
            for each in advice.neighbours
        ],
        "pareto": [_point(planned, point) for point in advice.pareto],
        "bounds": _bounds(planned),
        "simulated": {
            "points": len(planned.rated),
            "with_fewer_sessions": len(planned.thinned),
            "all_of_the_space": planned.found.is_exhaustive,
            "all_neighbours": planned.found.is_local_best,
            "ended_by_budget": not planned.found.is_complete,
        },
        "prices": [] if rated is None else task.prices.sources(rated.resources),
        "cost_formula": "USD per 1M output tokens = (makespan in hours) x (GPUs x GPU-hour + GiB of CPU memory x"
        " GiB-hour + TiB of NVMe x TiB-hour + Gbit/s x hour) / output tokens x 1,000,000",
        "versions": {"kvsim": __version__},
    }


def _point(planned: Planned, point: Point) -> dict[str, Any]:
    rated = planned.rated[point]
    found: dict[str, Any] = {"point": planned.space.labels(point), "name": planned.space.name(point)}
    if rated.failed:
        return found | {"meets_slo": False, "reason": rated.reason}
    return found | {
        "meets_slo": rated.is_met,
        "slo": {
            check.key: {"limit": check.limit, "measured": check.measured, "met": check.is_met} for check in rated.checks
        },
        "usd_per_1m_output_tokens": _finite(rated.usd_per_1m_tokens),
        "usd_per_hour": rated.usd_per_hour(planned.task.prices),
        "usd": {name: round(usd, 6) for name, usd in rated.cost.items()},
        "makespan_s": _finite(rated.makespan_s),
        "output_tokens": rated.output_tokens,
        "rejected": rated.rejected[0],
        "hit_rate": rated.summary["hit_rate"]["total"],
        "resources": _resources(rated.resources),
        "digest": rated.summary["digest"],
        "key": rated.key,
    }


def _resources(resources: Resources) -> dict[str, Any]:
    return {
        "instances": resources.instances,
        "gpus": dict(resources.gpus),
        "dram_bytes": resources.dram_bytes,
        "nvme_bytes": resources.nvme_bytes,
        "network_gbps": resources.network_gbps,
    }


def _bounds(planned: Planned) -> dict[str, Any]:
    found: dict[str, Any] = {"notes": list(planned.bounds.notes)}
    keep, even = planned.bounds.working_set, planned.bounds.break_even
    if keep is not None:
        found["working_set"] = {
            "distinct_bytes": keep.distinct_bytes,
            "lru_bytes": keep.lru_bytes,
            "gpu_bytes": keep.gpu_bytes,
            "fits_the_gpu": keep.fits_the_gpu,
            "max_hit_rate": keep.max_hit_rate,
            "gpu_hit_rate": keep.gpu_hit_rate,
            "knees": [{"bytes": size, "hit_rate": rate} for size, rate in keep.knees],
        }
    if even is not None:
        found["break_even"] = {"tokens": even.tokens, "load_ns": even.load_ns, "compute_ns": even.compute_ns}
    return found


def _recommended(planned: Planned, best: Point, serve_line: str) -> str:
    """The config with the line that starts such servers above it."""
    rated: Rated = planned.rated[best]
    line = "".join(f"#   {text}\n" for text in serve_line.splitlines())
    head = f"# What `kvsim plan` recommends for {planned.task.name}: {planned.space.name(best)}\n"
    return head + (f"# With vLLM, each instance:\n{line}" if line else "") + dump_config(rated.config)


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value
