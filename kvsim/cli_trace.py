"""The commands of ``kvsim trace``: describe a trace, generate one."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from kvsim.errors import UserError
from kvsim.trace.files import KINDS
from kvsim.trace.generate import GeneratorParameters, write_trace
from kvsim.trace.mooncake import DEFAULT_BLOCK_TOKENS
from kvsim.trace.read import OutputsReturn, read_trace
from kvsim.trace.schedule import MAX_THINK_S, RESPONSE_S, STAGGER_S
from kvsim.trace.stats import LLAMA_70B_KV_BYTES, Distribution, OrderStats, TraceStats, describe

trace_app = typer.Typer(
    help="Describe and generate traces.", no_args_is_help=True, context_settings={"max_content_width": 100}
)

_WIDTH = 100
_QUIET_S = 2.0  # work shorter than this shows no progress bar

_DEFAULTS = GeneratorParameters()


@trace_app.command()
def stats(
    traces: Annotated[list[Path], typer.Argument(help="Trace files or folders of them, plain or .gz.")],
    kind: Annotated[str, typer.Option(help=f"auto, {', '.join(KINDS)}.")] = "auto",
    outputs_return: Annotated[
        str, typer.Option(help="Do generated tokens come back in the next prompt: auto, yes, no.")
    ] = "auto",
    kv_bytes_per_token: Annotated[
        int, typer.Option(min=1, help="KV bytes per token; the default is Llama-3.1-70B in bf16.")
    ] = LLAMA_70B_KV_BYTES,
    block_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens per block id (Mooncake traces only).")
    ] = DEFAULT_BLOCK_TOKENS,
    spread_arrivals: Annotated[
        bool, typer.Option("--spread-arrivals", help="Spread equal time stamps (Mooncake traces only).")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """What a trace looks like, how well a cache can serve it, and how large that cache must be.

    Example: kvsim trace stats traces/swe-bench-like-60.jsonl.gz
    """
    with _progress() as progress:
        trace = read_trace(
            traces,
            kind,
            _outputs_return(outputs_return),
            spread_arrivals=spread_arrivals,
            block_tokens=block_tokens,
            progress=progress,
        )
    found = describe(trace, kv_bytes_per_token)
    if as_json:
        typer.echo(json.dumps(asdict(found), indent=2))
    else:
        # A narrow terminal wraps; a wide one, a file or a pipe gets the same 100 columns every time.
        console = Console(width=min(_WIDTH, Console().width) if sys.stdout.isatty() else _WIDTH)
        for table in _tables(found):
            console.print(table)
        for note in found.notes:
            console.print(f"note: {note}", markup=False, highlight=False)


@trace_app.command()
def generate(
    output: Annotated[Path, typer.Option("--output", "-o", help="File to write; packed if it ends in .gz.")],
    sessions: Annotated[int, typer.Option(help="Sessions.")] = _DEFAULTS.sessions,
    seed: Annotated[int, typer.Option(help="Same seed, same bytes.")] = _DEFAULTS.seed,
    median_turns: Annotated[int, typer.Option(help="Median turns per session.")] = _DEFAULTS.median_turns,
    turns_sigma: Annotated[
        float, typer.Option(help="Spread of the turns (sigma of a log-normal).")
    ] = _DEFAULTS.turns_sigma,
    first_context_tokens: Annotated[
        int, typer.Option(help="Mean length of a session's first prompt.")
    ] = _DEFAULTS.first_context_tokens,
    shared_prefix_tokens: Annotated[
        int, typer.Option(help="Part of it that all sessions share (system prompt, tools).")
    ] = _DEFAULTS.shared_prefix_tokens,
    first_context_sigma: Annotated[
        float, typer.Option(help="Spread of the rest of it.")
    ] = _DEFAULTS.first_context_sigma,
    added_tokens: Annotated[
        int, typer.Option(help="Mean growth of the context per turn, answer included.")
    ] = _DEFAULTS.added_tokens,
    pace_sigma: Annotated[float, typer.Option(help="Spread of the growth between sessions.")] = _DEFAULTS.pace_sigma,
    input_output_ratio: Annotated[
        float, typer.Option(help="Prompt tokens per generated token.")
    ] = _DEFAULTS.input_output_ratio,
    answer_sigma: Annotated[float, typer.Option(help="Spread of the answers' lengths.")] = _DEFAULTS.answer_sigma,
    think_median_s: Annotated[
        float, typer.Option(help="Median time between a response and the next prompt, s.")
    ] = _DEFAULTS.think_median_s,
    think_p99_s: Annotated[float, typer.Option(help="Its 99th percentile, s.")] = _DEFAULTS.think_p99_s,
    rewrite_share: Annotated[
        float, typer.Option(help="Share of turns that rewrite part of their history.")
    ] = _DEFAULTS.rewrite_share,
) -> None:
    """Generate coding-agent sessions like the published Codex runs on SWE-bench Pro.

    Example: kvsim trace generate -o sessions.jsonl.gz --sessions 60 --seed 0
    """
    parameters = GeneratorParameters(
        sessions=sessions,
        seed=seed,
        median_turns=median_turns,
        turns_sigma=turns_sigma,
        first_context_tokens=first_context_tokens,
        shared_prefix_tokens=shared_prefix_tokens,
        first_context_sigma=first_context_sigma,
        added_tokens=added_tokens,
        pace_sigma=pace_sigma,
        input_output_ratio=input_output_ratio,
        answer_sigma=answer_sigma,
        think_median_s=think_median_s,
        think_p99_s=think_p99_s,
        rewrite_share=rewrite_share,
    )
    write_trace(output, parameters)
    typer.echo(f"{output}: {sessions:,} sessions, {output.stat().st_size:,} bytes")


def _outputs_return(value: str) -> OutputsReturn:
    if value == "auto":
        return "auto"
    if value == "yes":
        return "yes"
    if value == "no":
        return "no"
    raise UserError(f"--outputs-return is {value!r}, expected auto, yes or no")


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None]]:
    """A callback that shows a bar on stderr, on a terminal and if the work takes long enough to wonder."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    columns = (TextColumn("reading"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    bar = Progress(*columns, console=Console(stderr=True), transient=True)
    task = bar.add_task("reading")
    # Only decides what is shown, never a result.
    begin = time.monotonic()

    def show(done: int, total: int) -> None:
        if not bar.live.is_started and time.monotonic() - begin > _QUIET_S:
            bar.start()
        bar.update(task, completed=done, total=total)

    try:
        yield show
    finally:
        if bar.live.is_started:
            bar.stop()


