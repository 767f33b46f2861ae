"""Copies of staged groups on a real table: other names, and nothing else is different."""

from __future__ import annotations

import datetime as dt
import os
import time
import uuid
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
)
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    IcebergType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
    UUIDType,
)

from holdfast.errors import LedgerDamagedError, StagedFileMissingError, TableChangedError
from holdfast.model.work import StagedGroup
from holdfast.sinks.base import Change, Outcome, RunMark, TableView
from holdfast.sinks.iceberg.schemas import arrow_schema
from holdfast.sinks.iceberg.sink import IcebergSink
from tests.fakes.iceberg_tables import entries, local_path, new_table

NOON = dt.datetime(2024, 2, 29, 12, tzinfo=dt.timezone.utc)
PARTITIONS: list[tuple[IcebergType, Transform[Any, Any], list[Any]]] = [
    (LongType(), IdentityTransform(), [1, -(2**62), None]),
    (DoubleType(), IdentityTransform(), [0.5, float("inf"), None]),
    # A float holds none of these.
    (DoubleType(), IdentityTransform(), [0.1, 19.99, 1e308, 5e-324, -0.0, float("nan")]),
    (StringType(), IdentityTransform(), ["", "größe 冰山", None]),
    (StringType(), TruncateTransform(2), ["iceberg", "x", None]),
    (StringType(), BucketTransform(4), ["a", "b", None]),
    (DateType(), IdentityTransform(), [dt.date(1969, 12, 31), dt.date(2024, 2, 29), None]),
    (TimestamptzType(), IdentityTransform(), [NOON, None]),
    (TimestamptzType(), DayTransform(), [NOON, None]),
    (DecimalType(9, 2), IdentityTransform(), [Decimal("-1.23"), Decimal("0.00"), None]),
    (UUIDType(), IdentityTransform(), [uuid.UUID(int=7).bytes, None]),
    (BinaryType(), IdentityTransform(), [b"\x00\xff", b"", None]),
    (FixedType(2), IdentityTransform(), [b"\x00\xff", None]),
    (LongType(), VoidTransform(), [1, None]),
]


