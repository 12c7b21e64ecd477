"""LinkCopier: jobs become transfers of the right direction, time and size."""

from __future__ import annotations

from engine_builder import make_request

from kvsim.clock import Clock
from kvsim.connectors.base import CopyJob
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
