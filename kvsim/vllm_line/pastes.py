"""The forms in which people post a vLLM command: shell, docker, compose, Kubernetes, log lines. All become words."""

from __future__ import annotations

import ast
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import yaml

from kvsim.errors import UserError
from kvsim.vllm_line.words import Statement, mark, shell_statements

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_YAML = re.compile(r"(?m)^\s*(?:-\s+)?(?:command|args|entrypoint)\s*:")
_LOG = re.compile(r"non-default args:\s*(\{.*\})")
_SHELLS = {"sh", "bash", "zsh", "/bin/sh", "/bin/bash"}
_CONTAINERS = {"docker", "podman", "nerdctl"}
_WITHOUT_VALUE = re.compile(  # options of `docker run` that take none
    r"-[ditP]+|-q|--(?:detach|interactive|tty|rm|privileged|init|read-only|publish-all|no-healthcheck|quiet"
    r"|oom-kill-disable|sig-proxy|disable-content-trust)(?:=.*)?"
)
_CLI = "vllm.entrypoints.cli.main"
_OTHER_COMMANDS = ("bench", "chat", "complete", "collect-env", "launch", "run-batch")  # vLLM entrypoints/cli/main.py
_ENV_OPTIONS = ("-e", "--env")
EXAMPLE = "such as: vllm serve meta-llama/Llama-3.1-8B-Instruct --kv-offloading-size 64"


@dataclass(frozen=True)
class Paste:
    """What was pasted, as words.

    Attributes:
        words: what stands behind ``vllm serve`` or the name of the API server's module.
        serve: whether it was ``vllm serve``, whose model may stand without a flag.
        environment: what vLLM sees.
        hidden: variables that were assigned but not exported: vLLM does not see them.
        image_tag: of the container's image.
        notes: what is worth knowing.
    """

    words: tuple[str, ...]
    serve: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    hidden: Mapping[str, str] = field(default_factory=dict)
    image_tag: str | None = None
    notes: tuple[str, ...] = ()


def read_paste(text: str) -> Paste:
    """The words of the one vLLM command in a text.

    Raises:
        UserError: there is none, there are several, or quotes and brackets do not match.
    """
    if not text.strip():
        raise UserError(f"is empty, expected a vLLM command line, {EXAMPLE}")
    if (log := _LOG.search(text)) is not None:
        return _from_log(log[1])
    if _YAML.search(text) and (found := _from_yaml(text)) is not None:
        return found
    bare = re.sub(r"^\s*(?:\S.*?\s)?command:\s*\[(.*)\]\s*$", r"\1", text, flags=re.DOTALL)
    listed = _as_list(text) or _as_list(f"[{bare}]" if bare != text else "")
    if listed is not None:
        return _one([Statement(tuple(listed))], [])
    return _one(*shell_statements(bare))


def _one(statements: list[Statement], notes: list[str]) -> Paste:
    found = [paste for statement in statements if (paste := _command(statement)) is not None]
    if not found:  # flags alone, as in a compose file's folded text
        for statement in statements:
            _refuse_other_command(statement.words)
        folded = [s for s in statements if any(word.startswith("--") for word in s.words)]
        if len(folded) != 1:
            raise UserError(f"no vLLM command in it, expected one, {EXAMPLE}")
        words = tuple(word for word in folded[0].words if word != "...")
        found = [Paste(words, environment=folded[0].environment, hidden=folded[0].hidden)]
    if len(found) > 1:
        raise UserError(f"{len(found)} vLLM commands, expected one: each is a server of its own")
    paste = found[0]
    return Paste(paste.words, paste.serve, paste.environment, paste.hidden, paste.image_tag, (*notes, *paste.notes))


