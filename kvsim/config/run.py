"""The whole config of a run: read, checked, overridden, written."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field, model_validator

from kvsim.checked import Component, Misfit, check, components
from kvsim.config.cluster import ROUTERS, SECTIONS, ClusterConfig
from kvsim.config.connector import (
    Connector,
    NoConnector,
    OffloadingConnectorConfig,
    ProfileTransfer,
    SimpleCPUConnectorConfig,
    Transfer,
)
from kvsim.config.custom import check_classes, class_paths
from kvsim.config.engine import EngineConfig, HardwareConfig, ModelConfig, RooflineStepTime, StepTime
from kvsim.config.faults import FaultsConfig, MediumFaults
from kvsim.config.fields import Folders, Name, Text
from kvsim.config.frontend import FrontendConfig
from kvsim.config.presets import expand_presets
from kvsim.config.tiers import tier_names
from kvsim.config.trace import TraceConfig
from kvsim.errors import UserError
from kvsim.overrides import Change, apply_change, parse_override
from kvsim.units import Duration
from kvsim.vllm_args import translate
from kvsim.yamlfile import Document, Keys, dump_yaml, is_path, read_yaml


class OutputConfig(Component):
    """What a run leaves behind."""

    folder: Text | None = Field(None, description="run folder, relative to the current folder; null = runs/<name>")
    series_points: int = Field(2000, ge=2, description="samples in the time series")
    plots: bool = Field(True, description="draw plots, in files and in the report")
    kv_events: bool = Field(False, description="write vLLM's KV events (BlockStored, BlockRemoved) to kv_events.jsonl")
    timeline: bool = Field(False, description="write timeline.json, which ui.perfetto.dev and chrome://tracing open")
    timeline_from: Duration = Field(0, description="the timeline begins at this moment of simulated time")
    timeline_until: Duration | None = Field(None, description="it ends at this moment; null = with the run")
    timeline_max_events: int = Field(200_000, ge=100, description="events of the timeline; more are sampled evenly")

    @model_validator(mode="after")
    def _window_has_a_length(self) -> OutputConfig:
        if self.timeline_until is not None and self.timeline_until <= self.timeline_from:
            raise Misfit("timeline_until", "expected a time after timeline_from")
        return self


class RunConfig(Component):
    """Everything that decides what a run does; equal configs give equal results."""

    name: Name | None = Field(None, description="name of the run; null = the file's name")
    seed: int = Field(0, ge=0, description="seed of every random choice")
    trace: TraceConfig = Field(description="the requests to play: at least trace.path")
    model: ModelConfig = Field(description="name of a model preset, or path of a HuggingFace config.json")
    hardware: HardwareConfig = Field(default_factory=HardwareConfig, description="GPUs and links")
    engine: EngineConfig = Field(default_factory=EngineConfig, description="the vLLM engine")
    connector: Connector = Field(default_factory=NoConnector, description="where KV goes that leaves the GPU")
    step_time: StepTime = Field(default_factory=RooflineStepTime, description="how long a forward pass takes")
    transfer: Transfer = Field(default_factory=ProfileTransfer, description="how long KV copies take")
    frontend: FrontendConfig | None = Field(
        None, description="time before the scheduler hears of a request; null = it takes none"
    )
    faults: FaultsConfig = Field(default_factory=FaultsConfig, description="what goes wrong, on purpose")
    cluster: ClusterConfig | None = Field(None, description="several such servers behind a router; null = one server")
    output: OutputConfig = Field(default_factory=OutputConfig, description="what the run leaves behind")
    python_path: Folders = Field(
        (), description="where modules of module_path:Class are found beside sys.path; if not given, this file's folder"
    )
    notes: tuple[str, ...] = Field((), strict=False, description="remarks that the summary and the report repeat")
    debug: bool = Field(False, description="check invariants after every step (slow)")

    @model_validator(mode="after")
    def _faults_have_an_object(self) -> RunConfig:
        behind: list[str] = []
        with_cpu: list[str] = []
        if isinstance(self.connector, OffloadingConnectorConfig):
            behind = tier_names(self.connector.tiers)
            with_cpu = ["cpu", *behind]
        for known, wanted in ((with_cpu, self.faults.outages), (behind, self.faults.tiers)):
            for name in (entry.tier for entry in wanted):
                if name not in known:
                    expected = (
                        f"expected one of {', '.join(known)}" if known else "expected none: no tier here has faults"
                    )
                    raise Misfit("faults", f"something happens to tier {name!r}, {expected}")
        theirs = {"aborts": self.faults.aborts, "client_timeout": self.faults.client_timeout}
        of_clients = FaultsConfig().model_copy(update=theirs)
        if self.trace.streaming_sessions and self.faults != FaultsConfig():
            raise Misfit("faults", "expected none with streaming sessions")
        if self.trace.streaming_sessions and self.frontend is not None:
            raise Misfit(
                "frontend", "expected none with trace.streaming_sessions: what they send is not tokenized anew"
            )
        if self.engine.data_parallel_size > 1 and self.faults != of_clients:
            raise Misfit("faults", "expected those of clients only (aborts, client_timeout) with several ranks")
        if self.cluster is not None and self.faults != of_clients:
            raise Misfit(
                "faults",
                "expected those of clients only (aborts, client_timeout) in a cluster; cluster.events fail others",
            )
        if self.cluster is not None and self.cluster.is_split and self.faults != FaultsConfig():
            raise Misfit("faults", "expected none with prefill and decode instances; cluster.events fail them")
        if self.cluster is not None and self.trace.streaming_sessions:
            raise Misfit("cluster", "expected none with trace.streaming_sessions: their requests stay at one server")
        if (
            not isinstance(self.connector, OffloadingConnectorConfig | SimpleCPUConnectorConfig)
            and self.faults.cpu != MediumFaults()
        ):
            raise Misfit("faults", "copies to and from CPU memory fail, expected a connector that makes some")
        return self

    @property
    def output_folder(self) -> Path:
        """The run folder, relative to the current folder unless absolute."""
        return Path(self.output.folder or f"runs/{self.name or 'unnamed'}")

    def of_group(self, number: int, where: Callable[[Keys], str] = lambda _keys: "config") -> RunConfig:
        """The config of the servers of a group of the cluster: this one with what the group changes.

        Args:
            number: of the group.
            where: names the place of a key, for messages.

        Raises:
            UserError: what the group changes does not fit.
        """
        assert self.cluster is not None
        group, at = self.cluster.instances[number], ("cluster", "instances", number)
        data = self.model_dump(mode="json", exclude={"cluster"})
        for section in SECTIONS:
            changes = getattr(group, section)
            # Another kind has other keys.
            given = data[section] or {}  # there may be no frontend
            other = "kind" in changes and changes["kind"] != given.get("kind") and section in _WITH_KINDS
            data[section] = changes if other else (given | changes) or None

        def place(keys: Keys) -> str:
            own = len(keys) > 1 and keys[0] in SECTIONS and keys[1] in getattr(group, str(keys[0]))
            return f"{where((*at, *keys) if own else at)}: {'.'.join(map(str, at))}"

        return check(RunConfig, Document("config", data), place).model_copy(update={"cluster": self.cluster})


@dataclass(frozen=True)
class Given:
    """Sections of a config that do not come from its file.

    Attributes:
        source: where they come from, for messages.
        sections: in the place of the file's; of hardware, the file's other keys stay.
        notes: remarks about them.
    """

    source: str
    sections: Mapping[str, Any]
    notes: Sequence[str] = ()


def load_config(
    path: str | Path | None, overrides: Sequence[str | Change] = (), given: Given | None = None
) -> RunConfig:
    """Read and check a run's YAML file.

    Paths inside the file are relative to the file's folder and become absolute, so that the resolved config
    can be run from anywhere. Paths in overrides, and `output.folder`, are relative to the current folder.

    Args:
        path: the YAML file; None = there is none, what is `given` is all.
        overrides: ``engine.block_size=32``, ``connector.kind=none``, ...; later ones win.
        given: sections that win over the file's.

    Raises:
        UserError: one line about the first problem.
    """
    if path is None:
        document = Document(given.source if given else "config", {})
        return make_config(document, Path.cwd(), overrides, given=given)
    return make_config(read_yaml(path), Path(path).parent, overrides, _name_of(Path(path)), given)


def make_config(
    document: Document,
    folder: Path,
    overrides: Sequence[str | Change] = (),
    name: str = "unnamed",
    given: Given | None = None,
) -> RunConfig:
    """Check a run's document, which is used up.

    Args:
        document: what a YAML file says, or would say.
        folder: what its paths are relative to.
        overrides: as in `load_config`.
        name: of the run, if the document gives none.
        given: sections from elsewhere.

    Raises:
        UserError: one line about the first problem.
    """
    data = document.data
    sources: dict[Keys, str] = {}
    if isinstance(data, dict):
        for key in [key for key, value in data.items() if value is None and key in _SECTIONS]:
            del data[key]  # a section whose every key is commented out
        _spell_out(data)
        _make_absolute(data, (), folder)
        if given is not None:
            _put(given, data, sources)
    if isinstance(data, dict):  # if not, the file itself is wrong, and that is what the user hears
        changes = [parse_override(each) if isinstance(each, str) else each for each in overrides]
        for change in sorted(changes, key=lambda change: change.keys[0] != "engine"):  # vllm_version first
            if change.keys[0] == "connector" and change.keys[1:] not in ((), ("from_vllm",), ("preset",)):
                _translate(data, document, sources)
            apply_change(change, RunConfig, data, sources)
            _spell_out(data)
            _make_absolute(data, change.keys, change.folder or Path.cwd())
        _translate(data, document, sources)

        if "python_path" not in data and (classes := class_paths(data)):
            of_changes = {change.source: change.folder or Path.cwd() for change in changes}
            places = [place[:end] for place, _, _ in classes for end in range(1, len(place) + 1)]
            folders = [folder, *(of_changes[sources[place]] for place in places if place in sources)]
            data["python_path"] = list(dict.fromkeys(map(os.path.abspath, folders)))

    def where(keys: Keys) -> str:
        for end in range(len(keys), 0, -1):
            if keys[:end] in sources:
                return sources[keys[:end]]
        return document.source if given is not None and not document.lines else document.where(keys)

    config = check(RunConfig, document, where)
    check_classes(document.data, config.python_path, document, where)
    for number in range(len(config.cluster.instances) if config.cluster is not None else 0):
        config.of_group(number, where)
    return config if config.name else config.model_copy(update={"name": name})


def _spell_out(data: dict[str, Any]) -> None:
    """Put the mapping in the place of a plain name that stands for it."""
    if isinstance(data.get("model"), str):
        data["model"] = {"name": data["model"]}
    cluster = data.get("cluster")
    if isinstance(cluster, dict):
        cluster |= {key: {"kind": cluster[key]} for key in ROUTERS if isinstance(cluster.get(key), str)}


def _put(given: Given, data: dict[str, Any], sources: dict[Keys, str]) -> None:
    """Sections from elsewhere in the place of the file's."""
    for name, section in given.sections.items():
        own = data.get(name)
        data[name] = own | section if name == "hardware" and isinstance(own, dict) else dict(section)
        sources |= {(name, key): given.source for key in section}
    if given.notes:
        notes = data.get("notes")
        data["notes"] = [*(notes if isinstance(notes, list) else []), *given.notes]
    _make_absolute(data, (), Path.cwd())


