"""Checks a YAML document against a pydantic model and says in one line what is wrong and where.

pydantic decides; this module turns its first complaint into ``file:line: engine.block_size: expected a whole
number, found 'big'`` and names the closest valid key or value when something looks misspelt.
"""

from __future__ import annotations

import difflib
import types
from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic_core import ErrorDetails

from kvsim.errors import UserError
from kvsim.yamlfile import Document, Keys

M = TypeVar("M", bound=BaseModel)


class Component(BaseModel):
    """Base of every config and profile record: frozen, no unknown keys, no silent conversions."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        use_attribute_docstrings=False,
        defer_build=True,  # most of the components that are known are not used in a run
    )


class Misfit(ValueError):
    """Two keys of a component that do not fit together; points at one of them."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


def check(model: type[M], document: Document, where: Callable[[Keys], str] | None = None) -> M:
    """Make a model of a document.

    Args:
        model: the class to make.
        document: what the file says.
        where: names the place of a value; the document's own ``file:line`` if not given.

    Raises:
        UserError: one line about the first problem; unknown keys come first, because a misspelt key
            also looks like a missing one.
    """
    where = where or document.where
    if document.data is None:
        raise UserError(f"{document.source}: is empty, expected {_listing(model.model_fields)}")
    if not isinstance(document.data, dict):
        expected = f"expected a mapping of keys ({_listing(model.model_fields)})"
        raise UserError(f"{where(())}: {expected}, found {show(document.data)}")
    try:
        return model.model_validate(document.data)
    except ValidationError as error:
        problems = [_Problem(model, details, document) for details in error.errors()]
    first = min(problems, key=lambda problem: (not problem.unknown_key, problem.line))
    raise UserError(f"{where(first.keys)}: {first.text()}") from None


def closest(word: str, known: Iterable[str]) -> str | None:
    """The known word most like `word`, or None if none is close."""
    by_lower = {name.lower().replace("-", "_"): name for name in known}
    found = difflib.get_close_matches(word.lower().replace("-", "_"), by_lower, n=1, cutoff=0.6)
    return by_lower[found[0]] if found else None


def show(value: object) -> str:
    """A value as a message shows it: short and on one line."""
    if value is None:
        return "nothing (null)"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list):
        return "a list"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def component_at(model: type[BaseModel], keys: Keys, data: object) -> type[BaseModel] | None:
    """The class of the mapping at `keys`, following `kind:` in the data where it selects the class.

    None where there is no such mapping, or its kind is missing or unknown.
    """
    current: type[BaseModel] | None = model
    options: list[type[BaseModel]] = []
    for key in keys:
        data = _child(data, key)
        if not isinstance(key, int):  # an entry of a list is one of the list's options
            if current is None or key not in current.model_fields:
                return None
            options = components(current.model_fields[key].annotation)
        if len(options) > 1 and not isinstance(data, list):
            kind = data.get("kind") if isinstance(data, dict) else None
            options = [option for option in options if is_selected(option, kind)]
        current = options[0] if len(options) == 1 else None
    return current


