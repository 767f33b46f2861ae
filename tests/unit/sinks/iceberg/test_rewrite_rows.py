"""Data files without the rows that go: what stays is as it was, and where it was."""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.manifest import DataFile, FileFormat, ManifestEntryStatus
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    UUIDType,
)

from holdfast.errors import UnsupportedTableError
from holdfast.sinks.iceberg.rewrite import LiveFile
from holdfast.sinks.iceberg.rewrite_rows import (
    AppliedDeletes,
    RewriteSpec,
    RewrittenFile,
    TargetFile,
)
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.sinks.iceberg.where import Where
from tests.fakes.iceberg_tables import entries, local_path, new_table, rows_of
from tests.fakes.live_files import found_files
from tests.fakes.position_deletes import add_equality_deletes, delete_positions

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "n", IntegerType()),
    NestedField(3, "c", StringType()),
)
BY_COUNTRY = PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "c"), spec_id=0)


# The places of fields in a data file's record.
FORMAT, KEY = 2, 12


class Rewriting:
    """A table, and its files rewritten."""

    def __init__(
        self,
        folder: Path,
        schema: Schema = SCHEMA,
        spec: PartitionSpec = UNPARTITIONED_PARTITION_SPEC,
        properties: Mapping[str, str] | None = None,
    ) -> None:
        """Make an empty table."""
        self.sink: IcebergSink
        self.sink, _ = new_table(
            folder, schema, partition_spec=spec, properties=dict(properties or {})
        )

    @property
    def table(self) -> Table:
        """The table as it is now."""
        loaded: Table = self.sink.load().handle
        return loaded

    def append(self, *rows: Mapping[str, Any]) -> None:
        """Add rows in one snapshot."""
        table = self.table
        table.append(pa.Table.from_pylist([dict(row) for row in rows], table.schema().as_arrow()))

    def spec(self, where: str) -> RewriteSpec:
        """Return what a worker gets."""
        view, table = self.sink.load(), self.table
        chosen = Where.of("lake.db.t", table.schema(), where)
        given = RewriteSpec.of(table, self.sink.writer_spec(view), chosen)
        sent: RewriteSpec = pickle.loads(pickle.dumps(given))  # noqa: S301 - our own.
        return sent

    def targets(self) -> list[TargetFile]:
        """Return all data files of the table."""
        return [found.target() for found in found_files(self.table)]

    def rewrite(self, where: str, target: TargetFile | None = None) -> RewrittenFile:
        """Rewrite a file; by default the only one."""
        if target is None:
            (target,) = self.targets()
        return self.spec(where).open(f"task-{uuid.uuid4().hex}").rewrite(target)


def new_file(done: RewrittenFile) -> DataFile:
    """Return the one file of a rewrite."""
    assert done.group is not None
    (entry,) = entries(done.group)
    return entry.data_file


def numbered(*ids: int) -> list[dict[str, Any]]:
    """Return rows; every third one has NULL in both columns."""
    return [
        {"id": i, "n": None if i % 3 == 0 else i, "c": None if i % 3 == 0 else f"c{i}"} for i in ids
    ]


def test_the_rows_that_match_go_and_the_others_stay_in_order(tmp_path: Path) -> None:
    """The new file is staged as a task's files are: a manifest that adds it, without numbers."""
    made = Rewriting(tmp_path)
    made.append(*numbered(*range(8)))
    done = made.rewrite("n != 4 and n < 7")
    assert (done.removed_rows, done.kept_rows) == (3, 5)
    file = new_file(done)
    assert rows_of(file) == numbered(0, 3, 4, 6, 7)
    assert done.group is not None
    (staged,) = done.group.files
    assert (staged.path, staged.rows) == (file.file_path, 5)
    assert staged.size_bytes == local_path(file.file_path).stat().st_size
    assert (file.null_value_counts or {})[2] == 3
    (entry,) = entries(done.group)
    assert entry.status == ManifestEntryStatus.ADDED
    assert local_path(done.group.path).stat().st_size == done.group.size_bytes


