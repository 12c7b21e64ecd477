"""vLLM command lines: ``kvsim from-vllm``, ``kvsim to-vllm``, and the options with which ``kvsim run`` takes one."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvsim.console import print_json
from kvsim.errors import UserError

if TYPE_CHECKING:
    from kvsim.config import RunConfig
    from kvsim.overrides import Change
    from kvsim.vllm_line import CommandLine, KVTransfer

Text = Annotated[
    str | None,
    typer.Option(
        "--vllm",
        metavar="LINE",
        help="Take model, GPUs, engine and connector from a vLLM command line; @FILE, - reads it.",
    ),
]
TraceOption = Annotated[
    Path | None, typer.Option("--trace", metavar="PATH", help="The trace to play, in the place of trace.path.")
]
Gpu = Annotated[str | None, typer.Option("--gpu", metavar="NAME", help="The GPU, which no vLLM line names.")]
Version = Annotated[
    str | None,
    typer.Option("--vllm-version", metavar="X.Y.Z", help="Release whose flags and defaults hold: 0.33.0 or 0.23.0."),
]
ModelFile = Annotated[
    Path | None,
    typer.Option("--model-config", metavar="PATH", help="The model's config.json, where kvsim has no preset of it."),
]
MEGABYTE = 2**20


@dataclass(frozen=True)
class LineOptions:
    """What was given on the command line about a vLLM line."""

    line: str | None
    trace: Path | None
    gpu: str | None
    version: str | None
    model_file: Path | None

    def parsed(self, gpu: str | None = None, version: str | None = None) -> CommandLine:
        """The line; ``gpu`` and ``version`` hold where the options do not say."""
        from kvsim.vllm_line import parse_command_line

        assert self.line is not None
        model_file = str(self.model_file) if self.model_file else None
        return parse_command_line(_read(self.line), self.version or version, self.gpu or gpu, model_config=model_file)

    def load(self, config: Path | None, overrides: Sequence[str | Change]) -> RunConfig:
        """The config of a file, of a vLLM line, or of both: the line wins over the file.

        Raises:
            UserError: what the options or the config lack, or what keeps the line from being simulated.
        """
        from kvsim.config import Given, load_config

        for_line = {"--gpu": self.gpu, "--vllm-version": self.version, "--model-config": self.model_file}
        if self.line is None and (unused := [name for name, value in for_line.items() if value is not None]):
            raise UserError(f"{unused[0]}: expected together with --vllm, else use --set")
        if config is None and self.line is None:
            raise UserError("expected a CONFIG file, or --vllm 'vllm serve ...' with --trace PATH")
        if config is None and self.trace is None:
            raise UserError("--vllm: expected --trace PATH too, or a CONFIG that names a trace")
        sections: dict[str, Any] = {}
        notes: tuple[str, ...] = ()
        if self.line is not None:
            line = self.parsed(*_known(config))
            try:
                sections = {"connector": {"kind": "none"}, **line.checked_sections()}
            except UserError as error:
                raise UserError(f"--vllm: {error}") from None
            notes = line.notes
        if self.trace is not None:
            sections["trace"] = _trace_section(config) | {"path": str(self.trace)}
        found = load_config(config, overrides, Given("--vllm" if self.line is not None else "--trace", sections, notes))
        if config is None and found.name == "unnamed" and self.trace is not None:
            return found.model_copy(update={"name": self.trace.name.partition(".")[0] or "unnamed"})
        return found


def from_vllm(
    line: Annotated[str, typer.Argument(metavar="LINE", help="The command line, as pasted; @FILE or - reads it.")],
    trace: TraceOption = None,
    gpu: Gpu = None,
    version: Version = None,
    model_config: ModelFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was found as JSON.")] = False,
) -> None:
    """Read a vLLM command line (shell, docker, compose, Kubernetes, log) and print it as a config.

    What the line says, what was ignored or assumed, and what vLLM would refuse stands above it in comments.
    """
    from kvsim.yamlfile import dump_yaml

    found = LineOptions(line, trace, gpu, version, model_config).parsed()
    sections: dict[str, Any] = dict(found.sections)
    sections = {"trace": {"path": str(trace) if trace else "TRACE"}, **sections}
    if as_json:
        print_json({**asdict(found), "gpus": found.gpus, "sections": sections, "problems": found.problems})
        return
    for text in _facts(found):
        typer.echo(f"# {text}")
    for note in found.notes:
        typer.echo(f"# - {note}")
    for problem in found.problems:
        typer.echo(f"# ! {problem}")
    if found.problems:
        found.checked_sections()  # says so, exit code 2
    typer.echo(dump_yaml(sections), nl=False)


def to_vllm(
    config: Annotated[Path, typer.Argument(help="A run's YAML file, or config.resolved.yaml of a run folder.")],
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a key of the config; repeatable.")
    ] = None,
) -> None:
    """Print the `vllm serve` line of a config, with what vLLM has no flag for as comments."""
    from kvsim.config import load_config
    from kvsim.vllm_line import to_command_line

    typer.echo(to_command_line(load_config(config, overrides or [])), nl=False)


def _facts(line: CommandLine) -> Iterator[str]:
    """What the line says, in words."""
    ranks = line.ranks
    spread = ", ".join(
        f"{name} {number}"
        for name, number in (
            ("TP", ranks.tensor), ("PP", ranks.pipeline), ("PCP", ranks.prefill_context),
            ("DCP", ranks.decode_context), ("DP", ranks.data),
        )
        if number != 1
    )  # fmt: skip
    yield f"vLLM {line.version}: {line.model}"
    gpus = "GPUs not known" if line.gpus is None else f"{line.gpus} x {line.gpu}"
    yield f"{gpus}{f' ({spread})' if spread else ''}"
    length = "what fits" if line.fits_model_len else line.max_model_len or "the model's"
    yield (
        f"max_num_batched_tokens {line.max_num_batched_tokens}, max_num_seqs {line.max_num_seqs},"
        f" max_model_len {length}"
    )
    yield from _places(line.transfer, "KV is offloaded by")
    if line.transfer is None:
        yield "no KV is offloaded"


def _places(transfer: KVTransfer | None, how: str) -> Iterator[str]:
    if transfer is None:
        return
    sizes: list[str] = []
    if transfer.cpu_bytes is not None:
        sizes.append(f"{transfer.cpu_bytes / 2**30:.4g} GiB of CPU memory for each engine")
    if transfer.cpu_bytes_per_rank is not None:
        sizes.append(f"{transfer.cpu_bytes_per_rank / 2**30:.4g} GiB for each rank")
    if transfer.cpu_tokens is not None:
        sizes.append(f"{transfer.cpu_tokens:,} tokens")
    if transfer.disk_bytes is not None:
        sizes.append(f"{transfer.disk_bytes / 2**30:.4g} GiB of disk")
    if transfer.tiers:
        sizes.append(f"behind it {', '.join(transfer.tiers)}")
    yield f"{how} {transfer.connector} ({transfer.role}){': ' if sizes else ''}{', '.join(sizes)}"
    for child in transfer.children:
        yield from _places(child, "  of it:")


def _read(text: str) -> str:
    """The line itself, or what a file or standard input says."""
    if text == "-":
        return sys.stdin.read(MEGABYTE)
    if not text.startswith("@"):
        return text
    path = Path(text[1:])
    try:
        with path.open(encoding="utf-8") as file:
            return file.read(MEGABYTE)
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text, expected a command line") from None


def _known(config: Path | None) -> tuple[str | None, str | None]:
    """GPU and release that a config names."""
    from kvsim.yamlfile import read_yaml

    data = read_yaml(config).data if config is not None else {}

    def text(section: str, key: str) -> str | None:
        value = data.get(section) if isinstance(data, dict) else None
        found = value.get(key) if isinstance(value, dict) else None
        return found if isinstance(found, str) else None

    return text("hardware", "gpu"), text("engine", "vllm_version")


def _trace_section(config: Path | None) -> dict[str, Any]:
    """How a config plays its trace, so that another one is played alike."""
    from kvsim.yamlfile import read_yaml

    data = read_yaml(config).data if config is not None else {}
    section = data.get("trace") if isinstance(data, dict) else None
    return dict(section) if isinstance(section, dict) else {}
