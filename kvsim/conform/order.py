"""Orders that vLLM takes from sets of request ids, which depend on PYTHONHASHSEED."""

from __future__ import annotations

from kvsim.request import Request


def in_set_order(requests: list[Request]) -> list[Request]:
    """The requests in the iteration order of a set of their ids."""
    by_id = {request.request_id: request for request in requests}
    ids: set[str] = set()
    for request_id in by_id:  # one by one: a set made in one go may have another size, and so another order
        ids.add(request_id)
    return [by_id[request_id] for request_id in ids]


class SetOrder:
    """Finished requests in the order in which vLLM 0.33.0 commits them: that of a set of their ids.

    vLLM: v1/core/sched/scheduler.py collects `finished_req_ids` one by one, and the offloading connector's scheduler
    side iterates over that set.
    """

    def __init__(self) -> None:
        self.reordered = 0  # times that it was not the order of finishing

    def __call__(self, finished: list[Request]) -> list[Request]:
        """The requests in the set's order."""
        ordered = in_set_order(finished)
        self.reordered += ordered != finished
        return ordered
