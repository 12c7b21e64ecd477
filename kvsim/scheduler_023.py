"""What the scheduler of release 0.23.0 does otherwise."""

from __future__ import annotations

from kvsim.scheduler import Scheduler
from kvsim.waiting import WaitingQueues023


class Scheduler023(Scheduler):
    """Release 0.23.0."""

    queues = WaitingQueues023
    lone_prefill_uncapped = False
    self_preemption_ends_pass = True
    counts_idle_adapters = False
    sessions_keep_slots = False
    closed_gate_ends_scan = True
