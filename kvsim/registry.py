"""Names and classes: what comes with kvsim, and what a user brings as ``module_path:Class``.

One `Registry` per kind of part. A name stands for a class that is imported when it is asked for, not before; a text
with a colon is the path of a class of the user's own, found on ``sys.path`` or in the folders that the caller names
(the config's `python_path`, which holds the folder of the YAML file). A class may bring its own pydantic ``Config``:
its options are then checked against it and handed over as one object; without one they are keyword arguments.
"""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, create_model

from kvsim.checked import Component, check, closest
from kvsim.errors import UserError
from kvsim.yamlfile import Document, Keys

_own_folders: list[str] = []  # what we have appended to sys.path
_own_modules: dict[str, str] = {}  # top-level name of a module that was loaded from there -> its folder


class Registry:
    """All classes of one kind of part.

    Args:
        part: what they are, for messages: ``connector``.
        base: path of the class that each must be or look like.
        inherits: whether a class must be a subclass of the base; if not, it must have the methods in ``needs``.
        given: names of the arguments that a constructor gets before its options.
    """

    def __init__(
        self, part: str, base: str, *, inherits: bool = True, needs: Sequence[str] = (), given: Sequence[str] = ()
    ) -> None:
        self.part, self.base, self.inherits, self.needs, self.given = part, base, inherits, needs, given
        self._paths: dict[str, str] = {}
        self._about: dict[str, str] = {}

    def register(self, name: str, path: str, about: str) -> None:
        """Let ``name`` stand for the class at ``path``, with a line about it. A name is given once."""
        if name in self._paths:
            raise ValueError(f"{self.part} {name!r} is registered already, as {self._paths[name]}")
        if not is_class_path(path):
            raise ValueError(f"{self.part} {name!r}: expected module_path:Class, found {path!r}")
        self._paths[name], self._about[name] = path, about

    def names(self) -> list[str]:
        """Registered names, in the order of their registration."""
        return list(self._paths)

    def find(self, name: str, folders: Sequence[str] = ()) -> type:
        """The class of a name or of a path.

        Raises:
            UserError: nobody has that name, or the class cannot be imported or is of another kind.
        """
        if not is_class_path(name):
            if name not in self._paths:
                guess = closest(name, self._paths)
                hint = f", did you mean {guess}?" if guess else ""
                raise UserError(
                    f"unknown {self.part} {name!r}, expected one of {', '.join(self._paths)} or module:Class{hint}"
                )
            return _imported(self._paths[name], ())
        found = _imported(name, folders)
        self._examine(name, found)
        return found

    def about(self) -> list[tuple[str, str]]:
        """(name, a line about it) of all."""
        return list(self._about.items())

    def check_options(self, found: type, options: Mapping[str, Any], source: Options) -> None:
        """Raise UserError if the class cannot be made with these options."""
        config = _config_of(found)
        if config is not None:
            source.check_against(config, options)
            return
        try:
            inspect.signature(found).bind(*self.given, **options)
        except TypeError as error:
            given, wanted = ", ".join(self.given), list(_options_of(found, len(self.given)))
            expected = f"expected options: {', '.join(wanted)}" if wanted else "it takes no options"
            raise UserError(
                f"{source.place()}: {found.__name__}({given + ', ' if given else ''}**options): {error}; {expected}"
            ) from None

    def make(self, name: str, given: Sequence[Any], options: Mapping[str, Any], folders: Sequence[str] = ()) -> Any:
        """An object of the class that ``name`` stands for."""
        found = self.find(name, folders)
        self.check_options(found, options, Options("options"))
        config = _config_of(found)
        return found(*given, **options) if config is None else found(*given, config.model_validate(dict(options)))

    def factory(self, name: str, options: Mapping[str, Any], folders: Sequence[str] = ()) -> Callable[..., Any]:
        """`make`, with the arguments to come."""
        return lambda *given: self.make(name, given, options, folders)

    def _examine(self, name: str, found: type) -> None:
        base = _imported(self.base, ())
        if self.inherits and not issubclass(found, base):
            raise UserError(f"{name} is not a {self.part}: expected a subclass of {self.base.replace(':', '.')}")
        missing = sorted(getattr(found, "__abstractmethods__", ()))
        missing += [name for name in self.needs if not hasattr(found, name)]
        if missing:
            raise UserError(f"{name} lacks {', '.join(missing)}: expected what {self.base.replace(':', '.')} asks for")


