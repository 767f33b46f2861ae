"""Rewritten manifests: files go, and all else is as the foreign writer left it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any, Literal
from uuid import UUID

import pytest
from pyiceberg.avro.codecs import AvroCompressionCodec
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    write_manifest,
)
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    NestedField,
    StringType,
    TimestamptzType,
    UUIDType,
)

from holdfast.sinks.iceberg import rewrite
from holdfast.sinks.iceberg.avro import blocks, read_header
from holdfast.sinks.iceberg.manifests import manifest_entries
from holdfast.sinks.iceberg.rewrite import (
    Manifest,
)
from tests.fakes.avro_files import avro_of, avro_rows

SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "day", DateType()),
    NestedField(3, "price", DoubleType()),
    NestedField(4, "country", StringType()),
)
SPEC = PartitionSpec(
    PartitionField(2, 1000, IdentityTransform(), "day"),
    PartitionField(3, 1001, IdentityTransform(), "price"),
    PartitionField(4, 1002, IdentityTransform(), "country"),
    spec_id=3,
)
# The year 10183: no date of Python.
FAR_DAY = 3_000_000
PARTITIONS = [(19000, 0.1, "fi"), (FAR_DAY, float("nan"), None), (None, -0.0, "")]
ROWS = [10, 20, 30]
SNAPSHOT, NUMBER = 77, 5
Status = ManifestEntryStatus
# Places in a data file's record, and the id of a delete file's column of paths.
CONTENT, LOWER, UPPER = 0, 10, 11
PATH_ID = 2147483546


def data_file(name: str, partition: Sequence[Any], rows: int) -> DataFile:
    """Return a data file with statistics."""
    return DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"s3://lake/t/data/{name}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record(*partition),
        record_count=rows,
        file_size_in_bytes=rows * 100,
        column_sizes={1: 10, 2: 20},
        value_counts={1: rows, 2: rows},
        null_value_counts={1: 0, 2: 1},
        nan_value_counts={3: 1},
        lower_bounds={1: b"\x01", 4: "ä".encode()},
        upper_bounds={1: b"\xff"},
        key_metadata=None,
        split_offsets=[4, 400],
        equality_ids=None,
        sort_order_id=1,
    )


def entry(status: Status, file: DataFile, **numbers: int | None) -> ManifestEntry:
    """Return an entry; numbers that are not given are for readers to derive."""
    known: dict[str, Any] = dict.fromkeys(
        ("snapshot_id", "sequence_number", "file_sequence_number")
    )
    return ManifestEntry.from_args(status=status, data_file=file, **{**known, **numbers})


FILES = [data_file(f"f{i}", *made) for i, made in enumerate(zip(PARTITIONS, ROWS, strict=True))]
ADDED = [entry(Status.ADDED, file) for file in FILES]


def written(
    folder: Path,
    entries: Sequence[ManifestEntry] = ADDED,
    codec: AvroCompressionCodec = "deflate",
    version: Literal[1, 2] = 2,
) -> tuple[ManifestFile, bytes]:
    """Write a manifest as PyIceberg does; return its entry in a manifest list, and its bytes."""
    file = folder / "old.avro"
    output = PyArrowFileIO().new_output(f"file://{file}")
    with write_manifest(version, SPEC, SCHEMA, output, SNAPSHOT, codec) as writer:
        for old in entries:
            writer.add_entry(old)
    listed = writer.to_manifest_file()
    listed[4] = listed[5] = 0 if version == 1 else NUMBER
    return listed, file.read_bytes()


def stored(folder: Path, new: rewrite.Rewritten) -> list[ManifestEntry]:
    """Store a rewritten manifest, and return its entries as PyIceberg reads them."""
    file = folder / "new.avro"
    file.write_bytes(new.data)
    listed = new.listed(f"file://{file}", 99)
    listed[4] = 9  # As the manifest list assigns it.
    return manifest_entries(listed, PyArrowFileIO())


@pytest.mark.parametrize("codec", ["deflate", "null", "zstandard"])
def test_a_removed_file_is_deleted_and_the_others_exist(
    tmp_path: Path, codec: AvroCompressionCodec
) -> None:
    """A reader gives the removed one the new snapshot, and the others keep their own."""
    new = Manifest(*written(tmp_path, codec=codec)).without({1}, codec)
    found = stored(tmp_path, new)
    assert [read.status for read in found] == [Status.EXISTING, Status.DELETED, Status.EXISTING]
    assert [read.snapshot_id for read in found] == [SNAPSHOT, 99, SNAPSHOT]
    assert avro_rows(new.data)[1]["snapshot_id"] is None
    numbers = {(read.sequence_number, read.file_sequence_number) for read in found}
    assert numbers == {(NUMBER, NUMBER)}
    assert [file.path[-10:] for file in new.removed] == ["f1.parquet"]
    assert [file.rows for file in new.kept] == [10, 30]


def test_all_else_is_as_it_was(tmp_path: Path) -> None:
    """Values beyond Python's types, statistics, the schema and the metadata."""
    listed, data = written(tmp_path)
    new = Manifest(listed, data).without({0})
    # As text: NaN differs from itself.
    old_files, new_files = (
        [str(row["data_file"]) for row in avro_rows(file)] for file in (data, new.data)
    )
    assert new_files == old_files
    before, after = read_header(data), read_header(new.data)
    assert after.schema == before.schema
    assert {**after.metadata, "avro.schema": b""} == {**before.metadata, "avro.schema": b""}
    assert avro_rows(new.data)[1]["data_file"]["partition"]["day"] == FAR_DAY