def _translate(data: dict[str, Any], document: Document, sources: dict[Keys, str]) -> None:
    """Put keys of our own in the place of ``connector.from_vllm`` and of ``connector.preset``."""
    _from_vllm(data, document, sources)
    place: Keys = ("connector", "preset")
    try:
        expand_presets(data)
    except UserError as error:
        raise UserError(f"{sources.get(place) or document.where(place)}: {error}") from None


def _from_vllm(data: dict[str, Any], document: Document, sources: dict[Keys, str]) -> None:
    section, place = data.get("connector"), ("connector", "from_vllm")
    if not isinstance(section, dict) or "from_vllm" not in section:
        return
    source = sources.get(place)
    where = source or document.where(place)
    others = [key for key in section if key != "from_vllm"]
    if others and source is None:
        raise UserError(f"{where}: connector.from_vllm: expected alone, found beside {', '.join(others)}")
    engine = data.get("engine")
    version = (engine.get("vllm_version") if isinstance(engine, dict) else None) or "0.33.0"
    try:
        translation = translate(section["from_vllm"], str(version))
    except UserError as error:
        raise UserError(f"{where}: connector.from_vllm: {error}") from None
    data["connector"] = translation.connector
    if translation.notes:
        notes = data.get("notes")
        data["notes"] = [*(notes if isinstance(notes, list) else []), *translation.notes]
    for key in translation.connector:
        if source is None:
            document.lines["connector", key] = document.lines[place]
        else:
            sources["connector", key] = source