class Options:
    """The options of a class, and where they are written: for messages.

    Args:
        name: their key in the config, such as ``connector.options``.
        document: the file they come from, if any.
        where: names the place of a value in it.
    """

    def __init__(self, name: str, document: Document | None = None, where: Callable[[Keys], str] | None = None) -> None:
        self.name = name
        self._document = document or Document("config", None)
        place = where or (lambda _keys: "config")
        self._place_of = place

    def _where(self, keys: Keys) -> str:
        return self._place_of(tuple(int(key) if str(key).isdecimal() else key for key in keys))

    def place(self) -> str:
        """Where the options stand, and their key."""
        return f"{self._where(tuple(self.name.split('.')))}: {self.name}"

    def check_against(self, config: type[BaseModel], options: Mapping[str, Any]) -> None:
        """Raise UserError that names the key as the user wrote it."""
        model: type[BaseModel] = config
        data: Any = dict(options)
        for key in reversed(self.name.split(".")):
            model = create_model(f"With_{key}", __base__=Component, **{key: (model, ...)})  # type: ignore[call-overload]
            data = {key: data}
        check(model, Document(self._document.source, data, self._document.lines), self._where)


def is_class_path(text: object) -> bool:
    """Whether it is meant as ``module_path:Class``."""
    return isinstance(text, str) and ":" in text


def user_code(error: BaseException) -> list[str]:
    """The part of a traceback that runs through modules which users have brought; [] if it does not."""
    own: list[traceback.FrameSummary] = []
    cause: BaseException | None = error
    while cause is not None and not own:  # SimPy raises a copy whose cause is the exception that was raised
        frames = zip(traceback.walk_tb(cause.__traceback__), traceback.extract_tb(cause.__traceback__), strict=True)
        own = [
            summary
            for (frame, _line), summary in frames
            if str(frame.f_globals.get("__name__", "")).partition(".")[0] in _own_modules
        ]
        cause = cause.__cause__
    return traceback.format_list(own)


def _config_of(found: type) -> type[BaseModel] | None:
    config = getattr(found, "Config", None)
    return config if isinstance(config, type) and issubclass(config, BaseModel) else None


def _options_of(found: type, given: int) -> Iterable[str]:
    parameters = list(inspect.signature(found).parameters.values())[given:]
    return (p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY))


def _imported(path: str, folders: Sequence[str]) -> type:
    module_path, _, class_name = path.partition(":")
    if not all(part.isidentifier() for part in (*module_path.split("."), class_name)):
        raise UserError(f"{path!r}: expected module_path:Class, such as my_package.my_module:MyClass")
    own = not module_path.startswith("kvsim.")
    if own:
        _search_in(folders, module_path.partition(".")[0])
    try:
        module = importlib.import_module(module_path)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module_path}.".startswith(f"{error.name}."):
            raise UserError(_broken(module_path, error)) from None
        looked = ", ".join(["sys.path", *folders])
        raise UserError(f"module {error.name} not found, looked in {looked}") from None
    except UserError:
        raise
    except Exception as error:  # noqa: BLE001 - whatever the user's module does when it is imported
        raise UserError(_broken(module_path, error)) from None
    if own:
        _own_modules[module_path.partition(".")[0]] = str(folders)
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        classes = [name for name, value in vars(module).items() if _is_defined_in(value, module_path)]
        guess = closest(class_name, classes)
        hint = f"did you mean {guess}?" if guess else f"it has {', '.join(classes) or 'no class'}"
        raise UserError(f"module {module_path} has no class {class_name}, {hint}")
    return found


def _is_defined_in(value: object, module_path: str) -> bool:
    return isinstance(value, type) and value.__module__ == module_path


