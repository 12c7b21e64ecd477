"""What a run leaves in its memories, in eviction order, spelled alike for both engines.

A content is named by its key: the segment of the prefix tree and the position in it. The reference knows numbers; which
number is which key is learnt from every request, and must be the same each time.
"""

from __future__ import annotations

from typing import Any

from kvsim.build import Simulation
from kvsim.cache.block_pool import BlockPool
from kvsim.connectors.offloading import OffloadingConnector
from kvsim.door import Guest
from kvsim.extents.arc import RunArcPolicy
from kvsim.extents.content import PathContent
from kvsim.extents.extent_pool import ExtentPool
from kvsim.extents.files import RunFiles
from kvsim.extents.ledger import RunOffloadingManager
from kvsim.extents.lru import RunLruPolicy
from kvsim.extents.lru_023 import RunLruPolicy023
from kvsim.extents.path import Key, Run
from kvsim.extents.piece_queue import PieceQueue
from kvsim.faults.run_tiers import FaultyRunTier
from kvsim.faults.tiers import FaultyTier
from kvsim.offload.manager import OffloadingManager
from kvsim.offload.policies.arc import ArcPolicy
from kvsim.offload.policies.lru import LruPolicy, LruPolicy023
from kvsim.tiers.files import Files


class Names:
    """The keys of a reference run's numbers."""

    def __init__(self) -> None:
        self._key_of: dict[int, Key] = {}
        self._number_of: dict[Key, int] = {}
        self.factor = 1  # blocks in a chunk

    def listen(self, simulation: Simulation) -> None:
        """Learn from each request of a simulation that has not begun."""
        instance = simulation.instance
        content_of, trace = instance._content, simulation.plan.config.trace
        self.factor = getattr(simulation.plan.config.connector, "block_size_factor", 1)

        def noted(guest: Guest) -> Any:
            content, turn = content_of(guest), guest.turn
            size, total = simulation.plan.sizes.block_tokens, turn.input_tokens + turn.output_tokens
            salt = instance._reception.salt_of(guest.session)
            num_salts = max(len(trace.tenants), 1)
            path = PathContent(turn.chain, size, total, guest.number, salt=salt, num_salts=num_salts).path
            for block, key in zip(content.block_hashes(0, len(path)), path.keys(0, len(path)), strict=True):
                same = self._key_of.setdefault(block, key) == key and self._number_of.setdefault(key, block) == block
                assert same, f"{key} is not what {block} was"
            return content

        setattr(instance, "_content", noted)  # noqa: B010 - mypy

    def block(self, number: int) -> Key | None:
        """What a block holds; None = nothing."""
        return None if number < 0 else self._key_of[number]

    def chunk(self, number: int) -> Key:
        """A chunk is known by its last block."""
        segment, position = self._key_of[number]
        return Key(segment, (position + 1) // self.factor - 1)


def orders(simulation: Simulation, names: Names) -> dict[str, Any]:
    """All that is kept at the end."""
    found: dict[str, Any] = {}
    scheduler = simulation.instance.scheduler
    pool: Any = scheduler.kv.pool
    found["GPU free list"] = _free_list(pool, names)
    found["GPU contents"] = _contents(pool, names)
    found["GPU tables"] = {request.request_id: len(table) for request, table in scheduler.kv.tables.items()}
    found["waiting"] = [request.request_id for request in scheduler.waiting]
    found["running"] = [request.request_id for request in scheduler.running]
    found["received"] = sorted(request.request_id for request in scheduler.received)
    connector: object = scheduler.connector
    if isinstance(connector, OffloadingConnector):
        outer: Any = connector.manager
        behind = getattr(outer, "_ledger", outer)  # of a CPU tier that has outages
        manager: Any = getattr(behind, "primary", behind)
        states = connector._states.values()
        found["connector"] = sorted((state.request.request_id, len(state.jobs), state.next_stored) for state in states)
        found["loading"] = 0 if connector._loading is None else len(connector._loading)
        found |= _of_ledger(manager, names)
    for tier in simulation.servers[0].tiers:
        files = getattr(tier, "files", None)
        if isinstance(files, Files | RunFiles):
            found |= {f"{tier.totals.name} {what}": value for what, value in _of_files(files, names).items()}
    for name, faulty in simulation.servers[0].faults._tiers.items():
        found |= {f"{name} {what}": value for what, value in _of_faults(faulty, names).items()}
    return found


def _free_list(pool: BlockPool | ExtentPool, names: Names) -> list[Key | None]:
    if isinstance(pool, ExtentPool):
        return pool.free_list()
    return [names.block(pool.hashes[block]) for block in pool.free_list()]


def _contents(pool: BlockPool | ExtentPool, names: Names) -> list[Key | None]:
    """With duplicates."""
    if isinstance(pool, ExtentPool):
        return sorted(Key(piece.segment, i) for piece in pool._copies for i in range(piece.first, piece.last))
    return sorted(key for number in pool.hashes if (key := names.block(number)) is not None)


def _spelled(runs: Any) -> list[Key]:
    return [Key(run.segment, i) for run in runs for i in range(run.first, run.last)]


# -- the CPU tier
def _of_ledger(manager: RunOffloadingManager | OffloadingManager, names: Names) -> dict[str, Any]:
    if isinstance(manager, RunOffloadingManager):
        counts = {key: piece.ref_count for piece in manager.pieces for key in _spelled([piece])}
        return {"CPU ref counts": dict(sorted(counts.items())), **_of_run_policy(manager.policy)}
    slots = {names.chunk(number): slot for number, slot in manager.slots.items()}
    counts = {key: slot.ref_count for key, slot in slots.items()}
    policy: Any = manager.policy
    found: dict[str, Any] = {"CPU ref counts": dict(sorted(counts.items()))}
    if isinstance(policy, LruPolicy):
        by_rank = sorted((slot.rank, -key.position, key) for key, slot in slots.items() if not slot.ref_count)
        return {**found, "CPU order": [(key, rank) for rank, _, key in by_rank]}
    if isinstance(policy, LruPolicy023):
        return {**found, "CPU order": list(map(names.chunk, policy._order))}
    assert isinstance(policy, ArcPolicy)
    queues = [list(map(names.chunk, queue)) for queue in (policy.t1, policy.t2, policy.b1, policy.b2)]
    return {**found, "CPU order": queues, "CPU target": policy.target}


def _of_run_policy(policy: Any) -> dict[str, Any]:
    if isinstance(policy, RunLruPolicy):
        pieces = ((piece, rank) for rank in policy._ranks for piece in reversed(policy._groups[rank]))
        return {"CPU order": [(key, rank) for piece, rank in pieces for key in reversed(_spelled([piece]))]}
    if isinstance(policy, RunLruPolicy023):
        return {"CPU order": _queued(policy.queue)}
    assert isinstance(policy, RunArcPolicy)
    return {"CPU order": list(map(_queued, policy.queues)), "CPU target": policy.target}


def _queued(queue: PieceQueue) -> list[Key]:
    return [key for piece in queue for key in (_spelled([piece]) if piece.rising else reversed(_spelled([piece])))]


# -- tiers behind it
def _of_files(files: Files | RunFiles, names: Names) -> dict[str, Any]:
    counts = {"reserved": files.num_reserved, "evicted": files.num_evicted, "number": len(files)}
    if isinstance(files, RunFiles):
        published = sorted(_spelled(piece for piece in files._pieces if piece.is_published))
        order = [key for run in files.lru_order() for key in reversed(_spelled([Run(*run)]))]
        return {"contents": published, "order": order if files._evicts else None, **counts}
    published = sorted(map(names.chunk, files._published))
    evicts = files._evict and files.max_files is not None
    unread = [names.chunk(number) for number in files._published if number not in files._readers] if evicts else None
    return {"contents": published, "order": unread, **counts}


# -- what has become of them
def _of_faults(tier: FaultyTier, names: Names) -> dict[str, Any]:
    sets = {"stored": tier._stored.everything(), "lost": tier._lost.everything()}
    open_jobs = [(job.direction, len(job.keys), len(job.lost), job.is_over) for job in tier._open]
    found: dict[str, Any] = {"open jobs": open_jobs, "stalled": tier.num_stalled}
    if isinstance(tier, FaultyRunTier):
        missed = {key: piece.asked for piece in tier._missed._pieces for key in _spelled([piece])}
        sets = {name: list(keys) for name, keys in sets.items()}
    else:
        missed = {names.chunk(number): asked for number, asked in tier._missed._asked.items()}
        sets = {name: map(names.chunk, keys) for name, keys in sets.items()}
    return found | {name: sorted(keys) for name, keys in sets.items()} | {"missed": dict(sorted(missed.items()))}
