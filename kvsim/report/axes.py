"""What the axes of several plots have in common."""

from __future__ import annotations

from matplotlib.axes import Axes

from kvsim.report.curves import Floats


def time_axis(axes: Axes, time: Floats, unit: str, label: bool = True) -> None:
    """From the first arrival to the last point in time."""
    axes.set_xlim(0, max(float(time[-1]), 1e-9))
    if label:
        axes.set_xlabel(f"Time since the first arrival ({unit})")


def legend(axes: Axes) -> None:
    """Above the plot at the right, beside the title: it never covers data."""
    handles, _ = axes.get_legend_handles_labels()
    if handles:
        axes.legend(loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=min(3, len(handles)), frameon=False)
