"""MultiConnector: who loads, who stores, and when blocks go, by hand and in simulations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

from engine_builder import make_request
from worlds import MS, TraceBuilder, config, run

from kvsim.connectors.base import KVConnector, SchedulerOutput, WorkerOutput
from kvsim.connectors.multi import MultiConnector, MultiMeta, MultiWorker
from kvsim.profile import LinkProfile
from kvsim.request import Request
from kvsim.results.records import RunRecord

GIB = 2**30


class Scripted(KVConnector):
    """Answers lookups as it is told, and writes down what it hears."""

    def __init__(self, *answers: tuple[int | None, bool], keeps: bool = False) -> None:
        self.answers, self.keeps, self.heard = list(answers), keeps, []  # type: list[Any], bool, list[Any]

    def get_num_new_matched_tokens(self, request: Request, num_local_tokens: int) -> tuple[int | None, bool]:
        self.heard.append("asked")
        return self.answers.pop(0)

    def update_state_after_alloc(self, request: Request, table: list[int], num_external_tokens: int) -> None:
        self.heard.append(num_external_tokens)

    def build_connector_meta(self, output: SchedulerOutput) -> str:
        return f"meta of {id(self)}"

    def request_finished(self, request: Request, table: list[int]) -> bool:
        return self.keeps

    def update_connector_output(self, output: WorkerOutput) -> None:
        self.heard.append((output.jobs, output.meta, list(output.received)))


class ScriptedWorker:
    """Reports what it is told."""

    def __init__(self, *reports: WorkerOutput) -> None:
        self.reports, self.metas = list(reports), []  # type: list[WorkerOutput], list[Any]

    def handle_preemptions(self, meta: Any) -> Sequence[str]:
        self.metas.append(meta)
        return [f"job of {meta}"]

    def start_load_kv(self, meta: Any) -> None:
        self.metas.append(meta)

    def is_done(self, job: str) -> bool:
        return job == "job of a"

    def has_finished(self) -> bool:
        return bool(self.reports)

    def get_finished(self) -> WorkerOutput:
        return self.reports.pop(0) if self.reports else WorkerOutput()


def test_the_first_that_has_something_loads() -> None:
    """All are asked; the second has 8 tokens, the third 16: the second loads, the others hear of no load."""
    parts = [Scripted((0, False)), Scripted((8, True)), Scripted((16, False))]
    multi, request = MultiConnector(parts, [0, 1, 2]), make_request("r", "abcd")
    assert multi.get_num_new_matched_tokens(request, 0) == (8, True)
    multi.update_state_after_alloc(request, [1, 2, 3, 4], 8)
    assert [part.heard for part in parts] == [["asked", 0], ["asked", 8], ["asked", 0]]


def test_one_that_does_not_know_yet_delays_all() -> None:
    """The first has 8 tokens, the second must be asked again, and the third is not asked at all."""
    parts = [Scripted((8, True)), Scripted((None, False)), Scripted((16, False))]
    multi = MultiConnector(parts, [0, 0, 0])
    assert multi.get_num_new_matched_tokens(make_request("r", "abcd"), 0) == (None, False)
    assert [part.heard for part in parts] == [["asked"], ["asked"], []]


def test_blocks_are_kept_until_the_last_has_sent() -> None:
    """Two of three keep a request's blocks: the first report of it is swallowed, the second is told."""
    parts = [Scripted(keeps=True), Scripted(), Scripted(keeps=True)]
    multi, request = MultiConnector(parts, [0, 0, 0]), make_request("r", "abcd")
    assert multi.request_finished(request, [1])
    meta = multi.build_connector_meta(SchedulerOutput())
    assert meta.extra_sends == {request: 1}
    worker = MultiWorker([ScriptedWorker(WorkerOutput(sent=[request])), ScriptedWorker(), ScriptedWorker(
        WorkerOutput(), WorkerOutput(sent=[request]))])  # fmt: skip
    worker.handle_preemptions(meta)
    assert worker.get_finished().sent == []
    assert worker.get_finished().sent == [request]
    assert not multi.build_connector_meta(SchedulerOutput()).extra_sends
    assert not MultiConnector([Scripted(), Scripted()], [0, 0]).request_finished(request, [1])


def test_reports_go_to_whom_they_concern() -> None:
    """Jobs and words are each connector's own, loads are everybody's; the engine sees all jobs."""
    parts = [Scripted(), Scripted()]
    request = make_request("r", "abcd")
    worker = MultiWorker(
        [
            ScriptedWorker(WorkerOutput(jobs=[1], meta="one")),
            ScriptedWorker(WorkerOutput(jobs=[7], meta="two", received=[request])),
        ]
    )
    output = worker.get_finished()
    assert (output.jobs, output.received) == ([1, 7], [request])
    MultiConnector(parts, [0, 0]).update_connector_output(output)
    assert [part.heard for part in parts] == [[([1], "one", [request])], [([7], "two", [request])]]


def test_preemptions_wait_for_jobs_of_all() -> None:
    """Each job is asked for where it belongs."""
    worker = MultiWorker([ScriptedWorker(), ScriptedWorker()])
    jobs = worker.handle_preemptions(MultiMeta(["a", "b"]))
    assert [worker.is_done(job) for job in jobs] == [True, False]


