"""The worker side of connectors that do everything inside the step."""

from __future__ import annotations

from typing import Generic, TypeVar

from kvsim.connectors.base import WorkerOutput
from kvsim.hardware import Transfer

Meta = TypeVar("Meta")


class WaitingWorker(Generic[Meta]):
    """Keeps the step's work for the hooks, which the forward pass calls; nothing is in flight between steps."""

    def __init__(self, num_layers: int, nothing: type[Meta]) -> None:
        self.num_layers, self._nothing = num_layers, nothing
        self._meta = nothing()

    def handle_preemptions(self, meta: Meta) -> tuple[()]:
        """Nothing is ever in flight between steps."""
        return ()

    def start_load_kv(self, meta: Meta) -> None:
        """The work itself is done by the hooks."""
        self._meta = meta

    def is_done(self, job: Transfer) -> bool:
        """Whether a copy is over."""
        return job.is_done

    def has_finished(self) -> bool:
        """Nothing is reported."""
        return False

    def get_finished(self) -> WorkerOutput:
        """Nothing is reported."""
        self._meta = self._nothing()
        return WorkerOutput()