def _command(statement: Statement) -> Paste | None:
    """The vLLM command of a statement, if it is one."""
    words, environment, tag = list(statement.words), dict(statement.environment), None
    while words and words[0] in ("sudo", "env", "exec", "nohup", "time", "command"):
        words = words[1:]
        while words and re.match(r"[A-Za-z_]\w*=", words[0]):
            name, _equals, value = words.pop(0).partition("=")
            environment[name] = value
    if len(words) > 2 and _runs_shell(words):
        return _one(*shell_statements(words[2], environment))
    if words[:2] and words[0] in _CONTAINERS and words[1] == "run":
        words, inside, tag = _in_container(words[2:])
        environment = inside
        found = _behind_launcher(words)
        if found is None and len(words) > 2 and _runs_shell(words):
            inner = _one(*shell_statements(words[2], environment))
            return Paste(inner.words, inner.serve, inner.environment, inner.hidden, tag, inner.notes)
        if found is None:
            _refuse_other_command(words)
        found = found or (words, True)
    else:
        found = _behind_launcher(words)
    if found is None:
        return None
    return Paste(tuple(w for w in found[0] if w != "..."), found[1], environment, statement.hidden, tag)


def _runs_shell(words: Sequence[str]) -> bool:
    """``bash -c``, whose next word is a shell text."""
    return len(words) > 1 and words[0] in _SHELLS and words[1].startswith("-") and words[1].endswith("c")


def _behind_launcher(words: Sequence[str]) -> tuple[list[str], bool] | None:
    """The words behind ``vllm serve`` or an API server's module, and whether it was ``vllm serve``."""
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) else ""
        if PurePosixPath(word).name == "vllm" and following == "serve":
            return list(words[index + 2 :]), True
        if word == "-m" and following in ("vllm.entrypoints.openai.api_server", "dynamo.vllm"):
            return list(words[index + 2 :]), False
        if word == "-m" and following == _CLI and words[index + 2 : index + 3] == ["serve"]:
            return list(words[index + 3 :]), True
        if word.startswith("--"):
            break
    return None


def _refuse_other_command(words: Sequence[str]) -> None:
    """A program of vLLM's that is no server, such as ``vllm bench serve``."""
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) else ""
        is_program = PurePosixPath(word).name == "vllm" or (word == _CLI and "-m" in words[:index])
        if is_program and following in _OTHER_COMMANDS:
            raise UserError(f"vllm {following} starts no server, expected a line {EXAMPLE}")
        if word.startswith("--"):
            break


def _in_container(words: Sequence[str]) -> tuple[list[str], dict[str, str], str | None]:
    """(command, environment, image's tag) behind ``docker run``, whose options are not vLLM's."""
    environment: dict[str, str] = {}
    entrypoint: list[str] = []
    rest = list(words)
    while rest and (rest[0].startswith("-") or rest[0] == "..."):
        option, equals, value = rest.pop(0).partition("=")
        if option == "..." or (not equals and _WITHOUT_VALUE.fullmatch(option)):
            continue
        if not equals:
            if not rest:
                break
            value = rest.pop(0)
        if option in _ENV_OPTIONS and "=" in value:
            name, _equals, setting = value.partition("=")
            environment[name] = setting
        if option == "--entrypoint":
            entrypoint = [value]
    if not rest:
        raise UserError("docker run without an image, expected one such as vllm/vllm-openai:v0.33.0")
    image, *command = rest
    return [*entrypoint, *command], environment, _tag(image)


def _tag(image: object) -> str | None:
    name, colon, tag = str(image).rpartition("/")[2].partition(":")
    return tag.removeprefix("v") if colon and "vllm" in name else None


# ---------------------------------------------------------------- YAML


def _from_yaml(text: str) -> Paste | None:
    """A service of a compose file, a container of Kubernetes, or a fragment of either."""
    try:
        data = yaml.load(textwrap.dedent(text), Loader=_LOADER)  # noqa: S506 - a safe loader
    except yaml.YAMLError:
        return None
    found = [paste for section in _sections(data) if (paste := _service(section)) is not None]
    if len(found) > 1:
        raise UserError(f"{len(found)} vLLM commands, expected one: each is a server of its own")
    return found[0] if found else None


def _sections(data: object) -> Iterator[dict[str, Any]]:
    if isinstance(data, dict):
        if any(key in data for key in ("command", "args", "entrypoint")):
            yield data
        for value in data.values():
            yield from _sections(value)
    elif isinstance(data, list):
        for value in data:
            yield from _sections(value)


