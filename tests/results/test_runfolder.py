"""A run folder appears whole or not at all, comes back as it was, and damage is told."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from run_builder import requests_of, small_requests, small_series, small_totals

from kvsim.errors import UserError
from kvsim.results.run import assemble
from kvsim.results.runfolder import RunFolder, load_run
from kvsim.results.summary import REQUEST_COLUMNS, SERIES_COLUMNS


def write(path: Path, overwrite: bool = False, notes: tuple[str, ...] = ()) -> Path:
    """A small run at ``path``."""
    with RunFolder.create(path, overwrite=overwrite) as folder:
        folder.write(
            assemble(
                requests=small_requests(),
                series=small_series(),
                totals=small_totals(),
                config_text="model: m\n",
                notes=notes,
                info={"Trace": "t"},
            )
        )
    return path


def test_round_trip(tmp_path: Path) -> None:
    """What was written comes back: tables, totals, notes, config, digest and versions."""
    run = load_run(write(tmp_path / "a" / "b" / "run", notes=("β is a guess (source: us)",)))
    pd.testing.assert_frame_equal(run.requests, small_requests(), check_dtype=False)
    pd.testing.assert_frame_equal(run.series, small_series())
    assert run.name == "run"
    assert run.config_text == "model: m\n"
    assert run.summary["totals"] == small_totals()
    assert run.summary["notes"] == ["β is a guess (source: us)"]
    assert run.summary["info"] == {"Trace": "t"}
    assert run.summary["schema"] == 1
    assert run.summary["warnings"][0].startswith("2 of 7 requests (29 %) were rejected")
    assert {"kvsim", "python", "platform"} <= set(run.summary["versions"])
    assert [entry.name for entry in (tmp_path / "a" / "b").iterdir()] == ["run"]


def test_many_requests_are_written_in_row_groups(tmp_path: Path) -> None:
    """A table of 40,000 rows is written 16,384 at a time and read back in order, with the digest of all of them."""
    rows = [{"turn": number, "session": f"s{number % 7}", "reason": "é" * (number % 3)} for number in range(40_000)]
    requests = requests_of(rows)
    with RunFolder.create(tmp_path / "run") as folder:
        folder.write(assemble(requests=requests, series=small_series(), totals={}, config_text=""))
    groups = pq.ParquetFile(tmp_path / "run" / "requests.parquet").metadata
    assert [groups.row_group(at).num_rows for at in range(groups.num_row_groups)] == [16_384, 16_384, 7_232]
    run = load_run(tmp_path / "run")
    assert run.requests["turn"].tolist() == list(range(40_000))
    names = ["\t".join(REQUEST_COLUMNS)]
    lines = [
        "\t".join(json.dumps(value) if isinstance(value, str) else str(value) for value in row)
        for row in zip(*(requests[name].tolist() for name in REQUEST_COLUMNS), strict=True)
    ]
    text = "".join(f"{line}\n" for line in names + lines)
    assert run.summary["digest"] == hashlib.sha256(text.encode()).hexdigest()


def test_same_data_same_bytes(tmp_path: Path) -> None:
    """Two folders of the same run are equal byte for byte, whatever the order and types of the columns."""
    first = write(tmp_path / "one")
    with RunFolder.create(tmp_path / "two") as folder:
        folder.write(
            assemble(
                requests=small_requests()[list(reversed(REQUEST_COLUMNS))].astype(object),
                series=small_series()[list(reversed(SERIES_COLUMNS))].set_index(pd.Index([5, 6])),
                totals=small_totals(),
                config_text="model: m\n",
                info={"Trace": "t"},
            )
        )
    names = sorted(entry.name for entry in first.iterdir())
    assert names == ["config.resolved.yaml", "requests.parquet", "series.parquet", "summary.json"]
    for name in names:
        assert (first / name).read_bytes() == (tmp_path / "two" / name).read_bytes(), name


def test_parquet_has_no_foreign_metadata(tmp_path: Path) -> None:
    """The parquet files carry the fixed schema, zstd, and no metadata of pandas or arrow."""
    file = pq.ParquetFile(write(tmp_path / "run") / "requests.parquet")
    assert file.schema_arrow.names == list(REQUEST_COLUMNS)
    assert file.metadata.metadata is None
    assert file.metadata.row_group(0).column(0).compression == "ZSTD"


def test_further_columns_are_kept(tmp_path: Path) -> None:
    """Columns beyond the fixed ones follow them and come back."""
    with RunFolder.create(tmp_path / "run") as folder:
        folder.write(
            assemble(
                requests=small_requests().assign(tenant="x", share=0.5),
                series=small_series(),
                totals={},
                config_text="",
            )
        )
    assert list(load_run(tmp_path / "run").requests.columns) == [*REQUEST_COLUMNS, "tenant", "share"]


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError, UserError, SystemExit])
def test_interrupted_leaves_nothing(tmp_path: Path, error: type[BaseException]) -> None:
    """A run that ends early leaves neither a folder, nor a temporary one, nor the parents made for it."""

    def interrupted() -> None:
        with RunFolder.create(tmp_path / "new" / "run") as folder:
            folder.write(assemble(requests=small_requests(), series=small_series(), totals={}, config_text=""))
            (folder.plots / "p.png").write_bytes(b"x")
            raise error

    with pytest.raises(error):
        interrupted()
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_run_left_is_removed(tmp_path: Path) -> None:
    """The next run to a place removes what killed ones left; not what others use, locked or of a living process."""
    for name in (".run.partial-99999999", ".run.partial-99999998", ".run.partial-1", ".r.partial-99999999", ".run.x"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kv_events.jsonl").touch()
    locked = os.open(tmp_path / ".run.partial-99999998", os.O_RDONLY)
    fcntl.flock(locked, fcntl.LOCK_EX)
    write(tmp_path / "run")
    os.close(locked)
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        (".run.partial-99999998", ".run.partial-1", ".r.partial-99999999", ".run.x", "run")
    )


def test_a_run_being_written_is_locked(tmp_path: Path) -> None:
    """Nobody else can lock the temporary folder of a run as long as it is written."""
    with RunFolder.create(tmp_path / "run") as folder:
        opened = os.open(folder.path, os.O_RDONLY)
        with pytest.raises(BlockingIOError):
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        folder.write(assemble(requests=small_requests(), series=small_series(), totals={}, config_text=""))
    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(opened)


def test_interrupted_overwrite_keeps_the_old_run(tmp_path: Path) -> None:
    """When a run that should replace another ends early, the other is still there, whole."""
    path = write(tmp_path / "run", notes=("old",))
    with pytest.raises(KeyboardInterrupt), RunFolder.create(path, overwrite=True):
        raise KeyboardInterrupt
    assert load_run(path).summary["notes"] == ["old"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_overwrite_replaces_a_run(tmp_path: Path) -> None:
    """A run folder is replaced when asked for, with nothing of the old one left."""
    path = write(tmp_path / "run", notes=("old",))
    (path / "plots").mkdir()
    (path / "plots" / "old.png").write_bytes(b"x")
    write(path, overwrite=True, notes=("new",))
    assert load_run(path).summary["notes"] == ["new"]
    assert not (path / "plots").exists()
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_refuses_what_is_there(tmp_path: Path) -> None:
    """Files, other folders, links, and runs that hold somebody's files are never replaced."""
    run = write(tmp_path / "run")
    with pytest.raises(UserError, match="a run is there already; expected a new name, or --overwrite"):
        write(run)
    (run / "my notes.txt").write_text("precious")
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to(tmp_path / "gone")
    for name in ("run", "folder", "file", "link"):
        with pytest.raises(UserError, match="exists and is not a run folder"):
            write(tmp_path / name, overwrite=True)
    assert (run / "my notes.txt").read_text() == "precious"
    assert (tmp_path / "file").read_text() == "x"


