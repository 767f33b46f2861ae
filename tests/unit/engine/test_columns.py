"""Columns are computed for rows that are in a Lance dataset, whatever others do meanwhile."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import lance
import pyarrow as pa
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
    assert (rig.jobs.tasks, report.searched_files) == (4, 1)
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


# ---- Rows that are known by stable ids


def stable(rig: ColumnRig) -> ColumnRig:
    """Make a dataset whose rows have ids, with deleted rows in each fragment."""
    rig.make(enable_stable_row_ids=True)
    rig.dataset().delete("id % 10 = 4")
    return rig


def test_rows_with_ids_are_found_after_a_compaction(rig: ColumnRig) -> None:
    """Nothing is computed again; deleted rows are gone from the fragment."""
    rig.bytes_per_file = 1
    report = stable(rig).start_while(rig.compact)
    rig.assert_filled(rows=27)
    assert (report.rows_again, len(rig.computed)) == (0, 27 + PROBED)
    assert len(rig.dataset().get_fragments()) == 1


def test_others_rows_between_ours_have_no_value(rig: ColumnRig) -> None:
    """A compaction puts them into one fragment with ours."""

    def others() -> None:
        rig.append(100, 101)
        rig.dataset().delete("id in (7, 100)")
        rig.compact()

    report = stable(rig).start_while(others)
    rig.assert_filled(without=[101], rows=27)
    assert (report.rows_again, report.rows_without_columns) == (0, 1)


def test_changed_rows_are_computed_again_after_a_compaction(rig: ColumnRig) -> None:
    """An update gives a row other values under the same id."""

    def others() -> None:
        rig.dataset().update({"id": "id + 1000", "v": "'v1005'"}, where="id = 5")
        rig.compact()

    report = stable(rig).start_while(others)
    rig.assert_filled(rows=27)
    assert (report.rows_again, rig.computed.count(1005)) == (1, 1)


def test_rows_that_move_twice_are_found_twice(rig: ColumnRig) -> None:
    """Those that were computed again are found by their ids, too."""

    def change() -> None:
        rig.dataset().update({"id": "id + 1000", "v": "'v1005'"}, where="id = 5")

    report = stable(rig).start_while(change, rig.compact)
    rig.assert_filled(rows=27)
    assert (report.rows_again, rig.computed.count(1005)) == (1, 1)


def test_a_compaction_after_a_restore_proves_nothing(rig: ColumnRig) -> None:
    """Rows have their old values and ids again, and no version after the first pins."""
    stable(rig).dataset().update({"id": "id + 1000", "v": "'v1005'"}, where="id = 5")

    def others() -> None:
        rig.dataset(2).restore()
        rig.compact()

    report = rig.start_while(others)
    rig.assert_filled(rows=27)
    assert report.rows_again == 27


def test_a_compaction_after_values_changed_in_place_proves_nothing(rig: ColumnRig) -> None:
    """Lance notes such a change in no row."""
    stable(rig)

    def others() -> None:
        dataset = rig.dataset()
        fragment = dataset.get_fragments()[1]
        new = pa.table({"v": ["v11"], "id": pa.array([1011], pa.int64())})
        changed, fields = fragment.update_columns(new, left_on="v", right_on="v")
        operation = lance.LanceOperation.Update(
            updated_fragments=[changed], fields_modified=fields, update_mode="rewrite_columns"
        )
        lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)
        rig.compact()

    report = rig.start_while(others)
    found = {row["v"]: row["double"] for row in rig.rows().values()}
    assert found.pop("v11") == 2022
    assert found == {f"v{id_}": 2 * id_ for id_ in range(30) if id_ % 10 != 4 and id_ != 11}
    assert report.rows_again == 27


def test_a_failed_row_stays_without_a_value_when_it_moves(rig: ColumnRig) -> None:
    """It is found by its id, too."""

    def fails(batch: pa.RecordBatch) -> dict[str, Any]:
        if 12 in batch["id"].to_pylist():
            raise ValueError("12")
        return rig.doubled(batch)

    stable(rig)
    report = rig.start_while(
        rig.compact,
        transform=fails,
        on_error="quarantine",
        max_errors=1,
    )
    rig.assert_filled(without=[12], rows=27)
    assert (report.rows_again, report.quarantined_rows) == (0, 1)


def test_a_column_that_is_read_may_not_be_dropped(rig: ColumnRig) -> None:
    """Its values are no longer those of the rows."""
    rig.make()
    with pytest.raises(TableChangedError, match="'v', which the transform gets, was dropped"):
        rig.start_while(lambda: rig.dataset().drop_columns(["v"]), columns=("id", "v"))


def test_a_read_column_that_changes_in_place_is_computed_again(rig: ColumnRig) -> None:
    """Only in the fragment that has changed."""
    rig.make()

    def others() -> None:
        dataset = rig.dataset()
        new = pa.table({"v": ["v11"], "id": pa.array([1011], pa.int64())})
        changed, fields = dataset.get_fragments()[1].update_columns(new, left_on="v", right_on="v")
        operation = lance.LanceOperation.Update(
            updated_fragments=[changed], fields_modified=fields, update_mode="rewrite_columns"
        )
        lance.LanceDataset.commit(dataset, operation, read_version=dataset.version)

    report = rig.start_while(others)
    assert {row["double"] for row in rig.rows().values()} == {
        *(2 * id_ for id_ in range(30) if id_ != 11),
        2022,
    }
    assert report.rows_again == 10


# ---- Versions that were cleaned up before the next start


def clean_up(rig: ColumnRig) -> None:
    """Delete all versions but the newest, as another job does."""
    old = timedelta(0)
    rig.dataset().cleanup_old_versions(older_than=old, delete_unverified=False)


def test_rows_are_read_where_they_are_now(rig: ColumnRig) -> None:
    """The version that was pinned is gone, and the fragment is not.

    So is the proof that a row was appended: it is computed.
    """
    rig.make(rows=200, per_file=1000)
    rig.jobs.slots = 4
    rig.start_and_die(2)
    rig.append(500)
    rig.dataset().delete("id in (3, 150)")
    clean_up(rig)
    done = len(rig.computed) - PROBED
    report = rig.start()
    rig.assert_filled(rows=199)
    assert (report.kept_rows, report.rows_again) == (done, 1)
    assert len(rig.computed) in {199 + PROBED, 200 + PROBED}  # One of those that were deleted.


def test_rows_whose_fragment_is_gone_are_computed_where_they_are(rig: ColumnRig) -> None:
    """Those that were done are done again, because nothing says which they are."""
    rig.make(rows=60, per_file=20)
    rig.jobs.slots = 3
    rig.start_and_die(2)
    rig.compact()
    clean_up(rig)
    report = rig.start()
    rig.assert_filled(rows=60)
    assert report.rows_again == 60


def test_deleted_rows_that_come_back_after_a_clean_up_have_a_value(rig: ColumnRig) -> None:
    """They were done before they were deleted."""
    rig.make(rows=200, per_file=1000)
    rig.jobs.slots = 4
    rig.start_and_die(2)
    rig.append(500)
    version = rig.dataset().version
    rig.dataset().tags.create("keep", version)
    rig.dataset().delete("id in (3, 150)")
    rig.dataset().cleanup_old_versions(older_than=timedelta(0), error_if_tagged_old_versions=False)
    rig.start_while(lambda: rig.dataset(version).restore())
    rig.assert_filled(without=[500], rows=201)


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
