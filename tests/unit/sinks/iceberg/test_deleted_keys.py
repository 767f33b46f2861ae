"""Rows that only delete: which ones they are, what is looked at, and where their keys go."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import TruncateTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from holdfast.errors import SchemaMismatchError
from holdfast.ledger import row_files
from holdfast.ledger.row_files import ChunkFile, decode_chunk
from holdfast.model.work import StagedGroup
from holdfast.sinks.conform import ValueMisfitError
from holdfast.sinks.iceberg.deleted_keys import FLAG
from holdfast.sinks.iceberg.writer import IcebergTaskWriter, IcebergWriterSpec
from tests.fakes.iceberg_tables import entries, local_path, writer_spec
from tests.fakes.memory_storage import MemoryStorage

SCHEMA = Schema(
    NestedField(1, "a b", StringType(), required=True),
    NestedField(2, "id", LongType()),
    NestedField(3, "by", IntegerType(), required=True),
)
KINDS = (
    BooleanType(),
    IntegerType(),
    LongType(),
    FloatType(),
    DoubleType(),
    DecimalType(9, 2),
    DecimalType(38, 10),
    DateType(),
    TimeType(),
    TimestampType(),
    TimestamptzType(),
    StringType(),
    UUIDType(),
    FixedType(5),
    BinaryType(),
    ListType(80, StringType(), element_required=True),
    MapType(81, StringType(), 82, LongType(), value_required=True),
    StructType(
        NestedField(83, "x", DoubleType(), required=True),
        NestedField(84, "y", StructType(NestedField(85, "z", UUIDType(), required=True))),
    ),
)
ALL_REQUIRED = Schema(
    NestedField(1, "id", LongType(), required=True),
    *(NestedField(at, f"c{at}", kind, required=True) for at, kind in enumerate(KINDS, 2)),
)


def spec_of(
    folder: Path,
    schema: Schema = SCHEMA,
    on: Sequence[str] = ("id",),
    **more: Any,  # noqa: ANN401
) -> IcebergWriterSpec:
    """Return a writer whose output says with `gone` which rows delete."""
    return replace(writer_spec(folder, schema, **more), on=tuple(on), delete_column="gone")


def output(
    ids: Sequence[int | None],
    flags: pa.Array | Sequence[bool | None],
    by: Sequence[int | None] | None = None,
) -> pa.RecordBatch:
    """Return output rows."""
    flags = flags if isinstance(flags, pa.Array) else pa.array(flags)
    columns = {
        "gone": flags,
        "by": pa.array([1] * len(ids) if by is None else by, pa.int32()),
        "id": pa.array(ids, pa.int64()),
        "a b": pa.array([f"text {id_}" for id_ in ids]),
    }
    return pa.RecordBatch.from_pydict(columns)


def cut(writer: IcebergTaskWriter, *batches: pa.RecordBatch) -> list[StagedGroup]:
    """Write output, and return what is staged."""
    for batch in batches:
        writer.write(writer.fit(batch))
    return writer.cut()


def keys_of(group: StagedGroup) -> list[Any]:
    """Return the keys that a group deletes."""
    assert not group.files
    path = local_path(group.path)
    assert path.stat().st_size == group.size_bytes
    table = pq.read_table(path, page_checksum_verification=True)
    assert table.num_rows == group.deleted_keys
    rows = table.to_pylist()
    return [row["id"] for row in rows] if table.column_names == ["id"] else rows


def ids_of(groups: Sequence[StagedGroup]) -> list[int]:
    """Return the ids of rows that are to be written."""
    paths = [e.data_file.file_path for g in groups if not g.deleted_keys for e in entries(g)]
    found = [id_ for path in paths for id_ in pq.read_table(local_path(path))["id"].to_pylist()]
    assert sum(file.rows for group in groups for file in group.files) == len(found)
    return sorted(found)


# ---- Which rows they are


@pytest.mark.parametrize(
    "flags",
    [
        pa.array([True, None, False, True]),
        pa.array([True, None, False, True]).dictionary_encode(),
        pa.array([True, False, False, True]),
        pa.chunked_array([[True, True, None, False, True]]).chunk(0).slice(1),
    ],
)
def test_true_deletes_and_null_does_not(flags: pa.Array, tmp_path: Path) -> None:
    """Whatever form the flag comes in."""
    groups = cut(spec_of(tmp_path).open("t"), output([1, 2, 3, 4], flags))
    assert ids_of(groups) == [2, 3]
    assert [keys_of(group) for group in groups if group.deleted_keys] == [[1, 4]]


def test_a_column_of_null_deletes_nothing(tmp_path: Path) -> None:
    """As an untyped column of pandas is, in which no row has a value."""
    groups = cut(spec_of(tmp_path).open("t"), output([1, 2], pa.nulls(2)))
    assert ids_of(groups) == [1, 2]
    assert not any(group.deleted_keys for group in groups)


@pytest.mark.parametrize(
    "flags",
    [
        pa.array([0, 1]),
        pa.array(["false", "true"]),
        pa.array([0.0, 1.0]),
        pa.array(["t", "f"]).dictionary_encode(),
    ],
)
def test_what_is_not_boolean_is_refused(flags: pa.Array, tmp_path: Path) -> None:
    """Is "false" true? The user says it in the transform."""
    writer = spec_of(tmp_path).open("t")
    with pytest.raises(SchemaMismatchError, match=r"'gone'.*it must be boolean"):
        writer.fit(output([1, 2], flags))


def test_output_must_have_the_column_once(tmp_path: Path) -> None:
    """Its absence does not mean that all rows are written."""
    writer = spec_of(tmp_path, may_lack=None).open("t")
    rows = output([1], [True])
    with pytest.raises(SchemaMismatchError, match="it says which rows delete"):
        writer.fit(rows.drop_columns(["gone"]))
    with pytest.raises(SchemaMismatchError, match="appears twice"):
        writer.fit(rows.append_column("gone", pa.array([False])))


# ---- What is looked at


def test_only_the_key_of_a_row_that_deletes_is_looked_at(tmp_path: Path) -> None:
    """A required column may be NULL there, and a value may lie outside of all partitions."""
    by = PartitionSpec(PartitionField(3, 1000, TruncateTransform(10), "tens"))
    writer = spec_of(tmp_path, spec=by).open("t")
    least = -(2**31)
    groups = cut(writer, output([1, 2, 3], [True, True, False], [None, least, 3]))
    assert ids_of(groups) == [3]
    with pytest.raises(ValueMisfitError, match="required, but NULL"):
        writer.fit(output([1], [False], [None]))
    with pytest.raises(ValueMisfitError, match="has no partition"):
        writer.fit(output([1], [False], [least]))


def test_a_row_that_deletes_has_a_key(tmp_path: Path) -> None:
    """NULL equals nothing."""
    writer = spec_of(tmp_path).open("t")
    with pytest.raises(ValueMisfitError, match="it is NULL in 1 of 2 rows"):
        writer.fit(output([1, None, 3], [True, True, False]))


def test_a_key_column_that_is_missing_is_null(tmp_path: Path) -> None:
    """If columns may be missing at all; output without rows shows nothing."""
    rows = output([1, 2], [True, False]).drop_columns(["id"])
    with pytest.raises(SchemaMismatchError, match="missing"):
        spec_of(tmp_path, may_lack=frozenset()).open("t").fit(rows)
    writer = spec_of(tmp_path, may_lack=None).open("t")
    for some in (rows.slice(0, 1), rows.slice(1), rows):
        with pytest.raises(ValueMisfitError, match=r"'id'.*it is NULL in 1 of 1 rows"):
            writer.fit(some)
    assert not writer.fit(rows.slice(0, 0)).num_rows


def test_columns_are_those_of_the_table_though_all_rows_delete(tmp_path: Path) -> None:
    """What a batch may lack does not depend on its rows."""
    writer = spec_of(tmp_path, may_lack=frozenset()).open("t")
    rows = output([1], [True])
    with pytest.raises(SchemaMismatchError, match=r"'a b'.*required, but missing"):
        writer.fit(rows.drop_columns(["a b"]))
    with pytest.raises(SchemaMismatchError, match="no such column"):
        writer.fit(rows.append_column("more", pa.array([1])))


def test_keys_are_in_the_tables_types(tmp_path: Path) -> None:
    """They are found by the ids of their columns, like those of rows."""
    rows = pa.RecordBatch.from_pydict(
        {
            "a b": pa.array(["x", "y"]).dictionary_encode(),
            "id": pa.array([7, 8], pa.int32()),
            "by": pa.nulls(2, pa.int32()),
            "gone": [True, True],
        }
    )
    (group,) = cut(spec_of(tmp_path, on=("a b", "id")).open("t"), rows)
    assert keys_of(group) == [{"a_x20b": "x", "id": 7}, {"a_x20b": "y", "id": 8}]
    schema = pq.read_schema(local_path(group.path))
    assert [field.metadata[b"PARQUET:field_id"] for field in schema] == [b"1", b"2"]
    assert schema.field("id").type == pa.int64()


# ---- How they are kept


def test_chunks_keep_which_rows_delete(tmp_path: Path) -> None:
    """Required columns of every type are NULL in them."""
    spec, storage = spec_of(tmp_path, ALL_REQUIRED), MemoryStorage()
    writer = spec.open("t")
    others = [field for field in spec.schema if field.name not in {"id", "gone"}]
    given: dict[str, Any] = {field.name: pa.nulls(3, field.type) for field in others}
    given |= {"id": pa.array([1, 2, 3]), "gone": [True] * 3}
    rows = writer.fit(pa.RecordBatch.from_pydict(given))
    assert rows.schema.equals(writer.stored_schema, check_metadata=True)
    rows.validate(full=True)
    file = ChunkFile(storage, "s3://store/chunk", rows.schema)
    file.write([rows])
    chunk = file.finish()
    (again,) = decode_chunk("s3://store/chunk", chunk, storage.objects["s3://store/chunk"])
    assert again.schema.field(FLAG.name).equals(FLAG)
    assert again.schema.equals(writer.stored_schema, check_metadata=True)
    replay = spec.open("replay")
    replay.write(again)
    (group,) = replay.cut()
    assert keys_of(group) == [1, 2, 3]


def test_rows_of_both_kinds_may_share_a_batch(tmp_path: Path) -> None:
    """Many small batches, and more keys than wait in memory."""
    writer = spec_of(tmp_path).open("t")
    flags = [id_ % 3 == 0 for id_ in range(1000)]
    batches = [output([id_], [flag]) for id_, flag in enumerate(flags[:100])]
    batches.append(output(range(100, 1000), flags[100:]))
    groups = cut(writer, *batches)
    assert ids_of(groups) == [id_ for id_ in range(1000) if id_ % 3]
    assert [keys_of(group) for group in groups if group.deleted_keys] == [[*range(0, 1000, 3)]]


def test_each_cut_has_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A later cut does not overwrite what an earlier one has staged."""
    monkeypatch.setattr(row_files, "_ROW_GROUP_BYTES", 64)
    writer = spec_of(tmp_path).open("t")
    first = cut(writer, output(range(50), [True] * 50))
    second = cut(writer, output([60], [False]))
    third = cut(writer, output([70], [True]))
    assert [keys_of(group) for group in (*first, *third)] == [[*range(50)], [70]]
    assert (ids_of(second), writer.cut()) == ([60], [])
    assert first[0].path != third[0].path


def test_a_task_that_gives_up_leaves_no_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it writes afterwards is a file without them."""
    monkeypatch.setattr(row_files, "_ROW_GROUP_BYTES", 64)
    writer = spec_of(tmp_path).open("t")
    writer.write(writer.fit(output(range(50), [True] * 50)))
    writer.abandon()
    assert not list(tmp_path.rglob("*-k*"))
    (group,) = cut(writer, output([70], [True]))
    assert keys_of(group) == [70]


def test_keys_fill_a_file_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that only deletes makes its work durable without a chunk for each checkpoint."""
    monkeypatch.setattr(row_files, "_ROW_GROUP_BYTES", 64)
    properties = {"write.target-file-size-bytes": "100"}
    writer = spec_of(tmp_path, properties=properties).open("t")
    # Numbers that grow evenly would take no room.
    keys = [number * number * 7919 % 1_000_003 for number in range(5000)]
    writer.write(writer.fit(output(keys, [True] * 5000)))
    assert writer.fullness >= 1
    writer.cut()
    assert writer.fullness < 1
