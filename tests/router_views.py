"""Turns and sites for routers, by hand."""

from __future__ import annotations

from kvsim.chain import Chain, PrefixTree
from kvsim.cluster.views import Answer, FirstToken, Prompt, RouterSite, TurnView

BLOCK = 16


def chains(*words: str) -> list[Chain]:
    """Prompts as words: equal beginnings are equal content, a letter is a block of 16 tokens."""
    tree = PrefixTree()
    leaves = [tree.add("", list(_ids(word)), BLOCK) for word in words]
    return [tree.chain(leaf, leaf.num_tokens) for leaf in leaves]


def _ids(word: str) -> list[int]:
    """Chained: an id stands for a letter and all before it."""
    return [hash_of(word[: end + 1]) for end in range(len(word))]


def hash_of(word: str) -> int:
    """A number for a word, the same in every process."""
    return int.from_bytes(word.encode(), "big")


def site(num_instances: int, *, kv_tokens: int = 10_000, seed: int = 0) -> RouterSite:
    """Instances i-0, i-1, ...; block hashes are those of the chain's words."""
    names = tuple(f"i-{number}" for number in range(num_instances))
    sizes, room = (BLOCK,) * num_instances, (kv_tokens,) * num_instances
    return RouterSite(names, sizes, room, seed, lambda prompt, _instance: list(range(prompt.chain.num_tokens // BLOCK)))


def turn(number: int, tokens: int = 100, session: str = "s", chain: Chain | None = None, at_ns: int = 0) -> TurnView:
    """A turn of a session; without a chain nobody shares its prompt."""
    tokens = tokens if chain is None else chain.num_tokens
    return TurnView(number, session, "", at_ns, tokens, Prompt(chain or Chain(), 0))


def answer(view: TurnView, content: Chain | None = None) -> Answer:
    """It has finished."""
    return Answer("finished", 0, 0, 10, Prompt(content or view.prompt.chain, view.prompt.scope))


def first_token(view: TurnView, instance: int, at_ns: int) -> FirstToken:
    """Of a turn that was sent there."""
    return FirstToken(view, instance, at_ns)