def test_parent_that_is_a_file(tmp_path: Path) -> None:
    """A path below a file is a user's error with the path in it."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match=r"file/run: cannot make the run folder: "):
        write(tmp_path / "file" / "run")


def test_unwritten_folder_is_a_fault(tmp_path: Path) -> None:
    """A block that ends without writing a run is a fault of the program and leaves nothing."""
    with pytest.raises(RuntimeError, match="never written"), RunFolder.create(tmp_path / "run"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_bad_tables_are_refused(tmp_path: Path) -> None:
    """A missing column and an empty cell are errors, and leave nothing."""
    with (
        pytest.raises(ValueError, match=r"series.parquet: the table lacks the columns h2d_bytes"),
        RunFolder.create(tmp_path / "run") as folder,
    ):
        folder.write(
            assemble(
                requests=small_requests(),
                series=small_series().drop(columns="h2d_bytes"),
                totals={},
                config_text="",
            )
        )
    with (
        pytest.raises(ValueError, match=r"requests.parquet: the column tenant has empty cells"),
        RunFolder.create(tmp_path / "run") as folder,
    ):
        folder.write(
            assemble(requests=small_requests().assign(tenant=None), series=small_series(), totals={}, config_text="")
        )
    assert list(tmp_path.iterdir()) == []


def test_damage_is_told(tmp_path: Path) -> None:
    """Whatever is missing or damaged in a run folder is named in one line."""
    whole = write(tmp_path / "run")

    def damaged(name: str) -> Path:
        shutil.rmtree(tmp_path / "broken", ignore_errors=True)
        shutil.copytree(whole, tmp_path / "broken")
        return tmp_path / "broken" / name

    def told() -> str:
        with pytest.raises(UserError) as caught:
            load_run(tmp_path / "broken")
        assert "\n" not in str(caught.value)
        return str(caught.value)

    damaged("summary.json").unlink()
    assert "not a run folder: summary.json is missing" in told()
    damaged("summary.json").write_text('{\n "kind": "kvsim-run",')
    assert "summary.json: line 2: not JSON" in told()
    damaged("summary.json").write_bytes(b"\xff\xfe\x00")
    assert "summary.json: cannot be read" in told()
    damaged("summary.json").write_text("[1]")
    assert "summary.json: not the summary of a run" in told()
    summary = json.loads((whole / "summary.json").read_text())
    damaged("summary.json").write_text(json.dumps(summary | {"schema": 7}))
    assert "summary.json: schema version 7; kvsim 0" in told()
    damaged("summary.json").write_text(json.dumps({k: v for k, v in summary.items() if k != "latency"}))
    assert "summary.json: the field 'latency' is missing" in told()
    damaged("summary.json").write_text(json.dumps(summary | {"digest": "0" * 64}))
    assert "does not belong to summary.json (digest 000000000000); expected the same digest" in told()

    parquet = damaged("requests.parquet")
    parquet.write_bytes(parquet.read_bytes()[:-100])
    assert "requests.parquet: damaged or not a parquet file: " in told()
    damaged("series.parquet").write_bytes(b"")
    assert "series.parquet: damaged or not a parquet file: " in told()
    damaged("series.parquet").unlink()
    assert "incomplete run folder: series.parquet is missing" in told()
    small_series().drop(columns="waiting").to_parquet(damaged("series.parquet"))
    assert "series.parquet: the column waiting is missing" in told()
    small_series().astype({"waiting": "float64"}).to_parquet(damaged("series.parquet"))
    assert "series.parquet: the column waiting holds double, expected int64" in told()
    small_requests().assign(status="lost").to_parquet(damaged("requests.parquet"))
    assert "requests.parquet: " in told()


def test_not_a_folder(tmp_path: Path) -> None:
    """A path that is not there, and one that is a file, are told apart."""
    with pytest.raises(UserError, match="gone: does not exist; expected a run folder"):
        load_run(tmp_path / "gone")
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="file: is a file; expected a run folder"):
        load_run(tmp_path / "file")