def _tables(found: TraceStats) -> Iterator[Table]:
    yield _overview(found)
    yield _lengths(found)
    yield _hit_table(found)
    yield _lru_table(found)
    windows = [order for order in found.orders if order.window_gb]
    if windows:
        yield _window_table(windows)


def _overview(found: TraceStats) -> Table:
    table = _table(f"{found.name} ({found.kind})", "", right="value")
    table.add_row("sessions", f"{found.sessions:,}")
    table.add_row("requests", f"{found.requests:,}")
    if found.subagents:
        table.add_row("  in main streams", f"{found.main_requests:,}")
        agents = f"{found.subagents:,} of {found.sessions_with_subagents:,} sessions"
        table.add_row(f"  in sub-agents ({agents})", f"{found.subagent_requests:,}")
    table.add_row("input : output tokens", f"{found.input_output_ratio:,.2f}")
    if found.consecutive_pairs:
        cuts = f"{found.context_cuts:,} of {found.consecutive_pairs:,} consecutive pairs"
        table.add_row("context cuts (< 90 % of the previous blocks kept)", cuts)
    if found.arrival_times is not None:
        table.add_row("distinct arrival times", f"{found.arrival_times:,}")
    if found.arrivals_per_s is not None:
        table.add_row("arrivals per second", f"{found.arrivals_per_s:,.3f}")
    table.add_row("tokens per block id", f"{found.block_tokens:,}")
    table.add_row("distinct blocks", f"{found.unique_blocks:,}")
    size = f"{found.unique_gb:,.1f} GB"
    table.add_row(f"KV of all of them, at {found.kv_bytes_per_token:,} bytes per token", size)
    for order in found.orders:
        if order.makespan_s is not None:
            table.add_row(f"duration {order.order}", f"{order.makespan_s:,.1f} s")
    for model, requests in found.models.items():
        table.add_row(f"  {model}", f"{requests:,} requests")
    return table


