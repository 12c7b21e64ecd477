"""How busy other processes kept this machine's processors during a measurement: what they take, a host copy lacks."""

from __future__ import annotations

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")
_WORTH_SAYING = 0.03  # of all processors


class Contention:
    """Begins to count when it is made."""

    def __init__(self) -> None:
        self._begin = _sample()

    def note(self) -> str | None:
        """What others used since then, if it is worth saying."""
        share = self.share()
        if share is None or share < _WORTH_SAYING:
            return None
        return f"other processes used {100 * share:.0f} % of this machine's processors meanwhile"

    def share(self) -> float | None:
        """Part of all processors that others used; None if the kernel does not say."""
        now = _sample()
        if self._begin is None or now is None:
            return None
        return others_share(self._begin, now, os.cpu_count() or 1)


def others_share(begin: tuple[float, float, float], now: tuple[float, float, float], processors: int) -> float:
    """Part of all processors; samples are (moment, all processes' seconds, own seconds)."""
    passed, everybody, own = (second - first for first, second in zip(begin, now, strict=True))
    return min(1.0, max(0.0, (everybody - own) / (processors * max(passed, 1e-9))))


def _sample() -> tuple[float, float, float] | None:
    try:
        fields = _STAT.read_text(encoding="ascii").split("\n", 1)[0].split()
    except OSError:
        return None
    if fields[:1] != ["cpu"] or len(fields) < 9:
        return None
    user, nice, system, _, _, irq, softirq, steal = map(int, fields[1:9])
    busy = (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
    own = os.times()
    return time.monotonic(), busy, own.user + own.system