def _service(section: dict[str, Any]) -> Paste | None:
    environment = _environment(section.get("environment", section.get("env")))
    tag = _tag(section.get("image", ""))
    words: list[str] = []
    notes: list[str] = []
    for key in ("entrypoint", "command", "args"):
        value = section.get(key)
        if isinstance(value, list) and len(value) == 1 and " " in str(value[0]) and not _runs_shell(words):
            value = str(value[0])  # one text in brackets: somebody has lost the commas
        if isinstance(value, str):
            statements, found = shell_statements(value)
            words += [word for statement in statements for word in statement.words]
            notes += found
        elif isinstance(value, list):
            words += [_literal(item, environment) for item in value]
    if len(words) > 2 and _runs_shell(words):
        inner = _one(*shell_statements(words[2], environment))
        return Paste(inner.words, inner.serve, inner.environment, inner.hidden, tag, (*notes, *inner.notes))
    found_words = _behind_launcher(words)
    is_bare = "image" not in section or "vllm" in str(section["image"])
    if found_words is None:
        _refuse_other_command(words)
    if found_words is None and not (is_bare and any(word.startswith("-") for word in words)):
        return None
    behind, serve = found_words or (words, True)
    return Paste(tuple(behind), serve, environment, {}, tag, tuple(notes))


def _literal(item: object, environment: Mapping[str, str]) -> str:
    """A word as the list has it: no shell reads it; Kubernetes replaces $(NAME)."""
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, dict | list):
        return json.dumps(item)
    return re.sub(r"\$\((\w+)\)", lambda found: environment.get(found[1], mark(found[1])), str(item))


def _environment(value: object) -> dict[str, str]:
    if isinstance(value, dict):
        return {str(key): str(setting) for key, setting in value.items()}
    found: dict[str, str] = {}
    for entry in value if isinstance(value, list) else ():
        if isinstance(entry, dict) and "name" in entry and "value" in entry:
            found[str(entry["name"])] = str(entry["value"])
        elif isinstance(entry, str) and "=" in entry:
            name, _equals, setting = entry.partition("=")
            found[name] = setting
    return found


# ---------------------------------------------------------------- lists and logs


def _as_list(text: str) -> list[str] | None:
    """``['vllm', 'serve', ...]`` of Python or JSON, else None."""
    if not text.strip().startswith("["):
        return None
    try:
        found = ast.literal_eval(text.strip())
    except (SyntaxError, ValueError):
        return None
    return list(found) if isinstance(found, list) and all(isinstance(word, str) for word in found) and found else None


def _from_log(text: str) -> Paste:
    """What vLLM logs at its start: ``non-default args: {'model': ..., 'kv_transfer_config': KVTransferConfig(..)}``."""
    plain = re.sub(r"<[\w.]+: ('[^']*'|\d+)>", r"\1", text)  # members of enumerations
    try:
        values = _evaluated(ast.parse(plain.strip(), mode="eval").body)
    except (SyntaxError, ValueError):
        raise UserError("non-default args: expected vLLM's log line up to its closing brace") from None
    words: list[str] = []
    model = values.pop("model_tag", None)
    model = values.pop("model", None) or model
    for name, value in values.items():
        flag = f"--{name.replace('_', '-')}"
        if isinstance(value, bool):
            words.append(flag if value else f"--no-{flag[2:]}")
        elif isinstance(value, list | tuple):
            words += [flag, *map(str, value)]
        elif value is not None:
            words += [flag, json.dumps(value) if isinstance(value, dict) else str(value)]
    return Paste((*([str(model)] if model else []), *words), notes=("read from vLLM's log: non-default values only",))


def _evaluated(node: ast.expr) -> Any:
    """Plain values; ``KVTransferConfig(kv_role=...)`` becomes its keys, those that are None left out."""
    if isinstance(node, ast.Dict):
        keys = [_evaluated(key) for key in node.keys if key is not None]
        return dict(zip(keys, map(_evaluated, node.values), strict=True))
    if isinstance(node, ast.Call) and not node.args:
        found = {str(keyword.arg): _evaluated(keyword.value) for keyword in node.keywords}
        return {name: value for name, value in found.items() if value is not None}
    if isinstance(node, ast.List | ast.Tuple):
        return [_evaluated(item) for item in node.elts]
    return ast.literal_eval(node)