def dump_config(config: RunConfig) -> str:
    """A config as YAML with every key and its units; `load_config` reads back an equal one."""
    return dump_yaml(config.model_dump(mode="json"))


_SECTIONS = frozenset(key for key, field in RunConfig.model_fields.items() if components(field.annotation))
_WITH_KINDS = ("connector", "step_time", "transfer")  # engine.kind only says how it is simulated
_OF_SERVER: tuple[Keys, ...] = (
    ("hardware", "gpu"),
    ("hardware", "link"),
    ("frontend", "preset"),
    ("connector", "tiers", "*", "storage"),
    ("connector", "connectors", "*", "tiers", "*", "storage"),
)
_PATHS: tuple[Keys, ...] = (
    ("trace", "path"), ("python_path",), ("model",), ("model", "name"), *_OF_SERVER,
    *(("cluster", "instances", "*", *keys) for keys in _OF_SERVER), ("cluster", "network", "nic"),
)  # fmt: skip


def _name_of(path: Path) -> str:
    stem = "".join(c if c.isprintable() and c not in "/\\" else "-" for c in path.stem).lstrip(".")
    return stem if stem.strip() else "unnamed"


def _make_absolute(data: dict[str, Any], under: Keys, folder: Path) -> None:
    """Make the paths at or below the keys `under` absolute, in place."""
    for keys in _PATHS:
        if any(one not in (other, "*") for one, other in zip(keys, under, strict=False)) or len(keys) < len(under):
            continue
        for section in _sections(data, keys[:-1]):
            if keys[-1] in section:
                always = keys in (("trace", "path"), ("python_path",))
                section[str(keys[-1])] = _absolute(section[str(keys[-1])], folder, always=always)


def _sections(data: object, keys: Keys) -> Iterator[dict[str, Any]]:
    """The mappings at these keys; "*" stands for every entry of a list."""
    if not keys:
        if isinstance(data, dict):
            yield data
    elif keys[0] == "*":
        for entry in data if isinstance(data, list) else ():
            yield from _sections(entry, keys[1:])
    elif isinstance(data, dict):
        yield from _sections(data.get(keys[0]), keys[1:])


def _absolute(value: Any, folder: Path, *, always: bool) -> Any:
    if isinstance(value, list):
        return [_absolute(item, folder, always=always) for item in value]
    if isinstance(value, str) and value and (always or is_path(value)) and "\0" not in value:
        return os.path.abspath(folder / Path(value).expanduser())  # noqa: PTH100 - no pathlib way to drop ".."
    return value
