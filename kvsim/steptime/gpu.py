"""GPUs: datasheet peaks and the efficiencies that vLLM's kernels reach on them."""

from __future__ import annotations

import statistics
from dataclasses import asdict, dataclass, fields, replace
from difflib import get_close_matches
from functools import cache
from math import isfinite
from pathlib import Path
from typing import Any

import yaml

from kvsim.errors import UserError

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_PRESETS = Path(__file__).resolve().parent.parent / "presets" / "gpus.yaml"
# medians of these serve a GPU without tables
_GENERIC_FROM = ("h100-sxm", "h200-sxm", "a100-sxm", "l40s", "b200")
_PCIE_FROM = "rtx-pro-6000"  # the fitted GPU whose all-reduce goes over PCIe
_ALL_REDUCE = ("ar_us", "ar_us_per_rank", "ar_gb_per_s_tp2", "ar_gb_per_s_tp4", "ar_gb_per_s_tp8")


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiencies:
    """How close kernels come to the peaks; one set per GPU. Fractions unless the name ends in a unit.

    Attributes:
        gemm_mfu: fraction of the bf16 peak that dense matrix multiplications approach with many tokens.
        gemm_half_tokens: tokens at which they reach half of it.
        weight_eff: fraction of HBM bandwidth while streaming weights.
        gemm_us: fixed time of one GEMM kernel.
        elem_eff, elem_us: the same two for element-wise kernels (norms, rotary embedding, activation).
        prefill_mfu: fraction of the bf16 peak in prefill attention, head size 128.
        prefill_tile_tokens: tokens wasted in the tiles along the causal diagonal.
        head64_factor: on ``prefill_mfu`` for heads of 64.
        prefill_attn_us, decode_attn_us: fixed time of the attention kernels, per layer.
        kv_eff: fraction of HBM bandwidth while reading the KV cache.
        moe_mfu, moe_half_tokens, moe_eff: as for GEMMs, in the grouped GEMMs of the experts;
            ``moe_half_tokens`` is padding per expert that is used at all.
        moe_us: fixed time per MoE layer (router, sort, two grouped GEMMs, combine).
        moe_skew: shape of the gamma distribution of expert popularity; large = uniform routing.
        mxfp4_factor: on ``moe_mfu`` for MXFP4 weights.
        fp8_factor: on the fp8 peak, relative to ``gemm_mfu``.
        ar_us, ar_us_per_rank: fixed time of an all-reduce on two ranks, and per rank more.
        ar_gb_per_s_tp2, ar_gb_per_s_tp4, ar_gb_per_s_tp8: algorithm bandwidth of the all-reduce at that
            many ranks.
    """

    gemm_mfu: float
    gemm_half_tokens: float
    weight_eff: float
    gemm_us: float
    elem_eff: float
    elem_us: float
    prefill_mfu: float
    prefill_tile_tokens: float
    head64_factor: float
    prefill_attn_us: float
    kv_eff: float
    decode_attn_us: float
    moe_mfu: float
    moe_half_tokens: float
    moe_eff: float
    moe_us: float
    moe_skew: float
    mxfp4_factor: float
    fp8_factor: float
    ar_us: float
    ar_us_per_rank: float
    ar_gb_per_s_tp2: float
    ar_gb_per_s_tp4: float
    ar_gb_per_s_tp8: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What real vLLM steps cost beyond the sum of their kernels.

    It depends on the release more than on the GPU: 0.14 (2026-01) made asynchronous scheduling the default
    and the preparation of inputs became cheaper around it. ``since-0.14`` is the default, ``before-0.14``
    serves comparisons with older measurements (:func:`host_times`).

    Attributes:
        slack: factor on all kernel time.
        step_us: host time per step.
        request_us: host time per scheduled request and step.
    """

    slack: float
    step_us: float
    request_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """One kind of GPU.

    Attributes:
        name: as the preset or the user's file calls it.
        bf16_flops: dense bf16 peak with fp32 accumulation, FLOP/s.
        fp8_flops: dense fp8 peak, FLOP/s; 0 = no fp8 arithmetic.
        hbm_bytes_per_s: memory bandwidth.
        memory_bytes: device memory as CUDA reports it (less than nvidia-smi shows).
        nvlink: ranks of one node are joined by NVLink (else PCIe).
        fidelity: ``fitted`` on kernel tables of this GPU, or ``generic``: medians of other GPUs.
        eff, host: the constants.
        sources: where each group of numbers comes from, with its date.
    """

    name: str
    bf16_flops: float
    fp8_flops: float
    hbm_bytes_per_s: float
    memory_bytes: int
    nvlink: bool
    fidelity: str
    eff: Efficiencies
    host: Host
    sources: tuple[tuple[str, str], ...] = ()

    def flops(self, math: str) -> float:
        """Peak that multiplications in ``math`` are measured against; bf16 where there are no fp8 units."""
        return self.fp8_flops * self.eff.fp8_factor if math == "fp8" and self.fp8_flops else self.bf16_flops

    def with_host(self, host: Host) -> GpuSpec:
        """The same GPU under another release's host times."""
        return replace(self, host=host)

    def all_reduce_bytes_per_s(self, tp: int) -> float:
        """Algorithm bandwidth of an all-reduce over ``tp`` ranks."""
        e = self.eff
        return 1e9 * (e.ar_gb_per_s_tp2 if tp <= 2 else e.ar_gb_per_s_tp4 if tp <= 4 else e.ar_gb_per_s_tp8)


