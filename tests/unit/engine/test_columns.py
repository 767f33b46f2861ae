"""Columns are computed for rows that are in a Lance dataset, whatever others do meanwhile."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import lance
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from holdfast.engine.cleanup import abort, sweep
from holdfast.errors import (
    RunFencedError,
    RunMismatchError,
    SettingsError,
    TableChangedError,
    TooManyErrorsError,
    TransformError,
)
from holdfast.sinks.base import Outcome
from tests.fakes.column_rig import ColumnRig, DriverDied, rows_of

# What the first rows are computed for twice: once to see which columns there are.
PROBED = 8


@pytest.fixture
def rig(tmp_path: Path) -> ColumnRig:
    """Return a folder for a dataset; nothing is in it yet."""
    return ColumnRig(str(tmp_path / "t.lance"))


@pytest.mark.parametrize("stable", [False, True], ids=["addresses", "stable row ids"])
@pytest.mark.parametrize("version", ["2.0", "2.1", "2.2"])
def test_columns_are_added_in_one_version(rig: ColumnRig, version: str, *, stable: bool) -> None:
    """Deleted rows are not computed, and every other row gets its own values."""
    rig.make(data_storage_version=version, enable_stable_row_ids=stable)
    rig.dataset().delete("id % 7 = 3")
    before = rig.dataset()
    report = rig.start()
    rig.assert_filled(rows=26)
    assert len(rig.computed) == 26 + PROBED
    assert rig.dataset().version == before.version + 1
    assert (report.rows, report.rows_again, report.rows_without_columns) == (26, 0, 0)
    files = [fragment.metadata.files for fragment in rig.dataset().get_fragments()]
    old = [fragment.metadata.files for fragment in before.get_fragments()]
    assert [both[:-1] for both in files] == old


def test_a_start_after_the_commit_computes_nothing(rig: ColumnRig) -> None:
    """The mark in the dataset shows that the run has landed."""
    rig.make()
    rig.start()
    rig.computed.clear()
    assert rig.start().outcome == "already_committed"
    assert rig.start(if_committed="return").outcome == "already_committed"
    assert rig.computed == []


def test_whole_fragments_need_no_second_file(rig: ColumnRig) -> None:
    """What a task writes for a whole fragment becomes part of it as it is."""
    rig.make(rows=40)
    report = rig.start()
    assert report.searched_files == 0
    rig.assert_filled(rows=40)
    assert sum(1 for _ in Path(rig.uri, "data").iterdir()) == 8


def test_one_fragment_is_computed_by_many_tasks(rig: ColumnRig) -> None:
    """Its file is put together from theirs."""
    rig.make(rows=200, per_file=1000)
    rig.jobs.slots = 4
    report = rig.start()
    assert (rig.jobs.tasks, report.searched_files) == (4, 0)
    rig.assert_filled(rows=200)


def test_a_resumed_run_computes_only_what_is_left(rig: ColumnRig) -> None:
    """Inside a fragment, too."""
    rig.make(rows=200, per_file=1000)
    rig.jobs.slots = 4
    rig.start_and_die(3)
    done = len(rig.computed)
    report = rig.start()
    assert report.kept_rows == done - PROBED > 140
    assert len(rig.computed) == 200 + PROBED
    rig.assert_filled(rows=200)


def test_the_columns_are_those_of_the_first_start(rig: ColumnRig) -> None:
    """A later start is not asked, and may not name others."""
    rig.make()
    rig.start_and_die(1)
    other = pa.schema([("double", pa.string())])
    with pytest.raises(RunMismatchError, match="this start's schema= is double"):
        rig.start(schema=other)
    rig.start()
    rig.assert_filled()


def test_a_given_schema_needs_no_first_rows(rig: ColumnRig) -> None:
    """The transform is called once for each row."""
    rig.make()
    schema = pa.schema([("double", pa.int64()), ("pair", pa.list_(pa.int32(), 2))])
    rig.start(schema=schema)
    assert sorted(rig.computed) == list(range(30))
    rig.assert_filled()


def test_an_empty_dataset_gets_the_column(rig: ColumnRig) -> None:
    """If its type is known."""
    rig.make()
    rig.dataset().delete("id >= 0")
    with pytest.raises(SettingsError, match="there are no rows"):
        rig.start()
    rig.start(schema=pa.schema([("double", pa.int64())]))
    assert rig.dataset().schema.names == ["id", "v", "double"]


@pytest.mark.parametrize(
    ("schema", "complaint"),
    [
        (pa.schema([("v", pa.string())]), "has a column 'v' already"),
        (pa.schema([("n", pa.null())]), "all are NULL"),
        (pa.schema([pa.field("n", pa.int64(), nullable=False)]), "may not be NULL"),
        (pa.schema([("n", pa.int64()), ("n", pa.int64())]), "name each once"),
        (pa.schema([]), "name each once"),
        (pa.schema([("", pa.int64())]), "name each once"),
        (pa.schema([("__holdfast_row", pa.int64())]), "name each once"),
        (pa.schema([("a.b", pa.int64())]), "cannot hold the new columns"),
        (pa.schema([("_rowid", pa.int64())]), "cannot hold the new columns"),
    ],
)
def test_columns_that_do_not_fit_are_refused(
    rig: ColumnRig, schema: pa.Schema, complaint: str
) -> None:
    """Before a row is paid for."""
    rig.make()
    with pytest.raises(SettingsError, match=complaint):
        rig.start(schema=schema)
    assert rig.computed == []


# ---- Others change the dataset


def test_rows_that_others_append_have_no_value(rig: ColumnRig) -> None:
    """And are counted."""
    rig.make()
    report = rig.start_while(lambda: rig.append(100, 101))
    rig.assert_filled(without=[100, 101], rows=32)
    assert (report.rows_without_columns, report.rows_again) == (2, 0)
    assert "without" in str(report)
    assert len(rig.computed) == 30 + PROBED


def test_rows_that_others_delete_cost_nothing(rig: ColumnRig) -> None:
    """Values that were computed for the rest of the fragment are used."""
    rig.make()
    report = rig.start_while(lambda: rig.dataset().delete("id < 5"))
    rig.assert_filled(rows=25)
    assert (len(rig.computed), report.rows_again) == (30 + PROBED, 0)


def test_rows_that_a_restore_brings_back_are_computed(rig: ColumnRig) -> None:
    """They were deleted when the run began, so that they have no value yet."""
    rig.make()
    rig.dataset().delete("id < 5 or id = 15")
    report = rig.start_while(lambda: rig.dataset(1).restore())
    rig.assert_filled(rows=30)
    assert (len(rig.computed), report.rows_again) == (24 + 5 + 6, 6)


def test_compacted_rows_are_computed_again(rig: ColumnRig) -> None:
    """Without stable row ids, nothing shows which row is which."""
    rig.make()
    report = rig.start_while(rig.compact)
    rig.assert_filled(rows=30)
    assert report.rows_again == 30


def test_only_the_changed_fragments_are_computed_again(rig: ColumnRig) -> None:
    """An update moves rows of one fragment into a new one."""
    rig.make()
    update = {"v": "'v3'"}
    report = rig.start_while(lambda: rig.dataset().update(update, where="id = 3"))
    rig.assert_filled(rows=30)
    assert (report.rows_again, len(rig.computed)) == (1, 31 + PROBED)


def test_an_index_build_changes_nothing(rig: ColumnRig) -> None:
    """The post lands beside it, and the index covers all rows."""
    rig.make()
    rig.start_while(lambda: rig.dataset().create_scalar_index("id", "BTREE"))
    rig.assert_filled(rows=30)
    assert len(rig.computed) == 30 + PROBED
    assert rig.dataset().to_table(filter="id = 17")["double"].to_pylist() == [34]


def test_a_column_that_others_add_changes_nothing(rig: ColumnRig) -> None:
    """Fragments have one file more, and their rows are the same."""
    rig.make()
    rig.start_while(lambda: rig.dataset().add_columns({"w": "id + 1"}))
    rig.assert_filled(rows=30)
    assert rig.dataset().to_table(columns=["w"])["w"].to_pylist() == list(range(1, 31))
    assert len(rig.computed) == 30 + PROBED


def test_a_column_of_the_same_name_is_not_overwritten(rig: ColumnRig) -> None:
    """Another writer was faster."""
    rig.make()
    with pytest.raises(TableChangedError, match="has added a column 'double'"):
        rig.start_while(lambda: rig.dataset().add_columns({"double": "id + 1"}))
    assert rig.dataset().to_table(columns=["double"])["double"].to_pylist() == list(range(1, 31))


def test_a_dropped_column_leaves_no_values_behind(rig: ColumnRig) -> None:
    """Files keep its values under its number, which a new column must not get.

    A fragment without any new value has no other file.
    """
    rows = rows_of(range(30)).append_column("w", pa.array(range(30), pa.int64()))
    lance.write_dataset(rows, rig.uri, max_rows_per_file=10)
    rig.dataset().drop_columns(["w"])

    def fails(batch: pa.RecordBatch) -> dict[str, Any]:
        if any(10 <= id_ < 20 for id_ in batch["id"].to_pylist()):
            raise ValueError
        return rig.doubled(batch)

    rig.start(fails, on_error="quarantine", max_errors=10)
    rig.assert_filled(without=range(10, 20), rows=30)


def test_an_overwrite_meanwhile_means_all_rows_again(rig: ColumnRig) -> None:
    """The rows are other rows."""
    rig.make()

    def overwrite() -> None:
        lance.write_dataset(rows_of(range(50, 60)), rig.uri, mode="overwrite")

    report = rig.start_while(overwrite)
    rig.assert_filled(rows=10)
    assert report.rows_again == 10


# ---- Kills, lost answers, aborts


def test_a_driver_that_dies_after_its_post_has_landed(rig: ColumnRig) -> None:
    """The next start finds the mark."""
    rig.make()
    rig.land_and_die()
    rig.computed.clear()
    assert rig.start().outcome == "already_committed"
    assert rig.computed == []
    rig.assert_filled()


def test_a_lost_answer_is_found_in_the_dataset(rig: ColumnRig) -> None:
    """The post has landed, and is not made again."""
    rig.make()
    commit = lance.LanceDataset.commit

    def lose(*given: Any, **how: Any) -> Any:  # noqa: ANN401 - Lance's own.
        commit(*given, **how)
        raise OSError("connection reset")

    with mock.patch.object(lance.LanceDataset, "commit", lose):
        report = rig.start()
    assert (report.outcome, report.posts) == ("committed", 1)
    assert rig.dataset().version == 2
    rig.assert_filled()


def test_a_driver_that_was_taken_over_changes_nothing(rig: ColumnRig) -> None:
    """Its tasks pay for no further row, and the columns land once."""
    rig.make(rows=200, per_file=1000)
    rival = ColumnRig(rig.uri, time=rig.time)
    rival.storage = rig.storage
    rig.jobs.before_tasks = [lambda: None, lambda: rival.start(takeover="now")]
    with pytest.raises(RunFencedError):
        rig.start()
    rig.assert_filled(rows=200)
    assert rig.dataset().version == 2
    assert rig.start().outcome == "already_committed"


def test_a_post_of_a_dead_driver_that_lands_late_is_refused(rig: ColumnRig) -> None:
    """Both were built on the same version: one lands, and the mark says which."""
    rig.make()
    commit, late = lance.LanceDataset.commit, list[Any]()

    def hold_back(*given: Any, **how: Any) -> Any:  # noqa: ANN401 - Lance's own.
        late.append((given, how))
        raise DriverDied

    with mock.patch.object(lance.LanceDataset, "commit", hold_back), pytest.raises(DriverDied):
        rig.start()
    rig.time.sleep(1000.0)
    assert rig.start().outcome == "committed"
    ((given, how),) = late
    with pytest.raises(OSError, match="conflict"):
        commit(*given, **how)
    assert rig.dataset().version == 2
    rig.assert_filled()


def test_an_aborted_run_leaves_nothing_after_a_sweep(rig: ColumnRig) -> None:
    """Neither values nor column files."""
    rig.make(rows=200, per_file=1000)
    before = sorted(Path(rig.uri, "data").iterdir())
    rig.start_and_die(1)
    assert len(list(Path(rig.uri, "data").iterdir())) > len(before)
    abort(rig.ledger(), lambda _identity: rig.sink(), "")
    sweep(rig.ledger(), lambda _identity: rig.sink())
    assert sorted(Path(rig.uri, "data").iterdir()) == before


def test_a_sweep_after_the_commit_keeps_what_is_read(rig: ColumnRig) -> None:
    """Values of tasks go, once they are in the fragment's own file."""
    rig.make(rows=200, per_file=1000)
    rig.start()
    assert sum(1 for _ in Path(rig.uri, "data").iterdir()) == 4
    sweep(rig.ledger(), lambda _identity: rig.sink())
    assert sum(1 for _ in Path(rig.uri, "data").iterdir()) == 2
    rig.assert_filled(rows=200)


