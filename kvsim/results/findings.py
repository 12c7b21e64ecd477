"""What a careful reader would notice in a summary, said in plain language.

Each rule looks at one thing and gives one sentence: what was found, with its numbers, and what it means. The
thresholds are our own judgement of when a reader would want to be told; none of them changes a result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

GIB = 2**30

PREEMPTED_SHARE = 0.05
CANNOT_STORE_SHARE = 0.10
SMALL_EXTERNAL_SHARE = 0.02
HIGH_LOCAL_SHARE = 0.50
NOT_FULL_SHARE = 0.80
STALL_SHARE = 0.05
BUSY_LINK_SHARE = 0.90
UNUSED_STORE_SHARE = 0.90
LONG_QUEUE_MS = 1000.0
FEW_REQUESTS = 100
LARGE_BACKLOG_SHARE = 0.25
UNEVEN_RATIO = 1.5

Summary = Mapping[str, Any]


def warnings(summary: Summary) -> list[str]:
    """Plain-language findings about what :func:`kvsim.results.summary.summarize` made, gravest first."""
    if not summary["requests"]["arrived"]:
        return ["No request arrived: the trace is empty or the run ended before the first arrival."]
    return [line for rule in _RULES for line in rule(summary)]


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %" if share < 0.1 else f"{100 * share:.0f} %"


def _unfinished(summary: Summary) -> list[str]:
    found = []
    counts = summary["requests"]
    arrived = counts["arrived"]
    what = {
        "rejected": "were rejected",
        "failed": "failed",
        "aborted": "were given up by their clients",
        "stuck": "had not ended when the run ended",
    }
    for status, verb in what.items():
        if not counts[status]:
            continue
        reasons = counts["reasons"][status]
        reason, times = next(iter(reasons.items()))
        why = f"reason: {reason}" if len(reasons) == 1 else f"most common reason, {times} times: {reason}"
        share = _percent(counts[status] / arrived)
        found.append(f"{counts[status]:,} of {arrived:,} requests ({share}) {verb} ({why}).")
    if found and counts["finished"]:
        found.append("Latency and throughput count finished requests only.")
    if not counts["finished"]:
        found.append("No request finished: there is no latency and no throughput to report.")
    return found


def _faulty(summary: Summary) -> list[str]:
    faults = summary.get("faults") or {}
    found = []
    if faults.get("hit_requests"):
        lost, times = faults.get("lost_tokens", 0), faults["hit_requests"]
        blocks, loads = faults.get("failed_load_blocks", 0), faults.get("failed_loads", 0)
        found.append(
            f"KV loads lost {blocks:,} blocks in {loads:,} copies: {times:,} times a request had counted on them, for"
            f" {lost:,} tokens."
        )
    if faults.get("stalled_jobs"):
        stalled, expired = faults["stalled_jobs"], faults.get("expired_jobs", 0)
        found.append(f"{stalled:,} copies stalled, {expired:,} of them were given up at their deadline.")
    if faults.get("engine_deaths"):
        found.append(f"The engine died {faults['engine_deaths']:,} times: whatever it ran or cached was lost.")
    return found


def _preempted(summary: Summary) -> list[str]:
    preempted, admitted = summary["preemptions"]["requests"], summary["requests"]["admitted"]
    if not admitted or preempted / admitted < PREEMPTED_SHARE:
        return []
    return [
        (
            f"{preempted} of {admitted} admitted requests ({_percent(preempted / admitted)}) were preempted: "
            "the GPU KV cache is too small for what runs at once. Fewer concurrent sequences or more GPU KV "
            "memory would help."
        )
    ]


def _queued(summary: Summary) -> list[str]:
    queue, ttft = summary["latency"]["queue_ms"]["p50"], summary["latency"]["ttft_ms"]["p50"]
    if queue is None or ttft is None or queue < LONG_QUEUE_MS or queue < ttft / 2:
        return []
    return [
        (
            f"Half of the requests waited {queue / 1000:.1f} s or more to be scheduled: the instance is "
            "overloaded, and TTFT measures the queue more than the cache."
        )
    ]


def _in_front(summary: Summary) -> list[str]:
    front, ttft = summary["latency"].get("frontend_ms", {}).get("p50"), summary["latency"]["ttft_ms"]["p50"]
    if front is None or ttft is None or front < LONG_QUEUE_MS or front < ttft / 2:
        return []
    return [
        (
            f"Half of the requests spent {front / 1000:.1f} s or more in front of the engine: the API servers are"
            " overloaded. More of them (--api-server-count) or a faster tokenizer would help, a larger cache would not."
        )
    ]


def _few(summary: Summary) -> list[str]:
    finished = summary["requests"]["finished"]
    if not 0 < finished < FEW_REQUESTS:
        return []
    return [f"Only {finished} requests finished: P99 rests on one or two of them."]


def _gpu_enough(summary: Summary) -> list[str]:
    if not summary["tiers"]["cpu"]["capacity_blocks"] or summary["tiers"]["gpu"]["evicted_blocks"] != 0:
        return []
    if not summary["requests"]["finished"]:
        return []
    if summary["preemptions"]["count"] or summary["hit_rate"]["external_hit_tokens"]:
        return []
    local = _percent(summary["hit_rate"]["local"] or 0.0)
    return [
        (
            f"Offload gain 0 %: the GPU hit rate is {local} and the GPU KV cache never evicted a block, so "
            "offloading had nothing to bring back on this load."
        )
    ]


def _small_gain(summary: Summary) -> list[str]:
    cpu, hits = summary["tiers"]["cpu"], summary["hit_rate"]
    if not cpu["capacity_blocks"] or hits["external"] is None or hits["external"] >= SMALL_EXTERNAL_SHARE:
        return []
    if _gpu_enough(summary):
        return []  # said already
    external, local = _percent(hits["external"]), _percent(hits["local"])
    if hits["local"] >= HIGH_LOCAL_SHARE:
        return [
            (
                f"Offload gain <= {_percent(1 - hits['local'])} because the GPU hit rate is already {local}; "
                f"the offload tier adds {external} of the prompt tokens."
            )
        ]
    if cpu["evicted_blocks"]:
        return [
            (
                f"The offload tier serves only {external} of the prompt tokens and evicted "
                f"{cpu['evicted_blocks']:,} blocks: it {_too_small(summary)}."
            )
        ]
    return [
        (
            f"The offload tier serves only {external} of the prompt tokens though it evicted nothing: the "
            f"trace asks for little again beyond what the GPU cache serves ({local})."
        )
    ]


def _too_small(summary: Summary) -> str:
    cpu, gpu = (summary["tiers"][tier]["capacity_bytes"] for tier in ("cpu", "gpu"))
    if cpu is not None and gpu is not None and cpu <= gpu:  # what is computed is written through to it
        sizes = f"{cpu / GIB:.1f} GiB, the GPU KV cache {gpu / GIB:.1f} GiB"
        return f"is not larger than the GPU's own cache ({sizes}) and holds little that the GPU has not"
    return "may be too small to keep content until it is asked for again"


def _cannot_store(summary: Summary) -> list[str]:
    refused, stored = summary["tiers"]["cpu"]["cannot_store"], summary["transfers"]["store_jobs"]
    if stored == 0 and not refused and summary["tiers"]["cpu"]["capacity_blocks"] and summary["requests"]["finished"]:
        return [
            (
                "Nothing was ever stored in the offload tier: no prompt reached the length of an offloaded block, or "
                "no block the store threshold."
            )
        ]
    if not refused or stored is None or refused / (refused + stored) < CANNOT_STORE_SHARE:
        return []
    return [
        (
            f"The offload tier refused stores {refused:,} times (they are tried again every step) because it "
            "could not free enough blocks: it is too small for the blocks in flight."
        )
    ]


def _never_full(summary: Summary) -> list[str]:
    cpu = summary["tiers"]["cpu"]
    share, peak, size = cpu["used"]["peak_share"], cpu["used"]["peak_bytes"], cpu["capacity_bytes"]
    if share is None or peak is None or size is None or share >= NOT_FULL_SHARE or cpu["evicted_blocks"] != 0:
        return []
    if not peak or cpu["cannot_store"]:
        return []  # it was never used, or never had room
    return [
        (
            f"The CPU tier never filled: {peak / GIB:.1f} GiB of {size / GIB:.1f} GiB ({_percent(share)}) "
            "were used at the peak. A tier of that size would have given the same hits."
        )
    ]


def _unused_stores(summary: Summary) -> list[str]:
    share, moved = summary["transfers"]["unused_store_share"], summary["transfers"]["unused_store_bytes"]
    if share is None or moved is None or share < UNUSED_STORE_SHARE:
        return []
    return [
        (
            f"{_percent(share)} of what was stored ({moved / 1e9:.1f} GB) was never loaded: it came only once, or the "
            "GPU still had it. A store_threshold of 2 keeps content out that comes only once."
        )
    ]


def _stalled(summary: Summary) -> list[str]:
    share = summary["gpu"]["stall_share"]
    if share is None or share < STALL_SHARE:
        return []
    return [
        (
            f"The GPU stood idle for {_percent(share)} of the time only because KV was being loaded: the "
            "link, not the GPU, sets the pace there."
        )
    ]


def _held_up(summary: Summary) -> list[str]:
    waited, busy = summary["totals"].get("sync_stall_ns"), summary["totals"].get("gpu_busy_ns")
    if not waited or busy is None or waited / (waited + busy) < STALL_SHARE:
        return []
    return [
        (
            f"Forward passes spent {_percent(waited / (waited + busy))} of their time waiting for the KV that they load"
            " and save themselves: the connector is synchronous."
        )
    ]


def _busy_links(summary: Summary) -> list[str]:
    found = []
    for way, name in (("h2d", "host-to-device"), ("d2h", "device-to-host")):
        share = summary["transfers"][way]["busy_share"]
        if share is not None and share >= BUSY_LINK_SHARE:
            found.append(f"The {name} link was busy for {_percent(share)} of the time: transfers queue.")
    return found


def _tier_backlog(summary: Summary) -> list[str]:
    found = []
    for name, tier in summary["secondary_tiers"].items():
        backlog, written = tier["backlog"], tier["write"]
        if not written["bytes"] or not (backlog["grows"] or (backlog["cpu_share"] or 0) >= LARGE_BACKLOG_SHARE):
            continue
        waits = f"{backlog['peak_bytes'] / GIB:.1f} GiB"
        if backlog["cpu_share"] is not None:
            waits += f" ({_percent(backlog['cpu_share'])} of CPU memory, where it is pinned until it is written)"
        trend = " and the backlog grew all through the run" if backlog["grows"] else ""
        found.append(
            f"Tier {name} cannot keep up with what is stored: it writes {written['gb_per_s']:.2f} GB/s, up to {waits}"
            f" waited to be written{trend}. A faster tier, more CPU memory, or no such tier would be better."
        )
    return found


def _slow_tier(summary: Summary) -> list[str]:
    found = []
    totals = summary["totals"]
    computed, busy_s = _computed_tokens(summary), summary["gpu"]["busy_s"]
    if not computed or not busy_s:
        return []
    gpu_rate = computed / busy_s / summary.get("cluster", {}).get("instances", 1)  # of one instance, as the tier's
    for name, tier in summary["secondary_tiers"].items():
        if not tier["read"]["gb_per_s"]:
            continue
        tier_rate = tier["read"]["gb_per_s"] * 1e9 * totals["block_tokens"] / totals["gpu_block_bytes"]
        if tier_rate < gpu_rate:
            found.append(
                f"Tier {name} brings {tier_rate:,.0f} tokens/s when it is asked ({tier['read']['gb_per_s']:.2f} GB/s);"
                f" the GPU computes {gpu_rate:,.0f} prompt tokens/s: its hits take longer than computing them again."
            )
    return found


def _computed_tokens(summary: Summary) -> int:
    hits = summary["hit_rate"]
    return int(hits["prompt_tokens"] - hits["local_hit_tokens"] - hits["external_hit_tokens"])


def _full_tier(summary: Summary) -> list[str]:
    return [
        f"Tier {name} was full ({tier['capacity_bytes'] / GIB:.1f} GiB): {tier['refused_chunks']:,} chunks were not"
        f" written. {_WHEN_FULL.get(tier['kind'], 'vLLM deletes nothing there: what is stored first stays.')}"
        for name, tier in summary["secondary_tiers"].items()
        if tier["refused_chunks"]
    ]


# By kind of tier; others keep what they have.
_WHEN_FULL = {"mooncake": "It makes room every 10 ms, and in a tenant's quota at once; leased blocks stay."}


def _idle_tier(summary: Summary) -> list[str]:
    return [
        f"Nothing was ever read from tier {name}, {tier['write']['bytes'] / 1e9:,.1f} GB were written to it: CPU memory"
        " alone would have given the same hits."
        for name, tier in summary["secondary_tiers"].items()
        if tier["write"]["bytes"] and not tier["read"]["bytes"]
    ]


def _uneven(summary: Summary) -> list[str]:
    busiest = summary.get("cluster", {}).get("busiest")
    split = any("role" in each for each in summary.get("instances", ()))  # prefill and decode differ by their nature
    if busiest is None or busiest < UNEVEN_RATIO or split:
        return []
    name = max(summary["instances"], key=lambda each: each["totals"]["gpu_busy_ns"])["name"]
    return [f"The GPUs of {name} were busy {busiest:.1f} times as long as those of the mean: the load is uneven."]


_RULES: tuple[Callable[[Summary], list[str]], ...] = (
    _unfinished,
    _faulty,
    _queued,
    _in_front,
    _uneven,
    _preempted,
    _stalled,
    _held_up,
    _busy_links,
    _tier_backlog,
    _slow_tier,
    _full_tier,
    _idle_tier,
    _cannot_store,
    _gpu_enough,
    _small_gain,
    _unused_stores,
    _never_full,
    _few,
)