def test_a_manifest_whose_numbers_are_written_keeps_every_byte(tmp_path: Path) -> None:
    """Rewritten twice, nothing is left to derive: the second file has the blocks of the first."""
    first = Manifest(*written(tmp_path)).without({1})
    kept = replace(first, removed=()).listed("f", 99)
    again = Manifest(kept, first.data).without(set())
    last = Manifest(again.listed("g", 100), again.data).without(set())
    assert list(blocks(last.data)) == list(blocks(again.data))
    assert [file.path for file in again.kept] == [file.path for file in first.kept]


def test_entries_that_were_deleted_before_are_left_out(tmp_path: Path) -> None:
    """They are the news of an earlier snapshot: a reader of changes would see them twice."""
    old = [*ADDED[:2], entry(Status.DELETED, FILES[2], snapshot_id=7, sequence_number=2)]
    manifest = Manifest(*written(tmp_path, old))
    assert [file.at for file in manifest.files] == [0, 1]
    assert len(avro_rows(manifest.without({0}).data)) == 2


def test_the_list_counts_what_exists_and_what_goes(tmp_path: Path) -> None:
    """And names the oldest number that is left: a later writer drops deletes older than that."""
    numbers = [{"snapshot_id": 7, "sequence_number": 2, "file_sequence_number": 3}, {}, {}]
    status = [Status.EXISTING, Status.ADDED, Status.ADDED]
    old = [
        entry(state, file, **known)
        for state, file, known in zip(status, FILES, numbers, strict=True)
    ]
    listed, data = written(tmp_path, old)
    counted = Manifest(listed, data).without({1}).listed("f", 99)
    assert counted.min_sequence_number == 2
    assert (counted.existing_files_count, counted.existing_rows_count) == (2, 40)
    assert (counted.deleted_files_count, counted.deleted_rows_count) == (1, 20)
    assert (counted.added_files_count, counted.added_rows_count) == (0, 0)
    assert counted.added_snapshot_id == 99
    assert (counted.partition_spec_id, counted.content) == (3, ManifestContent.DATA)
    assert counted.partitions == listed.partitions
    assert Manifest(listed, data).without({0}).listed("f", 99).min_sequence_number == NUMBER
    # Without live files it is that of the snapshot itself.
    assert Manifest(listed, data).without({0, 1, 2}).listed("f", 99).min_sequence_number == -1


