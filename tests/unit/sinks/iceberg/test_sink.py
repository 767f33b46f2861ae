"""The Iceberg sink on a real table: what it posts, and how it interprets the answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pyarrow as pa
import pydantic
import pytest
import requests
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    ForbiddenError,
    ServerError,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableResponse, Table
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import LongType, NestedField
from sqlalchemy.exc import OperationalError

from holdfast.errors import (
    CatalogUnavailableError,
    CommitRefusedError,
    HoldfastError,
    LedgerDamagedError,
    TableChangedError,
    TableMissingError,
    UnsupportedTableError,
)
from holdfast.model.work import StagedGroup
from holdfast.sinks.base import Change, Outcome, RunMark, TableView
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.sinks.iceberg.snapshots import snapshot_updates
from tests.fakes.iceberg_tables import edit_metadata, new_table

SCHEMA = Schema(NestedField(1, "id", LongType()))
BY_ID = PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "id"))


@pytest.fixture
def sink(tmp_path: Path) -> IcebergSink:
    """Return a sink on a table that already has its first, empty snapshot."""
    made, _ = new_table(tmp_path, SCHEMA)
    made.post_empty(made.load())
    return made


def staged(sink: IcebergSink, view: TableView, *ids: int) -> list[StagedGroup]:
    """Write rows as a task does."""
    writer = sink.writer_spec(view).open(f"task-{ids[0]}")
    writer.write(writer.fit(pa.RecordBatch.from_pydict({"id": pa.array(ids, pa.int64())})))
    return writer.cut()


def mark_of(sink: IcebergSink, view: TableView) -> RunMark:
    """Return the mark that an intent on this view would have."""
    return RunMark(
        run_nonce="n",
        intent_number=2,
        snapshot_id=sink.new_snapshot_id(view),
        sequence_number=view.next_sequence_number,
    )


def catalog_of(sink: IcebergSink) -> Any:  # noqa: ANN401 - a test replaces its methods.
    """Return the sink's catalog."""
    return sink._catalog  # noqa: SLF001 - a test injects faults here.


def test_a_post_publishes_rows_mark_and_summary_in_one_snapshot(sink: IcebergSink) -> None:
    """What lands is readable by PyIceberg, carries our mark, and keeps earlier rows."""
    for ids in ((1, 2), (3,)):
        view = sink.load()
        mark = mark_of(sink, view)
        assert (
            sink.post(view, f"r{ids[0]}", mark, Change(adds=staged(sink, view, *ids)))
            is Outcome.LANDED
        )
    view = sink.load()
    table: Table = view.handle
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == [1, 2, 3]
    snapshot = table.current_snapshot()
    assert snapshot is not None
    assert snapshot.summary is not None
    assert snapshot.snapshot_id == mark.snapshot_id == view.parent_snapshot_id
    assert snapshot.sequence_number == mark.sequence_number
    assert snapshot.summary["added-records"] == "1"
    assert snapshot.summary["total-records"] == "3"
    assert json.loads(table.properties["holdfast.run.r3"])["snapshot"] == mark.snapshot_id
    assert snapshot.summary["holdfast.run"] == "r3"
    assert len(table.snapshots()) == 3


def test_a_manifest_that_holds_only_existing_files_is_kept(tmp_path: Path) -> None:
    """A delete has rewritten it: without it the remaining rows would disappear."""
    sink, _ = new_table(tmp_path, SCHEMA, partition_spec=BY_ID)
    sink.post_empty(sink.load())
    view = sink.load()
    assert (
        sink.post(view, "r", mark_of(sink, view), Change(adds=staged(sink, view, 1, 2)))
        is Outcome.LANDED
    )
    sink.load().handle.delete("id = 1")
    view = sink.load()
    table: Table = view.handle
    head = table.current_snapshot()
    assert head is not None
    (left,) = [manifest for manifest in head.manifests(table.io) if manifest.has_existing_files()]
    assert not left.has_added_files()  # The test is not vacuous.
    assert (
        sink.post(view, "s", mark_of(sink, view), Change(adds=staged(sink, view, 3)))
        is Outcome.LANDED
    )
    assert sorted(sink.load().handle.scan().to_arrow()["id"].to_pylist()) == [2, 3]


