"""Rules of prefill and decode apart, each with a way to break it. A test of this folder must notice (run_mutants.py).

(rule, module under kvsim/, text, what it becomes). The text must occur exactly once, or the mutant is stale.

Not here, because nothing could notice: who needs none of a prompt's KV says so (a decode instance always lacks the last
token, and clients that leave before are refused where instances have roles); with P2pNcclConnector a decode step waits
for what comes (the prefill's step has waited until all was sent).
"""

from __future__ import annotations

NIXL, WORKER, PUSH = "connectors/nixl.py", "connectors/nixl_worker.py", "connectors/push_worker.py"
EXCHANGE, HANDSHAKES, P2P = "connectors/exchange.py", "connectors/handshakes.py", "connectors/p2p_nccl.py"
SPLIT, PATHS, BUILD, PROXY = (
    "connectors/split_multi.py",
    "connectors/path_split.py",
    "build_remote.py",
    "cluster/proxy.py",
)

MUTANTS = [
    # -- leases: how long a prefill instance keeps KV that nobody has read
    ("lease: it ends", WORKER, "if until_ns <= now and self._may_expire(each)]", "if False]"),
    ("lease: it begins when the prompt has ended", NIXL, "self._clock.now + self._lease_ns", "self._lease_ns"),
    (
        "lease: somebody looks at its end",
        WORKER,
        "self._alarm.set(min((at for each, at in self._leases.items() if self._may_expire(each)), default=None))",
        "pass",
    ),
    (
        "lease: heartbeats extend it",
        WORKER,
        "self._leases[request_id] = max(self._leases[request_id], until_ns)",
        "pass",
    ),
    ("lease: heartbeats do not shorten it", WORKER, "max(self._leases[request_id], until_ns)", "until_ns"),
    ("lease: by two thirds", WORKER, "lease_ns * 2 // 3", "lease_ns // 6"),
    ("lease: heartbeats are sent", NIXL, "meta.heartbeats = self._heartbeats.due()", "pass"),
    ("lease: heartbeats begin at the arrival", NIXL, "self._heartbeats.begin(request, handoff.remote)", "pass"),
    (
        "lease: what has been read needs none",
        WORKER,
        "        self._leases.pop(request_id, None)\n        self._arm()\n        self._wake()\n",
        "        self._arm()\n        self._wake()\n",
    ),
    (
        "lease: Mooncake's does not end while it writes",
        PUSH,
        "return not self._rules.coalesces or request_id not in self._writing",
        "return True",
    ),
    ("lease: who reads after it is counted", WORKER, "self.port.totals.late_notifications += 1", "pass"),
    (
        "lease: what is freed under a reader is counted",
        WORKER,
        "totals.blocks_freed_early += self._exchange.readers(self.port.engine_id, request_id)",
        "pass",
    ),
    # -- delayed free
    (
        "free: blocks stay until they are read",
        NIXL,
        "request.num_computed_tokens, self._size\n        )\n        return True",
        "request.num_computed_tokens, self._size\n        )\n        return False",
    ),
    (
        "free: the decode instance tells that it has read",
        WORKER,
        "            self._exchange.tell(remote.engine_id, lambda peer: peer.on_read(remote.request_id))\n        else:\n            self._failed",
        "        else:\n            self._failed",
    ),
    (
        "free: what was read is reported",
        WORKER,
        "self._read.append(self._to_process.pop(request_id))",
        "self._to_process.pop(request_id)",
    ),
    # -- handshakes
    (
        "handshake: before the first transfer",
        WORKER,
        "if not self._handshakes.is_done(engine_id):\n            self._handshakes.begin(engine_id, partial(",
        "if False:\n            self._handshakes.begin(engine_id, partial(",
    ),
    ("handshake: once", HANDSHAKES, "self._known.add(engine_id)", "pass"),
    ("handshake: takes its time", HANDSHAKES, "else self._duration_ns", "else 0"),
    (
        "handshake: a dead server is waited for",
        HANDSHAKES,
        "DEAD_SERVER_NS if self._exchange.is_down(engine_id) else self._duration_ns",
        "self._duration_ns",
    ),
    (
        "handshake: all who need it wait for the same",
        HANDSHAKES,
        "            self._waiting[engine_id].append(on_done)\n            return\n",
        "            self._waiting[engine_id].append(on_done)\n",
    ),
    (
        "handshake: one engine after the other",
        HANDSHAKES,
        "max(self._free_ns, clock.now) + takes_ns",
        "clock.now + takes_ns",
    ),
    (
        "handshake: who does not answer makes the load fail",
        WORKER,
        "        elif receive.request in self._receiving:\n            self._failed.append(receive.request)\n",
        "",
    ),
    # -- who is who
    (
        "engine: a new one has a new id",
        EXCHANGE,
        "self._counts[port.instance] = self._counts.get(port.instance, -1) + 1",
        "self._counts[port.instance] = 0",
    ),
    (
        "engine: flows of a dead one fail",
        EXCHANGE,
        "            self.fabric.fail(port.endpoint)\n",
        "            pass\n",
    ),
    ("engine: who comes back is reached again", EXCHANGE, "        self.fabric.recover(port.endpoint)\n", ""),
    # -- what is transferred
    ("transfer: only what is not here", NIXL, "(request.num_prompt_tokens - num_external_tokens) // self._size", "0"),
    (
        "transfer: one per request",
        NIXL,
        "            handoff.is_open = False  # one transfer per request: if it is preempted, it computes its prompt here\n",
        "",
    ),
    ("transfer: larger blocks are several there", WORKER, "shape.block_tokens // remote.block_tokens", "1"),
    (
        "transfer: messages are as small as the smaller side's",
        EXCHANGE,
        "return min(each.piece_bytes",
        "return max(each.piece_bytes",
    ),
    (
        "transfer: a piece per layer",
        BUILD,
        "sizes.block_bytes // regions(plan.config, plan.model, sizes.groups.layers)",
        "sizes.block_bytes",
    ),
    ("transfer: a failed one is told", WORKER, "output.failed_recving.append(request)", "pass"),
    (
        "transfer: blocks of a failed one count as failed",
        EXCHANGE,
        "            if flow.failed:\n                totals.failed_transfers += 1\n                totals.blocks_failed += blocks\n            else:",
        "            if not flow.failed:",
    ),
    (
        "transfer: through the host's buffer, if there is one",
        WORKER,
        '            yield _Copying(self._host, self._copy("store", blocks))\n',
        '            self._copy("store", blocks)\n            yield from ()\n',
    ),
    (
        "transfer: from the host's buffer before it counts",
        WORKER,
        "if self._host is not None and not self._is_synced(request):",
        "if False:",
    ),
    # -- prefill instances that write
    (
        "push: who registers late gets it at once",
        PUSH,
        "        if request_id in self._leases:\n            self._write(reader, receive)\n        else:",
        "        if True:",
    ),
    (
        "push: who registers early gets it at the end",
        PUSH,
        "                self._write(*found)\n",
        "                pass\n",
    ),
    (
        "push: the reader is told",
        PUSH,
        "            self._exchange.tell(engine_id, lambda _peer: reader.on_written(receive, ok=True))\n",
        "            pass\n",
    ),
    (
        "push: the writer shakes hands too",
        PUSH,
        "    writer_shakes_hands=True, coal",
        "    writer_shakes_hands=False, coal",
    ),
    ("push: Mooncake joins neighbours", PUSH, "    coalesces=True,", "    coalesces=False,"),
    (
        "push: Mooncake's readers lose their patience",
        PUSH,
        "                alarm.set(self._exchange.clock.now + self._rules.patience_ns)\n",
        "",
    ),
    ("push: Mooncake does not wait for the prefill", BUILD, "answers_at_once=is_mooncake", "answers_at_once=False"),
    ("push: only Mooncake sends no heartbeats", BUILD, "beats=not is_mooncake", "beats=True"),
    # -- P2pNcclConnector
    ("nccl: the step waits until all is sent", P2P, "        yield self._sent\n", "        yield from ()\n"),
    # -- the proxy
    (
        "proxy: hits are those of the prefill instance",
        PROXY,
        '"local_hit_tokens", "external_hit_tokens", "secondary_hit_tokens", "load_wait_ns", "first_scheduled_ns",',
        '"load_wait_ns", "first_scheduled_ns",',
    ),
    ("proxy: a prefill that failed is not sent on", PROXY, 'if part.status != "finished":', "if False:"),
    # -- one prefix over two paths
    ("split: over when both are", SPLIT, "if not split.waiting:", "if True:"),
    (
        "split: what the store has brought stays",
        SPLIT,
        "output.failed_recving = [each for each in output.failed_recving if each not in self._open]",
        "pass",
    ),
    (
        "split: failures are told when both are over",
        SPLIT,
        "output.invalid_blocks |= self._open.pop(request).invalid",
        "self._open.pop(request)",
    ),
    ("split: the store brings a part", SPLIT, "self._store.shorten_load(request, tokens)", "pass"),
    ("split: the peer brings the others", SPLIT, "self._peer_at: at_peer - tokens", "self._peer_at: at_peer"),
    ("split: own NICs are shared by flows", PATHS, "first.flows + second.flows", "2 * first.flows"),
    ("split: what is outstanding counts", SPLIT, "self._loads[request] = _Load(", "_Load("),
]
