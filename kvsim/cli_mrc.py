"""The command ``kvsim mrc``: how large must a cache be, and what would a perfect policy get?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from kvsim.console import output_console, print_json, progress
from kvsim.errors import UserError
from kvsim.trace.files import KINDS
from kvsim.trace.mooncake import DEFAULT_BLOCK_TOKENS
from kvsim.trace.schedule import MAX_THINK_S, RESPONSE_S, STAGGER_S, Pace
from kvsim.units import parse_size, parse_time

if TYPE_CHECKING:
    from kvsim.plan.sizing import Sizing, TenantRow
    from kvsim.trace.session import Trace

EXAMPLE = "Example: kvsim mrc traces/swe-bench-like-60.jsonl.gz --model llama-3.1-70b -o sizes"

_MODEL = "llama-3.1-70b"
_MOST_TENANT_SIZES = 4
_NAME_WIDTH = 24


def mrc(
    traces: Annotated[
        list[Path], typer.Argument(help="Trace files or folders of them, plain or .gz.", metavar="TRACE...")
    ],
    model: Annotated[
        str | None, typer.Option(help=f"Model whose KV is meant: a name or a config.json (default {_MODEL}).")
    ] = None,
    kv_cache_dtype: Annotated[str, typer.Option(help="As in vLLM: auto, bfloat16, fp8.")] = "auto",
    kv_bytes_per_token: Annotated[
        int | None, typer.Option(min=1, max=2**40, help="KV bytes per token, all layers and ranks, instead of a model.")
    ] = None,
    order: Annotated[
        str,
        typer.Option(
            help="recorded (by arrival times), closed-loop (sessions start at intervals), sequential (one session after"
            " the other), or auto: recorded if all sessions have arrival times, else closed-loop."
        ),
    ] = "auto",
    session_interval: Annotated[
        str, typer.Option(metavar="TIME", help="Closed loop: time between the starts of sessions.")
    ] = f"{STAGGER_S:g}s",
    max_think_time: Annotated[
        str, typer.Option(metavar="TIME", help="Longest pause between two turns, or none for as recorded.")
    ] = f"{MAX_THINK_S:g}s",
    response_time: Annotated[
        str, typer.Option(metavar="TIME", help="Length of a response where the trace does not tell.")
    ] = f"{RESPONSE_S:g}s",
    max_concurrent_sessions: Annotated[
        int | None, typer.Option(min=1, help="Sessions at a time, later ones wait.")
    ] = None,
    sizes: Annotated[
        str | None, typer.Option(metavar="SIZE,SIZE,...", help="Only these cache sizes, such as 40GB,512GiB.")
    ] = None,
    per_tenant: Annotated[
        bool, typer.Option("--per-tenant", help="Hits of each tenant, in the shared cache and alone.")
    ] = False,
    tenants: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,NAME,...",
            help="Tenants to whom the sessions belong in turn; without it, each TRACE is a tenant of --per-tenant."
            " Tenants share no KV.",
        ),
    ] = None,
    opt: Annotated[bool, typer.Option("--opt/--no-opt", help="Compute the optimum (Belady) beside LRU.")] = True,
    bypass: Annotated[
        bool, typer.Option("--bypass", help="Also the optimum of a tier that may decline blocks, such as CPU memory.")
    ] = False,
    kind: Annotated[str, typer.Option(help=f"Format: auto, {', '.join(KINDS)}.")] = "auto",
    block_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens per block id (Mooncake traces only).")
    ] = DEFAULT_BLOCK_TOKENS,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Folder for tables, plots (PNG, SVG) and JSON.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Hit rate of a prefix cache of every size on a trace: LRU exactly, and the best that any policy could do.

    A prompt's blocks are looked up in the cache as the prompts before it left it; then they are its most recent ones,
    the first block most of all. Generated tokens are not cached, and what running requests hold comes on top.
    """
    from kvsim.plan.prompts import prompts_of
    from kvsim.plan.sizing import sizing

    wanted = _sizes(sizes)
    pace = Pace(
        session_interval_s=_seconds("--session-interval", session_interval),
        max_think_s=None if max_think_time == "none" else _seconds("--max-think-time", max_think_time),
        response_s=_seconds("--response-time", response_time),
        max_concurrent_sessions=max_concurrent_sessions,
    )
    token_bytes, of, notes = _kv_bytes(model, kv_cache_dtype, kv_bytes_per_token)
    names = _tenants(tenants)
    apart = per_tenant and not names
    if apart and len(traces) < 2:
        raise UserError("--per-tenant: one TRACE and no --tenants, expected either names or one TRACE for each tenant")
    groups = [[path] for path in traces] if apart else [traces]
    read = [_read(group, kind, block_tokens) for group in groups]
    prompts = prompts_of(read, _order(order), pace, _names_of(traces) if apart else names)
    if not prompts.runs:
        raise UserError(f"{traces[0]}: no prompt is as long as a block of {prompts.block_tokens} tokens")
    with progress("computing", "sizes") as report:
        found = sizing(
            prompts,
            token_bytes,
            sizes=wanted,
            optimum=opt,
            bypass=bypass,
            per_tenant=per_tenant,
            progress=report,
        )
    title = read[0].name if len(read) == 1 else f"{read[0].name} and {len(read) - 1} more"
    notes += dict.fromkeys(note for trace in read for note in trace.notes if not note.startswith("generated tokens"))
    document = _document(title, of, notes, found)
    if output is not None:
        from kvsim.plan.mrc_folder import save_sizing

        save_sizing(output, title, found, document)
    if as_json:
        print_json({**document, **({} if output is None else {"folder": str(output)})})
        return
    console = output_console(100)
    for part in _shown(title, of, found):
        console.print(part)
    for note in notes:
        console.print(f"note: {note}", markup=False, highlight=False)
    if output is not None:
        console.print(f"plot {output / 'mrc.png'}", highlight=False, soft_wrap=True)