def test_a_post_keeps_the_retention_rules_of_its_branch(sink: IcebergSink) -> None:
    """The update replaces the whole ref; a branch that lost its rules may be expired."""
    table: Table = sink.load().handle
    head = table.current_snapshot()
    assert head is not None
    rules = {"max_ref_age_ms": 10**12, "max_snapshot_age_ms": 10**11, "min_snapshots_to_keep": 7}
    table.manage_snapshots().create_branch(head.snapshot_id, "audit", **rules).commit()
    audit = IcebergSink(catalog_of(sink), "db.t", "audit")
    view = audit.load()
    mark = mark_of(audit, view)
    assert audit.post(view, "r", mark, Change(adds=staged(audit, view, 1))) is Outcome.LANDED
    ref = audit.load().handle.metadata.refs["audit"]
    assert ref.snapshot_id == mark.snapshot_id
    assert {name: getattr(ref, name) for name in rules} == rules


def test_a_post_is_sent_once(sink: IcebergSink, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client library's own retries could land twice."""
    lost = Mock(side_effect=CommitStateUnknownException("gateway time-out"))
    monkeypatch.setattr(catalog_of(sink), "commit_table", lost)
    view = sink.load()
    assert (
        sink.post(view, "r", mark_of(sink, view), Change(adds=staged(sink, view, 1)))
        is Outcome.UNKNOWN
    )
    assert lost.call_count == 1


def validation_error() -> Exception:
    """Return the error that PyIceberg raises for an answer that is cut off or not JSON."""
    with pytest.raises(pydantic.ValidationError) as caught:
        CommitTableResponse.model_validate_json('{"metadata": {')
    return caught.value


ANSWERS: list[tuple[Exception, Outcome | None]] = [
    (CommitFailedException("409"), Outcome.CONFLICT),
    (ValueError("Cannot add snapshot with sequence number 3 older than 4"), Outcome.CONFLICT),
    (BadRequestError("Cannot add snapshot with sequence number 3"), Outcome.CONFLICT),
    (BadRequestError("no such field"), None),
    (ForbiddenError("not yours"), None),
    (CommitStateUnknownException("502"), Outcome.UNKNOWN),
    (ServerError("503"), Outcome.UNKNOWN),
    (requests.ConnectionError("reset"), Outcome.UNKNOWN),
    (requests.ReadTimeout("60 s"), Outcome.UNKNOWN),
    (requests.exceptions.ChunkedEncodingError("cut off"), Outcome.UNKNOWN),
    (requests.exceptions.JSONDecodeError("no JSON", "<html>", 0), Outcome.UNKNOWN),
    (validation_error(), Outcome.UNKNOWN),
    (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "cut off"), Outcome.UNKNOWN),
]


@pytest.mark.parametrize(("answer", "expected"), ANSWERS, ids=lambda value: type(value).__name__)
def test_each_answer_means_only_what_it_proves(
    sink: IcebergSink,
    monkeypatch: pytest.MonkeyPatch,
    answer: Exception,
    expected: Outcome | None,
) -> None:
    """Only a clear no is a refusal; an unreadable answer may hide a landed commit."""
    monkeypatch.setattr(catalog_of(sink), "commit_table", Mock(side_effect=answer))
    view = sink.load()
    groups, mark = staged(sink, view, 1), mark_of(sink, view)
    if expected is None:
        with pytest.raises(CommitRefusedError):
            sink.post(view, "r", mark, Change(adds=groups))
    else:
        assert sink.post(view, "r", mark, Change(adds=groups)) is expected


@pytest.mark.parametrize(
    "failure",
    [
        requests.ConnectionError("refused"),
        ServerError("503"),
        OSError("no metadata"),
        OperationalError("SELECT", {}, Exception("server closed the connection")),
        pydantic.ValidationError.from_exception_data("LoadTableResult", []),
    ],
    ids=repr,
)
def test_a_catalog_that_does_not_answer_is_an_error_of_ours(
    sink: IcebergSink, monkeypatch: pytest.MonkeyPatch, failure: Exception
) -> None:
    """After a lost answer the next load may fail too: the error must say what to do."""
    monkeypatch.setattr(catalog_of(sink), "load_table", Mock(side_effect=failure))
    with pytest.raises(CatalogUnavailableError):
        sink.load()


def test_a_schema_that_changed_stops_the_commit(sink: IcebergSink) -> None:
    """The message names the change."""
    began = sink.load().schema
    table: Table = sink.load().handle
    table.update_schema().rename_column("id", "key").commit()
    with pytest.raises(TableChangedError, match="renamed to 'key'"):
        sink.check(sink.load(), [began], [])


