"""The files of `kvsim mrc -o FOLDER`: tables, plots and everything as JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.figure import Figure

from kvsim.plan.sizing import Sizing
from kvsim.report.mrc_plots import miss_ratio_plot, tenants_plot
from kvsim.report.style import as_png, as_svg
from kvsim.results.parquet import write_parquet
from kvsim.results.whole_folder import whole_folder

NAMES = frozenset(
    {
        *("mrc.csv", "mrc.parquet", "mrc.json", "mrc.png", "mrc.svg"),
        *("tenants.csv", "tenants.parquet", "tenants.png", "tenants.svg"),
    }
)


def save_sizing(folder: Path, title: str, found: Sizing, as_json: Mapping[str, Any]) -> None:
    """Writes the folder, whole or not at all; replaces an earlier one of its kind.

    Raises:
        UserError: the folder holds something else, or cannot be written.
    """
    with whole_folder(folder, NAMES, "what `kvsim mrc` wrote") as target:
        _table(sizes_frame(found), target / "mrc")
        plots = {"mrc": _curves(title, found)}
        if found.tenants:
            _table(tenants_frame(found), target / "tenants")
            plots["tenants"] = tenants_plot(
                f"Hit rate by tenant: {title}",
                [
                    (
                        each.name,
                        _points(each.size_bytes, each.shared_hit_rate),
                        _points(each.size_bytes, each.alone_hit_rate),
                    )
                    for each in found.tenants
                ],
            )
        for name, drawn in plots.items():
            (target / f"{name}.svg").write_text(as_svg(drawn), encoding="utf-8", newline="\n")
            (target / f"{name}.png").write_bytes(as_png(drawn))
        text = json.dumps(as_json, indent=1, ensure_ascii=False, allow_nan=False)
        (target / "mrc.json").write_text(text + "\n", encoding="utf-8", newline="\n")


def sizes_frame(found: Sizing) -> pd.DataFrame:
    """One row per size; columns of the optimum only if it was asked for."""
    rows = [
        {
            "size_bytes": row.size_bytes,
            "size_blocks": row.size_blocks,
            "lru_hit_rate": row.lru_hit_rate,
            **({} if row.opt_hit_rate is None else {"opt_hit_rate": row.opt_hit_rate}),
            **({} if row.opt_bypass_hit_rate is None else {"opt_bypass_hit_rate": row.opt_bypass_hit_rate}),
            "mark": " ".join(row.marks),
        }
        for row in found.sizes
    ]
    return pd.DataFrame(rows)


def tenants_frame(found: Sizing) -> pd.DataFrame:
    """One row per tenant and size."""
    rows = [
        {"tenant": each.name, "size_bytes": size, "shared_hit_rate": shared, "alone_hit_rate": alone}
        for each in found.tenants
        for size, shared, alone in zip(each.size_bytes, each.shared_hit_rate, each.alone_hit_rate, strict=True)
    ]
    return pd.DataFrame(rows)


def _table(frame: pd.DataFrame, path: Path) -> None:
    frame.to_csv(path.with_suffix(".csv"), index=False, lineterminator="\n")
    write_parquet(frame, {"size_bytes": "int64"}, path.with_suffix(".parquet"))


def _curves(title: str, found: Sizing) -> Figure:
    return miss_ratio_plot(
        f"Hit rate by cache size: {title}",
        lru=found.curve,
        optimum=[(row.size_bytes, row.opt_hit_rate) for row in found.sizes if row.opt_hit_rate is not None],
        bypass=[
            (row.size_bytes, row.opt_bypass_hit_rate) for row in found.sizes if row.opt_bypass_hit_rate is not None
        ],
        knees=[(knee.size_bytes, knee.hit_rate) for knee in found.knees],
        max_hit_rate=found.max_hit_rate,
        working_set={each.window_s: (each.start_s, each.touched_bytes) for each in found.working_set},
    )


def _points(sizes: tuple[int, ...], rates: tuple[float, ...]) -> list[tuple[int, float]]:
    return list(zip(sizes, rates, strict=True))
