"""Columns for rows that others move meanwhile: found by their ids, or computed where they are."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from holdfast.errors import TableChangedError
from tests.fakes.column_rig import ColumnRig

# What the first rows are computed for twice: once to see which columns there are.
PROBED = 8


@pytest.fixture
def rig(tmp_path: Path) -> ColumnRig:
    """Return a folder for a dataset; nothing is in it yet."""
    return ColumnRig(str(tmp_path / "t.lance"))


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