def _sizes(text: str | None) -> list[int]:
    found = []
    for part in [] if text is None else text.split(","):
        try:
            size = parse_size(part)
        except ValueError as error:
            raise UserError(f"--sizes: {error}") from None
        if not size:
            raise UserError(f"--sizes: expected sizes larger than 0, found {part.strip()!r}")
        found.append(size)
    return found


def _seconds(option: str, text: str) -> float:
    try:
        return parse_time(text) / 1e9
    except ValueError as error:
        raise UserError(f"{option}: {error}") from None


def _order(text: str) -> Any:
    from kvsim.plan.prompts import ORDERS

    if text not in ORDERS:
        raise UserError(f"--order: expected one of {', '.join(ORDERS)}, found {text!r}")
    return text


def _tenants(text: str | None) -> list[str]:
    names = [] if text is None else [part.strip() for part in text.split(",")]
    if any(not name for name in names):
        raise UserError(f"--tenants: expected names with commas between them, found {text!r}")
    return names


def _names_of(paths: Sequence[Path]) -> list[str]:
    names = [path.name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _kv_bytes(model: str | None, dtype: str, given: int | None) -> tuple[int, str, list[str]]:
    """KV bytes per token, whose they are, and what to know about them."""
    from kvsim.steptime.model import load_model

    if given is not None:
        if model is not None:
            raise UserError("--kv-bytes-per-token: expected it or --model, not both")
        return given, f"{given:,} bytes per token", []
    spec = load_model(model or _MODEL, dtype)
    bytes_per_token = spec.kv_bytes_per_token()
    notes = []
    if any(group.kind == "sliding" for group in spec.groups):
        notes.append(f"{spec.name}: sliding windows are counted as if they kept everything")
    if spec.state_bytes_per_request():
        notes.append(f"{spec.name}: recurrent states are not counted, only KV per token")
    if not bytes_per_token:
        raise UserError(f"--model: {spec.name} keeps no KV per token, expected a model with attention")
    return bytes_per_token, f"{spec.name}, {bytes_per_token:,} bytes per token", notes


def _read(paths: Sequence[Path], kind: str, block_tokens: int) -> Trace:
    from kvsim.trace.read import read_trace

    with progress("reading", "files") as report:
        return read_trace(paths, kind, block_tokens=block_tokens, progress=report)


def _document(title: str, of: str, notes: Sequence[str], found: Sizing) -> dict[str, Any]:
    """What `--json` prints: rates are shares of all block uses, sizes in bytes."""
    from dataclasses import asdict

    fields = asdict(found)
    fields["milestones"] = {str(percent): size for percent, size in found.milestones.items()}
    for row in fields["sizes"]:
        for name in ("opt_hit_rate", "opt_bypass_hit_rate"):
            if row[name] is None:
                del row[name]
    return {"trace": title, "kv_of": of, "notes": list(notes), **fields}


def _shown(title: str, of: str, found: Sizing) -> Iterator[Table | Text]:
    yield _overview(title, of, found)
    if found.knees:
        yield _knee_table(found)
    yield _size_table(found)
    yield from (Text(line, style="dim") for line in _size_words(found))
    if found.working_set:
        yield _window_table(found)
    if found.tenants:
        yield _tenant_table(found.tenants, _tenant_sizes(found))


def _overview(title: str, of: str, found: Sizing) -> Table:
    from kvsim.report.format import percent, traffic

    table = _table(f"{title}, {found.order}", ("", "value"))
    table.add_row("prompts", f"{found.prompts:,}")
    tokens = "1 token" if found.block_tokens == 1 else f"{found.block_tokens:,} tokens"
    table.add_row(f"block uses (blocks of {tokens})", f"{found.block_uses:,}")
    table.add_row("  used for the first time: compulsory misses", f"{found.compulsory_misses:,}")
    table.add_row("most hits: a cache without limit", percent(found.max_hit_rate))
    table.add_row("KV", of)
    table.add_row("KV of all different blocks", traffic(found.unique_bytes))
    table.add_row("KV of the largest prompt", traffic(found.largest_prompt_bytes))
    for share, size in found.milestones.items():
        table.add_row(f"LRU gets {share} % of the most hits with", traffic(size))
    table.add_row("  and all of them with", traffic(found.full_bytes))
    return table


def _knee_table(found: Sizing) -> Table:
    from kvsim.report.format import number, percent, traffic

    table = _table(
        "Knees: from here on more cache buys clearly less",
        ("size", "LRU hit rate", "a GB more, below it", "a GB more, above it"),
    )
    for knee in found.knees:
        table.add_row(
            traffic(knee.size_bytes),
            percent(knee.hit_rate),
            f"+{number(knee.points_per_gb_before)} points",
            f"+{number(knee.points_per_gb_after)} points",
        )
    return table


def _size_table(found: Sizing) -> Table:
    from kvsim.report.format import percent, traffic

    has_opt = any(row.opt_hit_rate is not None for row in found.sizes)
    has_bypass = any(row.opt_bypass_hit_rate is not None for row in found.sizes)
    table = _table(
        "Hit rate by cache size (share of all block uses)",
        (
            *("size", "blocks", "LRU"),
            *(["optimum"] if has_opt else []),
            *(["may decline"] if has_bypass else []),
            "mark",
        ),
    )
    for row in found.sizes:
        shown = [traffic(row.size_bytes), f"{row.size_blocks:,}", percent(row.lru_hit_rate)]
        shown += [percent(rate) for rate in (row.opt_hit_rate, row.opt_bypass_hit_rate) if rate is not None]
        table.add_row(*shown, ", ".join(row.marks))
    return table


def _size_words(found: Sizing) -> Iterator[str]:
    if any(row.marks for row in found.sizes):
        yield "mark: a knee, or how much of its most hits LRU gets"
    if any(row.opt_hit_rate is not None for row in found.sizes):
        yield "optimum: Belady's policy; in this order of prompts no policy has more hits"
    if any(row.opt_bypass_hit_rate is not None for row in found.sizes):
        yield "may decline: the same for a tier that need not take every block"


def _window_table(found: Sizing) -> Table:
    from kvsim.report.format import traffic

    table = _table("Working set: KV touched per window", ("window", "windows", "p50", "p90", "mean", "max"))
    for each in found.working_set:
        shown = (each.p50_bytes, each.p90_bytes, each.mean_bytes, each.max_bytes)
        table.add_row(f"{each.window_s} s", f"{each.windows:,}", *map(traffic, shown))
    return table


def _tenant_sizes(found: Sizing) -> list[int]:
    """Few of the sizes, for a table: the milestones, or the first ones that were asked for."""
    marked = [row.size_bytes for row in found.sizes if any(mark.endswith("%") for mark in row.marks)]
    return (marked or [row.size_bytes for row in found.sizes])[:_MOST_TENANT_SIZES]


def _tenant_table(tenants: Sequence[TenantRow], sizes: Sequence[int]) -> Table:
    from kvsim.report.format import percent, shorten, traffic

    table = _table(
        "Tenants: hit rate in the shared cache / alone in one of the same size",
        ("tenant", "prompts", "different KV", "most", *map(traffic, sizes)),
    )
    for each in tenants:
        cells = []
        for size in sizes:
            at = each.size_bytes.index(size)
            shared, alone = each.shared_hit_rate[at], each.alone_hit_rate[at]
            cells.append(f"{100 * shared:.1f} / {percent(alone)}")
        name = Text(shorten(each.name, _NAME_WIDTH))
        table.add_row(name, f"{each.prompts:,}", traffic(each.unique_bytes), percent(each.max_hit_rate), *cells)
    return table


def _table(title: str, columns: Sequence[str]) -> Table:
    from kvsim.report.format import shorten

    table = Table(title=Text(shorten(title, 96), style="bold"), title_justify="left")
    for place, name in enumerate(columns):
        table.add_column(name, justify="right" if place and name != "mark" else "left")
    return table
