"""A write with `commit=False`: all is staged and checked, and the user commits it, once."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa
import pytest
from pyiceberg.types import StringType

import holdfast as hf
from holdfast import rehearsal
from holdfast.engine import resolve
from holdfast.engine.cleanup import sweep
from holdfast.engine.commit import Commit
from holdfast.engine.options import WriteOptions
from holdfast.errors import (
    EmptyOutputError,
    RunAbortedError,
    RunFencedError,
    RunMismatchError,
    RunNotReadyError,
    SettingsError,
    StagedFileMissingError,
    TableChangedError,
)
from holdfast.ledger.ledger import Ports
from holdfast.ledger.run_log import RunLog
from holdfast.model.records import Body, Claim, Ready, Record
from holdfast.sinks.base import Sink
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.spark import dataframe
from tests.fakes.cli_lake import (
    CliLake,
    die_before_post,
    die_before_receipt,
    lake,
)
from tests.fakes.memory_storage import DriverDiedError
from tests.fakes.memory_submitter import MemorySubmitter

__all__ = ["lake"]


def table_of(lake: CliLake) -> hf.IcebergTable:
    """Return the table as a user names it."""
    return hf.IcebergTable("db.t", catalog={"name": "lake", **lake.properties})


def run_of(lake: CliLake) -> hf.Run:
    """Return the run as another process opens it: without the script that has staged it."""
    return hf.Run("r", store=lake.store)


def stage(lake: CliLake, ids: range = range(20), **options: Any) -> hf.Report:  # noqa: ANN401
    """Start the script with `commit=False`; it ends, as a process does."""
    half = len(ids) // 2
    rows = MemorySubmitter(ids[:half], ids[half:])
    return lake.start("r", rows, GONE, commit=False, **options)


GONE = Ports(process_id=2**30)


def ids_of(sink: Sink) -> list[int]:
    """Return the ids in the table."""
    assert isinstance(sink, IcebergSink)
    found = sink.load().handle.scan().to_arrow()["id"].to_pylist()
    return sorted(found)


def others_append(sink: Sink, *ids: int) -> None:
    """Append rows as another writer does."""
    sink.load().handle.append(pa.table({"id": pa.array(ids, pa.int64())}))


def test_nothing_is_in_the_table_before_the_commit_and_each_row_once_after_it(
    lake: CliLake,
) -> None:
    sink = lake.make_table()
    report = stage(lake)
    assert (report.outcome, report.rows, report.snapshot_id, report.posts) == ("ready", 20, None, 0)
    assert "run.commit() commits them" in str(report)
    assert sink.load().parent_snapshot_id is None
    assert run_of(lake).status().state == "ready"
    done = run_of(lake).commit(to=table_of(lake))
    assert (done.outcome, done.rows, done.kept_rows, done.posts) == ("committed", 20, 20, 1)
    assert ids_of(sink) == list(range(20))
    again = run_of(lake).commit(to=table_of(lake))
    assert (again.outcome, again.snapshot_id) == ("already_committed", done.snapshot_id)
    assert ids_of(sink) == list(range(20))
    assert run_of(lake).status().state == "committed"


@pytest.mark.parametrize("dies", [die_before_post, die_before_receipt])
def test_a_commit_that_is_killed_is_called_again(lake: CliLake, dies: Callable[..., None]) -> None:
    """`dies` starts the script without `commit=False`: a commit runs the same code from there."""
    sink = lake.make_table()
    stage(lake)
    dies(lake)
    assert run_of(lake).commit(to=table_of(lake)).outcome in {"committed", "already_committed"}
    assert ids_of(sink) == list(range(20))


def test_a_commit_that_dies_after_it_has_copied_old_files_is_called_again(lake: CliLake) -> None:
    """What waits for days is copied first, so that no upkeep of the table deletes it."""
    sink = lake.make_table()
    stage(lake)
    with (
        mock.patch.object(resolve, "_OLD_AFTER_S", 0.0),
        mock.patch.object(IcebergSink, "post", side_effect=DriverDiedError),
        pytest.raises(DriverDiedError),
    ):
        run_of(lake).commit(to=table_of(lake))
    assert len(lake.data_files()) == 4
    assert run_of(lake).commit(to=table_of(lake)).outcome == "committed"
    assert ids_of(sink) == list(range(20))


def test_a_start_of_the_script_without_it_commits(lake: CliLake) -> None:
    sink = lake.make_table()
    stage(lake)
    report = lake.start("r", MemorySubmitter(range(10), range(10, 20)))
    assert (report.outcome, report.kept_rows, report.tasks) == ("committed", 20, 0)
    assert ids_of(sink) == list(range(20))


def test_staging_again_computes_nothing_and_takes_what_the_input_has_gained(
    lake: CliLake,
) -> None:
    sink = lake.make_table()
    stage(lake)
    assert stage(lake).kept_rows == 20
    assert stage(lake, range(30)).rows == 30
    assert run_of(lake).commit(to=table_of(lake)).rows == 30
    assert ids_of(sink) == list(range(30))


def test_rows_that_came_after_the_commit_are_told_by_the_next_start(lake: CliLake) -> None:
    """A commit does not compare the input: the script does."""
    lake.make_table()
    stage(lake)
    run_of(lake).commit(to=table_of(lake))
    with pytest.raises(RunMismatchError):
        stage(lake, range(30))


def test_what_is_not_staged_as_a_whole_is_not_committed(lake: CliLake) -> None:
    """No start has ended with `commit=False`; or one after it has begun to compute more."""
    sink = lake.make_table()
    lake.start_and_die("r", MemorySubmitter(range(10), range(10, 20)))
    with pytest.raises(RunNotReadyError, match="no write with commit=False has ended"):
        run_of(lake).commit(to=table_of(lake))
    stage(lake)
    lake.start_and_die("r", MemorySubmitter(range(10), range(10, 20), range(20, 30)))
    with pytest.raises(RunNotReadyError, match="a later start has changed what is staged"):
        run_of(lake).commit(to=table_of(lake))
    assert sink.load().parent_snapshot_id is None
    assert run_of(lake).status().state != "ready"


def test_rows_that_a_later_start_has_sealed_and_not_checked_are_not_committed(
    lake: CliLake,
) -> None:
    """That start dies between its seal and its last record: they were not looked at."""
    sink = lake.make_table()
    stage(lake)
    append = RunLog.append

    def until_ready(log: RunLog, body: Body) -> Record:
        if isinstance(body, Ready):
            raise DriverDiedError
        return append(log, body)

    with mock.patch.object(RunLog, "append", until_ready), pytest.raises(DriverDiedError):
        stage(lake, range(30))
    with pytest.raises(RunNotReadyError, match="a later start has changed what is staged"):
        run_of(lake).commit(to=table_of(lake))
    assert sink.load().parent_snapshot_id is None
    assert stage(lake, range(30)).rows == 30
    assert run_of(lake).commit(to=table_of(lake)).rows == 30


def test_an_aborted_run_is_not_committed_and_its_files_are_swept(lake: CliLake) -> None:
    sink = lake.make_table()
    stage(lake)
    run_of(lake).abort(to=table_of(lake), reason="the rows are wrong")
    with pytest.raises(RunAbortedError):
        run_of(lake).commit(to=table_of(lake))
    assert lake.data_files()
    sweep(lake.ledger("r"), lambda _identity: sink)
    assert lake.data_files() == []
    assert sink.load().parent_snapshot_id is None


def test_a_staged_file_that_is_gone_stops_the_commit_and_a_start_makes_it_anew(
    lake: CliLake,
) -> None:
    sink = lake.make_table()
    stage(lake)
    lake.data_files()[0].unlink()
    with pytest.raises(StagedFileMissingError):
        run_of(lake).commit(to=table_of(lake))
    assert stage(lake).rows == 20
    run_of(lake).commit(to=table_of(lake))
    assert ids_of(sink) == list(range(20))


def test_what_is_ready_has_all_its_files(lake: CliLake) -> None:
    """One that is deleted while the write ends is made anew by it, and not missed by the commit."""
    sink = lake.make_table()
    rehearse, tried = Commit.rehearse, list[int]()

    def without_a_file(*given: Any) -> Any:  # noqa: ANN401 - it passes them on.
        tried.append(1)
        if len(tried) == 1:
            lake.data_files()[0].unlink()
        return rehearse(*given)

    with mock.patch.object(Commit, "rehearse", without_a_file):
        assert stage(lake).outcome == "ready"
    assert run_of(lake).commit(to=table_of(lake)).rows == 20
    assert ids_of(sink) == list(range(20))


def test_an_overwrite_says_what_it_would_replace_and_replaces_what_is_there_then(
    lake: CliLake,
) -> None:
    sink = lake.make_table()
    others_append(sink, -1, -2)
    report = stage(lake, mode="overwrite")
    assert (report.replaced_rows, report.replaced_files) == (2, 1)
    assert "replaces  2 rows in 1 file" in str(report)
    others_append(sink, -3)
    assert run_of(lake).commit(to=table_of(lake), mode="overwrite").replaced_rows == 3
    assert ids_of(sink) == list(range(20))


@pytest.mark.parametrize(
    ("options", "left"),
    [({"if_table_changed": "raise"}, None), ({"isolation_level": "snapshot"}, [-3])],
)
def test_the_options_of_the_write_are_those_of_the_commit(
    lake: CliLake, options: Mapping[str, Any], left: list[int] | None
) -> None:
    sink = lake.make_table()
    others_append(sink, -1, -2)
    stage(lake, mode="overwrite", **options)
    others_append(sink, -3)
    if left is None:
        with pytest.raises(TableChangedError):
            run_of(lake).commit(to=table_of(lake), mode="overwrite")
        assert ids_of(sink) == [-3, -2, -1]
    else:
        run_of(lake).commit(to=table_of(lake), mode="overwrite")
        assert ids_of(sink) == [*left, *range(20)]


def test_an_overwrite_without_rows_is_refused_when_it_is_staged(lake: CliLake) -> None:
    sink = lake.make_table()
    others_append(sink, -1)
    with pytest.raises(EmptyOutputError):
        stage(lake, range(0), mode="overwrite")
    stage(lake, range(0), mode="overwrite", allow_empty=True)
    run_of(lake).commit(to=table_of(lake), mode="overwrite")
    assert ids_of(sink) == []


@pytest.mark.parametrize("options", [{}, {"mode": "upsert", "on": "id"}])
def test_a_table_that_no_longer_fits_is_told_by_the_commit(
    lake: CliLake, options: dict[str, Any]
) -> None:
    sink = lake.make_table()
    stage(lake, **options)
    with sink.load().handle.update_schema() as update:
        update.rename_column("id", "number")
    with pytest.raises(TableChangedError):
        run_of(lake).commit(to=table_of(lake), **options)
    with pytest.raises((TableChangedError, SettingsError)):  # A key may have been mistyped.
        stage(lake, **options)
    assert sink.load().parent_snapshot_id is None


def test_a_table_of_the_same_name_is_not_written_to(lake: CliLake) -> None:
    sink = lake.make_table()
    stage(lake)
    sink._catalog.drop_table("db.t")  # noqa: SLF001
    new = lake.make_table()
    with pytest.raises(RunMismatchError):
        run_of(lake).commit(to=table_of(lake))
    assert new.load().parent_snapshot_id is None


def test_two_commits_at_once_land_once(lake: CliLake) -> None:
    """The second one takes the run over while the first is about to post."""
    sink = lake.make_table()
    stage(lake)
    post = IcebergSink.post
    second: list[bool] = []

    def other_first(*given: Any) -> Any:  # noqa: ANN401 - it passes them on.
        if not second:
            second.append(True)
            again = hf.Run("r", store=lake.store, takeover="now")
            assert again.commit(to=table_of(lake)).outcome == "committed"
        return post(*given)

    with mock.patch.object(IcebergSink, "post", other_first), pytest.raises(RunFencedError):
        run_of(lake).commit(to=table_of(lake))
    assert ids_of(sink) == list(range(20))


def test_a_commit_on_another_machine_does_not_wait_for_the_driver_that_has_staged(
    lake: CliLake,
) -> None:
    """That process may still be alive, as in a notebook: it has said that it has ended."""
    sink = lake.make_table()
    rows = MemorySubmitter(range(10), range(10, 20))
    lake.start("r", rows, Ports(process_id=1, machine="another"), commit=False)
    never = hf.Run("r", store=lake.store, takeover="never")
    assert never.commit(to=table_of(lake)).outcome == "committed"
    assert ids_of(sink) == list(range(20))


def test_a_filter_that_the_log_cannot_keep_is_refused_before_anything_is_done() -> None:
    date = dt.date(2026, 11, 19)
    with pytest.raises(SettingsError, match="commit=False cannot keep"):
        WriteOptions(where=[("day", "=", date)], commit=False)
    given = WriteOptions(where=[("n", ">", 3)], commit=False)
    assert WriteOptions.where_of(given.where_text) == [["n", ">", 3]]
    assert WriteOptions.where_of("n > 3") == "n > 3"
    assert WriteOptions.where_of("") is None


def test_the_log_says_who_is_to_commit(lake: CliLake, capsys: pytest.CaptureFixture[str]) -> None:
    lake.make_table()
    stage(lake)
    ledger = lake.ledger("r")
    ledger.log.refresh()
    assert isinstance(ledger.log.records[-1].body, Ready)
    assert lake.call("status", "r") == 0
    assert "run.commit()" in capsys.readouterr().out
    assert lake.call("inspect", "r") == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "staged and checked; the user commits them" in printed
    page = lake.folder / "page.html"
    assert lake.call("report", "r", "--out", str(page)) == 0
    assert "Everything is staged and checked" in page.read_text(encoding="utf-8")


def test_a_commit_claims_the_run_with_the_budget_of_its_own_run_only(lake: CliLake) -> None:
    lake.make_table()
    stage(lake)
    run_of(lake).commit(to=table_of(lake))
    ledger = lake.ledger("r")
    ledger.log.refresh()
    claims = [record.body for record in ledger.log.records if isinstance(record.body, Claim)]
    assert [claim.budget for claim in claims] == [None, None]


def test_a_dataset_is_committed_later_too(lake: CliLake) -> None:
    sink, dataset = lake.make_dataset(), hf.LanceTable(f"{lake.folder}/t.lance")
    before = sink.load().handle.dataset.version
    assert stage(lake, sink=sink).outcome == "ready"
    assert sink.load().handle.dataset.version == before
    assert run_of(lake).commit(to=dataset).rows == 20
    rows = sink.load().handle.dataset.to_table()["id"].to_pylist()
    assert sorted(rows) == list(range(20))


def test_staged_rows_need_spark_and_a_run_that_is_ready(lake: CliLake) -> None:
    lake.make_table()
    with pytest.raises(SettingsError, match="no Spark session"):
        run_of(lake).staged_rows(to=table_of(lake))


def test_staged_files_are_read_as_the_table_has_them(lake: CliLake) -> None:
    """Columns by id: one that was renamed since, and one that the files do not have."""
    sink = lake.make_table()
    stage(lake)
    with sink.load().handle.update_schema() as update:
        update.add_column("later", StringType())
    file = lake.data_files()[0]
    item = f'[["file://{file}", {Path(file).stat().st_size}]]'
    found = [
        row
        for rows in sink.staged_reader(sink.load()).open().rows(item)
        for row in rows.to_pylist()
    ]
    assert len(found) == 10
    assert {row["later"] for row in found} == {None}


def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Let there be a Spark session; return the files of each look."""
    found: list[Any] = []
    known = hf.Run._known_ledger  # noqa: SLF001
    monkeypatch.setattr(hf.Run, "_known_ledger", lambda run, _session: known(run, None))
    monkeypatch.setattr(rehearsal, "active_session", object)
    monkeypatch.setattr(
        dataframe, "staged_frame", lambda _session, _reader, files: found.append(files)
    )
    return found


