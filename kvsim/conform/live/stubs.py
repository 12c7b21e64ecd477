"""Stand-ins for packages that vLLM imports but its scheduler does not need.

Only what is not installed is replaced: each attribute of a stand-in module is a class that accepts everything.
"""

from __future__ import annotations

import dataclasses
import importlib.abc
import importlib.machinery
import sys
import types
from typing import Any

NAMES = frozenset({
    "aiohttp", "anthropic", "compressed_tensors", "cpuinfo", "cv2", "depyf", "diskcache", "fastapi", "flashinfer",
    "gguf", "ijson", "jsonschema", "lark", "llguidance", "lm_format_enforcer", "lmformatenforcer", "mcp",
    "mistral_common", "model_hosting_container_standards", "multidict", "numba", "openai", "openai_harmony",
    "opentelemetry", "orjson", "oss_harmony", "outlines_core", "partial_json_parser",
    "prometheus_fastapi_instrumentator", "pybase64", "pythonjsonlogger", "sentencepiece", "setproctitle",
    "starlette", "tiktoken", "uvicorn", "uvloop", "watchfiles", "xgrammar",
})  # fmt: skip


class _AnyClass(type):
    """Classes that have every attribute, and fit into type expressions."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        return _any_class(name)

    def __or__(cls, other: object) -> Any:
        return object

    def __ror__(cls, other: object) -> Any:
        return object

    def __getitem__(cls, key: object) -> Any:
        return cls

    def __iter__(cls) -> Any:
        return iter(())


def _any_class(name: str) -> Any:
    def schema(_cls: Any, _source: Any, _handler: Any) -> Any:
        from pydantic_core import core_schema

        return core_schema.any_schema()

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        decorates = len(args) == 1 and callable(args[0]) and not kwargs
        return args[0] if decorates else self

    members = {
        "__init__": lambda _self, *_args, **_kwargs: None,
        "__call__": call,
        "__getattr__": lambda _self, attribute: _any_class(attribute)(),
        "__get_pydantic_core_schema__": classmethod(schema),
        "__class_getitem__": classmethod(lambda cls, _key: cls),
        "__module__": __name__,
    }
    return _AnyClass(name, (), members)


class _AnyModule(types.ModuleType):
    """A module that has every attribute."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name.endswith("__"):
            raise AttributeError(name)
        value = _any_class(name)
        setattr(self, name, value)
        return value


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Asked last, so that installed packages win."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        if fullname.partition(".")[0] in NAMES:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        module = _AnyModule(spec.name)
        module.__path__ = []
        module.__version__ = "0.0.0"  # type: ignore[attr-defined]
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install() -> None:
    """Serve the stand-ins from now on. To be called before vLLM is imported."""
    sys.meta_path.append(_Finder())


def describe_models_without_loading() -> None:
    """Answer vLLM's questions about the model class: it would import the model's file, and compiled kernels with it."""
    from vllm.model_executor.models import registry

    known: dict[str, Any] = {
        "is_text_generation_model": True,
        "attn_type": "decoder",
        "supports_pp": True,
        "default_seq_pooling_type": "LAST",
        "default_tok_pooling_type": "ALL",
        "score_type": "bi-encoder",
    }

    def inspect_model_cls(self: Any) -> Any:
        info = registry._ModelInfo
        values = {field.name: () if "tuple" in str(field.type) else False for field in dataclasses.fields(info)}
        values |= {name: value for name, value in known.items() if name in values}
        return info(**values | {"architecture": self.class_name})

    registry._LazyRegisteredModel.inspect_model_cls = inspect_model_cls
