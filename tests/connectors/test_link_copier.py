"""LinkCopier: jobs become transfers of the right direction, time and size."""

from __future__ import annotations

from engine_builder import make_request

from kvsim.clock import Clock
from kvsim.compute import ComputeStream
from kvsim.connectors.base import CopyJob, Direction
from kvsim.connectors.link_copier import LinkCopier
from kvsim.connectors.offloading import Job
from kvsim.hardware import CopyCost, DuplexLink


def test_jobs_on_the_link() -> None:
    """Loads go host to device, stores device to host; time and bytes follow from the job's GPU blocks."""
    env = Clock()
    asked: list[tuple[str, int]] = []
    link = DuplexLink(env)

    def copy_time(job: CopyJob, direction: str) -> CopyCost:
        asked.append((direction, len(job.gpu_blocks)))
        return CopyCost(10 * len(job.gpu_blocks))

    copier = LinkCopier(link, copy_time, block_bytes={"h2d": 64, "d2h": 32})
    r = make_request("r")
    load = Job(0, "load", [0], [7], request=r, keys=[5])  # half of a chunk of two blocks
    store = Job(1, "store", [1, 2, 3, 4], [0, 1], request=r, keys=[5, 6])
    for job in (load, store):
        copier.submit(job)
    assert asked == [("h2d", 1), ("d2h", 4)]
    copier.flush(store)  # the link can't hurry
    env.run(until=15)
    assert (copier.is_done(load), copier.is_done(store)) == (True, False)
    env.run()
    assert copier.is_done(store)
    assert link.bytes == {"h2d": 64, "d2h": 128}
    copier.forget(load)
    copier.forget(store)
    assert not copier._transfers


def test_loads_begin_behind_the_forward_pass_of_their_step() -> None:
    """As in 0.33.0, a load waits for the pass launched at its instant, if there is one; a store never waits."""
    env = Clock()
    compute, link, r = ComputeStream(env), DuplexLink(env), make_request("r")
    copier = LinkCopier(link, lambda _job, _direction: CopyCost(10), {"h2d": 1, "d2h": 1}, behind=compute)
    ends: list[tuple[str, int]] = []

    def step(name: str, direction: Direction, work_ns: int) -> Job:
        job = Job(len(ends), direction, [0], [7], request=r, keys=[5])
        copier.submit(job)
        if work_ns:
            compute.forward(work_ns)
        assert not copier.is_done(job)
        link.on_finish = lambda: ends.append((name, env.now))
        return job

    first = step("load behind 100 ns", "load", 100)
    env.run()
    step("store beside 100 ns", "store", 100)
    env.run()
    step("load alone", "load", 0)
    env.run()
    assert ends == [("load behind 100 ns", 110), ("store beside 100 ns", 120), ("load alone", 220)]
    assert copier.is_done(first)
