"""The faults of a run: from its config to objects, and what happens to whom at which moment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, Protocol

import simpy

from kvsim.clock import Clock
from kvsim.config.faults import FaultsConfig, Losses, MediumFaults, Outage, Stalls
from kvsim.connectors.base import Copier, Direction
from kvsim.faults.clients import Clients
from kvsim.faults.copies import FaultyCopier
from kvsim.faults.hazard import Chance, Hazard
from kvsim.faults.memory import BreakableLedger
from kvsim.faults.run_tiers import FaultyRunTier
from kvsim.faults.tiers import FaultyTier
from kvsim.offload.ledger import Ledger
from kvsim.offload.tiering import SecondaryTier
from kvsim.results.records import FaultTotals

CPU = "cpu"


class Losable(Protocol):
    """Memory whose contents can be lost."""

    def lose_contents(self) -> None:
        """Empty from now on; what somebody reads or writes goes when they are done."""
        ...


class Faults:
    """Puts faulty parts before the sound ones, and calls out the moments.

    Args:
        seed: the run's.
        totals: counts what has happened.
        wake: tells the engine that something has happened.
        may_die: somebody else may kill the engine, too.
    """

    def __init__(
        self,
        clock: Clock,
        config: FaultsConfig,
        seed: int,
        totals: FaultTotals,
        wake: Callable[[], None],
        *,
        may_die: bool = False,
    ) -> None:
        self._clock, self._config, self._seed, self._totals, self._wake = clock, config, seed, totals, wake
        self.copies_fail = config.cpu != MediumFaults() or any(outage.tier == CPU for outage in config.outages)
        self.engine_dies = bool(config.restarts) or may_die
        self.tiers_fail = bool(config.tiers or config.outages or self.engine_dies or config.failed_copies == "fatal")
        self._alarms: list[simpy.Event] = []
        self._copier: FaultyCopier | None = None
        self._memory: tuple[BreakableLedger, Losable] | None = None
        self._tiers: dict[str, FaultyTier] = {}
        self._away: set[str] = set()  # tiers that cannot be reached now

    # -- faulty parts
    def copier(self, copier: Copier) -> Copier:
        """Copies between GPU and CPU memory."""
        if not self.copies_fail:
            return copier
        medium = self._config.cpu
        if self._copier is not None:
            self._copier.serve(copier)
            return self._copier
        self._copier = FaultyCopier(
            self._clock,
            copier,
            losses=self._losses(medium, CPU),
            stalls=self._stalls(medium.stalls, CPU),
            deadline_ns=medium.stalls.deadline,
            is_fatal=self._config.failed_copies == "fatal",
            totals=self._totals,
            wake=self._wake,
        )
        return self._copier

    def ledger(self, ledger: Ledger, primary: Losable) -> Ledger:
        """The CPU tier; ``primary`` is the one with the slots."""
        if not any(outage.tier == CPU for outage in self._config.outages):
            return ledger
        breakable = BreakableLedger(ledger)
        breakable.is_away = CPU in self._away
        self._memory = (breakable, primary)
        return breakable

    def tiers(
        self, tiers: Sequence[SecondaryTier], names: Sequence[str], *, remembers: bool, by_run: bool
    ) -> list[SecondaryTier]:
        """Secondary tiers, ``by_run`` or key by key. They outlive the engine, so they are made once."""
        if not self.tiers_fail:
            return list(tiers)
        wanted = {entry.tier: entry for entry in self._config.tiers}
        for name, tier in zip(names, tiers, strict=True):
            medium = wanted.get(name, MediumFaults())
            self._tiers[name] = (FaultyRunTier if by_run else FaultyTier)(
                self._clock,
                tier,
                losses=self._losses(medium, name),
                stalls=self._stalls(medium.stalls, name),
                deadline_ns=medium.stalls.deadline,
                remembers_failures=remembers,
                totals=self._totals,
                wake=self._wake,
            )
        return [self._tiers[name] for name in names]

    def _losses(self, medium: MediumFaults, name: str) -> dict[Direction, Hazard]:
        def hazard(losses: Losses, what: str) -> Hazard:
            windows = [(window.start, window.end) for window in losses.windows]
            chance = Chance(losses.rate, windows, frozenset(losses.jobs))
            return Hazard(self._clock, chance, self._seed, f"{name} {what}")

        return {"load": hazard(medium.load_failures, "loads"), "store": hazard(medium.store_failures, "stores")}

    def _stalls(self, stalls: Stalls, name: str) -> dict[Direction, Hazard]:
        windows = [(window.start, window.end) for window in stalls.windows]

        def hazard(way: Literal["load", "store"], rate: float, numbers: Sequence[int]) -> Hazard:
            return Hazard(self._clock, Chance(rate, windows, frozenset(numbers)), self._seed, f"{name} stalled {way}s")

        return {
            "load": hazard("load", stalls.load_rate, stalls.loads),
            "store": hazard("store", stalls.store_rate, stalls.stores),
        }

    def notes(self) -> list[str]:
        """What a reader should know about the faults."""
        medium = self._config.cpu
        if medium == MediumFaults() or self._config.failed_copies == "fatal":
            return []
        fatal = "vLLM's own connectors end the engine instead, in both releases (faults.failed_copies: fatal)"
        return [f"failed copies between GPU and CPU are reported to the scheduler; {fatal}"]

    @property
    def hold_back_copies(self) -> bool:
        """Whether copies to or from the GPU wait for the deadline of a stalled one, and so may begin at any moment."""
        copier = self._copier
        return copier is not None and copier.num_behind > 0 and self._config.cpu.stalls.deadline > 0

    # -- moments
    def start(self, kill: Callable[[], None]) -> None:
        """Set the alarms for outages and for the engine's deaths."""
        for outage in self._config.outages:
            self._alarms.append(self._clock.alarm(outage.start, partial(self._begin, outage)))
            self._alarms.append(self._clock.alarm(outage.end, partial(self._finish, outage)))
        for moment in self._config.restarts:
            self._alarms.append(self._clock.alarm(moment, kill))

    def stop(self) -> None:
        """Nobody is left whom a fault could hit: the clock need not run on to the next one."""
        for alarm in self._alarms:
            self._clock.cancel(alarm)

    def explain_hang(self) -> str:
        """What will never end because of a fault; empty = nothing."""
        stalled = {CPU: self._copier.num_stalled if self._copier is not None else 0}
        stalled |= {name: tier.num_stalled for name, tier in self._tiers.items()}
        where = " and ".join(f"{count} copies of tier {name}" for name, count in stalled.items() if count)
        return f"{where} have stalled for ever (faults: a deadline of their stalls would end them)" if where else ""

    def on_engine_death(self) -> None:
        """The engine and its memory are gone; the tiers stay."""
        self._totals.engine_deaths += 1
        if self._copier is not None:
            self._copier.lose_engine()
        for tier in self._tiers.values():
            tier.lose_engine()

    def _begin(self, outage: Outage) -> None:
        self._totals.outages += 1
        self._away.add(outage.tier)
        lose = outage.contents == "lost"
        if outage.tier != CPU:
            self._tiers[outage.tier].go_away(lose_contents=lose)
        elif self._memory is not None and self._copier is not None:
            ledger, primary = self._memory
            ledger.go_away()
            self._copier.lose_memory()
            if lose:
                primary.lose_contents()
        self._wake()

    def _finish(self, outage: Outage) -> None:
        self._away.discard(outage.tier)
        if outage.tier != CPU:
            self._tiers[outage.tier].come_back()
        elif self._memory is not None and self._copier is not None:
            self._memory[0].come_back()
            self._copier.memory_is_gone = False
        self._wake()


def clients_of(clock: Clock, config: FaultsConfig, seed: int) -> Clients | None:
    """Those who send the requests, if they may go away."""
    aborts = config.aborts
    if not (aborts.rate or aborts.script or config.client_timeout):
        return None
    return Clients(
        clock,
        rate=aborts.rate,
        within_ns=aborts.within,
        timeout_ns=config.client_timeout,
        scripted={entry.request: entry.after for entry in aborts.script},
        seed=seed,
    )
