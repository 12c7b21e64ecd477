"""Types of fields that several components share."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, PlainSerializer

SECOND_NS = 10**9
GIB = 2**30


def _path_list(value: object) -> object:
    paths = [value] if isinstance(value, str) else value
    if isinstance(paths, list | tuple) and paths and all(isinstance(path, str) and path for path in paths):
        if any("\0" in path for path in paths):
            raise ValueError("expected a path, found one with a NUL character")
        return tuple(paths)
    raise ValueError(f"expected a path or a list of paths, found {value!r:.60}")


def _folder_list(value: object) -> object:
    return () if value in ([], ()) else _path_list(value)


def as_tuple(value: object) -> object:
    """A list of YAML, as what a frozen component keeps."""
    return tuple(value) if isinstance(value, list) else value


def _yes_no(value: object) -> object:
    return {True: "yes", False: "no"}[value] if isinstance(value, bool) else value


def _name(value: object) -> object:
    if isinstance(value, str) and (
        not value.strip() or value.startswith(".") or not value.isprintable() or set("/\\") & set(value)
    ):
        raise ValueError(f"expected a name that can be a folder's (no / or \\, no dot in front), found {value!r:.60}")
    return value


Paths = Annotated[tuple[str, ...], BeforeValidator(_path_list), PlainSerializer(list, return_type=list[str])]
Folders = Annotated[tuple[str, ...], BeforeValidator(_folder_list), PlainSerializer(list, return_type=list[str])]
YesNo = Annotated[Literal["auto", "yes", "no"], BeforeValidator(_yes_no)]
Name = Annotated[str, BeforeValidator(_name)]
Text = Annotated[str, Field(min_length=1)]
Count = Annotated[int, Field(ge=1)]
KVLoadFailurePolicy = Literal["fail", "recompute"]
ON_LOAD_FAILURE = "what becomes of a request whose KV could not be loaded: it fails, or computes it again"
