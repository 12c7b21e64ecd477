"""Link profiles fitted to literal results, and to a machine whose profile is known."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

import known_machine as machine

from hwreplay.evidence import Evidence, Probe, read_evidence
from hwreplay.fit import fit, fit_files, write_profile, written_beside
from hwreplay.result import Integrity, StepResult, WrongByte
from kvsim.errors import UserError
from kvsim.profile import LinkProfile, Pieces, load_link

KIB = 1024
H100 = load_link("pcie5-h100")
KNOWN = H100.model_copy(update={"d2h": H100.h2d})  # a grid both ways


def evidence(*probes: object, device: object = machine.GPU) -> Evidence:
    """Probes without files."""
    backends = {cell.way if cell.pinned else "pageable": cell.backend for p in probes for cell in p.copies}  # type: ignore[attr-defined]
    return Evidence(device, tuple(Probe("probe.json", p) for p in probes), (), backends, ())  # type: ignore[arg-type]


def test_literal_profile(tmp_path: Path) -> None:
    """Two counts of one size give these rates: 4 KiB in 4,096 ns beyond a submit of 1,000 ns is 1 GB/s."""
    cells = [
        replace(machine.copies(KNOWN)[0], direction=direction, descriptor_bytes=4096, count=count,
                job_ns=machine.spread_of(1000 + ns), link_ns=machine.spread_of(ns))
        for direction, count, ns in (("h2d", 1, 4096), ("h2d", 10, 20480), ("d2h", 1, 2048), ("d2h", 10, 20480))
    ]  # fmt: skip
    both = replace(
        machine.duplex(KNOWN)[0],
        h2d_alone_ns=machine.spread_of(800), d2h_alone_ns=machine.spread_of(600),
        h2d_both_ns=machine.spread_of(1000), d2h_both_ns=machine.spread_of(1000),
    )  # fmt: skip
    probe = machine.probe(copies=tuple(cells), duplex=(both,), overlap=machine.overlap(1.25))
    profile = fit_files(machine.save(tmp_path, probe), "mine").profile
    assert profile.name == "mine"
    assert profile.kind == "measured"
    assert profile.device == "NVIDIA Test, host Xeon"
    assert profile.driver == "driver 580.1, CUDA 13.0, torch 2.11"
    assert profile.date == "2026-11-29"
    assert profile.h2d is not None
    assert profile.d2h is not None
    assert profile.h2d.submit.value == 1000
    assert profile.h2d.peak.value == 2_000_000_000
    assert profile.h2d.grid is not None
    assert profile.h2d.grid.counts == [1, 10]
    assert profile.h2d.grid.gb_per_s == {4096: [1.0, 2.0]}
    assert profile.d2h.grid is not None
    assert profile.d2h.grid.gb_per_s == {4096: [2.0, 2.0]}
    assert profile.duplex is not None
    assert profile.duplex.total.value == 2_800_000_000  # 0.8 and 0.6 of the peaks
    assert profile.duplex.h2d_part is not None
    assert profile.duplex.h2d_part.value == pytest.approx(0.5714)
    assert profile.compute_slowdown.value == 1.25
    assert any(note.startswith("copies beside compute take 1.00 times as long") for note in profile.notes)
    assert profile.dma_loop is None
    assert profile.kernel is None
    assert profile.pageable is None
    assert profile.host_dram is None
    source = profile.h2d.grid.source
    assert "probe0.json of 2026-11-29 on NVIDIA Test" in source
    assert "backend memcpy_batch, medians of 9 samples, P10 to P90 0 %" in source


def test_known_machine_exact() -> None:
    """Exact results give the profile back: within 0.1 % on the grid and between its cells."""
    probe = machine.probe(
        copies=machine.copies(KNOWN), duplex=machine.duplex(KNOWN), overlap=machine.overlap(1.0)
    )  # fmt: skip
    profile = fit(evidence(probe), "same").profile
    for direction in ("h2d", "d2h"):
        for size in (4 * KIB, 24 * KIB, 28 * KIB, 2048 * KIB):
            for count in (1, 16, 256, 4096):
                batch = (Pieces(size, count),)
                assert profile.batch_ns("dma_batch", direction, batch) == pytest.approx(  # type: ignore[arg-type]
                    KNOWN.batch_ns("dma_batch", direction, batch), rel=1e-3  # type: ignore[arg-type]
                )  # fmt: skip
        for count in (5, 100, 1000):  # both are read alike between the cells
            batch = (Pieces(25 * KIB, count),)
            assert profile.batch_ns("dma_batch", direction, batch) == pytest.approx(  # type: ignore[arg-type]
                KNOWN.batch_ns("dma_batch", direction, batch), rel=0.02  # type: ignore[arg-type]
            )  # fmt: skip
        assert profile.shared_ppm("dma_batch", direction) == pytest.approx(  # type: ignore[arg-type]
            KNOWN.shared_ppm("dma_batch", direction), rel=0.01  # type: ignore[arg-type]
        )  # fmt: skip
    assert profile.compute_slowdown.value == 1.0


@given(seed=st.integers(0, 2**32), width=st.floats(0, 0.6), most=st.sampled_from([2**20, 2**26, 2**40]))
@settings(max_examples=40)
def test_noise_leaves_a_valid_profile(seed: int, width: float, most: int) -> None:
    """Whatever the noise and the cells that are missing, the profile is valid and time never falls with the count."""
    noise = machine.noisy(seed, width)
    copies = machine.copies(KNOWN, noise=noise, most_bytes=most)
    found = fit(evidence(machine.probe(copies=copies)), "noisy")
    grid = found.profile.h2d and found.profile.h2d.grid
    assert grid is not None
    for size in grid.gb_per_s:
        times = [found.profile.copy_ns("h2d", size, count) for count in range(1, 5000, 97)]
        assert times == sorted(times)
    assert len(found.left_out["h2d"]) == sum(cell.direction == "h2d" for cell in copies)


def test_pooled_cells_are_said() -> None:
    """Where noise makes more descriptors faster both become their geometric mean, and the notes say so."""
    first = machine.copies(KNOWN)[0]
    cells = tuple(
        replace(first, direction=direction, descriptor_bytes=4096, count=count,  # type: ignore[arg-type]
                job_ns=machine.spread_of(ns), link_ns=machine.spread_of(ns))
        for direction in ("h2d", "d2h")
        for count, ns in ((1, 4000), (2, 1000), (4, 8000))
    )  # fmt: skip
    profile = fit(evidence(machine.probe(copies=cells)), "pooled").profile
    assert [profile.copy_ns("h2d", 4096, count) for count in (1, 2, 4)] == [2000, 2000, 8000]
    assert any("2 of 3 cells were moved" in note and "by 100.0 % at most" in note for note in profile.notes)


def test_leave_one_out() -> None:
    """A cell between two others of its size is guessed from them: on a straight line of logarithms without error."""
    first = machine.copies(KNOWN)[0]
    cells = tuple(
        replace(first, direction=direction, descriptor_bytes=4096, count=count,  # type: ignore[arg-type]
                job_ns=machine.spread_of(ns), link_ns=machine.spread_of(ns))
        for direction in ("h2d", "d2h")
        for count, ns in ((1, 1000), (10, 20_000), (100, 100_000))
    )  # fmt: skip
    left = {cell.cell.count: cell for cell in fit(evidence(machine.probe(copies=cells)), "left").left_out["h2d"]}
    assert left[10].by_count == pytest.approx(0.5 - 1)  # sqrt(1000 x 100000) = 10000 instead of 20000
    assert left[1].by_count == pytest.approx(2 - 1)  # 2000 each, as in the call of 10
    assert (left[10].inside, left[1].inside) == (True, False)
    assert left[10].by_size is None
    assert left[10].fitted == pytest.approx(0, abs=1e-4)


def test_other_sections() -> None:
    """A loop, a kernel and pageable copies give their sections back."""
    probe = machine.probe(
        copies=machine.copies(KNOWN)
        + machine.copies(KNOWN, "dma_loop", "memcpy_async", counts=(16, 256))
        + machine.copies(KNOWN, "kernel", "triton", sizes=(1 * KIB, 4 * KIB, 8 * KIB, 512 * KIB))
        + machine.copies(KNOWN, "pageable", "torch"),
        duplex=machine.duplex(KNOWN) + machine.duplex(KNOWN, "kernel", "triton"),
        overlap=machine.overlap(1.0) + machine.overlap(1.3, "kernel", "triton"),
    )
    profile = fit(evidence(probe), "all").profile
    assert profile.dma_loop is not None
    assert profile.dma_loop.per_call.value == pytest.approx(6000, rel=0.01)
    assert profile.pageable is not None
    assert profile.pageable.rate.value == pytest.approx(9.6e9, rel=0.01)
    assert profile.pageable.per_call.value == pytest.approx(6000, rel=0.05)
    section = profile.kernel
    assert section is not None
    assert section.compute_slowdown.value == 1.3
    for size, count in ((1 * KIB, 16), (8 * KIB, 256), (4 * KIB, 4096), (512 * KIB, 256)):
        batch = (Pieces(size, count),)
        assert profile.batch_ns("kernel", "h2d", batch) == pytest.approx(
            KNOWN.batch_ns("kernel", "h2d", batch), rel=0.02
        )
    assert profile.shared_ppm("kernel", "h2d") == pytest.approx(KNOWN.shared_ppm("kernel", "h2d"), rel=0.1)


def test_one_backend_for_each_way(tmp_path: Path) -> None:
    """VLLM's own way comes first; the other is named in the notes, and can be asked for."""
    slow = H100.model_copy(update={"h2d": H100.d2h})
    probe = machine.probe(
        copies=machine.copies(KNOWN)
        + machine.copies(slow, backend="torch")
        + machine.copies(KNOWN, "dma_loop", "torch")
    )
    paths = machine.save(tmp_path, probe)
    usual = fit_files(paths, "usual").profile
    assert "dma_batch: fitted to backend memcpy_batch; also measured: torch" in usual.notes
    assert usual.copy_ns("h2d", 4096, 4096) == pytest.approx(KNOWN.copy_ns("h2d", 4096, 4096), rel=1e-3)
    asked = fit_files(paths, "asked", ["torch"]).profile
    assert asked.copy_ns("h2d", 4096, 4096) == pytest.approx(slow.copy_ns("h2d", 4096, 4096), rel=1e-3)
    with pytest.raises(UserError, match="--backend cuda: not in these results, expected one of memcpy_batch, torch"):
        fit_files(paths, "none", ["cuda"])