@pytest.mark.parametrize(
    "schema", [{}, {"fields": [5]}, {"fields": [{"id": 1}]}, {"type": "struct", "fields": "x"}]
)
def test_a_schema_that_no_table_has_is_damage(sink: IcebergSink, schema: dict[str, Any]) -> None:
    """A ledger's plans hold it; fuzzing found it as a traceback (seed 12, round 440)."""
    with pytest.raises(LedgerDamagedError, match="not a table schema"):
        sink.check(sink.load(), [schema], [])


@pytest.mark.parametrize(
    "detail",
    [
        {},
        {"spec_id": [], "partitions": []},
        {"spec_id": 0, "partitions": 1},
        {"spec_id": 0, "partitions": [{"contains_null": 1}]},
        {
            "spec_id": 0,
            "partitions": [
                {"contains_null": False, "contains_nan": None, "lower": "0g", "upper": None}
            ],
        },
        {
            "spec_id": 0,
            "partitions": [
                {"contains_null": False, "contains_nan": None, "lower": "00", "upper": None}
            ],
        },
    ],
)
def test_a_group_detail_that_no_writer_makes_is_damage(
    sink: IcebergSink, detail: dict[str, Any]
) -> None:
    """A manifest list made from it could not be read."""
    view = sink.load()
    sound = {"has_sound_bounds": True, **detail}
    groups = [replace(group, detail=sound) for group in staged(sink, view, 1)]
    with pytest.raises(LedgerDamagedError):
        sink.check(view, [], groups)


AHEAD_MS = 600_000


def other_snapshot(now_ms: int) -> Callable[[dict[str, Any]], None]:
    """Return what a writer does whose clock is ahead: it adds a snapshot."""

    def change(metadata: dict[str, Any]) -> None:
        first = metadata["snapshots"][-1]
        added = {**first, "snapshot-id": 5, "parent-snapshot-id": first["snapshot-id"]}
        added |= {"timestamp-ms": now_ms + AHEAD_MS, "sequence-number": 2}
        metadata["snapshots"].append(added)
        metadata["snapshot-log"].append({"snapshot-id": 5, "timestamp-ms": now_ms + AHEAD_MS})
        metadata["refs"]["main"]["snapshot-id"] = metadata["current-snapshot-id"] = 5
        metadata |= {"last-sequence-number": 2, "last-updated-ms": now_ms + AHEAD_MS}

    return change


def other_property(now_ms: int) -> Callable[[dict[str, Any]], None]:
    """Return what a writer does whose clock is ahead: it sets a property."""
    return lambda metadata: metadata.update({"last-updated-ms": now_ms + AHEAD_MS})


def other_log(now_ms: int) -> Callable[[dict[str, Any]], None]:
    """Return what is left once a writer with the right clock has come after one ahead."""
    entry = {"metadata-file": "file:///old.json", "timestamp-ms": now_ms + AHEAD_MS}
    return lambda metadata: metadata["metadata-log"].append(entry)


@pytest.mark.parametrize("other", [other_snapshot, other_property, other_log])
def test_a_snapshot_is_never_older_than_the_tables_last_change(
    sink: IcebergSink, other: Callable[[int], Callable[[dict[str, Any]], None]]
) -> None:
    """Another writer's clock may be ahead. Java loads no table whose logs are out of order."""
    now_ms = time.time_ns() // 1_000_000
    edit_metadata(sink.load().handle, other(now_ms))
    for ids in ((1,), (2,)):
        view = sink.load()
        change = Change(adds=staged(sink, view, *ids))
        assert sink.post(view, "r", mark_of(sink, view), change) is Outcome.LANDED
    metadata = sink.load().handle.metadata
    assert metadata.current_snapshot().timestamp_ms > now_ms + AHEAD_MS
    assert metadata.last_updated_ms >= metadata.current_snapshot().timestamp_ms
    for log in (metadata.snapshot_log, [*metadata.metadata_log][-2:]):
        times = [entry.timestamp_ms for entry in log]
        assert times == sorted(times)
        assert metadata.last_updated_ms >= times[-1]


def test_a_partition_spec_that_is_gone_stops_the_commit(tmp_path: Path) -> None:
    """A manifest whose spec is not in the metadata cannot be read."""
    sink, table = new_table(tmp_path, SCHEMA, partition_spec=BY_ID)
    sink.post_empty(sink.load())
    groups = staged(sink, sink.load(), 1)
    table.refresh().update_spec().remove_field("id").commit()
    view = sink.load()
    sink.check(view, [view.schema], groups)  # An older spec that still exists is fine.
    edit_metadata(view.handle, lambda metadata: metadata["partition-specs"].pop(0))
    view = sink.load()
    with pytest.raises(TableChangedError, match="partition spec 0 is gone"):
        sink.check(view, [view.schema], groups)