def gpu_names() -> list[str]:
    """Names of the shipped GPUs."""
    return sorted(_presets()["gpus"])


def load_gpu(name_or_path: str | Path) -> GpuSpec:
    """A GPU by preset name (case-insensitive, aliases too) or from a user's YAML file.

    A user's file needs ``bf16_tflops`` (dense, fp32 accumulate), ``hbm_gb_per_s`` and ``memory_bytes``;
    optional are ``name``, ``fp8_tflops``, ``nvlink`` (default false), ``constants`` (any of
    :class:`Efficiencies`), ``host`` and ``sources``. What it leaves out is generic.

    Raises:
        UserError: unknown name (with the closest ones), unreadable file, unknown or missing field.
    """
    text = str(name_or_path)
    if text.endswith((".yaml", ".yml")):
        path = Path(text)
        if not path.is_file():
            raise UserError(f"gpu: {path}: no such file")
        return _build(path.stem, _read_yaml(path), str(path))
    gpus: dict[str, Any] = _presets()["gpus"]
    by_alias = {alias.lower(): key for key, entry in gpus.items() for alias in (key, *entry.get("aliases", ()))}
    wanted = text.strip().lower().replace("_", "-")
    key = by_alias.get(wanted)
    if key is None:
        close = get_close_matches(wanted, by_alias, n=3, cutoff=0.4)
        hint = f"closest: {', '.join(dict.fromkeys(by_alias[c] for c in close))}; " if close else ""
        raise UserError(
            f"gpu: {text!r} is not known; {hint}expected one of {', '.join(gpu_names())}"
            " or a .yaml file with bf16_tflops, hbm_gb_per_s and memory_bytes"
        )
    return _build(key, gpus[key], f"gpu {key}")


def host_times(release: str | None = None) -> Host:
    """Host times of vLLM: ``since-0.14`` (default) or ``before-0.14``."""
    table: dict[str, dict[str, float]] = _presets()["host"]["times"]
    name = release or str(_presets()["host"]["default"])
    if name not in table:
        raise UserError(f"host times: {name!r}: expected one of {', '.join(sorted(table))}")
    return Host(**{key: float(value) for key, value in table[name].items()})


