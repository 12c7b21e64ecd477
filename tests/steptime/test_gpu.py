"""GPUs: presets, aliases, users' files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from kvsim.errors import UserError
from kvsim.steptime.gpu import Host, generic_efficiencies, gpu_names, host_times, load_gpu

FITTED = ["a100-sxm", "b200", "gb200", "h100-sxm", "h200-sxm", "l40s", "rtx-pro-6000"]


def test_fitted_and_generic_gpus_say_which_they_are() -> None:
    """Seven GPUs were fitted; all others carry the medians of those and say generic."""
    assert [n for n in gpu_names() if load_gpu(n).fidelity == "fitted"] == FITTED
    assert load_gpu("rtx-4090").fidelity == "generic"
    assert load_gpu("rtx-4090").eff == generic_efficiencies(nvlink=False)
    assert load_gpu("gh200").eff == generic_efficiencies(nvlink=True)


@pytest.mark.parametrize("name", gpu_names())
def test_every_preset_names_the_source_of_each_group_of_numbers(name: str) -> None:
    """Peaks, memory, constants and host times each have a source."""
    assert {"peaks", "memory", "constants", "host"} <= dict(load_gpu(name).sources).keys()


@pytest.mark.parametrize(
    ("spelling", "name"),
    [
        ("H100", "h100-sxm"),
        ("h200_sxm", "h200-sxm"),
        ("NVIDIA-H200", "h200-sxm"),
        ("4090", "rtx-4090"),
        ("A100-80GB", "a100-sxm"),
        ("b200-sxm", "b200"),
    ],
)
def test_aliases_resolve_in_any_case(spelling: str, name: str) -> None:
    """Dashes or underscores, upper or lower case."""
    assert load_gpu(spelling).name == name


def test_generic_constants_are_medians_and_pcie_gpus_pay_pcie_all_reduces() -> None:
    """The medians of five fitted GPUs; without NVLink the all-reduce of the RTX PRO 6000."""
    nvlink, pcie = generic_efficiencies(nvlink=True), generic_efficiencies(nvlink=False)
    assert (nvlink.gemm_mfu, nvlink.weight_eff, nvlink.kv_eff, nvlink.prefill_mfu) == (
        0.788,
        0.941,
        0.863,
        0.574,
    )
    assert (nvlink.ar_gb_per_s_tp2, pcie.ar_gb_per_s_tp2) == (233.0, 37.6)
    assert pcie.ar_us_per_rank == 4.78


def test_the_memory_of_the_4090_is_what_cuda_reports() -> None:
    """25,250,627,584 bytes, not 24 GiB."""
    gpu = load_gpu("rtx-4090")
    assert (gpu.memory_bytes, gpu.bf16_flops, gpu.hbm_bytes_per_s) == (25_250_627_584, 165.2e12, 1008e9)


def test_fp8_runs_in_bf16_where_there_are_no_fp8_units() -> None:
    """An A100 reads half the bytes but computes in bf16."""
    assert load_gpu("a100").flops("fp8") == load_gpu("a100").flops("bf16") == 312e12
    assert load_gpu("h100").flops("fp8") == pytest.approx(0.8 * 1978e12)


def test_host_times_come_by_release() -> None:
    """Since 0.14 host time per request is less than half of what it was."""
    assert load_gpu("h100").host == host_times("since-0.14") == Host(slack=1.0, step_us=150.0, request_us=19.0)
    assert host_times("before-0.14") == Host(slack=1.0, step_us=650.0, request_us=48.0)
    with pytest.raises(UserError, match=r"host times: '0\.9'"):
        host_times("0.9")


def test_a_users_file_needs_three_numbers(tmp_path: Path) -> None:
    """Datasheet peaks and memory; the rest is generic, given constants win."""
    path = tmp_path / "mine.yaml"
    path.write_text(
        "bf16_tflops: 148\nhbm_gb_per_s: 4000\nmemory_bytes: 102000000000\nnvlink: true\n"
        "constants: {kv_eff: 0.8}\nhost: {request_us: 25}\n",
        encoding="utf-8",
    )
    gpu = load_gpu(path)
    assert (gpu.name, gpu.fidelity, gpu.bf16_flops, gpu.memory_bytes) == (
        "mine",
        "generic",
        148e12,
        102_000_000_000,
    )
    assert gpu.eff == replace(generic_efficiencies(nvlink=True), kv_eff=0.8)
    assert gpu.host == Host(slack=1.0, step_us=150.0, request_us=25.0)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("bf16_tflops: 148", "hbm_gb_per_s is missing"),
        (
            "bf16_tflops: fast\nhbm_gb_per_s: 1\nmemory_bytes: 1",
            "bf16_tflops: 'fast': expected a positive number",
        ),
        (
            "bf16_tflops: 1\nhbm_gb_per_s: 1\nmemory_bytes: 1\nhbm_gbps: 2",
            "unknown key 'hbm_gbps'; expected hbm_gb_per_s",
        ),
        (
            "bf16_tflops: 1\nhbm_gb_per_s: 1\nmemory_bytes: 1\nconstants: {kv_ef: 1}",
            "'kv_ef'; expected kv_eff",
        ),
        ("- 1", "expected keys and values, found list"),
        ("a: [", "not readable as YAML"),
    ],
)
def test_a_wrong_file_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    """One line with the file, the key and what was expected."""
    path = tmp_path / "gpu.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(UserError, match=message) as raised:
        load_gpu(path)
    assert "\n" not in str(raised.value)


def test_an_unknown_gpu_names_the_closest_ones(tmp_path: Path) -> None:
    """A typo costs one line."""
    with pytest.raises(UserError, match=r"'h20' is not known; closest: h200-sxm"):
        load_gpu("h20")
    with pytest.raises(UserError, match="no such file"):
        load_gpu(tmp_path / "none.yaml")