@pytest.mark.filterwarnings("ignore:.*code has changed")
def test_chunks_of_a_dead_task_become_values(rig: ColumnRig) -> None:
    """A checkpoint of a slow task is replayed into a file; nothing is computed again."""
    rig.make(rows=64, per_file=1000)
    rig.jobs.slots = 1
    calls: list[int] = []

    def dies(batch: pa.RecordBatch) -> dict[str, Any]:
        calls.append(batch.num_rows)
        if len(calls) == 6:
            raise KeyboardInterrupt
        return rig.doubled(batch)

    schema = pa.schema([("double", pa.int64()), ("pair", pa.list_(pa.int32(), 2))])
    with pytest.raises(KeyboardInterrupt):
        rig.start(dies, batch_rows=8, checkpoint_every=1e-6, schema=schema)
    rig.time.sleep(1000.0)
    report = rig.start(dies, batch_rows=8, schema=schema)
    rig.assert_filled(rows=64)
    assert report.kept_rows >= 32
    assert len(rig.computed) < 64 + 24


# ---- Failing rows


def test_a_failed_row_has_no_value_and_is_listed(rig: ColumnRig) -> None:
    """The other rows of its fragment have theirs."""
    rig.make()

    def fails(batch: pa.RecordBatch) -> dict[str, Any]:
        if 13 in batch["id"].to_pylist():
            raise ValueError("13")
        return rig.doubled(batch)

    with pytest.raises(TransformError):
        rig.start(fails)
    report = rig.start(fails, on_error="quarantine", max_errors=1)
    rig.assert_filled(without=[13], rows=30)
    assert (report.quarantined_rows, report.rows) == (1, 29)