def test_an_old_entry_without_numbers_is_refused(tmp_path: Path) -> None:
    """A wrong number decides which deletes apply: rows would come back."""
    listed, data = written(tmp_path)
    header, entries = read_header(data), avro_rows(data)
    entries[0]["status"] = Status.EXISTING.value
    data = avro_of(header.schema, header.metadata, entries)
    with pytest.raises(ValueError, match="an old entry has no sequence number"):
        Manifest(listed, data)


def test_a_manifest_of_format_1_gets_its_numbers(tmp_path: Path) -> None:
    """A table that was upgraded still has such manifests; their files have number 0."""
    old = [entry(Status.ADDED, file, snapshot_id=7) for file in FILES]
    listed, data = written(tmp_path, old, version=1)
    manifest = Manifest(listed, data)
    assert {file.sequence_number for file in manifest.files} == {0}
    new = manifest.without({0})
    found = stored(tmp_path, new)
    assert [read.status for read in found] == [Status.DELETED, Status.EXISTING, Status.EXISTING]
    assert [read.snapshot_id for read in found] == [99, 7, 7]
    assert {(read.sequence_number, read.file_sequence_number) for read in found} == {(0, 0)}
    assert read_header(new.data).metadata["format-version"] == b"2"


def as_v3(data: bytes, row_ids: Sequence[int | None], *, with_field: bool = True) -> bytes:
    """Return a manifest with fields that only later formats have."""
    header, entries = read_header(data), avro_rows(data)
    schema = json.loads(json.dumps(header.schema))
    file_field = next(field for field in schema["fields"] if field["field-id"] == 2)
    more = [("first_row_id", 142)] * with_field + [("of_the_future", 999)]
    for name, field_id in more:
        kind = {"name": name, "type": ["null", "long"], "default": None, "field-id": field_id}
        file_field["type"]["fields"].append(kind)
    for row, row_id in zip(entries, row_ids, strict=True):
        row["data_file"] |= {"of_the_future": 4, **({"first_row_id": row_id} if with_field else {})}
    return avro_of(schema, header.metadata, entries)


def test_row_ids_of_format_3_are_written_into_each_entry(tmp_path: Path) -> None:
    """Each counts on from the files before it that have none of their own."""
    listed, data = written(tmp_path)
    manifest = Manifest(listed, as_v3(data, [None, 500, None]), first_row_id=1000)
    assert [file.first_row_id for file in manifest.files] == [1000, 500, 1010]
    found = [row["data_file"] for row in avro_rows(manifest.without({0}).data)]
    assert [file["first_row_id"] for file in found] == [1000, 500, 1010]
    assert [file["of_the_future"] for file in found] == [4, 4, 4]


def test_a_deleted_entry_takes_no_row_ids(tmp_path: Path) -> None:
    """Java leaves it out when it counts."""
    old = [entry(Status.DELETED, FILES[0], snapshot_id=7, sequence_number=2), *ADDED[1:]]
    listed, data = written(tmp_path, old)
    manifest = Manifest(listed, as_v3(data, [None] * 3), first_row_id=1000)
    assert [file.first_row_id for file in manifest.files] == [1000, 1020]


def test_a_manifest_of_format_2_in_a_table_of_format_3_gets_the_field(tmp_path: Path) -> None:
    """The list gives it row ids, and its own schema has no place for them."""
    listed, data = written(tmp_path)
    manifest = Manifest(listed, as_v3(data, [None] * 3, with_field=False), first_row_id=1000)
    new = manifest.without({2})
    found = [row["data_file"]["first_row_id"] for row in avro_rows(new.data)]
    assert found == [1000, 1010, 1030]
    assert read_header(new.data).metadata["format-version"] == b"3"


def test_without_row_ids_in_the_list_entries_have_none(tmp_path: Path) -> None:
    """A table that was upgraded, and not written since."""
    listed, data = written(tmp_path)
    assert {file.first_row_id for file in Manifest(listed, as_v3(data, [None] * 3)).files} == {None}


