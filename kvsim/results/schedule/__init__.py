"""Schedules: the KV copies of a run, to be made again elsewhere. traces/SCHEDULE.md is the page about the format."""

from kvsim.results.schedule.check import check
from kvsim.results.schedule.cut import compacted, cut, scaled
from kvsim.results.schedule.file import ScheduleWriter, check_path, read_schedule, write_schedule
from kvsim.results.schedule.order import in_order, ordered
from kvsim.results.schedule.records import (
    DTYPE_BYTES,
    FORMAT,
    FROM_TO,
    VERSION,
    Behind,
    Direction,
    Header,
    Initial,
    Job,
    Layout,
    LayoutKind,
    Pairs,
    Schedule,
    Side,
    Step,
    Way,
    WayName,
)
from kvsim.results.schedule.rules import BrokenRuleError, layout_bytes

__all__ = [
    "DTYPE_BYTES",
    "FORMAT",
    "FROM_TO",
    "VERSION",
    "Behind",
    "BrokenRuleError",
    "Direction",
    "Header",
    "Initial",
    "Job",
    "Layout",
    "LayoutKind",
    "Pairs",
    "Schedule",
    "ScheduleWriter",
    "Side",
    "Step",
    "Way",
    "WayName",
    "check",
    "check_path",
    "compacted",
    "cut",
    "in_order",
    "layout_bytes",
    "ordered",
    "read_schedule",
    "scaled",
    "write_schedule",
]