def test_a_file_without_a_match_stays_and_one_of_matches_goes(tmp_path: Path) -> None:
    """No file is written in either case."""
    made = Rewriting(tmp_path)
    made.append(*numbered(*range(8)))
    (target,) = made.targets()
    before = sorted(tmp_path.rglob("*.parquet"))
    assert made.rewrite("n > 100") == RewrittenFile(removed_rows=0, kept_rows=8, group=None)
    assert made.rewrite("id >= 0") == RewrittenFile(removed_rows=8, kept_rows=0, group=None)
    assert sorted(tmp_path.rglob("*.parquet")) == before
    assert target.rows == 8


def test_rows_under_position_deletes_are_not_carried_over(tmp_path: Path) -> None:
    """The deletes name the old file, so that these rows would be there again."""
    made = Rewriting(tmp_path)
    made.append(*numbered(*range(8)))
    (target,) = made.targets()
    delete_positions(made.table, {target.path: [0, 4], "another": [1]})
    delete_positions(made.table, {target.path: [4, 7]})
    done = made.rewrite("id = 1 or id = 4")
    assert (done.removed_rows, done.kept_rows) == (1, 4)
    assert [row["id"] for row in rows_of(new_file(done))] == [2, 3, 5, 6]
    # Without a match the file stays, with its deletes.
    assert made.rewrite("id = 4") == RewrittenFile(removed_rows=0, kept_rows=5, group=None)
    none_left = made.rewrite("id != 0 and id < 7")
    assert none_left == RewrittenFile(removed_rows=5, kept_rows=0, group=None)


def test_a_file_keeps_its_spec_and_its_partition(tmp_path: Path) -> None:
    """Even if the table has another spec now, and the old one's column is no longer there."""
    made = Rewriting(tmp_path, spec=BY_COUNTRY)
    made.append({"id": 1, "c": "fi"}, {"id": 2, "c": "fi"}, {"id": 3, "c": None})
    with made.table.update_spec() as update:
        update.remove_field("c")
        update.add_field("id", BucketTransform(2), "bucket")
    with made.table.update_schema() as schema:
        schema.delete_column("c")
    assert made.table.spec().spec_id != 0
    (target,) = [target for target in made.targets() if target.partition == ("fi",)]
    done = made.rewrite("id = 1", target)
    file = new_file(done)
    assert (file.spec_id, file.partition[0]) == (0, "fi")
    assert done.group is not None
    assert done.group.detail["spec_id"] == 0
    assert "/c=fi/" in file.file_path
    assert rows_of(file) == [{"id": 2, "n": None, "c": "fi"}]
    without = replace(made.spec("id = 1"), layouts={})
    with pytest.raises(UnsupportedTableError, match="in no schema of the table"):
        without.open("task").rewrite(target)


def test_columns_keep_their_ids_though_the_table_has_changed(tmp_path: Path) -> None:
    """A dropped column stays, a renamed one keeps its name, a widened one its width."""
    made = Rewriting(tmp_path, properties={"write.metadata.metrics.column.word": "counts"})
    made.append(*numbered(*range(6)))
    with made.table.update_schema() as update:
        update.rename_column("c", "word")
        update.update_column("n", LongType())
        update.add_column("later", LongType())
    with made.table.update_schema() as update:
        update.delete_column("id")
    done = made.rewrite("n > 1 and word != 'c4' and later is null")
    assert (done.removed_rows, done.kept_rows) == (2, 4)
    file = new_file(done)
    assert rows_of(file) == numbered(0, 1, 3, 4)
    columns = pq.read_schema(local_path(file.file_path))
    ids = [column.metadata[b"PARQUET:field_id"] for column in columns]
    assert (columns.names, ids) == (["id", "n", "c"], [b"1", b"2", b"3"])
    assert columns.field("n").type == pa.int32()
    bounds = file.lower_bounds or {}
    assert bounds[2] == (1).to_bytes(4, "little")
    assert 3 not in bounds  # As the table wants it, under the column's new name.
    assert made.rewrite("later is not null").removed_rows == 0


NESTED = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "u", UUIDType()),
    NestedField(3, "many", ListType(4, StringType(), element_required=False)),
    NestedField(5, "by", MapType(6, StringType(), 7, LongType(), value_required=False)),
    NestedField(
        8,
        "at place",
        StructType(NestedField(9, "x", LongType()), NestedField(10, "t", TimestampType())),
    ),
)


