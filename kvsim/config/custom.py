"""Parts that users bring: ``module_path:Class`` instead of a name, with options for the class."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field

from kvsim.checked import Component, closest
from kvsim.config.fields import Name
from kvsim.config.policies import options_model
from kvsim.errors import UserError
from kvsim.registry import CONNECTORS, POLICIES, ROUTERS, STEP_TIMES, TIERS, Options, Registry, is_class_path
from kvsim.yamlfile import Document, Keys

CUSTOM = "module:Class"  # stands for all of them where the kinds of a component are listed


def _is_path(value: str) -> str:
    if not is_class_path(value):
        raise ValueError(f"expected module_path:Class, found {value!r}")
    return value


def name_or_class(*names: str) -> AfterValidator:
    """A field's check: one of the names, or a path."""

    def checked(value: str) -> str:
        if value in names or is_class_path(value):
            return value
        guess = closest(value, names)
        hint = f", did you mean {guess}?" if guess else ""
        raise ValueError(f"expected one of {', '.join(names)}, {CUSTOM}, found {value!r}{hint}")

    return AfterValidator(checked)


ClassPath = Annotated[str, AfterValidator(_is_path)]
ClassOptions = Annotated[dict[str, Any], Field(default_factory=dict)]


class CustomConnector(Component):
    """A connector of your own (see `kvsim.connectors.base`)."""

    kind: ClassPath = Field(description="module_path:Class of a KVConnector, found on sys.path or beside this file")
    options: ClassOptions = Field(description="what the class gets; checked against its Config if it has one")


class CustomStepTime(Component):
    """A step-time model of your own (see `kvsim.steptime.base`)."""

    kind: ClassPath = Field(description="module_path:Class of a StepTimeModel, found on sys.path or beside this file")
    options: ClassOptions = Field(description="what the class gets; checked against its Config if it has one")


class CustomTier(Component):
    """A secondary tier of your own (see `kvsim.offload.tiering.SecondaryTier`)."""

    kind: ClassPath = Field(description="module_path:Class of a SecondaryTier, found on sys.path or beside this file")
    name: Name | None = Field(None, description="name in results; null = the class's")
    options: ClassOptions = Field(description="what the class gets; checked against its Config if it has one")


def _kind(value: object) -> object:
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    return CUSTOM if is_class_path(kind) else kind


BY_KIND: Any = Field(discriminator=Discriminator(_kind))
"""Of a union whose members are tagged with their kind, the user's with `CUSTOM`."""

Place = tuple[Keys, Keys, Registry]  # key of the path, key of its options, and where such classes come from
_OF_SERVER: tuple[Place, ...] = (
    (("connector", "kind"), ("connector", "options"), CONNECTORS),
    (("connector", "eviction_policy"), ("connector", "eviction_policy_options"), POLICIES),
    (("step_time", "kind"), ("step_time", "options"), STEP_TIMES),
)
_ROUTERS: tuple[Place, ...] = tuple(
    (("cluster", key, "kind"), ("cluster", key, "options"), ROUTERS) for key in ("router", "decode_router")
)


def class_paths(data: Mapping[str, Any]) -> list[Place]:
    """The places of a document at which a class of the user's stands."""
    places = list(_ROUTERS)
    for server in _servers(data):
        tiers: list[Keys] = [
            ("connector", "tiers", i) for i in range(_length(_at(data, (*server, "connector", "tiers"))))
        ]
        own = [*_OF_SERVER, *(((*tier, "kind"), (*tier, "options"), TIERS) for tier in tiers)]
        places += [((*server, *path), (*server, *options), registry) for path, options, registry in own]
    return [place for place in places if is_class_path(_at(data, place[0]))]


def _servers(data: Mapping[str, Any]) -> list[Keys]:
    """Where the sections of a server stand: at the top, and in each group of a cluster."""
    groups = _at(data, ("cluster", "instances"))
    return [(), *(("cluster", "instances", i) for i in range(_length(groups)))]


def _policies(data: Mapping[str, Any]) -> list[tuple[str, Keys]]:
    """Eviction policies that are named, and where their options stand."""
    connectors: list[Keys] = [(*server, "connector") for server in _servers(data)]
    connectors += [
        (*place, "connectors", i) for place in connectors for i in range(_length(_at(data, (*place, "connectors"))))
    ]
    named = [(_at(data, (*place, "eviction_policy")) or "lru", place) for place in connectors]
    return [(name, (*place, "eviction_policy_options")) for name, place in named if name in POLICIES.names()]


def _length(value: object) -> int:
    return len(value) if isinstance(value, list) else 0


def check_classes(
    data: Mapping[str, Any], folders: tuple[str, ...], document: Document, where: Callable[[Keys], str]
) -> None:
    """Import every class that a checked document names, and check its options.

    Raises:
        UserError: with the place of the path, or of the option, that is wrong.
    """
    for path, options, registry in class_paths(data):
        source = Options(".".join(map(str, options)), document, where)
        try:
            found = registry.find(str(_at(data, path)), folders)
        except UserError as error:
            raise UserError(f"{where(path)}: {'.'.join(map(str, path))}: {error}") from None
        registry.check_options(found, _at(data, options) or {}, source)
    for name, options in _policies(data):
        given = _at(data, options)
        if given:
            Options(".".join(map(str, options)), document, where).check_against(options_model(name), given)


def _at(data: Any, keys: Keys) -> Any:
    for key in keys:
        if isinstance(key, int):
            data = data[key] if isinstance(data, list) and key < len(data) else None
        else:
            data = data.get(key) if isinstance(data, Mapping) else None
    return data
