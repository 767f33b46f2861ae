"""A run that landed is found even if its mark and its receipt are gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from holdfast.errors import CommittedThenRemovedError
from holdfast.ledger.layout import RunLayout
from tests.fakes.iceberg_tables import Lake, edit_metadata, new_table

MARK = "holdfast.run.r"


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a table in which run `r` has landed with ids 1 and 2."""
    sink, _ = new_table(tmp_path, Schema(NestedField(1, "id", LongType())))
    made = Lake(sink)
    made.start(made.submitter(1, 2))
    return made


def landed_snapshot(lake: Lake) -> int:
    """Return the newest snapshot, which is that of the run that landed last."""
    newest = lake.table.current_snapshot()
    assert newest is not None
    return newest.snapshot_id


def remove_mark(lake: Lake) -> None:
    """Remove the mark, as a user who tidies up the table's properties may do."""
    assert MARK in lake.table.properties
    lake.table.transaction().remove_properties(MARK).commit_transaction()
    assert MARK not in lake.table.properties


def expire(lake: Lake, *snapshot_ids: int) -> None:
    """Let the table's maintenance expire these snapshots."""
    lake.table.maintenance.expire_snapshots().by_ids(list(snapshot_ids)).commit()
    left = {snapshot.snapshot_id for snapshot in lake.table.metadata.snapshots}
    assert not left & set(snapshot_ids)


def assert_found_as_landed(lake: Lake, snapshot_id: int, rows: list[int]) -> None:
    """Start the run again: it writes the lost receipt, and nothing else."""
    objects = set(lake.storage.objects)
    job = lake.submitter(1, 2)
    driven = lake.start(job)
    assert (driven.outcome, driven.posts, job.plans) == ("already_committed", 0, [])
    assert (driven.snapshot_id, driven.rows) == (snapshot_id, 2)
    added = sorted(set(lake.storage.objects) - objects)
    assert [json.loads(lake.storage.objects[uri])["kind"] for uri in added] == ["claim", "receipt"]
    ledger = lake.ledger("r")
    ledger.log.refresh()
    receipt = ledger.log.receipt
    assert receipt is not None
    named = RunLayout.of("s3://store", "r").record(receipt.intent_number)
    intent = json.loads(lake.storage.objects[named])
    assert (intent["kind"], intent["body"]["snapshot_id"]) == ("intent", snapshot_id)
    assert lake.ids() == rows


def test_a_run_whose_mark_was_removed_is_found_by_its_snapshot(lake: Lake) -> None:
    """The intent names the snapshot id, which no other run can have drawn."""
    ours = landed_snapshot(lake)
    lake.lose_receipt()
    remove_mark(lake)
    assert_found_as_landed(lake, ours, [1, 2])


def test_an_expired_snapshot_without_a_mark_is_found_as_a_parent(lake: Lake) -> None:
    """The next snapshot still names the one it was built on, as Iceberg's own expiry leaves it.

    The rows have been compacted into other files: no manifest of ours is left.
    """
    ours = landed_snapshot(lake)
    lake.start(lake.submitter(3), run_id="other")
    lake.lose_receipt()
    remove_mark(lake)

    def compact_and_expire(metadata: dict[str, Any]) -> None:
        empty, expired, head = metadata["snapshots"]
        assert (expired["snapshot-id"], head["parent-snapshot-id"]) == (ours, ours)
        head["manifest-list"] = empty["manifest-list"]
        metadata["snapshots"] = [empty, head]
        metadata["snapshot-log"] = []

    edit_metadata(lake.table, compact_and_expire)
    assert_found_as_landed(lake, ours, [])


def test_an_expired_snapshot_that_is_no_longer_named_is_found_by_its_manifest(lake: Lake) -> None:
    """The head lists the manifest with the rows, and the snapshot that added it."""
    ours = landed_snapshot(lake)
    lake.start(lake.submitter(3), run_id="other-1")
    child = landed_snapshot(lake)
    lake.start(lake.submitter(4), run_id="other-2")
    lake.lose_receipt()
    remove_mark(lake)
    expire(lake, ours, child)
    assert ours not in {snapshot.parent_snapshot_id for snapshot in lake.table.metadata.snapshots}
    assert_found_as_landed(lake, ours, [1, 2, 3, 4])


def test_a_run_that_was_rolled_back_and_lost_its_mark_is_not_posted_again(lake: Lake) -> None:
    """It landed and was rolled back on purpose: only the user knows whether the rows are wanted."""
    lake.lose_receipt()
    remove_mark(lake)
    ours = lake.table.current_snapshot()
    assert ours is not None
    assert ours.parent_snapshot_id is not None
    lake.table.manage_snapshots().set_current_snapshot(ours.parent_snapshot_id).commit()
    job = lake.submitter(1, 2)
    with pytest.raises(CommittedThenRemovedError):
        lake.start(job)
    assert (job.plans, lake.ids()) == ([], [])


def test_a_receipt_outlives_the_mark(lake: Lake) -> None:
    """With the receipt in the log the start needs no mark, whatever the table still shows."""
    first = lake.start(lake.submitter(1, 2))
    remove_mark(lake)
    again = lake.start(lake.submitter(1, 2))
    assert (again.outcome, again.snapshot_id) == ("already_committed", first.snapshot_id)
    assert lake.ids() == [1, 2]


def test_an_intent_that_never_landed_is_not_mistaken_for_landed(lake: Lake) -> None:
    """Another run's snapshot proves nothing about ours: the search must not find too much."""
    lake.lose_receipt()
    remove_mark(lake)
    other = lake.submitter(3)
    driven = lake.start(other, run_id="new")
    assert (driven.outcome, len(other.plans)) == ("committed", 1)
    assert lake.ids() == [1, 2, 3]


def test_rows_rewritten_and_history_expired_are_not_called_removed(lake: Lake) -> None:
    """PyIceberg's expiry leaves a root like that of a replaced table, so the answer is unknown."""
    ours = landed_snapshot(lake)
    lake.table.overwrite(lake.table.scan().to_arrow())
    head = landed_snapshot(lake)
    assert head != ours
    expire(lake, *(old.snapshot_id for old in lake.table.snapshots() if old.snapshot_id != head))
    again = lake.start(lake.submitter(1, 2))
    assert (again.outcome, again.still_in_table) == ("already_committed", "unknown")
    assert lake.ids() == [1, 2]