def _search_in(folders: Sequence[str], top: str) -> None:
    """Let imports look in these folders too, after everything else; those of an earlier config go."""
    if _own_modules.get(top, str(folders)) != str(folders):  # loaded for a config in another folder
        for name in [name for name in sys.modules if f"{name}.".startswith(f"{top}.")]:
            del sys.modules[name]
        del _own_modules[top]
    if _own_folders != list(folders):
        for folder in _own_folders:
            if folder in sys.path:
                sys.path.remove(folder)
        _own_folders[:] = folders
        sys.path += folders
        importlib.invalidate_caches()


def _broken(module_path: str, error: BaseException) -> str:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "importlib" not in f.filename]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}: " if frames[1:] else ""
    if isinstance(error, SyntaxError) and error.filename:
        place = f"{Path(error.filename).name}:{error.lineno}: "
        error = type(error)(error.msg)
    return f"module {module_path} cannot be imported: {place}{type(error).__name__}: {error}"


CONNECTORS = Registry("connector", "kvsim.connectors.base:KVConnector", given=("site",))
CONNECTORS.register(
    "offloading",
    "kvsim.connectors.offloading:OffloadingConnector",
    "vLLM's OffloadingConnector: CPU memory under a policy, asynchronous",
)
CONNECTORS.register(
    "simple_cpu",
    "kvsim.connectors.simple_cpu:SimpleCPUOffloadConnector",
    "vLLM's SimpleCPUOffloadConnector: a second block pool in CPU memory, eager or lazy",
)
CONNECTORS.register(
    "lmcache",
    "kvsim.connectors.lmcache:LMCacheConnector",
    "LMCacheConnectorV1: LMCache inside the engine, whole chunks, synchronous or layer by layer",
)
CONNECTORS.register(
    "lmcache_mp",
    "kvsim.connectors.lmcache_mp:LMCacheMPConnector",
    "LMCacheMPConnector: a server beside the engine, which may fail and come back",
)
CONNECTORS.register(
    "mooncake_store",
    "kvsim.connectors.mooncake_store:MooncakeStoreConnector",
    "vLLM's MooncakeStoreConnector: a store that all instances of a cluster share",
)
CONNECTORS.register(
    "multi", "kvsim.connectors.multi:MultiConnector", "vLLM's MultiConnector: several as one; the first hit is loaded"
)
CONNECTORS.register(
    "example",
    "kvsim.connectors.example:ExampleConnector",
    "vLLM's ExampleConnector: whole prompts as files on shared storage, synchronous",
)
CONNECTORS.register(
    "nixl",
    "kvsim.connectors.nixl:NixlConnector",
    "vLLM's NixlConnector: KV from prefill to decode instances of a cluster",
)
CONNECTORS.register(
    "mooncake",
    "kvsim.connectors.nixl:NixlConnector",
    "vLLM's MooncakeConnector: as nixl, but prefill instances write, neighbouring blocks at once",
)
CONNECTORS.register(
    "p2p_nccl",
    "kvsim.connectors.p2p_nccl:P2pNcclConnector",
    "vLLM 0.23.0's P2pNcclConnector: KV from prefill to decode, layer by layer, both wait for it",
)
CONNECTORS.register(
    "decode_bench",
    "kvsim.connectors.decode_bench:DecodeBenchConnector",
    "vLLM's DecodeBenchConnector: every prompt but its last token is there at once",
)