def components(annotation: object) -> list[type[BaseModel]]:
    """The component classes inside a type: those of a union, of an optional field or of a list."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, types.UnionType, Annotated, tuple, list):
        return [found for part in get_args(annotation) for found in components(part)]
    return []


def kinds(component: type[BaseModel]) -> tuple[str, ...]:
    """The values of `kind:` that select this class; () if it has none."""
    field = component.model_fields.get("kind")
    if field is None or get_origin(field.annotation) is not Literal:
        return ()
    return get_args(field.annotation)


def is_selected(component: type[BaseModel], kind: object) -> bool:
    """Whether this value of `kind:` selects the class: one of its kinds, or a path if it takes module_path:Class."""
    named = kinds(component)
    return kind in named if named else isinstance(kind, str) and ":" in kind


class _Problem:
    """One complaint of pydantic, with the keys as the user wrote them."""

    def __init__(self, model: type[BaseModel], details: ErrorDetails, document: Document) -> None:
        self.model = model
        self.data = document.data
        self.type: str = details["type"]
        self.context: dict[str, Any] = details.get("ctx", {})
        self.input = details["input"]
        self.message = details["msg"]
        self.keys = self._written_keys(details["loc"])
        cause = self.context.get("error")
        if isinstance(cause, Misfit):
            self.keys = (*self.keys, cause.key)
        elif self.type.startswith("union_tag"):
            self.keys = (*self.keys, "kind")
        self.unknown_key = self.type == "extra_forbidden"
        place = self.keys
        while place and place not in document.lines:
            place = place[:-1]
        self.line = document.lines.get(place, 1)

    def _written_keys(self, loc: Sequence[str | int]) -> Keys:
        """Pydantic puts the chosen `kind` between the keys; leave it out."""
        keys: list[str | int] = []
        current: type[BaseModel] | None = self.model
        skip = False
        for part in loc:
            if skip:
                skip = False
                continue
            if part == "[key]":  # pydantic's way to say that the key itself is wrong
                continue
            keys.append(part)
            if isinstance(part, int):
                skip = len(self._options(tuple(keys[:-1]))) > 1
            elif current is not None:
                field = current.model_fields.get(part)
                skip = field is not None and field.discriminator is not None
            current = component_at(self.model, tuple(keys), self.data)
        return tuple(keys)

    def text(self) -> str:
        name = ".".join(str(key) for key in self.keys) or "the file"
        if self.type == "extra_forbidden":
            return f"unknown key {name}{self._unknown()}"
        if self.type == "missing":
            return f"{name} is missing{self._help()}"
        if self.type == "union_tag_not_found" and not isinstance(self.input, dict):
            name = ".".join(str(key) for key in self.keys[:-1])
            return f"{name}: expected a mapping of keys, found {show(self.input)}"
        if self.type == "union_tag_not_found":
            return f"{name} is missing, expected one of {self.context_list()}"
        if self.type == "union_tag_invalid":
            found = self.context["tag"]
            return f"{name}: expected one of {self.context_list()}, found {show(found)}{self._guess(found)}"
        if self.type == "value_error":
            return f"{name}: {self.context['error']}"
        return f"{name}: expected {self._expected()}, found {show(self.input)}{self._guess(self.input)}"

    def context_list(self) -> str:
        return str(self.context.get("expected_tags") or self._kinds()).replace("'", "")

    def _kinds(self) -> str:
        return _listing(kind for option in self._options(self.keys[:-1]) for kind in kinds(option))

    def _unknown(self) -> str:
        *parents, key = self.keys
        component = component_at(self.model, tuple(parents), self.data)
        if component is None:
            return ""
        place = ".".join(str(parent) for parent in parents) or "the top level"
        guess = closest(str(key), component.model_fields)
        if guess is not None and guess != key:
            return f", did you mean {guess}? (in {place})"
        if not parents or len(self._options(tuple(parents))) < 2:
            return f", expected in {place}: {_listing(component.model_fields)}"
        fits = [
            kind for option in self._options(tuple(parents)) if key in option.model_fields for kind in kinds(option)
        ]
        if fits:
            return f" for kind {kinds(component)[0]}, it belongs to kind {_listing(fits)}"
        return f", expected in {place} of kind {kinds(component)[0]}: {_listing(component.model_fields)}"

    def _options(self, keys: Keys) -> list[type[BaseModel]]:
        """The classes that could stand at `keys`; those of a list's entries for the list and for an entry."""
        if isinstance(keys[-1], int):
            keys = keys[:-1]
        parent = component_at(self.model, keys[:-1], self.data)
        field = parent.model_fields.get(str(keys[-1])) if parent else None
        return components(field.annotation) if field else []

    def _help(self) -> str:
        component = component_at(self.model, self.keys[:-1], self.data)
        field = component.model_fields.get(str(self.keys[-1])) if component else None
        return f": {field.description}" if field is not None and field.description else ""

    def _guess(self, found: object) -> str:
        if not isinstance(found, str):
            return ""
        guess = closest(found, self._choices())
        return f", did you mean {guess}?" if guess else ""

    def _choices(self) -> list[str]:
        text = self.context.get("expected") or self.context.get("expected_tags") or ""
        return [word.strip(" '") for word in str(text).replace(" or ", ", ").split(",")]

    def _expected(self) -> str:
        context = self.context
        simple = {
            "string_type": "text", "bool_type": "true or false", "float_type": "a number",
            "int_type": "a whole number", "int_from_float": "a whole number",
            "finite_number": "a finite number", "dict_type": "a mapping of keys",
            "model_type": "a mapping of keys", "model_attributes_type": "a mapping of keys",
            "tuple_type": "a list", "list_type": "a list",
        }  # fmt: skip
        if self.type in simple:
            return simple[self.type]
        if self.type == "literal_error":
            return f"one of {', '.join(self._choices())}"
        for word, phrase in (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than")):
            if word in context:
                bound = context[word]
                return f"{phrase} {bound:g}" if isinstance(bound, float) else f"{phrase} {bound}"
        if self.type in ("string_too_short", "too_short"):
            return f"at least {context['min_length']} {'characters' if 'string' in self.type else 'entries'}"
        return f"something else ({' '.join(self.message.split())})"


def _child(data: object, key: str | int) -> object:
    if isinstance(key, str):
        return data.get(key) if isinstance(data, dict) else None
    return data[key] if isinstance(data, list) and key < len(data) else None


def _listing(names: Iterable[str]) -> str:
    return ", ".join(names)