def table_of(folder: Path, kind: IcebergType, transform: Transform[Any, Any]) -> IcebergSink:
    """Return a sink on a table that is partitioned by one column."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "p", kind))
    field = PartitionField(source_id=2, field_id=1000, transform=transform, name="part")
    sink, _ = new_table(folder, schema, partition_spec=PartitionSpec(field))
    sink.post_empty(sink.load())
    return sink


def plain_sink(folder: Path) -> IcebergSink:
    """Return a sink on a table with two columns and no partitions."""
    return table_of(folder, LongType(), VoidTransform())


def staged(sink: IcebergSink, view: TableView, values: Sequence[Any]) -> list[StagedGroup]:
    """Write a row for each value, as a task does."""
    writer = sink.writer_spec(view).open("task-0")
    schema = arrow_schema(view.handle.schema())
    ids = list(range(len(values)))
    writer.write(writer.fit(pa.RecordBatch.from_pydict({"id": ids, "p": values}, schema=schema)))
    return writer.cut()


def copied(sink: IcebergSink, view: TableView, groups: list[StagedGroup]) -> list[StagedGroup]:
    """Copy groups to new names."""
    return sink.copy_groups(view, groups, [group.renamed("tag") for group in groups])


def facts(file: DataFile) -> list[Any]:
    """Return all that a manifest says about a file, in values that can be compared."""
    values = [file[position] for position in range(len(file))]
    return [dict(one) if isinstance(one, Mapping) else one for one in values]


@pytest.mark.parametrize(("kind", "transform", "values"), PARTITIONS, ids=str)
def test_a_copy_differs_in_its_names_only(
    tmp_path: Path, kind: IcebergType, transform: Transform[Any, Any], values: list[Any]
) -> None:
    """Partitions, bounds and statistics come through, whatever the table is partitioned by."""
    sink = table_of(tmp_path, kind, transform)
    view = sink.load()
    (group,) = staged(sink, view, values)
    (copy,) = copied(sink, view, [group])
    assert copy.detail == group.detail
    for entry, other in zip(entries(group), entries(copy), strict=True):
        old, new = entry.data_file, other.data_file
        assert local_path(old.file_path).read_bytes() == local_path(new.file_path).read_bytes()
        old[1] = new.file_path
        assert (entry.status, facts(old)) == (other.status, facts(new))


def test_copies_land_though_the_originals_are_gone(tmp_path: Path) -> None:
    """Nothing in the table names the old files any more."""
    sink = table_of(tmp_path, StringType(), IdentityTransform())
    view = sink.load()
    groups = staged(sink, view, ["a", "b", "a"])
    copies = copied(sink, view, groups)
    for group in groups:
        for path in group.paths:
            local_path(path).unlink()
    sink.check(view, [view.schema], copies)
    mark = RunMark(
        run_nonce="n",
        intent_number=2,
        snapshot_id=sink.new_snapshot_id(view),
        sequence_number=view.next_sequence_number,
    )
    assert sink.post(view, "r", mark, Change(adds=copies)) is Outcome.LANDED
    rows = sink.load().handle.scan(row_filter="p = 'a'").to_arrow()
    assert sorted(rows["id"].to_pylist()) == [0, 2]


def test_a_group_is_old_as_soon_as_one_of_its_objects_is(tmp_path: Path) -> None:
    """Manifest and data files alike."""
    sink = plain_sink(tmp_path)
    view = sink.load()
    (group,) = staged(sink, view, [1])
    before = time.time() - 3600
    for path in group.paths:
        assert sink.old_groups(view, [group], before) == []
        os.utime(local_path(path), (before - 10, before - 10))
        assert sink.old_groups(view, [group], before) == [group]
        os.utime(local_path(path))


def test_a_source_that_is_gone_stops_the_copy(tmp_path: Path) -> None:
    """Whichever it is: the rows are computed again, and not left out."""
    sink = plain_sink(tmp_path)
    view = sink.load()
    (group,) = staged(sink, view, [1])
    for path in group.paths:
        data = local_path(path).read_bytes()
        local_path(path).unlink()
        with pytest.raises(StagedFileMissingError, match="1 staged file") as raised:
            copied(sink, view, [group])
        assert raised.value.path == path
        with pytest.raises(StagedFileMissingError):
            sink.old_groups(view, [group], 0.0)
        local_path(path).write_bytes(data)


def test_a_manifest_with_other_files_than_the_ledger_knows_is_not_copied(tmp_path: Path) -> None:
    """Rows would be left out, or files of others published."""
    sink = table_of(tmp_path, StringType(), IdentityTransform())
    view = sink.load()
    (group,) = staged(sink, view, ["a", "b"])
    less = StagedGroup.from_json({**group.to_json(), "files": group.to_json()["files"][:1]})
    with pytest.raises(LedgerDamagedError, match="other files"):
        copied(sink, view, [less])


def test_a_group_of_a_lost_spec_is_not_copied(tmp_path: Path) -> None:
    """The table can no longer say what its partitions mean."""
    sink = plain_sink(tmp_path)
    view = sink.load()
    (group,) = staged(sink, view, [1])
    strange = StagedGroup.from_json({**group.to_json(), "detail": {"spec_id": 9, "partitions": []}})
    with pytest.raises(TableChangedError, match="partition spec"):
        copied(sink, view, [strange])


def test_new_names_do_not_grow_and_stay_in_their_folder() -> None:
    """A copy of a copy is named after the first original."""
    group = StagedGroup.from_json(
        {
            "path": "s3://b/t/metadata/job-0-m0.avro",
            "size_bytes": 1,
            "files": [["s3://b/t/data/p=a%2Fb.c/job-0.parquet", 2, 3]],
            "detail": {},
        }
    )
    again = group.renamed("first").renamed("second")
    assert again.paths == (
        "s3://b/t/metadata/job-0-m0-copy-second.avro",
        "s3://b/t/data/p=a%2Fb.c/job-0-copy-second.parquet",
    )
