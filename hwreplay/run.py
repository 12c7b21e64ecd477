"""From a schedule's file to results: memory, calibration, the replay, and every byte verified after it."""

from __future__ import annotations

import datetime as dt
import hashlib
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from hwreplay import pattern, witness
from hwreplay.backends.base import Backend, Batch, Copier
from hwreplay.contention import Contention
from hwreplay.file_tier import FileTier
from hwreplay.host_machine import HostMemory
from hwreplay.integrity import Expected, expected_state, verify
from hwreplay.layout import gpu_memory, host_memory, layout_record
from hwreplay.machine import Compute, Machine
from hwreplay.replay import Pools, Replay, makespan_ns
from hwreplay.result import Integrity, RunResult, ScheduleRef
from hwreplay.witness import Witnesses
from kvsim.errors import UserError
from kvsim.results.schedule import Initial, Schedule, check, compacted, read_schedule, scaled

OpenMachine = Callable[[Backend], Machine]


@dataclass(frozen=True, slots=True)
class Options:
    """What the user may choose.

    ``max_bytes``: both pools together; blocks become smaller until they fit. None = as they are.
    ``files``: folder of the file tier; None = a temporary one beside ``beside``, removed at the end.
    """

    repeat: int = 1
    max_bytes: int | None = None
    compute: Compute = "gemm"
    files: Path | None = None
    beside: Path = Path()


@dataclass(frozen=True, slots=True)
class Prepared:
    """A schedule as it will be replayed."""

    schedule: Schedule
    ref: ScheduleRef


def prepare(path: Path, max_bytes: int | None = None) -> Prepared:
    """Read a schedule, check that it holds together, and make it fit.

    Raises:
        UserError: names what is wrong.
    """
    schedule = read_schedule(path)
    try:
        check(schedule)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    full = schedule.header.layout.block_bytes
    if max_bytes is not None and full * (schedule.header.gpu_blocks + schedule.header.host_blocks) > max_bytes:
        try:
            schedule = scaled(compacted(schedule), max_bytes)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None
    header = schedule.header
    ref = ScheduleRef(
        path=str(path),
        sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        run=header.run,
        link=header.link,
        scaled=header.layout.block_bytes / full,
    )
    return Prepared(schedule, ref)


def replays(
    prepared: Prepared, backend: Backend, options: Options, open_machine: OpenMachine | None = None
) -> Iterator[RunResult]:
    """Replay a schedule as often as asked for; each result comes as soon as it is there.

    Args:
        prepared: from `prepare`.
        backend: an available one.
        options: what the user chose.
        open_machine: the machine for a backend; a test may bring its own.
    """
    schedule = prepared.schedule
    with ExitStack() as stack:
        machine = stack.enter_context(closing((open_machine or machine_for)(backend)))
        copier = stack.enter_context(closing(backend.open(machine)))
        pools = _pools(machine, schedule)
        files = _file_tier(schedule, pools, options, stack)
        calibration = machine.calibrate(options.compute, pools.gpu, pools.gpu_paged.heads(machine.head_bytes))
        notes = [*machine.notes, *([files.note] if files is not None and files.note else [])]
        witnesses = None
        if witness.possible(pools.gpu_paged):
            sides = (pools.gpu, pools.gpu_paged), (pools.host, pools.host_paged)
            witnesses = Witnesses(schedule, machine, *sides)
        _warm_up(machine, copier, pools)
        expected = expected_state(schedule)
        for number in range(options.repeat):
            started = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
            _put_initial(schedule.header.initial or Initial(), machine, pools, files, number)
            replay = Replay(schedule, machine, copier, pools, files, options.compute, number, witnesses)
            contention = Contention()
            steps, jobs = replay.run()
            machine.synchronize()
            others = contention.note()
            yield RunResult(
                device=machine.info,
                backend=backend.key,
                way=backend.way,
                schedule=prepared.ref,
                layout=layout_record(schedule.header.layout),
                started=started,
                repeat=number,
                steps=steps,
                jobs=jobs,
                integrity=_verified(expected, pools, files, witnesses, machine.head_bytes, number),
                makespan_ns=makespan_ns(steps, jobs),
                calibration=calibration,
                notes=(*notes, *([others] if others else [])),
            )


