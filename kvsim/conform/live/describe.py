"""What vLLM's connectors say in a step, as recordings write it."""

from __future__ import annotations

from typing import Any

Record = dict[str, Any]


def describe_meta(meta: Any) -> Record:
    """A connector's metadata."""
    found: Record = {}
    for name in ("load_jobs", "store_jobs"):
        jobs = getattr(meta, name, None)
        if jobs is not None:
            found[name] = {str(job_id): job.req_id for job_id, job in jobs.items()}
    for name in ("reqs_to_load", "reqs_to_store"):
        requests = getattr(meta, name, None)
        if requests is not None:
            found[name] = list(requests)
    for name in ("jobs_to_flush", "reqs_to_flush"):
        flushed = getattr(meta, name, None)
        if flushed:
            found[name] = sorted(flushed)
    for name in ("load_event", "store_event", "need_flush"):
        value = getattr(meta, name, None)
        if value is not None:
            found[name] = value
    return found


def describe_report(report: Any) -> Record | None:
    """What its worker reports after a step."""
    if report is None:
        return None
    meta = report.kv_connector_worker_meta
    jobs = getattr(meta, "completed_jobs", None) or getattr(meta, "completed_store_events", None) or ()
    return {
        "recv": sorted(report.finished_recving or ()),
        "send": sorted(report.finished_sending or ()),
        "jobs": sorted(jobs),
    }
