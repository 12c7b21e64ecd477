"""The one way to read a trace: any mixture of files and folders of one format, plain or gzip."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal, Protocol

from kvsim.chain import PrefixTree
from kvsim.errors import UserError
from kvsim.garbage import rarely_collected
from kvsim.trace.fields import Limits
from kvsim.trace.files import KINDS, detect_kind, list_files
from kvsim.trace.kv_cache_tester import KvCacheTesterReader
from kvsim.trace.mooncake import DEFAULT_BLOCK_TOKENS, MooncakeReader
from kvsim.trace.session import Session, Trace
from kvsim.trace.sessions import SessionsReader

OutputsReturn = Literal["auto", "yes", "no"]


class _Reader(Protocol):
    """What a format has to offer; one file per format implements it."""

    @property
    def kind(self) -> str: ...
    @property
    def block_tokens(self) -> int: ...
    @property
    def outputs_return(self) -> bool: ...
    @property
    def why(self) -> str: ...
    @property
    def tree(self) -> PrefixTree: ...
    def read(self, path: Path) -> None: ...
    def sessions(self, outputs_return: bool) -> tuple[Session, ...]: ...
    def notes(self) -> list[str]: ...


def read_trace(
    paths: Sequence[Path | str],
    kind: str = "auto",
    outputs_return: OutputsReturn = "auto",
    *,
    spread_arrivals: bool = False,
    block_tokens: int = DEFAULT_BLOCK_TOKENS,
    limits: Limits | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Trace:
    """Reads a trace. Files are read one at a time: the ids of at most one session or row are in memory.

    Args:
        paths: files, or folders of which all trace files are read in order of name.
        kind: format, one of `KINDS`; "auto" tells it by content.
        outputs_return: whether generated tokens are taken to be the ones that come back in the next prompt of
            their stream, and so can be found in a cache. "auto" is what the format says.
        spread_arrivals: Mooncake only: spreads equal time stamps evenly up to the next one.
        block_tokens: Mooncake only: tokens per id, which its rows do not tell.
        limits: largest values accepted.
        progress: called with (files read, files in all).

    Raises:
        UserError: a file is missing, unreadable or malformed; one line with file, place, value, expectation.
    """
    if kind not in ("auto", *KINDS):
        raise UserError(f"trace kind is {kind!r}, expected auto or one of {', '.join(KINDS)}")
    if outputs_return not in ("auto", "yes", "no"):
        raise UserError(f"outputs_return is {outputs_return!r}, expected auto, yes or no")
    if block_tokens < 1:
        raise UserError(f"block_tokens is {block_tokens}, expected at least 1")
    files = list_files([Path(path) for path in paths])
    kinds = [detect_kind(path) if kind == "auto" else kind for path in files]
    for path, found in zip(files, kinds, strict=True):
        if found != kinds[0]:
            raise UserError(f"{path}: format {found}, expected {kinds[0]} like {files[0].name} before it")
    asked = None if outputs_return == "auto" else outputs_return == "yes"
    reader = _reader(kinds[0], limits or Limits(), asked, spread_arrivals, block_tokens)
    with rarely_collected(keeps=True):
        for done, path in enumerate(files):
            if progress is not None:
                progress(done, len(files))
            reader.read(path)
        returns = reader.outputs_return if asked is None else asked
        sessions = reader.sessions(returns)
    notes = [_returns_note(reader, returns, chosen=asked is not None), *reader.notes()]
    name = Path(paths[0]).name if len(paths) == 1 else f"{files[0].name} and {len(files) - 1} more"
    absolute = tuple(Path(path).absolute() for path in paths)
    return Trace(name, kinds[0], reader.block_tokens, sessions, returns, tuple(notes), reader.tree, absolute)


def _reader(kind: str, limits: Limits, asked: bool | None, spread: bool, block_tokens: int) -> _Reader:
    if kind == "kv-cache-tester":
        return KvCacheTesterReader(limits)
    if kind == "mooncake":
        return MooncakeReader(limits, block_tokens, spread)
    return SessionsReader(limits, asked)


def _returns_note(reader: _Reader, returns: bool, *, chosen: bool) -> str:
    what = "come back in the next prompt" if returns else "are not found again in the next prompt"
    why = "as asked for" if chosen else f"default of {reader.kind} traces: {reader.why}"
    return f"generated tokens {what} ({why})"
