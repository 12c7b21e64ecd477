"""KV events on their way from the instances to the router."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from kvsim.cluster.views import KVEvents
from kvsim.kv_events import KVCacheEvent, KVEventListener


class EventMail:
    """What instances have published, until the router may know it.

    Args:
        delay_ns: from the end of the step that published it.
    """

    def __init__(self, num_instances: int, delay_ns: int) -> None:
        self.delay_ns = delay_ns
        self._sent: list[deque[KVEvents]] = [deque() for _ in range(num_instances)]

    def listener(self, instance: int) -> KVEventListener:
        """Where an instance drops its events."""

        def publish(now_ns: int, events: Sequence[KVCacheEvent]) -> None:
            self._sent[instance].append(KVEvents(instance, now_ns, events))

        return publish

    def take(self, now_ns: int) -> list[KVEvents]:
        """What has arrived by now and was not taken yet; of each instance in the order in which it was published."""
        arrived: list[KVEvents] = []
        for sent in self._sent:
            while sent and sent[0].published_ns + self.delay_ns <= now_ns:
                arrived.append(sent.popleft())
        return arrived
