"""Connectors, policies and step-time models of a user's own, in whole runs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from command_line import REPO, kvsim, kvsim_process
from worlds import MS, TraceBuilder, config, run

from kvsim.checked import check
from kvsim.config import RunConfig, load_config
from kvsim.errors import UserError
from kvsim.results.records import RunRecord
from kvsim.trace.generate import GeneratorParameters, write_trace
from kvsim.trace.session import Trace
from kvsim.yamlfile import Document

README = (REPO / "README.md").read_text()


def two_sessions() -> Trace:
    """A prompt of 400 tokens comes back after another session has pushed it out of a GPU of 40 blocks."""
    builder = TraceBuilder()
    builder.session("a", [(400, 1, 0), (16, 1, 100 * MS)])
    builder.session("b", [(600, 1, 0)], start_ns=30 * MS)
    return builder.build()


def readme_connector(folder: Path) -> str:
    """Write the connector of README.md into the folder; returns the YAML that goes with it."""
    code = re.search(r"```python\n(from itertools.*?)```", README, re.DOTALL)
    yaml = re.search(r"```yaml\n(connector:\n  kind: remote_cache.*?)```", README, re.DOTALL)
    assert code is not None
    assert yaml is not None
    (folder / "remote_cache.py").write_text(code[1])
    return yaml[1]


def remote(folder: Path, **options: str) -> RunConfig:
    """A small engine with README's connector."""
    readme_connector(folder)
    return config(
        engine={"num_gpu_blocks_override": 41},
        connector={"kind": "remote_cache:RemoteCache", "options": options},
        python_path=[str(folder)],
    )


def again(record: RunRecord) -> tuple[int, int]:
    """(tokens loaded, time to the first token) of the second turn of session a."""
    entry = record.requests[2]
    assert entry.request_id.endswith("a#1")
    assert record.requests[2].status == "finished"
    return entry.external_hit_tokens, entry.first_token_ns - entry.arrival_ns