POLICIES = Registry("policy", "kvsim.offload.policies.base:EvictionPolicy", given=("capacity", "slots"))
POLICIES.register("lru", "kvsim.offload.policies.lru:LruPolicy", "least recently used, as vLLM's CPU tier counts it")
POLICIES.register(
    "arc", "kvsim.offload.policies.arc:ArcPolicy", "adaptive replacement: what was seen once against what was reused"
)
POLICIES.register("fifo", "kvsim.offload.policies.fifo:FifoPolicy", "first in, first out")
POLICIES.register("sieve", "kvsim.offload.policies.sieve:SievePolicy", "SIEVE: a hand that spares what was reused once")
POLICIES.register(
    "s3fifo", "kvsim.offload.policies.s3fifo:S3FifoPolicy", "S3-FIFO: a small queue on probation, a main one, ghosts"
)
POLICIES.register("lfu", "kvsim.offload.policies.lfu:LfuPolicy", "least frequently used, of those the least recently")
POLICIES.register("slru", "kvsim.offload.policies.slru:SlruPolicy", "segmented LRU: what was never reused goes first")
POLICIES.register(
    "arc_textbook",
    "kvsim.offload.policies.arc_textbook:ArcTextbookPolicy",
    "ARC as published: ghosts come back as reused",
)
POLICIES.register(
    "gdsf", "kvsim.offload.policies.gdsf:GdsfPolicy", "uses x time to compute it again, with a clock that ages"
)
POLICIES.register(
    "cost_idle", "kvsim.offload.policies.cost_idle:CostIdlePolicy", "time to compute it again / time since the last use"
)
POLICIES.register(
    "workload_aware",
    "kvsim.offload.policies.workload_aware:WorkloadAwarePolicy",
    "probability of another use, learnt per tenant and kind of stream",
)
POLICIES.register(
    "ttl_fixed", "kvsim.offload.policies.ttl_fixed:TtlFixedPolicy", "LRU; what a stream goes on from is pinned for ttl"
)
POLICIES.register(
    "continuum", "kvsim.offload.policies.continuum:ContinuumPolicy", "as ttl_fixed, for the time that pays most"
)
POLICIES.register(
    "queue_lru", "kvsim.offload.policies.queue_lru:QueueLruPolicy", "LRU; spares what the next waiting requests hit"
)
POLICIES.register(
    "session_oracle",
    "kvsim.offload.policies.session_oracle:SessionOraclePolicy",
    "whose stream comes back last; knows all pauses",
)
POLICIES.register("opt", "kvsim.offload.policies.opt:OptPolicy", "Belady: furthest next use first; knows the trace")
POLICIES.register(
    "opt_bypass", "kvsim.offload.policies.opt_bypass:OptBypassPolicy", "opt, and does not store what it would evict"
)

STEP_TIMES = Registry(
    "step-time model",
    "kvsim.steptime.base:StepTimeModel",
    inherits=False,
    needs=("step_ns",),
    given=("deployment",),
)
STEP_TIMES.register("roofline", "kvsim.steptime.roofline:Roofline", "from the figures of the model and the GPU")
STEP_TIMES.register("fixed", "kvsim.steptime.fixed:FixedStep", "so much per step, so much per token")

TIERS = Registry(
    "tier",
    "kvsim.offload.tiering:SecondaryTier",
    inherits=False,
    needs=("epoch", "lookup", "on_schedule_end", "on_request_finished", "submit", "poll", "is_idle"),
    given=("site",),
)
TIERS.register("fs", "kvsim.tiers.storage_tier:StorageTier", "vLLM's file system tier: a file per chunk, I/O threads")
TIERS.register("obj", "kvsim.tiers.storage_tier:StorageTier", "vLLM's object store tier: an object per chunk")
TIERS.register("example", "kvsim.tiers.example:ExampleTier", "vLLM's example tier: unbounded, takes no time")

ROUTERS = Registry("router", "kvsim.cluster.routers.base:Router", given=("site",))
ROUTERS.register(
    "round_robin", "kvsim.cluster.routers.round_robin:RoundRobin", "one instance after the other, whatever they do"
)
ROUTERS.register("random", "kvsim.cluster.routers.random_choice:RandomChoice", "any instance, with the run's seed")
ROUTERS.register(
    "least_requests", "kvsim.cluster.routers.least_requests:LeastRequests", "where the fewest requests are in flight"
)
ROUTERS.register(
    "least_tokens", "kvsim.cluster.routers.least_tokens:LeastTokens", "where the fewest prompt tokens are in flight"
)
ROUTERS.register(
    "session_affinity",
    "kvsim.cluster.routers.session_affinity:SessionAffinity",
    "all turns of a session to one instance, by a hash or where few requests are",
)
ROUTERS.register(
    "prefix_aware",
    "kvsim.cluster.routers.prefix_aware:PrefixAware",
    "where the longest prefix is, by KV events or by what was sent there",
)
ROUTERS.register(
    "cost_based",
    "kvsim.cluster.routers.cost_based:CostBased",
    "where the first token is expected soonest: queue, load and prefill, at a rate that it learns",
)
