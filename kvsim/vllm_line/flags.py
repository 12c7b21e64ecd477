"""The words behind ``vllm serve`` as values of flags, by the rules of the argument parser of a release.

What argparse would refuse is collected with its reason, and reading goes on: whoever pastes a line wants to hear all
that is wrong with it, and to see what the rest says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from kvsim.checked import closest
from kvsim.errors import UserError
from kvsim.vllm_args import human_int
from kvsim.vllm_connectors import did_you_mean
from kvsim.vllm_line.flag_table import CONVERSIONS, EXPECTED, REMOVED, Flag, Refused, flags_of, spellings
from kvsim.vllm_line.words import shown, unresolved

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


@dataclass
class Given:
    """What a command line says.

    Attributes:
        model: the word that names the model.
        values: by the flag's name; a switch is true or false.
        words: of each flag, as they were written the last time.
        refusals: what the release's parser refuses, and why.
        wanting: flags whose value has a variable in it that nobody assigned.
        notes: what is worth knowing.
    """

    model: str | None = None
    values: dict[str, Any] = field(default_factory=dict)
    words: dict[str, tuple[str, ...]] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    wanting: dict[str, list[str]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_flags(words: Sequence[str], version: str, *, serve: bool = True) -> Given:
    """The values of all flags in these words, which stand behind ``vllm serve`` (or the API server's module)."""
    given = Given()
    words = _with_config_file(list(words), given)
    nameless = serve and words[:1] and words[0].startswith("-") and not any(_names_model(word) for word in words)
    if nameless and any(re.match(r"--served[-_]model[-_]name(=|$)", word) for word in words):
        given.refusals.append("--served-model-name: expected the model in front of it, as the first word")
    _Reader(words, version, given).read()
    model = given.values.pop("--model", None)
    if serve and model and given.model:  # vLLM moves --model to the front
        given.refusals.append(f"unexpected word {given.model!r}: --model names the model already")
    given.model = model or given.model
    return given


def _names_model(word: str) -> bool:
    return word == "--model" or word.startswith("--model=")


class _Reader:
    """Goes through the words once."""

    def __init__(self, words: list[str], version: str, given: Given) -> None:
        self.version, self.given = version, given
        self.spellings = spellings(version)
        self.dotted: dict[str, dict[str, Any]] = {}
        self.words = [_with_dashes(word) for word in _levels(words)]
        self.at = 0

    def read(self) -> None:
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            if not self._looks_like_flag(word):
                self._positional(word)
                continue
            name, equals, value = word.partition("=")
            if "." in name:
                self._dotted(name, value if equals else None)
                continue
            start = self.at - 1
            spelling, attached = self._spelling(word)
            if spelling is None:
                continue
            flag, truth = self.spellings[spelling]
            self._flag(flag, spelling, attached, truth=truth)
            self.given.words[flag.name] = tuple(self.words[start : self.at])
        for name, keys in self.dotted.items():  # as one JSON, behind all others
            flag, _truth = self.spellings[name]
            self._set(flag, name, json.dumps(keys))
            self.given.words[flag.name] = (flag.name, json.dumps(keys))

    def _looks_like_flag(self, word: str) -> bool:
        """As argparse tells them apart: -1 is a number, what has blanks is a value; -0.5 has a dotted key in it."""
        if not word.startswith("-") or word == "-" or re.fullmatch(r"-\d+", word):
            return False
        name = word.partition("=")[0]
        return " " not in word or word in self.spellings or any(known.startswith(name) for known in self.spellings)

    def _positional(self, word: str) -> None:
        before = self.words[self.at - 2] if self.at > 1 else ""
        switch = self.spellings.get(before)
        if (
            switch is not None
            and not switch[0].takes_value
            and word.lower() in ("true", "false", "1", "0", "yes", "no")
        ):
            hint = f"; {self._negation(switch[0])} turns it off" if switch[0].type == "switch" else ""
            self.given.refusals.append(f"{before} {word}: {before} takes no value{hint}")
        elif self.given.model is None:
            self.given.model = word
        else:
            self.given.refusals.append(f"unexpected word {shown(word)!r}: the model is {self.given.model!r} already")

    def _negation(self, flag: Flag) -> str:
        return f"--no-{flag.name[2:]}"

    def _spelling(self, word: str) -> tuple[str | None, str | None]:
        """The full name of a flag and what stands behind its "=", if anything; unique beginnings will do."""
        name, equals, value = word.partition("=")
        attached = value if equals else None
        for exact, rest in ((word, None), (name, attached)):
            if exact in self.spellings:
                return exact, rest
        if word.startswith("--"):
            found = [known for known in self.spellings if known.startswith(name)]
        else:  # -n2 is -n 2, and beginnings of short names will do too
            found = [known for known in self.spellings if known.startswith(word)]
            if word[:2] in self.spellings:
                found, attached = [*found, word[:2]], word[2:]
        meant = {self.spellings[known][0].name for known in found}
        if len(found) == 1:
            return found[0], attached
        following = self.words[self.at] if self.at < len(self.words) else "-"
        if not equals and not self._looks_like_flag(following):
            self.at += 1  # its value
        if len(found) > 1:
            several = ", ".join(sorted(meant)[:4])
            self.given.refusals.append(f"{name} is short for several flags, expected one of {several}")
        else:
            self.given.refusals.append(self._unknown(name))
        return None, None

    def _unknown(self, name: str) -> str:
        if name in REMOVED:
            return f"{name}: vLLM {self.version} has no such flag any more: {REMOVED[name]}"
        for other in ("0.33.0", "0.23.0"):
            if name in spellings(other):
                return f"{name}: vLLM {self.version} has no such flag, vLLM {other} has"
        if re.fullmatch(r"-[a-z]{2,3}\d+", name):
            return f"unknown flag {name}, expected a blank or = before the number"
        guess = closest(name, self.spellings)
        return f"unknown flag {name} of vLLM {self.version}{did_you_mean(guess)}"

    def _flag(self, flag: Flag, spelling: str, attached: str | None, *, truth: bool) -> None:
        if not flag.takes_value:
            if attached is not None:
                hint = f"; {self._negation(flag)} turns it off" if flag.type == "switch" else ""
                self.given.refusals.append(f"{spelling}={shown(attached)}: {spelling} takes no value{hint}")
                return
            self._store(flag, truth)
            return
        values = [attached] if attached is not None else self._following(flag)
        if not values and flag.nargs != "?":
            self.given.refusals.append(f"{spelling} has no value")
        elif flag.nargs == "+":
            self._store(flag, [self._converted(flag, spelling, value) for value in values])
        elif not values:
            self._store(flag, True)
        else:
            self._set(flag, spelling, values[0])

    def _following(self, flag: Flag) -> list[str]:
        start = self.at
        while self.at < len(self.words) and not self._looks_like_flag(self.words[self.at]):
            self.at += 1
            if flag.nargs != "+":
                break
        return self.words[start : self.at]

    def _set(self, flag: Flag, spelling: str, value: str) -> None:
        converted = self._converted(flag, spelling, value)
        if flag.type == "append":
            converted = [*self.given.values.get(flag.name, []), converted]
        self._store(flag, converted)

    def _store(self, flag: Flag, value: Any) -> None:
        before = self.given.values.get(flag.name)
        if flag.name in self.given.values and flag.type != "append" and before != value:
            self.given.notes.append(f"{flag.name} stands there more than once: the last one counts")
        self.given.values[flag.name] = value

    def _converted(self, flag: Flag, spelling: str, text: str) -> Any:
        """The value, or None with a reason where the parser refuses it."""
        self.given.wanting.pop(flag.name, None)
        if names := unresolved(text):
            self.given.wanting[flag.name] = list(dict.fromkeys(names))
            return None
        if flag.optional and text in ("", "None"):
            return None
        try:
            value = CONVERSIONS[flag.type](text)
        except ValueError as error:
            reason = str(error) if isinstance(error, Refused) else f"expected {EXPECTED[flag.type]}"
            self.given.refusals.append(f"{spelling}: {reason}, found {text!r:.60}")
            return None
        except UserError as error:
            self.given.refusals.append(f"{spelling}: {error}")
            return None
        if flag.choices and str(value) not in flag.choices:
            guess = did_you_mean(closest(str(value), flag.choices))
            few = ", ".join(flag.choices[:8]) + (", ..." if len(flag.choices) > 8 else "")
            self.given.refusals.append(f"{spelling}: expected one of {few}, found {value!r:.40}{guess}")
            return None
        if flag.keys and isinstance(value, dict):
            self._check_keys(flag, spelling, value)
        return value

    def _check_keys(self, flag: Flag, spelling: str, value: dict[str, Any]) -> None:
        for key in value:
            if key not in flag.keys:
                guess = did_you_mean(closest(key, flag.keys))
                others = (other for other in ("0.33.0", "0.23.0") if other != self.version)
                known = [other for other in others if (same := flags_of(other).get(flag.name)) and key in same.keys]
                hint = f", vLLM {known[0]} has it" if known else guess
                self.given.refusals.append(f"{spelling}: vLLM {self.version} has no key {key!r} there{hint}")

    def _dotted(self, name: str, value: str | None) -> None:
        """``--flag.key.key value``: all of a flag become one JSON object, which replaces a JSON given whole."""
        if value is None:
            if self.at >= len(self.words):
                self.given.refusals.append(f"{name} has no value")
                return
            value = self.words[self.at]
            self.at += 1
        is_list = name.endswith("+")
        flag_name, *keys = name.removesuffix("+").split(".")
        spelling, _attached = self._spelling(flag_name)
        if spelling is None:
            return
        if names := unresolved(value):
            self.given.wanting[self.spellings[spelling][0].name] = names
        inner: Any = value.split(",") if is_list else _dotted_value(value)
        for key in reversed(keys):
            inner = {key: inner}
        _merge(self.dotted.setdefault(spelling, {}), inner)


def _levels(words: Sequence[str]) -> list[str]:
    """-O3, -O=3 and -O 3 are --optimization-level 3."""
    found: list[str] = []
    for word in words:
        if word.startswith("-O") and word != "-O":
            found += ["--optimization-level", word[3:] if word[2] == "=" else word[2:]]
        else:
            found.append("--optimization-level" if word == "-O" else word)
    return found


def _with_dashes(word: str) -> str:
    """--max_model_len is --max-model-len; keys behind a dot keep what they have."""
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    head, dot, tail = name.partition(".")
    return f"{head.replace('_', '-')}{dot}{tail}{equals}{value}"


def _dotted_value(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        try:
            return human_int(text)
        except ValueError:
            return text


def _merge(into: dict[str, Any], update: dict[str, Any]) -> None:
    for key, value in update.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        elif isinstance(value, list) and isinstance(into.get(key), list):
            into[key] = [*into[key], *value]
        else:
            into[key] = value


def _with_config_file(words: list[str], given: Given) -> list[str]:
    """``--config FILE``: what the file says goes in front of the other flags, as vLLM puts it there."""
    if any(word.startswith("--config=") for word in words):
        given.notes.append("--config=FILE is not read by vLLM (0.23.0, 0.33.0): only --config FILE is")
    if "--config" not in words:
        return words
    index = words.index("--config")
    path = words[index + 1] if index + 1 < len(words) else ""
    rest = [*words[:index], *words[index + 2 :]]
    if not path.endswith((".yaml", ".yml")) or words.count("--config") > 1:
        given.refusals.append(f"--config: expected one .yaml or .yml file, found {shown(path)!r}")
        return rest
    try:
        data = yaml.load(Path(path).read_text(encoding="utf-8"), Loader=_LOADER)  # noqa: S506 - a safe loader
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        what = getattr(error, "strerror", None) or "is not YAML"
        given.refusals.append(f"--config {path}: {what}")
        return rest
    from_file: list[str] = []
    for key, value in (data if isinstance(data, dict) else {}).items():
        if value is False:
            given.notes.append(f"{path}: {key}: false is dropped by vllm serve, as if it were not there")
        elif value is not True and not (isinstance(value, list) and not value):
            listed = value if isinstance(value, list) else [json.dumps(value) if isinstance(value, dict) else value]
            from_file += [f"--{key}", *map(str, listed)]
        elif value is True:
            from_file.append(f"--{key}")
    named = rest[:1] if rest[:1] and not rest[0].startswith("-") else []
    if named and (at := next((i for i, word in enumerate(from_file) if word == "--model"), None)) is not None:
        del from_file[at : at + 2]
    return [*named, *from_file, *rest[len(named) :]]