def test_the_connector_of_the_readme_runs_as_a_user_runs_it(tmp_path: Path) -> None:
    """Its text and its YAML, copied from README.md: more tokens hit, less time to the first token than without it."""
    yaml = readme_connector(tmp_path)
    write_trace(tmp_path / "trace.jsonl.gz", GeneratorParameters(sessions=2, seed=3))
    (tmp_path / "run.yaml").write_text(
        "trace: {path: trace.jsonl.gz, session_interval: 1s}\nmodel: llama-3.1-8b\n"
        "engine: {num_gpu_blocks_override: 4000, max_model_len: 60000}\noutput: {plots: false}\n" + yaml
    )
    found = []
    for start, words in ((kvsim_process, []), (kvsim, ["--set", "connector.kind=none"])):
        done = start("run", "run.yaml", "--json", "--overwrite", "-o", f"run{len(words)}", *words, cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        summary = json.loads(done.stdout)
        found.append((summary["hit_rate"]["external"], summary["latency"]["ttft_ms"]["mean"], summary["digest"]))
    (hits, ttft, digest), (no_hits, ttft_without, _) = found
    assert hits > 0.05
    assert no_hits == 0
    assert ttft < ttft_without
    again = kvsim("run", "run0/config.resolved.yaml", "-o", "again", "--json", cwd=tmp_path)
    assert json.loads(again.stdout)["digest"] == digest


def test_a_connector_takes_its_time(tmp_path: Path) -> None:
    """25 blocks of 2 MiB at 1 GB/s take 52.4 ms, and 1 ms of latency; ten times the bandwidth, a tenth."""
    _, slow = run(two_sessions(), remote(tmp_path, bandwidth="1GB/s", latency="1ms"))
    _, fast = run(two_sessions(), remote(tmp_path, bandwidth="10GB/s", latency="1ms"))
    (tokens, slow_ns), (same_tokens, fast_ns) = again(slow), again(fast)
    assert tokens == same_tokens > 0
    blocks = tokens // 16
    assert slow.requests[2].load_wait_ns == MS + blocks * 2 * 2**20
    assert fast.requests[2].load_wait_ns == MS + -(-blocks * 2 * 2**20 // 10)
    assert fast_ns < slow_ns
    assert slow.totals.h2d_bytes == blocks * 2 * 2**20
    assert slow.totals.d2h_bytes == (25 + 37 + 1) * 2 * 2**20  # every full block that was computed, once


def test_a_policy_of_your_own_decides(tmp_path: Path) -> None:
    """A policy that evicts the newest first is asked for victims, with its options."""
    (tmp_path / "newest.py").write_text(
        "from kvsim.offload.policies.base import EvictionPolicy\n"
        "class Newest(EvictionPolicy):\n"
        "    asked = []\n"
        "    def __init__(self, capacity, slots, *, sign):\n"
        "        super().__init__(capacity, slots)\n"
        "        self.sign = sign\n"
        "        self.keys = []\n"
        "    def insert(self, context, position):\n"
        "        self.keys.append(context.keys[position])\n"
        "    def evict(self, count, protected):\n"
        "        free = [key for key in self.keys if self.is_evictable(key, protected)][:: self.sign][:count]\n"
        "        if len(free) < count:\n"
        "            return None\n"
        "        self.keys = [key for key in self.keys if key not in free]\n"
        "        return free\n"
        "    def remove(self, key):\n"
        "        self.keys.remove(key)\n"
    )

    def tokens(sign: int) -> int:
        builder = TraceBuilder()
        builder.session("a", [(320, 1, 0), (16, 1, 200 * MS)])
        builder.session("b", [(320, 1, 0)], start_ns=30 * MS)
        builder.session("c", [(320, 1, 0)], start_ns=60 * MS)
        settings = config(
            engine={"num_gpu_blocks_override": 25},
            connector={
                "kind": "offloading",
                "cpu_bytes_to_use": f"{40 * 2}MiB",  # the prompts of two sessions
                "eviction_policy": "newest:Newest",
                "eviction_policy_options": {"sign": sign},
            },
            python_path=[str(tmp_path)],
        )
        _, record = run(builder.build(), settings)
        return record.requests[3].external_hit_tokens

    assert tokens(-1) == 320  # b made room for c, a is still there
    assert tokens(1) == 0  # a made room


def test_a_step_time_model_of_your_own(tmp_path: Path) -> None:
    """Its steps are the run's steps; it is told the model, and it is held to whole nanoseconds."""
    (tmp_path / "clockwork.py").write_text(
        "class Steady:\n"
        "    def __init__(self, deployment, step=7):\n"
        "        assert deployment.model.name == 'llama-3.1-8b' and deployment.tensor_parallel_size == 1\n"
        "        self.step = step\n"
        "    def step_ns(self, prefill, decode):\n"
        "        return self.step\n"
    )

    def settings(step: object) -> RunConfig:
        base = config(python_path=[str(tmp_path)]).model_dump(mode="json")
        base["step_time"] = {"kind": "clockwork:Steady", "options": {"step": step}}
        return check(RunConfig, Document("test", base))

    builder = TraceBuilder()
    builder.session("s", [(100, 5, 0)])
    _, record = run(builder.build(), settings(11))
    assert record.requests[0].finish_ns == 5 * 11
    with pytest.raises(UserError, match=r"Steady.step_ns\(\[\(100, 0\)\], \[\]\) returned 0.5, expected whole"):
        run(builder.build(), settings(0.5))


def test_an_error_in_the_users_code_is_shown_as_the_users(tmp_path: Path) -> None:
    """The user's part of the traceback and the exception, without ours; exit code 1."""
    yaml = readme_connector(tmp_path)
    code = (tmp_path / "remote_cache.py").read_text().replace("self.kept.get", "self.kpt.get")
    (tmp_path / "remote_cache.py").write_text(code)
    write_trace(tmp_path / "trace.jsonl.gz", GeneratorParameters(sessions=1, seed=3))
    (tmp_path / "run.yaml").write_text("trace: {path: trace.jsonl.gz}\nmodel: llama-3.1-8b\n" + yaml)
    done = kvsim("run", "run.yaml", cwd=tmp_path)
    assert done.returncode == 1
    lines = done.stderr.splitlines()
    at = 1 + code[: code.index("self.kpt")].count("\n")
    assert lines[-1] == "error: AttributeError: 'RemoteCache' object has no attribute 'kpt'"
    assert f'remote_cache.py", line {at}, in get_num_new_matched_tokens' in done.stderr
    assert "scheduler.py" not in done.stderr
    assert not (tmp_path / "runs" / "run").exists()


@pytest.mark.parametrize("answer", ["-16, True", "417, False", "418, True", "1.5, True", "16", "16, 1"])
def test_an_answer_that_cannot_be_is_refused(tmp_path: Path, answer: str) -> None:
    """More tokens than the request has, fewer than none, or something else than the protocol says."""
    settings = remote(tmp_path, bandwidth="1GB/s")
    code = (tmp_path / "remote_cache.py").read_text().replace("return hits * self.size, hits > 0", f"return {answer}")
    (tmp_path / "liar.py").write_text(code)
    connector = settings.connector.model_copy(update={"kind": "liar:RemoteCache"})
    builder = TraceBuilder()
    builder.session("s", [(417, 1, 0)])
    with pytest.raises(UserError, match=r"liar:RemoteCache.get_num_new_matched_tokens\(000000:s#0, 0\) returned"):
        run(builder.build(), settings.model_copy(update={"connector": connector}))


def test_blocks_that_are_never_sent_are_named(tmp_path: Path) -> None:
    """A connector that keeps the blocks of ended requests and never lets go is warned about."""
    settings = remote(tmp_path, bandwidth="1GB/s")
    code = (tmp_path / "remote_cache.py").read_text().replace(", output.finished", ", ()")
    (tmp_path / "hoarder.py").write_text(code)
    kept = settings.connector.model_copy(update={"kind": "hoarder:RemoteCache"})
    builder = TraceBuilder()
    builder.session("s", [(100, 1, 0)])
    _, record = run(builder.build(), settings.model_copy(update={"connector": kept, "debug": False}))
    assert record.cautions[-1].startswith("1 ended requests hold their GPU blocks for ever")


TIER = """
from functools import partial
from kvsim.checked import Component
from kvsim.offload.tiering import Answer
from kvsim.units import Rate

class Peer:
    class Config(Component):
        bandwidth: Rate

    def __init__(self, site, config):
        self.site, self.kept, self.done, self.open, self.epoch = site, set(), [], 0, 0
        self.device = site.device(config.bandwidth, config.bandwidth)

    epoch = 0

    def lookup(self, key, request_id):
        return Answer.HIT if key in self.kept else Answer.MISS

    def on_schedule_end(self): ...
    def on_request_finished(self, request_id): ...

    def submit(self, direction, keys):
        self.open += 1
        way = "read" if direction == "load" else "write"
        self.device.start(way, len(keys), self.site.chunk_bytes, partial(self.moved, direction, keys))

    def moved(self, direction, keys):
        self.open -= 1
        self.kept.update(keys)
        self.epoch += 1
        self.done.append((direction, keys))

    def poll(self):
        done, self.done = self.done, []
        return done

    def is_idle(self):
        return not self.open and not self.done
"""


def test_a_tier_of_your_own(tmp_path: Path) -> None:
    """What CPU memory has lost comes back from it, in the time that its device takes; its traffic is in the books."""
    (tmp_path / "peers.py").write_text(TIER)

    def simulated(bandwidth: str) -> RunRecord:
        builder = TraceBuilder()
        for i in range(4):
            builder.session(f"s{i}", [(640, 1, 0), (32, 1, 800 * MS)], start_ns=i * 100 * MS)
        settings = config(
            engine={"num_gpu_blocks_override": 61, "max_num_seqs": 1},
            connector={
                "kind": "offloading",
                "cpu_bytes_to_use": "160MiB",  # 80 blocks, the prompts of two sessions
                "tiers": [{"kind": "peers:Peer", "options": {"bandwidth": bandwidth}}],
            },
            python_path=[str(tmp_path)],
        )
        return run(builder.build(), settings)[1]

    fast, slow = simulated("10GB/s"), simulated("1GB/s")
    tier = fast.tiers[0]
    assert (tier.name, tier.kind) == ("Peer", "peers:Peer")
    assert tier.hit_tokens == sum(entry.external_hit_tokens for entry in fast.requests) > 0
    assert tier.read_bytes == tier.hit_tokens // 16 * 2 * 2**20
    assert tier.write_bytes == (4 * 40 + 4 * 2) * 2 * 2**20
    waits = [sum(entry.load_wait_ns for entry in record.requests) for record in (fast, slow)]
    assert waits[0] > 0
    again = [record.requests[4].first_token_ns - record.requests[4].arrival_ns for record in (fast, slow)]
    assert again[0] < again[1]


def test_a_package_beside_the_file(tmp_path: Path) -> None:
    """Packages work, and their modules import each other."""
    package = tmp_path / "my_pkg"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "figures.py").write_text("STEP = 5\n")
    (package / "models.py").write_text(
        "from my_pkg.figures import STEP\nclass Model:\n    def __init__(self, _): ...\n"
        "    def step_ns(self, prefill, decode): return STEP\n"
    )
    (tmp_path / "run.yaml").write_text(
        "trace: {path: t}\nmodel: llama-3.1-8b\nstep_time: {kind: 'my_pkg.models:Model'}\n"
    )
    settings = load_config(tmp_path / "run.yaml")
    assert (settings.step_time.kind, settings.python_path) == ("my_pkg.models:Model", (str(tmp_path),))