def test_too_many_failed_rows_end_the_run(rig: ColumnRig) -> None:
    """Nothing is committed."""
    rig.make()

    def fails(_batch: pa.RecordBatch) -> dict[str, Any]:
        raise ValueError

    schema = pa.schema([("double", pa.int64())])
    with pytest.raises(TooManyErrorsError):
        rig.start(fails, schema=schema, on_error="quarantine", max_errors=1)
    assert "double" not in rig.dataset().schema.names


def test_output_with_other_rows_is_refused(rig: ColumnRig) -> None:
    """A value could no longer be told from its neighbour's."""
    rig.make()
    schema = pa.schema([("double", pa.int64())])
    with pytest.raises(TransformError, match="rows for a batch of"):
        rig.start(lambda _: {"double": [1]}, schema=schema, batch_rows=4, one_to_one=False)


# ---- Columns that are there already


def updated(rig: ColumnRig, **how: Any) -> Any:  # noqa: ANN401 - of `ColumnRig.start`.
    """Add columns, and then start another run that computes one of them again."""
    rig.make()
    rig.start()
    rig.mode, rig.run_id = "update_columns", "update"
    rig.computed.clear()
    return rig.start(lambda batch: {"double": pc.multiply(batch["id"], -1)}, **how)


def doubles(rig: ColumnRig) -> list[int | None]:
    """Return the column by id."""
    found = rig.rows()
    return [found[id_]["double"] for id_ in sorted(found)]