# -- in simulations


def simulate(*parts: dict[str, Any], starts_ms: Sequence[int] = (0, 1_000, 2_000), **changes: Any) -> RunRecord:
    """The same 2,050 tokens again and again, at two instances in turn that keep nothing in their GPUs."""
    builder = TraceBuilder(outputs_return=False)
    builder.common_prefix(2_050)
    for number, start in enumerate(starts_ms):
        builder.session(f"s{number}", [(0, 5, 0)], start_ns=start * MS)
    settings = config(
        connector={"kind": "multi", "connectors": list(parts), "kv_load_failure_policy": "recompute"},
        cluster={
            "instances": [{"name": "i", "count": 2}],
            "network": {"nic": "instant"},
            "store": {"memory_per_node": "4GiB"},
        }
        | changes.pop("cluster", {}),
        engine={
            "num_gpu_blocks_override": 300, "max_num_batched_tokens": 4_096, "max_model_len": 4_096,
            "enable_prefix_caching": False,
        },
        **changes,
    )  # fmt: skip
    return run(builder.build(), settings)[1]


CPU = {"kind": "simple_cpu", "cpu_bytes_to_use": "1GiB"}
STORE = {"kind": "mooncake_store"}
LMCACHE = {"kind": "lmcache_mp", "l1_size": "1GiB"}


def test_the_store_loads_what_the_own_memory_lacks() -> None:
    """The second instance has nothing in LMCache and loads from the store; the first finds it in its own LMCache."""
    record = simulate(LMCACHE, STORE)
    assert [r.external_hit_tokens for r in record.requests] == [0, 2_048, 2_048]
    assert [r.secondary_hit_tokens for r in record.requests] == [0, 2_048, 0]
    assert [tier.hit_tokens for tier in record.tiers] == [2_048]
    assert all(request.status == "finished" for request in record.requests)


def test_in_the_other_order_the_store_is_first() -> None:
    """It has the prompt whenever anybody has computed it: all loads are its own."""
    record = simulate(STORE, LMCACHE)
    assert [r.secondary_hit_tokens for r in record.requests] == [0, 2_048, 2_048]


def test_both_store_everything() -> None:
    """The first prompt goes to the store and to LMCache; their sizes are told.

    At the second instance the store brings the prompt, which LMCache, counting scheduled tokens, takes for not there.
    """
    record = simulate(LMCACHE, STORE)
    per_prompt = 128 * 2 * 2**20
    assert record.tiers[0].write_bytes == per_prompt
    assert record.totals.d2h_bytes == 2 * per_prompt
    assert record.totals.num_cpu_blocks == 2 * 32  # chunks of 32 MiB in 1 GiB, of two instances


def test_offloading_with_tiers_before_the_store() -> None:
    """The tiers are numbered through: fs first, the store second; what comes from CPU memory is of neither."""
    cpu = {"kind": "offloading", "cpu_bytes_to_use": "1GiB", "tiers": [{"kind": "fs"}]}
    settings = simulate(cpu, STORE, starts_ms=(0, 1_000))
    assert [tier.name for tier in settings.tiers] == ["fs", "store"]
    assert [tier.hit_tokens for tier in settings.tiers] == [0, 2_048]


def test_offloading_among_them_is_simulated_step_by_step() -> None:
    """With engine.kind auto OffloadingConnector beside others works with blocks, not with runs, as the engine does."""
    cpu = {"kind": "offloading", "cpu_bytes_to_use": "1GiB"}
    checked, plain = (simulate(cpu, STORE, starts_ms=(0, 1_000), debug=debug) for debug in (True, False))
    assert plain.requests == checked.requests
    assert plain.totals == checked.totals


def test_copies_of_each_slow_forward_passes_down() -> None:
    """Wherever the connector stands whose copies do."""
    cpu = {"kind": "offloading", "cpu_bytes_to_use": "1GiB"}
    with patch.object(LinkProfile, "slowdown_ppm", lambda _self, _way: 2_000_000):
        lost = [simulate(*parts).totals.slowdown_ns for parts in ((cpu, STORE), (STORE, cpu))]
    assert lost[0] == lost[1] > 0


def test_a_synchronous_one_among_them() -> None:
    """ExampleConnector stops the step for its files, the store loads beside it."""
    record = simulate({"kind": "example"}, STORE)
    assert [request.status for request in record.requests] == ["finished"] * 3
    assert record.totals.sync_stall_ns > 0
    assert record.requests[1].external_hit_tokens == 2_048


def test_a_node_that_fails_and_comes_back() -> None:
    """With several connectors an engine's end and its successor are what they are with one."""
    events = [
        {"at": "1500ms", "instance": "i-0", "action": "fail"},
        {"at": "1600ms", "instance": "i-0", "action": "join"},
    ]
    record = simulate(LMCACHE, STORE, starts_ms=(0, 1_000, 2_000, 14_000), cluster={"events": events})
    assert [request.status for request in record.requests] == ["finished"] * 4
