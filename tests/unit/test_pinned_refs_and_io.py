"""What a table says of itself never gets to move a tag, invent a branch, or import code."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from holdfast.errors import TableMissingError, UnsupportedTableError
from holdfast.sinks.base import Outcome
from holdfast.sinks.iceberg.catalog import open_catalog
from holdfast.sinks.iceberg.file_io import HoldfastFileIO
from holdfast.sinks.iceberg.sink import IcebergSink
from tests.fakes.iceberg_tables import Lake, edit_metadata, new_table

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
    """Return the snapshot that a ref stands on."""
    return lake.table.metadata.refs[ref].snapshot_id


def test_a_tag_is_refused_and_stays_where_it_is(lake: Lake) -> None:
    """A commit would move it, and a tag is what somebody wanted to keep."""
    lake.table.manage_snapshots().create_tag(head(lake), "audited").commit()
    before, tagged = lake.table.metadata, on_ref(lake, "audited")
    with pytest.raises(UnsupportedTableError, match="'audited' is a tag"):
        tagged.sink.load()
    with pytest.raises(UnsupportedTableError, match="'audited' is a tag"):
        tagged.start(tagged.submitter(2))
    assert lake.table.metadata.refs == before.refs
    assert len(lake.table.metadata.snapshots) == len(before.snapshots)


def test_a_missing_branch_can_be_looked_at_but_not_written(lake: Lake) -> None:
    """It is the user's to create; neither a check nor an empty post passes it over."""
    sink = on_ref(lake, "audit").sink
    view = sink.load()
    assert view.parent_snapshot_id is None
    with pytest.raises(TableMissingError, match="'audit'"):
        sink.check(view, [view.schema], [])
    with pytest.raises(TableMissingError, match="'audit'"):
        sink.post_empty(view)
    assert list(lake.table.metadata.refs) == ["main"]


def test_a_run_on_a_missing_branch_stops_before_its_job(lake: Lake) -> None:
    """Nothing is computed for a branch that is not there, and no branch appears."""
    audit = on_ref(lake, "audit")
    job = audit.submitter(2)
    with pytest.raises(TableMissingError, match="'audit'"):
        audit.start(job)
    assert (job.plans, list(lake.table.metadata.refs)) == ([], ["main"])


def test_main_of_a_new_table_is_no_missing_branch(tmp_path: Path) -> None:
    """A table without a snapshot has no ref at all, and is written all the same."""
    sink, _ = new_table(tmp_path, SCHEMA)
    view = sink.load()
    sink.check(view, [view.schema], [])
    assert sink.post_empty(view) is Outcome.LANDED
    assert sink.post_empty(view) is Outcome.CONFLICT


@pytest.mark.parametrize("receipt_lost", [False, True])
def test_a_run_on_a_branch_that_was_merged_and_dropped_is_found(
    lake: Lake, *, receipt_lost: bool
) -> None:
    """Its rows are in `main` by now: the next start must not ask for the branch back."""
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


def test_code_that_a_table_names_as_its_file_io_is_not_imported(
    lake: Lake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever may set a property must not run code on the driver, nor take over its storage."""
    trap = tmp_path / "modules" / "named_by_a_table.py"
    trap.parent.mkdir()
    trap.write_text("raise SystemExit('code from a table property ran')\n")
    monkeypatch.syspath_prepend(trap.parent)
    edit_metadata(
        lake.table,
        lambda metadata: metadata["properties"].update({"py-io-impl": "named_by_a_table.Io"}),
    )
    assert type(lake.table.io) is HoldfastFileIO
    assert lake.table.properties["py-io-impl"] == "named_by_a_table.Io"
    lake.start(lake.submitter(2))
    assert lake.ids() == [1, 2]
    assert "named_by_a_table" not in sys.modules


def test_a_rest_catalog_takes_no_storage_option_where_a_tables_properties_are_mixed_in(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """PyIceberg builds a table's FileIO from its properties and the server's answer alike."""
    monkeypatch.setattr(RestCatalog, "_fetch_config", lambda _: None)
    catalog = open_catalog("lake", {"type": "rest", "uri": "http://127.0.0.1:9", "s3.region": "x"})
    named = {"py-io-impl": "no.such.Io", "s3.region": "y"}
    made = catalog._load_file_io(named, "s3://bucket/t")  # noqa: SLF001 - where PyIceberg asks.
    assert type(made) is HoldfastFileIO
    assert made.properties["s3.region"] == "x"


def test_a_known_file_io_that_a_table_names_is_not_used_either(tmp_path: Path) -> None:
    """Time-outs, errors and secrets are those of our own storage only."""
    other = {"py-io-impl": "pyiceberg.io.pyarrow.PyArrowFileIO"}
    sink, created = new_table(tmp_path, SCHEMA, properties=other)
    assert [type(created.io), type(sink.load().handle.io)] == [HoldfastFileIO] * 2


def test_a_tables_property_does_not_redirect_our_credentials(lake: Lake) -> None:
    """Whoever may alter a table could otherwise send everybody's requests to a server of theirs."""
    catalog = lake.sink._catalog  # noqa: SLF001 - its properties are what a user gave.
    catalog.properties["s3.region"] = "ours"
    theirs = {"s3.endpoint": "http://127.0.0.1:9", "s3.region": "theirs"}
    edit_metadata(lake.table, lambda metadata: metadata["properties"].update(theirs))
    view = lake.sink.load()
    assert view.handle.properties["s3.endpoint"] == theirs["s3.endpoint"]  # It is set there.
    for properties in (view.handle.io.properties, lake.sink.writer_spec(view).io_properties):
        assert "s3.endpoint" not in properties
        assert properties["s3.region"] == "ours"
