"""What a router believes the instances to keep: guessed from its own traffic, or pieced together from KV events."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from kvsim.cluster.views import Answer, KVEvents, News, Prompt, RouterSite
from kvsim.kv_events import FULL_ATTENTION, SHARED_STORE, AllBlocksCleared, BlockRemoved, BlockStored


class PrefixIndex(Protocol):
    """Which instance has how much of a prompt."""

    def matched(self, prompt: Prompt) -> list[int]:
        """Tokens of the longest prefix that each instance has."""
        ...

    def sent(self, prompt: Prompt, instance: int) -> None:
        """A prompt has gone there."""
        ...

    def ended(self, instance: int, answer: Answer) -> None:
        """Its answer has come."""
        ...

    def heard(self, news: News) -> None:
        """KV events."""
        ...

    def forget(self, instance: int) -> None:
        """What it had is lost."""
        ...


class HistoryIndex:
    """An instance has what was sent there and what it answered, the most recently used first.

    As the approximate indices of llm-d's prefix-cache scorer and of the cache-aware policies of the vLLM and SGLang
    routers: no news from the instances, hence wrong where they evict otherwise, and for requests that still wait.

    Args:
        capacity_tokens: of an instance; beyond it, what was used longest ago is believed to be evicted. None = what its
            GPU's and its CPU's memory hold (vLLM publishes the number of its GPU blocks; llm-d takes it from there).
    """

    def __init__(self, site: RouterSite, capacity_tokens: int | None = None) -> None:
        sizes = site.kv_tokens
        self._capacities = sizes if capacity_tokens is None else (capacity_tokens,) * len(sizes)
        # (scope, segment) -> the token up to which the segment is there; most recently used last.
        self._known: list[OrderedDict[tuple[int, int], int]] = [OrderedDict() for _ in site.names]
        self._starts: dict[int, int] = {}  # of segments
        self._sizes = [0] * site.num_instances

    def matched(self, prompt: Prompt) -> list[int]:
        """See `PrefixIndex`."""
        found = []
        segments, total, scope = prompt.chain.segments, prompt.chain.num_tokens, prompt.scope
        for known in self._known:
            tokens = 0
            for segment in segments:
                there = known.get((scope, segment.index))
                if there is None:
                    break
                tokens = min(there, total)
                if there < segment.end_tokens:
                    break
            found.append(tokens)
        return found

    def sent(self, prompt: Prompt, instance: int) -> None:
        """See `PrefixIndex`."""
        known, scope, left = self._known[instance], prompt.scope, prompt.chain.num_tokens
        for segment in reversed(prompt.chain.segments):  # the tail is evicted before the head
            key, start = (scope, segment.index), segment.start_tokens
            self._starts[segment.index] = start
            before = known.get(key, start)
            after = max(before, min(segment.end_tokens, left))
            known[key] = after
            known.move_to_end(key)
            self._sizes[instance] += after - before
        self._evict(instance, self._capacities[instance])

    def ended(self, instance: int, answer: Answer) -> None:
        """See `PrefixIndex`."""
        if answer.status == "finished":
            self.sent(answer.content, instance)

    def heard(self, news: News) -> None:
        """See `PrefixIndex`."""

    def forget(self, instance: int) -> None:
        """See `PrefixIndex`."""
        self._known[instance].clear()
        self._sizes[instance] = 0

    def _evict(self, instance: int, capacity: int) -> None:
        known = self._known[instance]
        while (excess := self._sizes[instance] - capacity) > 0:
            key = next(iter(known))
            size = known[key] - self._starts[key[1]]
            if size > excess:
                known[key] -= excess
            else:
                del known[key]
            self._sizes[instance] -= min(size, excess)


class EventIndex:
    """An instance has what its KV events say, in any of its memories: blocks are found by their hashes.

    As llm-d's KV-cache indexer and Dynamo's KvIndexer. Copies of a block in one memory are counted, because vLLM tells
    of each. Of several KV cache groups those count that keep every token.
    """

    def __init__(self, site: RouterSite) -> None:
        self._site = site
        self._copies: list[dict[tuple[str, int], int]] = [{} for _ in site.names]  # (medium, hash) -> how many
        self._held: list[dict[int, int]] = [{} for _ in site.names]  # hash -> media that have it
        self._groups: set[int | None] = {None}  # those of full attention

    def matched(self, prompt: Prompt) -> list[int]:
        """See `PrefixIndex`. Whole blocks of the instance."""
        found = []
        for instance, held in enumerate(self._held):
            count = 0
            for block in self._site.block_hashes(prompt, instance) if held else ():
                if block not in held:
                    break
                count += 1
            found.append(count * self._site.block_sizes[instance])
        return found

    def sent(self, prompt: Prompt, instance: int) -> None:
        """See `PrefixIndex`."""

    def ended(self, instance: int, answer: Answer) -> None:
        """See `PrefixIndex`."""

    def heard(self, news: News) -> None:
        """See `PrefixIndex`."""
        if not isinstance(news, KVEvents):
            return
        for event in news.events:
            if getattr(event, "medium", "") == SHARED_STORE:
                continue  # no nearer to this instance than to others, and nobody tells when it leaves
            if isinstance(event, BlockStored):
                if event.kv_cache_spec_kind in (None, FULL_ATTENTION):
                    self._groups.add(event.group_idx)
                    self._change(news.instance, event.medium, event.block_hashes, 1)
            elif isinstance(event, BlockRemoved):
                if event.group_idx in self._groups:
                    self._change(news.instance, event.medium, event.block_hashes, -1)
            elif isinstance(event, AllBlocksCleared):
                self.forget(news.instance)

    def forget(self, instance: int) -> None:
        """See `PrefixIndex`."""
        self._copies[instance].clear()
        self._held[instance].clear()

    def _change(self, instance: int, medium: str, blocks: list[int], by: int) -> None:
        copies, held = self._copies[instance], self._held[instance]
        for block in blocks:
            before = copies.get((medium, block), 0)
            after = max(before + by, 0)  # removed without having been heard of: it was lost with an engine
            if after:
                copies[medium, block] = after
            else:
                copies.pop((medium, block), None)
            media = held.get(block, 0) + (after > 0) - (before > 0)
            if media:
                held[block] = media
            else:
                held.pop(block, None)


def prefix_index(kind: str, site: RouterSite, capacity_tokens: int | None) -> PrefixIndex:
    """``history`` or ``kv_events``."""
    return EventIndex(site) if kind == "kv_events" else HistoryIndex(site, capacity_tokens)
