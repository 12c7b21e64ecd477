"""What a client knows of a server that restarts: heartbeats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Restart:
    """The server is gone from ``down_ns`` to ``up_ns``."""

    down_ns: int
    up_ns: int
    keep_cache: bool


@dataclass(frozen=True, slots=True)
class Outage:
    """A restart as a client sees it.

    Attributes:
        restart: what happened.
        noticed_ns: when the client gives up (degraded mode); None = never, the restart was too quick for it.
        recovered_ns: when the client has registered its KV caches again; None = never.
    """

    restart: Restart
    noticed_ns: int | None
    recovered_ns: int | None

    @property
    def answered_ns(self) -> int:
        """When whatever was asked while the server was gone comes to an end."""
        return self.restart.up_ns if self.noticed_ns is None else min(self.restart.up_ns, self.noticed_ns)


def outages(restarts: Sequence[Restart], interval_ns: int) -> list[Outage]:
    """Play the heartbeats: a ping, answered at once or timing out after ``interval_ns``; then a pause as long.

    A ping that is under way when the server comes back is answered: such a restart is never noticed. The server has
    then forgotten the client's KV caches, and nobody tells it again: only the step from unhealthy to healthy does.
    Rules: LMCache 0.5.6 integration/vllm/vllm_multi_process_adapter.py, HeartbeatThread and
    `_reregister_kv_caches_callback`; multiprocess/modules/lookup.py (a lookup without a GPU context finds nothing).
    """
    found: list[Outage] = []
    ping_ns = 0
    for restart in restarts:
        noticed_ns: int | None = None
        ping_ns += max(-(-(restart.down_ns - ping_ns) // interval_ns), 0) * interval_ns  # the first that it misses
        while ping_ns < restart.up_ns:
            if restart.up_ns <= ping_ns + interval_ns:
                ping_ns = restart.up_ns  # answered when it is back
            else:
                noticed_ns = noticed_ns or ping_ns + interval_ns
                ping_ns += 2 * interval_ns
        found.append(Outage(restart, noticed_ns, None if noticed_ns is None else ping_ns))
        ping_ns += interval_ns
    return found