def test_values_of_nested_columns_are_carried_over(tmp_path: Path) -> None:
    """Under names that Avro allows, as the old file has them."""
    made = Rewriting(tmp_path, NESTED)
    rows = [
        {
            "id": i,
            "u": uuid.UUID(int=i).bytes,
            "many": ["a", None] if i % 2 else None,
            "by": [("k", i), ("n", None)],
            "at place": {"x": i, "t": datetime(2024, 1, i + 1)} if i != 2 else None,  # noqa: DTZ001
        }
        for i in range(6)
    ]
    writer = made.sink.writer_spec(made.sink.load()).open("old")
    batch = pa.RecordBatch.from_pylist(rows, schema=NESTED.as_arrow())
    writer.write(writer.fit(batch))
    (group,) = writer.cut()
    (entry,) = entries(group)
    old = entry.data_file
    old.spec_id = 0
    target = TargetFile.of("lake.db.t", old, [])
    done = made.rewrite('"at place".x not in (1, 9)', target)
    assert (done.removed_rows, done.kept_rows) == (4, 2)
    kept = rows_of(new_file(done))
    assert kept == [row for number, row in enumerate(rows_of(old)) if number in {1, 2}]


def test_row_groups_are_as_large_as_the_table_wants(tmp_path: Path) -> None:
    """Rows of several small groups share one; a file in order stays declared as such."""
    made = Rewriting(tmp_path, properties={"write.parquet.row-group-limit": "10"})
    made.append(*numbered(*range(40)))
    (target,) = made.targets()
    old = pq.read_table(local_path(target.path))
    local_path(target.path).unlink()
    pq.write_table(old, local_path(target.path), row_group_size=4)
    size = local_path(target.path).stat().st_size
    done = made.rewrite("id > 25 or id = 3", replace(target, size_bytes=size, sort_order_id=7))
    file = new_file(done)
    assert [row["id"] for row in rows_of(file)] == [i for i in range(26) if i != 3]
    with pq.ParquetFile(local_path(file.file_path)) as parquet:
        groups = [parquet.metadata.row_group(at).num_rows for at in range(parquet.num_row_groups)]
    assert groups == [11, 12, 2]
    assert file.sort_order_id == 7


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """A file of eighty megabytes in memory passes through with a few row groups at a time."""
    limit = 4 * 1024 * 1024
    properties = {"write.parquet.row-group-size-bytes": str(limit)}
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "text", StringType()))
    made = Rewriting(tmp_path, schema, properties=properties)
    writer = made.sink.writer_spec(made.sink.load()).open("old")
    for number in range(80):
        ids = pa.array(range(number * 1000, number * 1000 + 1000), pa.int64())
        texts = pa.array([f"{i}".ljust(1000, "x") for i in ids.to_pylist()])
        writer.write(writer.fit(pa.RecordBatch.from_arrays([ids, texts], ["id", "text"])))
    (group,) = writer.cut()
    (entry,) = entries(group)
    entry.data_file.spec_id = 0
    target = TargetFile.of("lake.db.t", entry.data_file, [])
    usual = pa.default_memory_pool()
    counted = pa.proxy_memory_pool(usual)
    pa.set_memory_pool(counted)
    try:
        done = made.rewrite("id < 1000", target)
    finally:
        pa.set_memory_pool(usual)
    assert (done.removed_rows, done.kept_rows) == (1000, 79_000)
    assert limit < counted.max_memory() < 6 * limit


# ---- Files that other writers made: without ids, without the partition's column, of other types
def foreign_file(made: Rewriting, rows: pa.Table, **options: Any) -> TargetFile:  # noqa: ANN401
    """Write a Parquet file into the table's folder, as a migration finds it there."""
    path = local_path(made.table.location()) / "data" / f"{uuid.uuid4().hex}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows, path, **options)
    return TargetFile(
        path=f"file://{path}",
        size_bytes=path.stat().st_size,
        rows=rows.num_rows,
        spec_id=0,
        partition=(),
        sort_order_id=None,
        deletes=(),
    )


NAMES = {
    "schema.name-mapping.default": json.dumps(
        [{"field-id": at, "names": [name]} for at, name in enumerate(("id", "n", "word"), start=1)]
    )
}