def test_jobs_alone_make_the_grid(tmp_path: Path) -> None:
    """Without a probe the jobs that had the link to themselves are the cells; what overlapped is left aside."""
    counts = [count for count in (1, 4, 16, 64) for _ in range(5)]
    jobs = machine.jobs_one_by_one(KNOWN, counts)
    end = jobs[-1].finished_ns + 1000
    jobs += [machine.job(100, "load", end, 9_000_000, 16), machine.job(101, "store", end, 9_000_000, 16)]
    paths = machine.save(tmp_path, machine.run(jobs))
    found = fit_files(paths, "jobs")
    profile = found.profile
    assert profile.h2d is not None
    assert profile.h2d.grid is not None
    assert profile.h2d.grid.counts == [1, 4, 16, 64]
    for count in (1, 4, 16, 64):
        for direction in ("h2d", "d2h"):
            assert profile.copy_ns(direction, 16384, count) == pytest.approx(  # type: ignore[arg-type]
                KNOWN.copy_ns(direction, 16384, count), rel=1e-3  # type: ignore[arg-type]
            )  # fmt: skip
    assert profile.duplex is not None
    assert profile.duplex.total.value is None  # one overlapping job of each direction says nothing
    assert profile.compute_slowdown.value is None
    assert [(check.direction, check.held_out, check.errors.n) for check in found.checks] == [
        ("h2d", False, 21),
        ("d2h", False, 21),
    ]
    assert found.checks[0].errors.median < 1e-3