def test_rows_outside_the_filter_keep_their_value(rig: ColumnRig) -> None:
    """In fragments with rows of both kinds, and in others."""
    report = updated(rig, where=(pc.field("id") < 5) | (pc.field("id") == 12))
    inside = {*range(5), 12}
    assert doubles(rig) == [-id_ if id_ in inside else 2 * id_ for id_ in range(30)]
    assert report.rows == 6
    assert {row["pair"][1] for row in rig.rows().values()} == set(range(1, 31))


def test_all_rows_are_computed_without_a_filter(rig: ColumnRig) -> None:
    """Fragments that hold only the old values of the column lose that file."""
    updated(rig)
    assert doubles(rig) == [-id_ for id_ in range(30)]


def test_a_filter_that_is_null_is_not_true(rig: ColumnRig) -> None:
    """`where` means IS TRUE."""
    rig.make()
    rig.start()
    rig.dataset().update({"v": "NULL"}, where="id < 3")
    rig.mode, rig.run_id = "update_columns", "update"
    rig.start(lambda batch: {"double": pc.multiply(batch["id"], -1)}, where=pc.field("v") != "v5")
    inside = set(range(30)) - {0, 1, 2, 5}
    assert doubles(rig) == [-id_ if id_ in inside else 2 * id_ for id_ in range(30)]


