"""Names that a config may use, each with a line about it."""

from __future__ import annotations

from collections.abc import Callable

from kvsim.config.presets import load_preset, preset_names
from kvsim.errors import UserError
from kvsim.frontend_plan import frontend_names, load_frontend
from kvsim.nics import load_nic, nic_names
from kvsim.profile import default_link, link_names, load_link
from kvsim.registry import CONNECTORS, POLICIES, ROUTERS, STEP_TIMES, TIERS, Registry
from kvsim.releases import RELEASES
from kvsim.steptime.gpu import gpu_names, load_gpu
from kvsim.steptime.model import load_model, model_names
from kvsim.storage import load_storage, storage_names
from kvsim.units import format_time


def catalogue(kind: str) -> list[tuple[str, str]]:
    """(name, description) of everything of a kind (see `KINDS`)."""
    return KINDS[kind]()


def _models() -> list[tuple[str, str]]:
    rows = []
    for name in model_names():
        model = load_model(name)
        kv_kib = model.kv_bytes_per_token() / 1024
        rows.append((name, f"{model.num_params / 1e9:,.1f} B parameters, {kv_kib:g} KiB of KV per token"))
    return rows


def _gpus() -> list[tuple[str, str]]:
    rows = []
    for name in gpu_names():
        gpu = load_gpu(name)
        figures = f"{gpu.memory_bytes / 2**30:.0f} GiB, {gpu.bf16_flops / 1e12:,.0f} TFLOP/s bf16"
        rows.append((name, f"{figures}, {gpu.hbm_bytes_per_s / 1e12:.2f} TB/s ({gpu.fidelity}), link {_link(name)}"))
    return rows


def _link(gpu: str) -> str:
    try:
        return default_link(gpu)
    except UserError:
        return "to be named in hardware.link"


def _links() -> list[tuple[str, str]]:
    return [(name, load_link(name).device) for name in link_names()]


def _storage() -> list[tuple[str, str]]:
    rows = []
    for name in storage_names():
        storage = load_storage(name)
        read, write = (path.bandwidth.used / 1e9 for path in (storage.read, storage.write))
        figures = f"reads {read:g}, writes {write:g} GB/s, {storage.read.latency.used / 1e6:g} ms"
        rows.append((name, f"{storage.device}: {figures}"))
    return rows


def _networks() -> list[tuple[str, str]]:
    nics = [load_nic(name) for name in nic_names()]
    return [(nic.name, f"{nic.device}: {nic.bandwidth.used / 1e9:g} GB/s each way") for nic in nics]


def _frontends() -> list[tuple[str, str]]:
    profiles = map(load_frontend, frontend_names())
    return [(each.name, f"{each.about}: {format_time(each.token.used)} per prompt token") for each in profiles]


def _presets() -> list[tuple[str, str]]:
    return [(each.name, f"{each.vllm}: {each.about}") for each in map(load_preset, preset_names())]


def _releases() -> list[tuple[str, str]]:
    return [(name, f"decides as vLLM {name}") for name in RELEASES]


def _registered(registry: Registry) -> Callable[[], list[tuple[str, str]]]:
    """What a registry knows, and that there may be more."""
    return lambda: [*registry.about(), ("module:Class", f"a {registry.part} of your own")]


KINDS: dict[str, Callable[[], list[tuple[str, str]]]] = {
    "connectors": lambda: [("none", "no KV leaves the GPU"), *_registered(CONNECTORS)()],
    "policies": _registered(POLICIES),
    "tiers": _registered(TIERS),
    "routers": _registered(ROUTERS),
    "step-times": _registered(STEP_TIMES),
    "models": _models,
    "gpus": _gpus,
    "links": _links,
    "storage": _storage,
    "networks": _networks,
    "frontends": _frontends,
    "presets": _presets,
    "releases": _releases,
}