def machine_for(backend: Backend) -> Machine:
    """A machine of the kind that a backend runs on."""
    if backend.machine == "host":
        from hwreplay.host_machine import HostMachine

        return HostMachine()
    from hwreplay.cuda_machine import CudaMachine

    return CudaMachine()


def _pools(machine: Machine, schedule: Schedule) -> Pools:
    """Memory of both sides. Only this rank's share of the host region: nobody else is here."""
    header = schedule.header
    layout = layout_record(header.layout)
    gpu, host = gpu_memory(layout, header.gpu_blocks), host_memory(layout, header.host_blocks)
    memory = machine.host_memory(host.total_bytes, host.block_bytes)
    assert isinstance(memory, HostMemory)
    return Pools(machine.device_memory(gpu.total_bytes), gpu, memory, host)


def _file_tier(schedule: Schedule, pools: Pools, options: Options, stack: ExitStack) -> FileTier | None:
    directions = {job.direction for step in schedule.steps for job in step.jobs}
    if directions.isdisjoint(("write", "read")):
        return None
    folder = options.files
    if folder is None:
        options.beside.mkdir(parents=True, exist_ok=True)
        made = tempfile.TemporaryDirectory(prefix=".hwreplay-files-", dir=options.beside)
        folder = Path(stack.enter_context(made))
    return stack.enter_context(closing(FileTier(folder, pools.host_paged)))


def _warm_up(machine: Machine, copier: Copier, pools: Pools) -> None:
    """A small copy each way, so that no job pays for what is done once (contexts, modules, first touch)."""
    count = min(pools.gpu_paged.num_blocks, pools.host_paged.num_blocks, 16)
    gpu = pools.gpu_paged.descriptors(pools.gpu.address, range(count))
    host = pools.host_paged.descriptors(pools.host.address, range(count))
    sizes = (gpu * 0) + pools.gpu_paged.piece_bytes
    copier.copy(machine.stream("store"), "d2h", Batch(gpu, host, sizes))
    machine.synchronize()
    copier.copy(machine.stream("load"), "h2d", Batch(host, gpu, sizes))
    machine.synchronize()


def _put_initial(initial: Initial, machine: Machine, pools: Pools, files: FileTier | None, salt: int) -> None:
    """Write what the schedule says is there before its first step, and the tails of all pieces."""
    stream, head = machine.stream("compute"), machine.head_bytes
    gpu, host = pools.gpu_paged, pools.host_paged
    if gpu.tails(head).piece_bytes:
        origins = {block: pattern.ORIGINS["gpu"] + block for block in range(gpu.num_blocks)}
        machine.fill(stream, pools.gpu, gpu.tails(head), origins, pattern.tail_salt(salt))
    if initial.gpu:
        machine.fill(stream, pools.gpu, gpu.heads(head), dict(initial.gpu), salt)
    view = host.view(pools.host.read(0, pools.host.bytes))
    if host.tails(head).piece_bytes:
        for block in range(host.num_blocks):
            pattern.fill(view[:, block, head:], pattern.ORIGINS["host"] + block, pattern.tail_salt(salt))
    for block, content in initial.host:
        pattern.fill(view[:, block, :head], content, salt)
    for file, content in initial.files:
        assert files is not None, "only jobs of files read files"
        block_view = np.empty((host.pieces, host.piece_bytes), dtype=np.uint8)
        pattern.fill(block_view[:, :head], content, salt)
        pattern.fill(block_view[:, head:], pattern.ORIGINS["files"] + file, pattern.tail_salt(salt))
        files.put(file, block_view)
    machine.synchronize()


def _verified(
    expected: Expected, pools: Pools, files: FileTier | None, witnesses: Witnesses | None, head: int, salt: int
) -> Integrity:
    """What was kept of every job, then all that is there at the end."""
    words = 0
    if witnesses is not None:
        words, wrong = witnesses.first_wrong(salt)
        if wrong is not None:
            return Integrity(0, 0, wrong, words)
    read_file = None if files is None else files.contents
    found = verify(expected, (pools.gpu, pools.gpu_paged), (pools.host, pools.host_paged), read_file, head, salt)
    return replace(found, witnessed_words=words)