def generic_efficiencies(nvlink: bool) -> Efficiencies:
    """Median constants of the fitted GPUs; without NVLink the all-reduce constants of the fitted PCIe GPU."""
    gpus = _presets()["gpus"]
    median = {
        f.name: statistics.median(float(gpus[g]["constants"][f.name]) for g in _GENERIC_FROM)
        for f in fields(Efficiencies)
    }
    if not nvlink:
        median.update({k: float(gpus[_PCIE_FROM]["constants"][k]) for k in _ALL_REDUCE})
    return Efficiencies(**median)


# ---------------------------------------------------------------- reading

_TOP_KEYS = {
    "name",
    "aliases",
    "bf16_tflops",
    "fp8_tflops",
    "hbm_gb_per_s",
    "memory_bytes",
    "nvlink",
    "constants",
    "host",
    "sources",
}


@cache
def _presets() -> dict[str, Any]:
    return _read_yaml(_PRESETS)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        data = yaml.load(path.read_text(encoding="utf-8"), Loader=_LOADER)  # noqa: S506 - a safe loader
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as err:
        raise UserError(f"gpu: {path}: not readable as YAML: {' '.join(str(err).split())}") from err
    if not isinstance(data, dict):
        raise UserError(f"gpu: {path}: expected keys and values, found {type(data).__name__}")
    return data


def _positive(entry: dict[str, Any], key: str, where: str, default: float | None = None) -> float:
    value = entry.get(key, default)
    if value is None:
        raise UserError(f"{where}: {key} is missing")
    good = isinstance(value, (int, float)) and not isinstance(value, bool) and isfinite(value) and value >= 0
    if not good or (value == 0 and default is None):
        raise UserError(f"{where}: {key}: {value!r}: expected a positive number")
    return float(value)


def _section(entry: dict[str, Any], key: str, allowed: set[str], where: str) -> dict[str, float]:
    section = entry.get(key) or {}
    if not isinstance(section, dict):
        raise UserError(f"{where}: {key}: expected keys and values, found {section!r}")
    for name in section:
        _known(name, allowed, f"{where}: {key}")
    return {name: _positive(section, name, f"{where}: {key}", 0.0) for name in section}


def _known(name: object, allowed: set[str], where: str) -> None:
    if name not in allowed:
        close = get_close_matches(str(name), allowed, n=1)
        raise UserError(f"{where}: unknown key {name!r}; expected {close[0] if close else ', '.join(sorted(allowed))}")


def _build(name: str, entry: dict[str, Any], where: str) -> GpuSpec:
    for key in entry:
        _known(key, _TOP_KEYS, where)
    nvlink = bool(entry.get("nvlink", False))
    wanted = {f.name for f in fields(Efficiencies)}
    own = _section(entry, "constants", wanted, where)
    fitted = own.keys() == wanted
    base = generic_efficiencies(nvlink)
    eff = Efficiencies(**{f.name: own.get(f.name, getattr(base, f.name)) for f in fields(Efficiencies)})
    host = {**asdict(host_times()), **_section(entry, "host", {f.name for f in fields(Host)}, where)}
    sources = {"host": _presets()["host"]["source"], **(entry.get("sources") or {})}
    if not fitted:
        sources.setdefault("constants", _presets()["generic"]["source"])
    return GpuSpec(
        name=str(entry.get("name", name)),
        bf16_flops=_positive(entry, "bf16_tflops", where) * 1e12,
        fp8_flops=_positive(entry, "fp8_tflops", where, 0.0) * 1e12,
        hbm_bytes_per_s=_positive(entry, "hbm_gb_per_s", where) * 1e9,
        memory_bytes=int(_positive(entry, "memory_bytes", where)),
        nvlink=nvlink,
        fidelity="fitted" if fitted else "generic",
        eff=eff,
        host=Host(**{f.name: float(host[f.name]) for f in fields(Host)}),
        sources=tuple((str(k), str(v)) for k, v in sources.items()),
    )
