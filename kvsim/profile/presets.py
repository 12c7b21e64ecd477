"""Link profiles by name or path: the shipped ones, and those measured elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from kvsim.checked import check, closest
from kvsim.errors import UserError
from kvsim.profile.link import LinkProfile
from kvsim.yamlfile import dump_yaml, is_path, read_yaml

PRESETS = Path(__file__).parents[1] / "presets" / "links"
SUFFIX = ".profile.yaml"


def load_link(name_or_path: str | Path) -> LinkProfile:
    """A shipped profile by its name, or any profile by its path.

    Raises:
        UserError: there is no such profile, or the file is not one.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or is_path(text):
        return check(LinkProfile, read_yaml(Path(text).expanduser()))
    if text not in link_names():
        guess = closest(text, link_names())
        hint = f", did you mean {guess}?" if guess else ""
        raise UserError(
            f"link {text!r}: no such profile{hint} (expected a path ending in {SUFFIX} or one of "
            f"{', '.join(link_names())})"
        )
    return check(LinkProfile, read_yaml(PRESETS / f"{text}{SUFFIX}"))


def dump_link(profile: LinkProfile) -> str:
    """A profile as YAML that `load_link` reads back equal."""
    return dump_yaml(profile.model_dump(mode="json"))


def link_names() -> tuple[str, ...]:
    """Names of the shipped profiles, sorted."""
    return tuple(sorted(path.name.removesuffix(SUFFIX) for path in PRESETS.glob(f"*{SUFFIX}")))


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
    links: dict[str, str] = read_yaml(PRESETS / "defaults.yaml").data
    return links
