"""What a router gets to see: prompts, its own traffic, and what instances tell. Nothing of their schedulers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from kvsim.chain import Chain
from kvsim.kv_events import KVCacheEvent


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """The tokens of a prompt, as far as others can share them.

    Attributes:
        chain: its known tokens.
        scope: prompts of two scopes (tenants, LoRA adapters) have nothing in common, whatever their tokens.
    """

    chain: Chain
    scope: int


@dataclass(frozen=True, slots=True, eq=False)
class TurnView:
    """A turn that has to go somewhere.

    Attributes:
        number: in order of arrival.
        session: its conversation, as a header or a cookie names it.
        stream: empty, or the sub-agent that sends it.
    """

    number: int
    session: str
    stream: str
    arrival_ns: int
    prompt_tokens: int
    prompt: Prompt


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """How a turn has ended, as whoever passes the answer on sees it.

    Attributes:
        status: finished, rejected, failed or aborted.
        first_token_ns: moment; -1 = never.
        content: prompt and answer, as far as a later prompt can begin with them.
    """

    status: str
    first_token_ns: int
    end_ns: int
    output_tokens: int
    content: Prompt


@dataclass(frozen=True, slots=True, eq=False)
class FirstToken:
    """The answer to a turn has begun."""

    turn: TurnView
    instance: int
    at_ns: int


@dataclass(frozen=True, slots=True)
class Joined:
    """An instance takes turns from now on."""

    instance: int


@dataclass(frozen=True, slots=True)
class Left:
    """An instance takes no turns any more; ``lost``: what it had in its memory is lost."""

    instance: int
    lost: bool


@dataclass(frozen=True, slots=True)
class KVEvents:
    """What an instance has published after one of its steps. It arrives after a delay."""

    instance: int
    published_ns: int
    events: Sequence[KVCacheEvent]


News = FirstToken | Joined | Left | KVEvents


@dataclass(frozen=True, slots=True)
class RouterSite:
    """Where a router works. Instances are numbers to it, in the order of their names.

    Attributes:
        names: of the instances.
        block_sizes: tokens of a KV block of each.
        kv_tokens: that the KV cache of each holds, with its CPU memory.
        seed: the run's.
        block_hashes: hashes of the full blocks of a prompt, as this instance would name them in KV events.
    """

    names: tuple[str, ...]
    block_sizes: tuple[int, ...]
    kv_tokens: tuple[int, ...]
    seed: int
    block_hashes: Callable[[Prompt, int], list[int]]

    @property
    def num_instances(self) -> int:
        """How many there are, whether or not they take turns now."""
        return len(self.names)