def test_jobs_are_held_out(tmp_path: Path) -> None:
    """With a probe, and with several replays, the jobs of a replay check a profile that was made without them."""
    jobs = machine.jobs_one_by_one(KNOWN, (1, 16, 256) * 3, size=24 * KIB)
    runs = [machine.run(jobs), machine.run(machine.jobs_one_by_one(KNOWN, (1, 16, 256) * 3, 24 * KIB))]
    probed = fit_files(machine.save(tmp_path, machine.probe(copies=machine.copies(KNOWN)), *runs), "probed")
    assert [check.held_out for check in probed.checks] == [True] * 4
    assert max(check.errors.p99 for check in probed.checks) < 1e-3
    replayed = fit_files(machine.save(tmp_path, *runs), "replayed")
    assert [check.held_out for check in replayed.checks] == [True] * 4
    assert any("run0.json, h2d: 9 jobs, not used for the fit: median error 0.0 %" in n for n in replayed.profile.notes)


def test_duplex_and_slowdown_of_jobs(tmp_path: Path) -> None:
    """Jobs beside each other that take 4/3 of the time keep 3/4 of their speed; passes beside them take 1.2 times."""
    jobs = machine.jobs_one_by_one(KNOWN, [16] * 5)
    now = jobs[-1].finished_ns + 1000
    alone = KNOWN.copy_ns("h2d", 16384, 16)
    steps = [StepResult(n, n * 1000, n * 1000 + 10, 10, 10) for n in range(0)]
    for number in range(6):
        for direction in ("load", "store"):
            jobs.append(machine.job(len(jobs), direction, now, alone * 4 // 3, 16))
        steps.append(StepResult(2 * number, now, now + alone, alone, round(alone * 1.2)))
        now += 2 * alone
        steps.append(StepResult(2 * number + 1, now - alone // 3, now - alone // 6, 1000, 1000))
    profile = fit_files(machine.save(tmp_path, machine.run(jobs, steps)), "both").profile
    assert profile.shared_ppm("dma_batch", "h2d") == pytest.approx(750_000, rel=0.01)
    assert profile.shared_ppm("dma_batch", "d2h") == pytest.approx(750_000, rel=0.01)
    assert profile.compute_slowdown.value == pytest.approx(1.2, abs=0.001)
    assert "6 forward passes beside copies against 6 without" in profile.compute_slowdown.source


def test_a_host_is_no_gpu(tmp_path: Path) -> None:
    """A profile of host threads says so in kind, device, driver, notes and every source."""
    cells = machine.copies(KNOWN, backend="host")
    profile = fit_files(machine.save(tmp_path, machine.probe(machine.HOST, copies=cells)), "cpu").profile
    assert profile.kind == "host"
    assert profile.device == "EPYC Test (host threads, no GPU)"
    assert profile.driver == "none (no GPU)"
    assert profile.notes[0].endswith("no GPU was involved.")
    assert profile.h2d is not None
    assert "(host threads, no GPU)" in profile.h2d.peak.source


def test_written_and_loaded(tmp_path: Path) -> None:
    """The file gives the same profile back; the errors of its cells lie beside it."""
    profile = fit(evidence(machine.probe(copies=machine.copies(KNOWN, noise=machine.noisy(1)))), "gpu").profile
    path = tmp_path / "deep" / "gpu.profile.yaml"
    write_profile(path, profile)
    assert load_link(path) == profile
    assert isinstance(load_link(str(path)), LinkProfile)
    assert written_beside(path) == tmp_path / "deep" / "gpu.fit.json"
    assert written_beside(Path("a.yaml")) == Path("a.fit.json")


def test_refused(tmp_path: Path) -> None:
    """Nothing, other formats, mixed devices, wrong bytes, impossible times and missing directions: one message each."""
    good = machine.probe(copies=machine.copies(KNOWN))
    wrong = Integrity(1, 1, WrongByte(0, "host", 3, 7, 100, 1, 2))
    jobs = machine.jobs_one_by_one(KNOWN, (1, 2))
    other = replace(machine.GPU, device="NVIDIA Other")
    cases = {
        "no results given": [],
        "measured elsewhere than .*probe0.json: device 'NVIDIA Other' and 'NVIDIA Test'": [
            good, machine.probe(other, copies=good.copies),
        ],
        "kind 'host' and 'cuda'": [good, machine.run(jobs, device=machine.HOST)],
        "integrity failed: host block 3, offset 100: found 0x1, expected 0x2": [
            replace(machine.run(jobs), integrity=wrong),
        ],
        "job 7: expected 0 <= started_ns < finished_ns, found 5 and 5": [machine.run([machine.job(7, "load", 5, 0)])],
        "job 7: expected at least one descriptor": [machine.run([machine.job(7, "load", 5, 1, 0)])],
        "step 0: ends at 4, before it starts at 5": [machine.run(jobs, [StepResult(0, 5, 4, 1, 1)])],
        "no copies between GPU and host": [machine.run([machine.job(0, "write", 0, 10)])],
        r"no batched copies of stores \(d2h\)": [machine.run(jobs[:1])],
        r"no batched copies of loads \(h2d\)": [machine.run(jobs, backend="torch", way="dma_loop")],
        "expected times, samples and sizes above 0": [
            machine.probe(copies=(replace(good.copies[0], job_ns=machine.spread_of(0)),)),
        ],
    }  # fmt: skip
    for number, (message, results) in enumerate(cases.items()):
        folder = tmp_path / str(number)
        paths = machine.save(folder, *results)
        with pytest.raises(UserError, match=message):
            fit_files(paths, "bad")
    paths = machine.save(tmp_path / "nan", good)
    paths[0].write_text(paths[0].read_text().replace('"median": 4000', '"median": NaN', 1))
    with pytest.raises(
        UserError, match=r"probe0\.json: copies\[0\]\.submit_ns\.median: expected a whole number, found nan"
    ):
        read_evidence(paths)
    (tmp_path / "x.json").write_text(json.dumps({"format": "other"}))
    with pytest.raises(UserError, match="expected a result of format hwreplay-probe or hwreplay-run, found 'other'"):
        read_evidence([tmp_path / "x.json"])
