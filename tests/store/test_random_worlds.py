"""Random clusters over a small shared store, with nodes that come and go: books agree in every step and at the end."""

from __future__ import annotations

import pytest
from store_worlds import with_store

from kvsim.build import Simulation


@pytest.mark.parametrize("seed", range(24))
def test_books_agree(seed: int) -> None:
    """No block is lost or read by nobody, every request ends or says why not, and all flows are accounted for."""
    simulation = Simulation(with_store(seed).plan())
    record = simulation.run()
    assert simulation.cluster is not None
    store = simulation.cluster.store
    assert store is not None
    store.master.check()
    assert store.fabric.num_flows == 0
    sent = sum(end.bytes_sent for end in store.fabric.endpoints.values())
    received = sum(end.bytes_received for end in store.fabric.endpoints.values())
    assert sent == received
    assert all(request.status != "stuck" or request.reason for request in record.requests)
    again = Simulation(with_store(seed).plan()).run()
    assert [r.finish_ns for r in again.requests] == [r.finish_ns for r in record.requests]
