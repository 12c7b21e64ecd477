"""kvsim: what KV-cache offloading does to LLM serving, predicted.

``kvsim.run(config)`` simulates and gives a `kvsim.Result`: see `kvsim.api`.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOMES = {"Result": "api", "read_trace": "api", "run": "api", "RunConfig": "config", "UserError": "errors"}


def __getattr__(name: str) -> object:
    """What users import from here comes when it is asked for: ``import kvsim`` stays light, and knows no part."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