def test_a_file_without_ids_is_read_by_the_name_mapping_and_gets_ids(tmp_path: Path) -> None:
    """A column that only the partition has is judged by the partition's value."""
    made = Rewriting(tmp_path, spec=BY_COUNTRY, properties=NAMES)
    given = foreign_file(made, pa.table({"id": [1, 2], "n": pa.array([5, None], pa.int32())}))
    in_fi = replace(given, partition=("fi",))
    done = made.rewrite("c = 'fi' and n = 5", in_fi)
    file = new_file(done)
    assert rows_of(file) == [{"id": 2, "n": None}]
    columns = pq.read_schema(local_path(file.file_path))
    assert [column.metadata[b"PARQUET:field_id"] for column in columns] == [b"1", b"2"]
    assert made.rewrite("c = 'se'", in_fi).removed_rows == 0
    assert made.rewrite("c not in ('fi', 'se')", replace(given, partition=(None,))).kept_rows == 2
    assert made.rewrite("c is null", replace(given, partition=(None,))).removed_rows == 2
    own = foreign_file(made, pa.table({"id": [1], "word": ["se"]}))
    assert made.rewrite("c = 'se'", replace(own, partition=("fi",))).removed_rows == 1


def test_narrow_numbers_of_a_migrated_table_are_carried_over(tmp_path: Path) -> None:
    """Iceberg has no type of 16 bits: the new file has the next wider one."""
    made = Rewriting(tmp_path, properties=NAMES)
    given = foreign_file(made, pa.table({"id": [1, 2], "n": pa.array([-5, 7], pa.int16())}))
    file = new_file(made.rewrite("n > 0", given))
    assert rows_of(file) == [{"id": 1, "n": -5}]


# ---- What is refused
def times(unit: str) -> pa.Table:
    """Return a table with a time in a unit."""
    at = pa.array([datetime(2024, 1, 1)], pa.timestamp(unit))  # noqa: DTZ001
    return pa.table({"id": [1], "word": at})


@pytest.mark.parametrize(
    ("rows", "options", "problem"),
    [
        (times("us"), {"use_deprecated_int96_timestamps": True}, "INT96"),
        (times("ns"), {}, "ns"),
        (times("us"), {}, "column 'word' is timestamp, not string"),
        (pa.table({"id": [1], "other": [2]}), {}, "other"),
        (pa.table({"id": ["1"]}), {}, "column 'id' is string, not long"),
    ],
    ids=["INT96", "nanoseconds", "another type", "not in the mapping", "a text"],
)
def test_a_file_that_cannot_be_written_as_it_was_is_refused(
    tmp_path: Path, rows: pa.Table, options: dict[str, Any], problem: str
) -> None:
    """Nothing is written; the user is told how to get rid of such files."""
    made = Rewriting(tmp_path, properties=NAMES)
    given = foreign_file(made, rows, **options)
    with pytest.raises(UnsupportedTableError, match=f"(?s){problem}.*rewrite_data_files"):
        made.rewrite("id = 1 or n = 2", given)
    assert len(list(tmp_path.rglob("*.parquet"))) == 1


def test_a_file_without_ids_is_refused_if_the_table_has_no_name_mapping(tmp_path: Path) -> None:
    """All its columns would be NULL, and a filter for NULL would take all its rows."""
    made = Rewriting(tmp_path)
    given = foreign_file(made, pa.table({"id": [1]}))
    with pytest.raises(UnsupportedTableError, match="field-ids"):
        made.rewrite("n is null", given)


def test_a_file_with_a_text_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    """Spark writes such texts. They cannot be bounds, and a retry would meet them again."""
    made = Rewriting(tmp_path, properties=NAMES)
    broken = pa.array([b"\xff\xfe", b"ok"], pa.binary()).view(pa.string())
    given = foreign_file(made, pa.table({"id": [1, 2], "word": broken}))
    with pytest.raises(UnsupportedTableError, match=r"(?s)utf-8.*rewrite_data_files"):
        made.rewrite("id = 2", given)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    """It has other rows than the table says, or is no Parquet file, or a page is broken."""
    made = Rewriting(tmp_path)
    made.append(*numbered(*range(8)))
    (target,) = made.targets()
    with pytest.raises(UnsupportedTableError, match="has 8 rows, but the table says 9"):
        made.rewrite("id = 1", replace(target, rows=9))
    path = local_path(target.path)
    content = path.read_bytes()
    path.write_bytes(content[:4] + b"\0" * 60 + content[64:])
    with pytest.raises(UnsupportedTableError, match="cannot be read"):
        made.rewrite("id = 1")
    path.write_bytes(content[:-4] + b"PARE")
    with pytest.raises(UnsupportedTableError, match="not a Parquet file"):
        made.rewrite("id = 1")