def test_rows_are_only_looked_at_in_the_table_of_the_run(
    lake: CliLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another table's columns would give them other names."""
    sink, found = lake.make_table(), looked_at(monkeypatch)
    stage(lake)
    run_of(lake).staged_rows(to=table_of(lake))
    assert [sum(file.rows for file in files) for files in found] == [20]
    sink._catalog.drop_table("db.t")  # noqa: SLF001
    lake.make_table()
    with pytest.raises(RunMismatchError):
        run_of(lake).staged_rows(to=table_of(lake))
    assert len(found) == 1


def test_rows_of_an_aborted_run_are_not_looked_at(
    lake: CliLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before a sweep, which deletes them, as well as after it."""
    sink, found = lake.make_table(), looked_at(monkeypatch)
    stage(lake)
    run_of(lake).abort(to=table_of(lake))
    for _ in range(2):
        with pytest.raises(RunNotReadyError, match="it was aborted"):
            run_of(lake).staged_rows(to=table_of(lake))
        sweep(lake.ledger("r"), lambda _identity: sink)
    assert found == []


def test_what_was_staged_under_another_version_is_not_committed(lake: CliLake) -> None:
    """If the commit names one; without, it takes what there is."""
    lake.make_table()
    stage(lake)
    other = hf.Run("r", store=lake.store, version="v2")
    with pytest.raises(RunMismatchError, match="version"):
        other.commit(to=table_of(lake))
    assert run_of(lake).commit(to=table_of(lake)).rows == 20


def test_what_was_staged_for_one_branch_is_committed_to_no_other(
    lake: CliLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A target that names no branch is on `main`, which a run that waits for an audit is not."""
    sink, found = lake.make_table(), looked_at(monkeypatch)
    others_append(sink, 100)
    table = sink.load().handle
    head = table.current_snapshot().snapshot_id
    for name in ("dev", "prod"):
        table.manage_snapshots().create_branch(head, name).commit()
    dev = IcebergSink(sink._catalog, "db.t", "dev")  # noqa: SLF001
    stage(lake, sink=dev, branch="dev")
    on_dev, on_prod = replace(table_of(lake), branch="dev"), replace(table_of(lake), branch="prod")
    for other in (table_of(lake), on_prod):
        for call in ("commit", "staged_rows", "abort", "sweep"):
            with pytest.raises(RunMismatchError, match="its branch was 'dev', and is now '"):
                getattr(run_of(lake), call)(to=other)
    assert not found
    run_of(lake).staged_rows(to=on_dev)
    run_of(lake).commit(to=on_dev)
    heads = {name: ref.snapshot_id for name, ref in sink.load().handle.refs().items()}
    assert heads.pop("dev") != head
    assert set(heads.values()) == {head}


def test_an_upsert_is_committed_without_spark_if_nobody_has_changed_the_table(
    lake: CliLake,
) -> None:
    """With what others have added since it says that it must search that."""
    sink = lake.make_table()
    others_append(sink, 1, 100)
    stage(lake, mode="upsert", on="id")
    run_of(lake).commit(to=table_of(lake), mode="upsert", on="id")
    assert ids_of(sink) == [*range(20), 100]


def test_an_upsert_says_that_its_commit_needs_spark_if_others_have_changed_the_table(
    lake: CliLake,
) -> None:
    sink = lake.make_table()
    others_append(sink, 1, 100)
    stage(lake, mode="upsert", on="id")
    others_append(sink, 2)
    with pytest.raises(SettingsError, match="others have changed the table"):
        run_of(lake).commit(to=table_of(lake), mode="upsert", on="id")
    assert ids_of(sink) == [1, 2, 100]


def test_a_run_that_has_landed_as_usual_says_so(lake: CliLake) -> None:
    lake.make_table()
    lake.start("r", MemorySubmitter(range(20)), GONE)
    with pytest.raises(RunNotReadyError, match="it has landed"):
        run_of(lake).commit(to=table_of(lake))
