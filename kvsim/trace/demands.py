"""Who asks for what: adapters, grammars and images of a trace's turns, as its file says or as a run wishes."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvsim.demands import Demands, EncoderInput
from kvsim.trace.session import Session, SubAgent, Trace, Turn, turn_name


@dataclass(frozen=True, slots=True)
class Wishes:
    """What is added to a trace. Whatever the trace itself says stays.

    Attributes:
        adapters: sessions take turns with so many LoRA adapters; 0 = none.
        grammar_share, num_grammars: share of requests with a grammar, and of how many different ones.
        image_share, image_tokens: share of turns that bring an image, and its length.
        seed: of the draws; each request has its own, so that it does not depend on the others.
    """

    adapters: int = 0
    grammar_share: float = 0.0
    num_grammars: int = 1
    image_share: float = 0.0
    image_tokens: int = 0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Demanded:
    """What the requests of a trace ask for, all in all."""

    adapters: int = 0  # different ones
    grammars: int = 0  # requests with one
    encoder_inputs: int = 0  # new ones
    largest_input_tokens: int = 0


def settle(trace: Trace, wishes: Wishes) -> tuple[Trace, Demanded]:
    """The trace with every turn's demands as the engine gets them: its prompt's images are all in it, old and new.

    As read, a turn holds only the images that it brings itself. A later prompt of the stream keeps an image if it has
    all of its positions in common with the prompt before.
    """
    asked = any(
        turn.demands != Demands() for session in trace.sessions for _, turns in session.streams for turn in turns
    )
    if not asked and wishes == Wishes(seed=wishes.seed):
        return trace, Demanded()
    sessions = tuple(_Settler(session, number, wishes).session() for number, session in enumerate(trace.sessions))
    demands = [turn.demands for session in sessions for _, turns in session.streams for turn in turns]
    inputs = {each.identity: each.num_tokens for demand in demands for each in demand.encoder_inputs}
    return replace(trace, sessions=sessions), Demanded(
        adapters=len({demand.adapter for demand in demands} - {0}),
        grammars=sum(bool(demand.grammar) for demand in demands),
        encoder_inputs=len(inputs),
        largest_input_tokens=max(inputs.values(), default=0),
    )


class _Settler:
    """One session. Sub-agents use the session's adapter."""

    def __init__(self, session: Session, number: int, wishes: Wishes) -> None:
        self._session, self._wishes = session, wishes
        self._adapter = 1 + number % wishes.adapters if wishes.adapters else 0

    def session(self) -> Session:
        session = self._session
        return replace(session, turns=tuple(self._stream("", session.turns)), trailing=self._agents(session.trailing))

    def _agents(self, agents: Sequence[SubAgent]) -> tuple[SubAgent, ...]:
        return tuple(replace(agent, turns=tuple(self._stream(agent.name, agent.turns))) for agent in agents)

    def _stream(self, stream: str, turns: Sequence[Turn]) -> Iterator[Turn]:
        kept: tuple[EncoderInput, ...] = ()
        previous: Turn | None = None
        for index, turn in enumerate(turns):
            name = turn_name(self._session.name, stream, index)
            common = 0 if previous is None else previous.chain.shared_tokens(turn.chain)
            kept = tuple(image for image in kept if image.end_tokens <= common)
            own, draws = turn.demands, random.Random(f"{self._wishes.seed}:{name}")
            grammar, image = self._grammar(draws), self._image(draws, name, turn, common)
            kept += own.encoder_inputs or image
            yield replace(
                turn,
                demands=Demands(own.adapter or self._adapter, own.grammar or grammar, kept),
                subagents=self._agents(turn.subagents),
            )
            previous = turn

    def _grammar(self, draws: random.Random) -> str:
        wanted, number = draws.random() < self._wishes.grammar_share, draws.randrange(self._wishes.num_grammars)
        return f"grammar-{number}" if wanted else ""

    def _image(self, draws: random.Random, name: str, turn: Turn, common: int) -> tuple[EncoderInput, ...]:
        """An image at the end of what is known of the prompt, if it fits into the turn's own part."""
        wanted, tokens = draws.random() < self._wishes.image_share, self._wishes.image_tokens
        start = turn.known_prompt_tokens - tokens
        return (EncoderInput(name, start, tokens),) if wanted and start >= common else ()