def test_a_file_that_is_gone_is_no_error_of_the_table(tmp_path: Path) -> None:
    """Another writer has replaced it, and its snapshot has expired: look at the table again."""
    made = Rewriting(tmp_path)
    made.append(*numbered(*range(8)))
    (target,) = made.targets()
    delete_positions(made.table, {target.path: [0]})
    (target,) = made.targets()
    local_path(target.deletes[0]).unlink()
    with pytest.raises(FileNotFoundError, match="deletes"):
        made.rewrite("id = 1", target)
    local_path(target.path).unlink()
    with pytest.raises(FileNotFoundError):
        made.rewrite("id = 1", target)


def test_files_that_only_metadata_shows_to_be_unsupported_are_refused(tmp_path: Path) -> None:
    """Another format, encryption, equality deletes, deletion vectors."""
    made = Rewriting(tmp_path)
    made.append(*numbered(*range(8)))
    (found,) = found_files(made.table)
    file, live = found.data_file, found.live
    assert TargetFile.of("t", file, []).path == live.path

    def refused(problem: str, deletes: Sequence[LiveFile] = ()) -> None:
        with pytest.raises(UnsupportedTableError, match=problem):
            TargetFile.of("t", file, deletes)

    refused("equality deletes", [replace(live, content=2)])
    refused("format PUFFIN", [replace(live, content=1, path="v", file_format="PUFFIN")])
    refused("encrypted", [replace(live, content=1, is_encrypted=True)])
    file[FORMAT] = FileFormat.ORC
    refused("format ORC")
    file[FORMAT], file[KEY] = FileFormat.PARQUET, b"key"
    refused("encrypted")


def test_deletes_of_a_table_are_found_for_each_file(tmp_path: Path) -> None:
    """Equality deletes too, so that they can be refused."""
    made = Rewriting(tmp_path)
    made.append(*numbered(1, 2))
    first = found_files(made.table)[0].live.path
    delete_positions(made.table, {first: [0]})
    add_equality_deletes(made.table)
    made.append(*numbered(3, 4))
    applied = {
        found.live.path == first: sorted(delete.content for delete in found.deletes)
        for found in found_files(made.table)
    }
    assert applied == {True: [1, 2], False: []}
    with pytest.raises(UnsupportedTableError, match="equality deletes"):
        made.targets()


def test_deletes_apply_by_path_partition_and_age(tmp_path: Path) -> None:
    """As Iceberg's own readers apply them."""
    made = Rewriting(tmp_path)
    made.append(*numbered(1))
    data = replace(
        found_files(made.table)[0].live, path="d", spec_id=1, partition=("a",), sequence_number=5
    )
    beside = replace(data, content=1, path="beside")
    cases = {
        "same partition, same age": (beside, True),
        "older": (replace(beside, sequence_number=4), False),
        "another partition": (replace(beside, partition=("b",)), False),
        "another spec": (replace(beside, spec_id=2), False),
        "named": (replace(beside, partition=("b",), referenced="d"), True),
        "another is named": (replace(beside, referenced="e"), False),
        "unpartitioned positions": (replace(beside, spec_id=0, partition=()), False),
        "equality of the same age": (replace(beside, content=2), False),
        "later equality": (replace(beside, content=2, sequence_number=6), True),
        "equality elsewhere": (
            replace(beside, content=2, sequence_number=6, partition=("b",)),
            False,
        ),
        "equality everywhere": (
            replace(beside, content=2, sequence_number=6, spec_id=0, partition=()),
            True,
        ),
    }
    for name, (delete, applies) in cases.items():
        assert AppliedDeletes([data, delete], [0]).to(data) == [delete] * applies, name