def test_partitions_are_compared_as_iceberg_compares_them(tmp_path: Path) -> None:
    """NaN is equal to NaN, and 0.0 differs from -0.0."""
    nan, zero = float("nan"), 0.0
    made = [(1, nan, "a"), (1, -nan, "a"), (1, zero, "a"), (1, -zero, "a"), (1, None, "a")]
    old = [entry(Status.ADDED, data_file(f"f{i}", values, 1)) for i, values in enumerate(made)]
    keys = [file.partition for file in Manifest(*written(tmp_path, old)).files]
    assert keys[0] == keys[1]
    assert len(set(keys)) == 4


def test_a_file_is_described_as_pyiceberg_reads_it(tmp_path: Path) -> None:
    """What filters are asked about: counts, bounds, and partition values of every type."""
    schema = Schema(
        NestedField(1, "price", DecimalType(20, 3)),
        NestedField(2, "key", UUIDType()),
        NestedField(3, "day", DateType()),
        NestedField(4, "at", TimestamptzType()),
        NestedField(5, "raw", BinaryType()),
        NestedField(6, "flag", BooleanType()),
    )
    names = [field.name for field in schema.fields]
    fields = [
        PartitionField(at, 1010 - at, IdentityTransform(), f"p_{name}")
        for at, name in enumerate(names, start=1)
    ]
    spec = PartitionSpec(*fields, spec_id=0)
    values = (Decimal("-12345678901234.567"), UUID(int=7), FAR_DAY, -1, b"\0\xff", False)
    files = [data_file("a", values, 10), data_file("b", [None] * len(values), 20)]
    output = PyArrowFileIO().new_output(f"file://{tmp_path}/m.avro")
    with write_manifest(2, spec, schema, output, SNAPSHOT, "deflate") as writer:
        for file in files:
            writer.add_entry(entry(Status.ADDED, file))
    listed = writer.to_manifest_file()
    manifest = Manifest(listed, (tmp_path / "m.avro").read_bytes())
    found = [file for _, file in manifest.data_files(manifest.files, spec)]
    expected = [read.data_file for read in manifest_entries(listed, PyArrowFileIO())]
    for ours, theirs in zip(found, expected, strict=True):
        partition = [theirs.partition[at] for at in range(len(values))]
        assert [ours.partition[at] for at in range(len(values))] == partition
        for name in ("value_counts", "null_value_counts", "lower_bounds", "upper_bounds"):
            assert getattr(ours, name) == getattr(theirs, name)
        assert (ours.spec_id, ours.sort_order_id) == (0, theirs.sort_order_id)
    assert [found[0].partition[at] for at in range(len(values))] == list(values)


def test_a_delete_file_that_is_for_one_file_says_so(tmp_path: Path) -> None:
    """By equal bounds of the paths in it, which all writers since format 2 keep."""
    path, other = b"s3://lake/t/data/a.parquet", b"s3://lake/t/data/b.parquet"
    found = []
    for lower, upper in ((path, path), (path, other)):
        file = data_file("d", PARTITIONS[0], 1)
        file[CONTENT] = DataFileContent.POSITION_DELETES
        file[LOWER], file[UPPER] = {PATH_ID: lower}, {PATH_ID: upper}
        listed, data = written(tmp_path, [entry(Status.ADDED, file)])
        listed[3] = ManifestContent.DELETES
        (live,) = Manifest(listed, data).files
        found.append(live.referenced)
    assert found == [path.decode(), None]
    assert [file.referenced for file in Manifest(*written(tmp_path)).files] == [None] * 3


def test_many_entries_are_written_in_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each block says how many rows it has."""
    monkeypatch.setattr("holdfast.sinks.iceberg.avro._BLOCK_ROWS", 2)
    new = Manifest(*written(tmp_path)).without({2})
    assert [count for count, _ in blocks(new.data)] == [2, 1]
    assert [read.status for read in stored(tmp_path, new)][-1] == Status.DELETED


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    """A manifest that is not understood in full is not rewritten."""
    listed, data = written(tmp_path)
    for damaged in (b"PAR1" + data, data[:-20], data.replace(b"deflate", b"deflatE")):
        with pytest.raises(ValueError, match=r"not an Avro file|cut short|compressed with"):
            Manifest(listed, damaged)
    listed[14] = b"key"
    with pytest.raises(ValueError, match="encrypted"):
        Manifest(listed, data)
