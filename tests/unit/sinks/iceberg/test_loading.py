"""A table's own metadata never makes us move a tag or create a branch."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from holdfast.errors import TableMissingError, UnsupportedTableError
from holdfast.sinks.base import Outcome
from holdfast.sinks.iceberg.sink import IcebergSink
from tests.fakes.iceberg_tables import Lake, new_table

SCHEMA = Schema(NestedField(1, "id", LongType()))


@pytest.fixture
def lake(tmp_path: Path) -> Lake:
    """Return a table with one run's rows in `main`."""
    sink, _ = new_table(tmp_path, SCHEMA)
    made = Lake(sink)
    made.start(made.submitter(1), run_id="first")
    return made


def on_ref(lake: Lake, ref: str) -> Lake:
    """Return the same table and ledger, written through another ref."""
    return Lake(IcebergSink(lake.sink._catalog, "db.t", ref), storage=lake.storage)  # noqa: SLF001


def head(lake: Lake, ref: str = "main") -> int:
    """Return the snapshot that a ref points to."""
    return lake.table.metadata.refs[ref].snapshot_id


def test_a_tag_is_refused_and_stays_where_it_is(lake: Lake) -> None:
    """A commit would move it, and a tag marks a snapshot to keep."""
    lake.table.manage_snapshots().create_tag(head(lake), "audited").commit()
    before, tagged = lake.table.metadata, on_ref(lake, "audited")
    with pytest.raises(UnsupportedTableError, match="'audited' is a tag"):
        tagged.sink.load()
    with pytest.raises(UnsupportedTableError, match="'audited' is a tag"):
        tagged.start(tagged.submitter(2))
    assert lake.table.metadata.refs == before.refs
    assert len(lake.table.metadata.snapshots) == len(before.snapshots)


def test_a_missing_branch_can_be_loaded_but_not_written(lake: Lake) -> None:
    """The user must create it; neither a check nor an empty post accepts it."""
    sink = on_ref(lake, "audit").sink
    view = sink.load()
    assert view.parent_snapshot_id is None
    with pytest.raises(TableMissingError, match="'audit'"):
        sink.check(view, [view.schema], [])
    with pytest.raises(TableMissingError, match="'audit'"):
        sink.post_empty(view)
    assert list(lake.table.metadata.refs) == ["main"]


def test_a_run_on_a_missing_branch_stops_before_its_job(lake: Lake) -> None:
    """Nothing is computed for a missing branch, and no branch is created."""
    audit = on_ref(lake, "audit")
    job = audit.submitter(2)
    with pytest.raises(TableMissingError, match="'audit'"):
        audit.start(job)
    assert (job.plans, list(lake.table.metadata.refs)) == ([], ["main"])


def test_main_of_a_new_table_is_not_a_missing_branch(tmp_path: Path) -> None:
    """A table without a snapshot has no refs, and can still be written."""
    sink, _ = new_table(tmp_path, SCHEMA)
    view = sink.load()
    sink.check(view, [view.schema], [])
    assert sink.post_empty(view) is Outcome.LANDED
    assert sink.post_empty(view) is Outcome.CONFLICT


@pytest.mark.parametrize("receipt_lost", [False, True])
def test_a_run_on_a_branch_that_was_merged_and_dropped_is_found(
    lake: Lake, *, receipt_lost: bool
) -> None:
    """Its rows are now in `main`: the next start must not require the branch."""
    lake.table.manage_snapshots().create_branch(head(lake), "audit").commit()
    audit = on_ref(lake, "audit")
    first = audit.start(audit.submitter(2))
    assert lake.ids() == [1]
    lake.table.manage_snapshots().set_current_snapshot(head(lake, "audit")).commit()
    lake.table.manage_snapshots().remove_branch("audit").commit()
    if receipt_lost:
        lake.lose_receipt()
    job = audit.submitter(2)
    again = audit.start(job)
    assert (again.outcome, again.still_in_table, job.plans) == ("already_committed", "yes", [])
    assert (again.snapshot_id, again.rows) == (first.snapshot_id, first.rows)
    assert lake.ids() == [1, 2]