def test_a_partition_spec_whose_number_was_given_again_stops_the_post(tmp_path: Path) -> None:
    """Under another spec the staged rows would read as NULL, or a filter would hide them.

    Spark gives the number again once `expire_snapshots` has removed an unused spec.
    """
    sink, table = new_table(tmp_path, SCHEMA, partition_spec=BY_ID)
    view = sink.load()
    sink.post_empty(view)
    groups = staged(sink, view, 1)

    def buckets(metadata: dict[str, Any]) -> None:
        metadata["partition-specs"][0]["fields"][0]["transform"] = "bucket[4]"

    edit_metadata(sink.load().handle, buckets)
    view = sink.load()
    assert view.handle.spec().spec_id == table.spec().spec_id
    what = r"spec 0 is \(1000: bucket\[4\] of 1\), and was \(1000: identity of 1\)"
    for refuse in (
        lambda: sink.check(view, [view.schema], groups),
        lambda: sink.merge(view, groups, []),
        lambda: sink.copy_groups(view, groups, groups),
        lambda: sink.post(view, "r", mark_of(sink, view), Change(adds=groups)),
    ):
        with pytest.raises(TableChangedError, match=what):
            refuse()


def test_what_an_earlier_version_staged_does_not_land_with_unsound_bounds(tmp_path: Path) -> None:
    """A start of this version may resume a run of one that did not count NaN."""
    sink, _ = new_table(tmp_path, SCHEMA)
    sink.post_empty(sink.load())
    view = sink.load()
    groups = [
        replace(group, detail={**group.detail, "has_sound_bounds": False, "spec": ""})
        for group in staged(sink, view, 1)
    ]
    for refuse in (
        lambda: sink.check(view, [view.schema], groups),
        lambda: sink.merge(view, groups, []),
        lambda: sink.post(view, "r", mark_of(sink, view), Change(adds=groups)),
    ):
        with pytest.raises(UnsupportedTableError, match=r"(?s)did not count NaN.*new run id"):
            refuse()


def test_a_partition_field_of_a_column_that_was_dropped_is_refused_before_rows_are_computed(
    tmp_path: Path,
) -> None:
    """Format v1 keeps a dropped field, which says nothing any more, and so do upgraded tables."""
    sink, table = new_table(
        tmp_path,
        Schema(NestedField(1, "id", LongType()), NestedField(2, "p", LongType())),
        partition_spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p")),
        properties={"format-version": "1"},
    )
    table.update_spec().remove_field("p").commit()
    with table.transaction() as change:
        change.upgrade_table_version(2)
    table.update_schema().delete_column("p").commit()
    with pytest.raises(UnsupportedTableError, match=r"(?s)'p' is of a column.*FIELD `p`"):
        sink.writer_spec(sink.load())
    table.refresh().update_spec().remove_field("p").commit()
    assert staged(sink, sink.load(), 1)


def test_a_head_that_the_metadata_lacks_never_becomes_an_empty_parent(sink: IcebergSink) -> None:
    """A snapshot without its parent's manifests would drop every row of the table."""
    view = sink.load()
    table: Table = view.handle
    table.metadata = table.metadata.model_copy(update={"snapshots": []})
    with pytest.raises(HoldfastError):
        snapshot_updates(table, "main", 77, Change(adds=staged(sink, view, 2)), {})


def test_a_table_that_cannot_be_written_is_refused_when_it_is_loaded(tmp_path: Path) -> None:
    """This covers a missing table, a missing branch and another format version."""
    made, table = new_table(tmp_path, SCHEMA, properties={"format-version": "1"})
    with pytest.raises(UnsupportedTableError, match="v1"):
        made.load()
    catalog = catalog_of(made)
    with pytest.raises(TableMissingError, match="no such table"):
        IcebergSink(catalog, "db.none", "main").load()
    with table.transaction() as change:
        change.upgrade_table_version(2)
    audit = IcebergSink(catalog, "db.t", "audit")
    view = audit.load()
    with pytest.raises(TableMissingError, match="'audit'"):
        audit.check(view, [view.schema], [])
    assert made.load().parent_snapshot_id is None
