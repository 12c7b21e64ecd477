"""What the engine writes down while it runs: one record per request, samples over time, totals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvsim.results.schedule import Step
    from kvsim.results.timeline import Timeline

NEVER = -1  # a moment that did not happen
ASSUMED = "assumed, not measured: "  # begins the note about a number that has no measurement behind it


@dataclass(slots=True)
class RequestRecord:
    """The life of one request. Times in ns on the simulation's clock; hits in tokens, at the first admission."""

    request_id: str
    session: str
    stream: str
    turn: int
    arrival_ns: int
    prompt_tokens: int
    status: str = "stuck"  # until something better happens: finished | rejected | failed | aborted
    reason: str = ""
    first_scheduled_ns: int = NEVER
    first_token_ns: int = NEVER
    finish_ns: int = NEVER
    output_tokens: int = 0
    local_hit_tokens: int = 0
    external_hit_tokens: int = 0
    load_wait_ns: int = 0
    preemptions: int = 0
    secondary_hit_tokens: int = 0  # of the external ones: those that came from behind CPU memory
    tenant: str = ""  # whose session it is, where there are several tenants
    rank: int = 0  # data-parallel rank that served it
    instance: str = ""  # of a cluster, that served it
    # Where prefill and decode are apart; the hits above are those of the prefill instance then:
    prefill_instance: str = ""
    decode_hit_tokens: int = 0  # of the prompt, in the decode instance's own cache
    remote_tokens: int = 0  # of the prompt, that the decode instance got from the prefill instance
    remote_wait_ns: int = 0  # parked in the decode instance until they were there
    # Before an engine heard of it (see `kvsim.frontend`): waiting for an API server, and there.
    frontend_ns: int = 0
    decode_frontend_ns: int = 0  # what the decode instance's adds to it, where prefill and decode are apart


@dataclass(slots=True)
class TierSample:
    """The state of one secondary tier at a moment; bytes moved and busy time are cumulative."""

    time_ns: int
    tier: str
    used_bytes: int
    write_backlog_bytes: int
    read_queue_bytes: int
    read_bytes: int
    write_bytes: int
    busy_ns: int
    hit_tokens: int


@dataclass(slots=True)
class Sample:
    """The state of one instance at a moment. Counters are cumulative; ``running`` to ``cpu_used_blocks`` are now."""

    time_ns: int
    running: int
    waiting: int
    loading: int
    gpu_used_blocks: int
    gpu_cached_blocks: int
    cpu_used_blocks: int
    prompt_tokens: int
    local_hit_tokens: int
    external_hit_tokens: int
    output_tokens: int
    h2d_bytes: int
    d2h_bytes: int
    h2d_busy_ns: int
    d2h_busy_ns: int
    gpu_busy_ns: int
    preemptions: int
    tiers: tuple[TierSample, ...] = ()  # secondary ones, in order


