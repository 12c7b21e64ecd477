"""The flags of `vllm serve` of a release, written as the lines of ``kvsim/presets/vllm_flags.yaml``.

Run by a Python that has what vLLM's argument parser imports: ``python flags.py FOLDER_OF_VLLM > flags.json``. With
lines of words on standard input, ``python flags.py FOLDER --parse`` says what the real parser makes of each.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import io
import json
import sys
from typing import Any

import stubs

PLAIN = {"int": int, "float": float, "str": str, "json": json.loads}


def make_parser(source: str) -> tuple[Any, Any]:
    """The parser of ``vllm``, and that of ``vllm serve`` inside it."""
    sys.path.insert(0, source)
    stubs.install()
    from vllm import platforms
    from vllm.platforms.interface import Platform, PlatformEnum

    class Cuda(Platform):
        _enum = PlatformEnum.CUDA
        device_name = device_type = "cuda"
        supported_quantization = ()

    platforms._current_platform = Cuda()
    try:
        from vllm.entrypoints.common.cli_args import make_arg_parser
    except ModuleNotFoundError:  # before 0.24
        from vllm.entrypoints.openai.cli_args import make_arg_parser
    from vllm.utils.argparse_utils import FlexibleArgumentParser

    parser = FlexibleArgumentParser(prog="vllm")
    commands = parser.add_subparsers(required=False, dest="subparser")
    return parser, make_arg_parser(commands.add_parser("serve", usage="vllm serve"))


def describe(action: Any) -> dict[str, Any]:
    """What a flag takes."""
    names = [name for name in action.option_strings if name.startswith("--")]
    short = [name for name in action.option_strings if not name.startswith("--")]
    entry: dict[str, Any] = {"name": names[0], "type": "str"}
    kind = type(action).__name__
    if kind in ("EnableDisableAction", "BooleanOptionalAction"):
        names = [name for name in names if not name.startswith(("--no-", "--disable-", "--enable-"))] or names[:1]
        entry["type"] = "switch"
        entry["names"] = names[:1] + [name for name in names[1:] if not name.startswith("--no-")]
        entry["name"] = action.option_strings[0]
    elif kind == "_StoreTrueAction":
        entry["type"] = "on"
    elif kind == "_AppendAction":
        entry["type"] = "append"
    else:
        entry |= _type_of(action.type)
    if names[1:] and entry["type"] != "switch":
        entry["also"] = names[1:]
    if short:
        entry["short"] = short
    if action.nargs in ("+", "*", "?"):
        entry["nargs"] = action.nargs
    if action.choices and entry["type"] != "switch":
        entry["choices"] = [str(choice) for choice in action.choices]
    entry["options"], entry["dest"] = list(action.option_strings), action.dest
    return entry


def _type_of(function: Any) -> dict[str, Any]:
    name = getattr(function, "__qualname__", "str").replace("<locals>.", "").replace("EngineArgs.add_cli_args.", "")
    if name == "optional_type._optional_type":
        return {**_type_of(function.__closure__[0].cell_contents), "optional": True}
    if name == "parse_type._parse_type":
        return _type_of(function.__closure__[0].cell_contents)
    if name == "_compute_kwargs.parse_dataclass":
        of = function.__defaults__[0]
        return {"type": "config", "keys": [field.name for field in dataclasses.fields(of) if field.init]}
    return {"type": {"loads": "json", "NoneType": "str"}.get(name, name)}


def parsed(parser: Any, words: list[str]) -> dict[str, Any]:
    """What the real parser makes of the words after ``vllm``."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said):
            found = parser.parse_args(words)
    except SystemExit:
        return {"error": said.getvalue().strip().splitlines()[-1] if said.getvalue().strip() else "exit"}
    except (ValueError, TypeError, IndexError) as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {"values": {name: _plain(value) for name, value in vars(found).items()}}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name, None) for field in dataclasses.fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each) for each in value]
    return value if isinstance(value, (str, int, float, bool, type(None))) else str(value)


def main() -> None:
    """Write JSON to standard output."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("source")
    arguments.add_argument("--parse", action="store_true")
    wanted = arguments.parse_args()
    with contextlib.redirect_stdout(sys.stderr):
        _parser, serve = make_parser(wanted.source)
    if wanted.parse:
        for _line in sys.stdin:
            pass
        return
    groups = {action.dest: group.title for group in serve._action_groups for action in group._group_actions}
    flags = [
        describe(action) | {"group": groups.get(action.dest)} for action in serve._actions if action.option_strings
    ]
    json.dump(flags, sys.stdout)


if __name__ == "__main__":
    main()
