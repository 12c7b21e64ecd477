"""The generator reproduces what is published, and the same bytes every time."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path

import pytest

from kvsim.errors import UserError
from kvsim.trace.generate import GeneratorParameters, generate, trace_text, write_trace
from kvsim.trace.read import read_trace
from kvsim.trace.session import Trace
from kvsim.trace.stats import TraceStats, describe

SAMPLE = Path(__file__).resolve().parents[2] / "traces" / "swe-bench-like-60.jsonl.gz"


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, TraceStats]:
    """The default trace of 610 sessions."""
    path = tmp_path_factory.mktemp("generated") / "default.jsonl.gz"
    write_trace(path, GeneratorParameters())
    trace = read_trace([path])
    return trace, describe(trace)


def test_defaults_reproduce_the_published_figures(published: tuple[Trace, TraceStats]) -> None:
    """610 sessions have the published turns, contexts, growth, ratio, hit rate and times between turns."""
    trace, stats = published
    assert stats.sessions == 610
    assert stats.turns_per_session.p50 == 33
    assert stats.first_input_tokens.mean == pytest.approx(12_000, rel=0.05)
    late = [s.turns[29].input_tokens for s in trace.sessions if len(s.turns) >= 30]
    assert sum(late) / len(late) == pytest.approx(80_000, rel=0.05)
    assert stats.input_tokens.max > 180_000
    assert stats.added_tokens is not None
    assert stats.added_tokens.mean == pytest.approx(2_242, rel=0.03)
    assert stats.input_output_ratio == pytest.approx(131, rel=0.03)
    assert stats.hits.token_rate == pytest.approx(0.942, abs=0.003)
    assert stats.think_s is not None
    assert stats.think_s.p50 == pytest.approx(5.2, rel=0.05)
    assert stats.think_s.p99 == pytest.approx(81.4, rel=0.10)


def test_readme_states_what_the_defaults_give(published: tuple[Trace, TraceStats]) -> None:
    """The figures in the table of traces/README.md are the generator's."""
    trace, stats = published
    late = [s.turns[29].input_tokens for s in trace.sessions if len(s.turns) >= 30]
    assert stats.added_tokens is not None
    text = (SAMPLE.parent / "README.md").read_text()
    for figure in (
        f"{stats.first_input_tokens.mean:,.0f} (mean)",
        f"{sum(late) / len(late):,.0f} (mean)",
        f"| {stats.input_tokens.max:,} |",
        f"| {stats.added_tokens.mean:,.0f} |",
        f"| {stats.input_output_ratio:.1f} |",
        f"| {100 * stats.hits.token_rate:.1f} % |",
    ):
        assert figure in text


def test_sample_is_what_the_generator_writes(tmp_path: Path) -> None:
    """The committed sample is byte for byte what its parameters give."""
    path = tmp_path / "again.jsonl.gz"
    write_trace(path, GeneratorParameters(sessions=60))
    assert gzip.decompress(path.read_bytes()) == gzip.decompress(SAMPLE.read_bytes())
    # Other deflate libraries (zlib-ng) pack the same bytes differently.
    if "ng" not in zlib.ZLIB_RUNTIME_VERSION:
        assert path.read_bytes() == SAMPLE.read_bytes()
    assert len(SAMPLE.read_bytes()) < 200_000


def test_sample_has_the_shape_of_the_whole() -> None:
    """60 sessions have the median turns and, within a few per cent, the other figures of 610."""
    stats = describe(read_trace([SAMPLE]))
    assert (stats.sessions, stats.requests, stats.turns_per_session.p50) == (60, 2068, 33)
    assert stats.hits.token_rate == pytest.approx(0.942, abs=0.01)
    assert stats.input_output_ratio == pytest.approx(131, rel=0.05)


def test_another_seed_is_another_trace() -> None:
    """The seed decides every number; the same seed decides it again."""
    one, two = GeneratorParameters(sessions=3, seed=1), GeneratorParameters(sessions=3, seed=2)
    assert trace_text(one) == trace_text(one)
    assert trace_text(one).splitlines()[1:] != trace_text(two).splitlines()[1:]


def test_rewritten_turns_keep_the_length_but_not_the_history() -> None:
    """A rewrite recomputes the tail behind the shared prefix and leaves the context as long as it was."""
    sessions = generate(GeneratorParameters(sessions=5, rewrite_share=1.0))
    for session in sessions:
        for before, turn in zip(session.turns, session.turns[1:], strict=False):
            assert 8_000 <= turn.keep_tokens < before.input_tokens
            assert turn.input_tokens > before.input_tokens + before.output_tokens


def test_header_tells_how_the_trace_was_made() -> None:
    """All parameters stand in the header."""
    header = json.loads(trace_text(GeneratorParameters(sessions=1, seed=9)).splitlines()[0])
    assert header["origin"]["generator"] == "swe-bench-like"
    assert (header["origin"]["seed"], header["origin"]["think_p99_s"]) == (9, 81.4)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        (GeneratorParameters(sessions=0), "sessions is 0, expected 1 to 1e+06"),
        (GeneratorParameters(first_context_tokens=0), "first_context_tokens is 0, expected 1 to 1e+07"),
        (GeneratorParameters(shared_prefix_tokens=12_000), "shared_prefix_tokens is 12000, expected 0 to"),
        (GeneratorParameters(rewrite_share=1.5), "rewrite_share is 1.5, expected 0 to 1"),
        (GeneratorParameters(think_p99_s=1), "think_p99_s is 1, expected 5.2 to 1e+07"),
        (GeneratorParameters(pace_sigma=-1), "pace_sigma is -1, expected 0 to 3"),
        (GeneratorParameters(turns_sigma=float("nan")), "turns_sigma is nan, expected 0 to 3"),
    ],
)
def test_senseless_parameters_are_refused(parameters: GeneratorParameters, message: str) -> None:
    """A parameter out of its range is one clear line."""
    with pytest.raises(UserError) as error:
        generate(parameters)
    assert str(error.value).startswith(message)


def test_answers_longer_than_the_growth_are_refused() -> None:
    """A ratio that needs answers longer than what a turn adds contradicts the growth."""
    with pytest.raises(UserError, match=r"input_output_ratio is 2, so .* tokens per answer"):
        generate(GeneratorParameters(input_output_ratio=2))
