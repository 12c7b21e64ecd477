"""Link profiles by name or path: the shipped ones, and those measured elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Generic, TypeVar

from kvsim.checked import Component, check, closest
from kvsim.errors import UserError
from kvsim.profile.link import LinkProfile
from kvsim.yamlfile import Document, dump_yaml, is_path, read_yaml

Profile = TypeVar("Profile", bound=Component)


class Shelf(Generic[Profile]):
    """Profiles of one kind: the shipped ones by name, any by the path of its file.

    Args:
        kind: of profile, for messages.
        model: what a file holds.
        folder: of the shipped ones, under ``kvsim/presets``.
        suffix: of their files' names.
    """

    def __init__(self, kind: str, model: type[Profile], folder: str, suffix: str) -> None:
        self.kind, self.model, self.suffix = kind, model, suffix
        self.folder = Path(__file__).parents[1] / "presets" / folder

    def names(self) -> tuple[str, ...]:
        """Names of the shipped ones, sorted."""
        return tuple(sorted(path.name.removesuffix(self.suffix) for path in self.folder.glob(f"*{self.suffix}")))

    def load(self, name_or_path: str | Path) -> Profile:
        """A shipped profile by its name, or any profile by its path.

        Raises:
            UserError: there is no such profile, or the file is not one.
        """
        text = str(name_or_path)
        if isinstance(name_or_path, Path) or is_path(text):
            return check(self.model, read_yaml(Path(text).expanduser()))
        if text not in self.names():
            guess = closest(text, self.names())
            hint = f", did you mean {guess}?" if guess else ""
            raise UserError(
                f"{self.kind} {text!r}: no such profile{hint} (expected a path ending in {self.suffix} or one of "
                f"{', '.join(self.names())})"
            )
        return check(self.model, _shipped(self.folder / f"{text}{self.suffix}"))


@cache
def _shipped(path: Path) -> Document:
    """Read once: with many small runs, this would take longer than they do."""
    return read_yaml(path)


LINKS = Shelf("link", LinkProfile, "links", ".profile.yaml")
load_link, link_names = LINKS.load, LINKS.names


def dump_link(profile: LinkProfile) -> str:
    """A profile as YAML that `load_link` reads back equal."""
    return dump_yaml(profile.model_dump(mode="json"))


def default_link(gpu: str) -> str:
    """Name of the shipped profile for a GPU preset.

    Raises:
        UserError: the GPU is not a preset, so the link has to be named.
    """
    links = _default_links()
    if gpu not in links:
        raise UserError(
            f"GPU {gpu!r} has no link of its own: set hardware.link to a profile's path or one of "
            f"{', '.join(link_names())}"
        )
    return links[gpu]


@cache
def _default_links() -> Mapping[str, str]:
    links: dict[str, str] = read_yaml(LINKS.folder / "defaults.yaml").data
    return links