def _lengths(found: TraceStats) -> Table:
    table = _table("Distributions (nearest rank)", "", *("mean", "p10", "p50", "p90", "p99", "max"))
    rows: tuple[tuple[str, Distribution | None, int], ...] = (
        ("turns per session", found.turns_per_session, 0),
        ("requests per sub-agent", found.requests_per_subagent, 0),
        ("input tokens", found.input_tokens, 0),
        ("output tokens", found.output_tokens, 0),
        ("input tokens, first request", found.first_input_tokens, 0),
        ("input tokens, session maximum", found.max_input_tokens, 0),
        ("added to the context per turn", found.added_tokens, 0),
        ("not cached, per later turn", found.uncached_tokens, 0),
        ("think time s", found.think_s, 1),
        ("KV per session GB", found.session_gb, 2),
        ("KV of the largest request GB", found.largest_request_gb, 2),
    )
    for name, values, digits in rows:
        if values is not None:
            shown = (values.mean, values.p10, values.p50, values.p90, values.p99, values.max)
            table.add_row(name, *(f"{value:,.{digits}f}" for value in shown))
    return table


def _hit_table(found: TraceStats) -> Table:
    hits = found.hits
    table = _table("Hit rates of an unlimited cache", "", right="rate")
    table.add_row(f"blocks ({hits.blocks_hit:,} of {hits.blocks:,})", f"{hits.block_rate:.6f}")
    table.add_row("blocks, last prompt token always computed", f"{hits.capped_block_rate:.6f}")
    table.add_row("tokens", f"{hits.token_rate:.6f}")
    table.add_row("blocks, main streams only", f"{hits.main_block_rate:.6f}")
    table.add_row("blocks, generated tokens cached too", f"{hits.generated_block_rate:.6f}")
    if hits.per_session is not None:
        spread = hits.per_session
        shown = " / ".join(f"{value:.4f}" for value in (spread.p10, spread.p50, spread.p90, spread.mean))
        table.add_row("blocks, per session: p10 / p50 / p90 / mean", shown)
    return table


def _lru_table(found: TraceStats) -> Table:
    names = [order.order for order in found.orders]
    table = _table("LRU: block hit rate by cache size, and reuse distance", "", *names)
    for size in found.orders[0].lru_block_rate:
        label = "unlimited" if size == "inf" else f"{int(size):,} GB"
        table.add_row(label, *(f"{order.lru_block_rate[size]:.4f}" for order in found.orders))
    table.add_section()
    for percent in found.orders[0].reuse_gb:
        label = f"reuse distance {percent}"
        table.add_row(label, *(f"{order.reuse_gb[percent]:,.2f} GB" for order in found.orders))
    table.add_row("block uses with / without a distance", *(_uses(order) for order in found.orders))
    if len(found.orders) > 1:
        table.caption = (
            f"interleaved: sessions {STAGGER_S:g} s apart, responses as long as recorded ({RESPONSE_S:g} s "
            f"where unknown), think times of at most {MAX_THINK_S:g} s"
        )
        table.caption_justify = "left"
    return table


def _uses(order: OrderStats) -> str:
    return f"{order.reuses:,} / {order.first_uses:,}"


def _window_table(orders: list[OrderStats]) -> Table:
    table = _table("KV touched per window, GB", "", *("windows", "p50", "p90", "mean", "max"))
    for order in orders:
        for window, values in order.window_gb.items():
            shown = (values.p50, values.p90, values.mean, values.max)
            numbers = (f"{value:,.1f}" for value in shown)
            table.add_row(f"{window} s, {order.order}", f"{values.n:,}", *numbers)
    return table


def _table(title: str, *columns: str, right: str | None = None) -> Table:
    table = Table(title=title, title_justify="left", width=_WIDTH)
    for place, name in enumerate((*columns, *([right] if right else []))):
        table.add_column(name, justify="right" if place else "left")
    return table