class Series:
    """Samples at a regular interval that doubles whenever there are too many: bounded size for any length of run.

    ``due_ns``: when the next one should be taken. ``at_least_ns``: how long the run will last at least, if known.
    """

    FIRST_INTERVAL_NS = 10_000_000

    def __init__(self, max_points: int, at_least_ns: int = 0) -> None:
        self.max_points = max(max_points, 2)
        self.interval_ns = self.FIRST_INTERVAL_NS
        while 2 * self.interval_ns * self.max_points <= at_least_ns:  # sure to be thinned out before the end
            self.interval_ns *= 2
        self.samples: list[Sample] = []
        self.due_ns = 0

    def is_due(self, now_ns: int) -> bool:
        """Whether a sample should be taken at this moment."""
        return now_ns >= self.due_ns

    def add(self, sample: Sample) -> None:
        """Keep a sample; thins out the older ones when there are more than ``max_points``."""
        if len(self.samples) >= self.max_points:
            del self.samples[1::2]
            self.interval_ns *= 2
        self.samples.append(sample)
        self.due_ns = (sample.time_ns // self.interval_ns + 1) * self.interval_ns


@dataclass(slots=True)
class Totals:
    """Sums over a run (see the fields' names for units)."""

    end_ns: int = 0
    steps: int = 0
    gpu_busy_ns: int = 0
    slowdown_ns: int = 0  # part of gpu_busy_ns: lost to copies that run on SMs
    stall_ns: int = 0  # nothing computed although requests wait, because KV is being loaded
    flush_stall_ns: int = 0  # steps held up by copies out of blocks that they hand out again
    sync_stall_ns: int = 0  # forward passes held up by the KV that they load and save themselves
    prompt_tokens: int = 0
    local_hit_tokens: int = 0
    external_hit_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    encoder_tokens: int = 0  # of images and audio, computed by the encoder
    h2d_bytes: int = 0
    d2h_bytes: int = 0
    h2d_busy_ns: int = 0
    d2h_busy_ns: int = 0
    load_jobs: int = 0
    store_jobs: int = 0
    gpu_evicted_blocks: int = 0
    cpu_evicted_blocks: int = 0
    cannot_store: int = 0
    stored_blocks: int = 0  # offloaded blocks, written out of the GPU
    unused_stored_blocks: int = 0  # of these, how many no load has asked for
    num_gpu_blocks: int = 0
    num_cpu_blocks: int = 0
    cpu_used_blocks_peak: int = 0
    gpu_used_blocks_peak: int = 0
    block_tokens: int = 0
    gpu_block_bytes: int = 0  # all ranks
    cpu_block_bytes: int = 0  # all ranks


@dataclass(slots=True)
class TierTotals:
    """Sums of one secondary tier over a run (see the fields' names for units)."""

    name: str
    kind: str
    device: str
    chunk_bytes: int  # all ranks
    capacity_chunks: int = 0  # 0 = no limit
    hit_tokens: int = 0  # of prompts, at first admission: loaded to the GPU after they had come from this tier
    read_jobs: int = 0
    write_jobs: int = 0
    read_bytes: int = 0
    write_bytes: int = 0
    read_tasks: int = 0  # a job is one task or several, each for one thread
    write_tasks: int = 0
    read_wait_ns: int = 0  # from submission until a thread took it, over all tasks
    write_wait_ns: int = 0
    read_wanted_ns: int = 0  # time in which something was waiting to be read, or being read
    write_wanted_ns: int = 0
    lookup_batches: int = 0
    lookup_keys: int = 0
    lookup_ns: int = 0
    deduplicated_chunks: int = 0  # not written, because they were there
    refused_chunks: int = 0  # not written, because the tier was full
    evicted_chunks: int = 0
    used_chunks: int = 0  # at the end
    used_chunks_peak: int = 0
    backlog_bytes: int = 0  # handed over and not written yet, at the end
    backlog_peak_bytes: int = 0
    busy_ns: int = 0  # of the whole device


@dataclass(slots=True)
class FaultTotals:
    """What has gone wrong in a run, because its config wanted it to."""

    failed_loads: int = 0  # copies to the GPU that lost blocks
    failed_load_blocks: int = 0
    failed_stores: int = 0  # copies from the GPU that lost blocks
    stalled_jobs: int = 0
    expired_jobs: int = 0  # of those: failed at their deadline
    failed_promotion_chunks: int = 0
    failed_cascade_chunks: int = 0
    outages: int = 0
    engine_deaths: int = 0
    client_aborts: int = 0
    hit_requests: int = 0  # requests that counted on KV that was not loaded, once per time
    lost_tokens: int = 0  # what they counted on in vain

    @property
    def happened(self) -> dict[str, int]:
        """Those that are not zero."""
        return {name: count for name, count in as_row(self).items() if count}


@dataclass(slots=True)
class NetworkTotals:
    """What one instance has moved over the network (see the fields' names for units); it outlives engines.

    Transfers are counted where their KV goes; ``blocks_...`` in blocks of that side. Every block that was wanted is
    received or failed when the run is over.
    """

    nics: int = 0
    line_bytes_per_s: int = 0  # all NICs, each direction
    sent_bytes: int = 0
    received_bytes: int = 0
    failed_bytes: int = 0  # that it should have sent
    busy_out_ns: int = 0
    busy_in_ns: int = 0
    handshakes: int = 0
    failed_handshakes: int = 0
    transfers: int = 0
    failed_transfers: int = 0
    transfer_ns: int = 0  # from submission to the last byte, over all transfers that arrived
    blocks_wanted: int = 0
    blocks_received: int = 0
    blocks_failed: int = 0
    expired_requests: int = 0  # whose KV nobody has read in time
    late_notifications: int = 0  # of KV that had expired before it was read
    blocks_freed_early: int = 0  # expired while somebody was reading them


@dataclass(slots=True)
class QuotaTotals:
    """What a tenant had of a shared store's memory, copies of blocks, of all nodes."""

    tenant: str
    chunk_bytes: int
    quota_chunks: int
    used_chunks: int = 0  # at the end
    used_chunks_peak: int = 0
    evicted_chunks: int = 0  # for lack of quota, not those that left because all memory was full
    refused_chunks: int = 0  # not written: the tenant's own blocks were all being written, or under a lease


@dataclass(slots=True)
class InstanceRecord:
    """What one instance of a cluster leaves behind; its requests name it."""

    name: str
    group: str
    hardware: str
    series: Series
    totals: Totals
    tiers: list[TierTotals] = field(default_factory=list)
    state: str = "up"  # at the end
    role: str = "both"  # or prefill, decode
    network: NetworkTotals | None = None  # if it has one
    parts: list[RequestRecord] | None = None  # of a prefill instance: its parts of the turns


@dataclass(slots=True)
class RunRecord:
    """Everything one run leaves behind, before it is summarised."""

    requests: list[RequestRecord] = field(default_factory=list)  # in order of arrival
    series: Series = field(default_factory=lambda: Series(2_000))
    totals: Totals = field(default_factory=Totals)
    tiers: list[TierTotals] = field(default_factory=list)  # secondary ones, in the order in which they are asked
    faults: FaultTotals = field(default_factory=FaultTotals)
    instances: list[InstanceRecord] = field(default_factory=list)  # of a cluster, in the order of the config
    quotas: list[QuotaTotals] = field(default_factory=list)  # of tenants who have one in a shared store
    notes: list[str] = field(default_factory=list)  # choices and assumptions
    cautions: list[str] = field(default_factory=list)  # what makes the setup itself questionable
    schedule: Sequence[Step] | None = None  # all copies, if they are to be exported
    timeline: Timeline | None = None  # what happened when, if that is to be shown


def as_row(record: Any) -> dict[str, Any]:
    """A record as a mapping from field name to value, in the order of its fields."""
    return {f.name: getattr(record, f.name) for f in fields(record)}