def test_an_index_on_an_updated_column_answers_rightly(rig: ColumnRig) -> None:
    """It lacks the rows that were computed again, and the report says so."""
    rig.make()
    rig.start()
    rig.dataset().create_scalar_index("double", "BTREE")
    rig.mode, rig.run_id = "update_columns", "update"
    rig.start(lambda batch: {"double": pc.multiply(batch["id"], -1)}, where=pc.field("id") < 5)
    assert rig.sink().unindexed_rows() == {"double_idx": 10}
    found = {
        n: rig.dataset().to_table(filter=f"double = {n}")["id"].to_pylist() for n in (4, 24, -2)
    }
    assert found == {4: [], 24: [12], -2: [2]}
    rig.dataset().optimize.optimize_indices()
    assert rig.sink().unindexed_rows() == {}
    assert rig.dataset().to_table(filter="double = -2")["id"].to_pylist() == [2]


def test_values_that_others_write_meanwhile_stay(rig: ColumnRig) -> None:
    """Outside the filter, also after the file was put together."""
    rig.make()
    rig.start()
    rig.mode, rig.run_id = "update_columns", "update"
    rig.start_while(
        lambda: rig.dataset().update({"double": "1000"}, where="id = 25"),
        transform=lambda batch: {"double": pc.multiply(batch["id"], -1)},
        where=pc.field("id") < 5,
    )
    wanted = [-id_ if id_ < 5 else 2 * id_ for id_ in range(30)]
    wanted[25] = 1000
    assert doubles(rig) == wanted


def test_an_update_without_rows_changes_nothing(rig: ColumnRig) -> None:
    """The transform is not called, so that its columns are not known."""
    report = updated(rig, where=pc.field("id") > 100)
    assert (report.rows, report.outcome) == (0, "committed")
    assert doubles(rig) == [2 * id_ for id_ in range(30)]


def test_an_update_of_a_missing_column_is_refused(rig: ColumnRig) -> None:
    """`add_columns` is what was meant."""
    rig.make()
    rig.mode = "update_columns"
    with pytest.raises(SettingsError, match="has no column 'double'"):
        rig.start()


def test_kept_values_of_restored_rows_are_right(rig: ColumnRig) -> None:
    """Rows that were deleted while the file was put together keep their value, too."""
    rig.make()
    rig.start()
    version = rig.dataset().version
    rig.mode, rig.run_id = "update_columns", "update"

    rig.jobs.before_tasks = [lambda: rig.dataset().delete("id in (7, 17)")]
    rig.start_while(
        lambda: rig.dataset(version).restore(),
        transform=lambda batch: {"double": pc.multiply(batch["id"], -1)},
        where=pc.field("id") < 5,
    )
    assert doubles(rig) == [-id_ if id_ < 5 else 2 * id_ for id_ in range(30)]


def test_another_dataset_in_the_same_place_is_refused(rig: ColumnRig) -> None:
    """Its rows are not those that the run has computed."""
    rig.make()
    rig.start_and_die(1)
    shutil.rmtree(rig.uri)
    rig.make()
    with pytest.raises(RunMismatchError, match="dropped and created again"):
        rig.start()


def test_posts_that_lose_are_made_again(rig: ColumnRig) -> None:
    """Each for the rows that are there then; nothing is computed again."""
    rig.make()
    changes = [lambda number=number: rig.append(100 + number) for number in range(4)]
    rig.start_while(*changes)
    assert rig.posts[-1] is Outcome.LANDED
    rig.assert_filled(without=[100, 101, 102, 103], rows=34)
    assert len(rig.computed) == 30 + PROBED
