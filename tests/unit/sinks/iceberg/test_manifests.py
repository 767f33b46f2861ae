"""Manifests: what executors write, how they are read, and how they are copied."""

from __future__ import annotations

import datetime as dt
import math
import operator
import os
import pickle
import struct
import time
import uuid
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.avro.decoder_fast import CythonBinaryDecoder
from pyiceberg.avro.reader import DoubleReader
from pyiceberg.io import load_file_io
from pyiceberg.manifest import DataFile, ManifestContent, ManifestEntryStatus
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    IdentityTransform,
    Transform,
    TruncateTransform,
    VoidTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    DoubleType,
    FixedType,
    FloatType,
    IcebergType,
    LongType,
    NestedField,
    PrimitiveType,
    StringType,
    TimestamptzType,
    UUIDType,
)

from holdfast.errors import LedgerDamagedError, StagedFileMissingError, TableChangedError
from holdfast.model.work import StagedGroup
from holdfast.sinks.base import Change, Outcome, RunMark, TableView
from holdfast.sinks.iceberg.file_io import FILE_IO_PATH, HoldfastFileIO
from holdfast.sinks.iceberg.joined import listed_manifest
from holdfast.sinks.iceberg.schemas import arrow_schema
from holdfast.sinks.iceberg.sink import IcebergSink
from tests.fakes.iceberg_scans import Tables
from tests.fakes.iceberg_tables import entries, local_path, new_table, writer_spec
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.position_deletes import delete_positions

# ---- Manifests and our FileIO: what executors write, and how PyIceberg reaches storage
SCHEMA = Schema(
    NestedField(1, "id", LongType()),
    NestedField(2, "day", DateType()),
    NestedField(3, "c", StringType()),
)
SPEC = PartitionSpec(
    PartitionField(2, 1000, DayTransform(), "day"),
    PartitionField(3, 1001, IdentityTransform(), "c"),
    spec_id=4,
)
BATCH = pa.RecordBatch.from_pydict(
    {
        "id": [1, 2, 3],
        "day": [dt.date(2024, 2, 29), dt.date(1970, 1, 2), dt.date(2024, 2, 29)],
        "c": ["b", None, "b"],
    }
)


def staged(folder: Path) -> StagedGroup:
    """Write one task's output and return its group as the driver gets it, through JSON."""
    writer = writer_spec(folder, SCHEMA, spec=SPEC).open("job-0-0")
    writer.write(writer.fit(BATCH))
    (group,) = writer.cut()
    return StagedGroup.from_json(group.to_json())


def test_entries_leave_snapshot_and_sequence_numbers_to_inherit(tmp_path: Path) -> None:
    """A manifest is written before it is known which snapshot it will be part of."""
    group = staged(tmp_path)
    raw = HoldfastFileIO().storage.get(group.path)
    manifest = listed_manifest(group, 7)
    from_file = manifest.fetch_manifest_entry(HoldfastFileIO(), discard_deleted=False)
    assert [entry.status for entry in from_file] == [ManifestEntryStatus.ADDED] * 2
    # Inherited from the list's entry, so the file itself cannot hold another value.
    for snapshot_id in (7, 8):
        read = listed_manifest(group, snapshot_id).fetch_manifest_entry(HoldfastFileIO())
        assert {entry.snapshot_id for entry in read} == {snapshot_id}
    assert HoldfastFileIO().storage.get(group.path) == raw


def test_a_listed_manifest_describes_its_content(tmp_path: Path) -> None:
    """Counts, spec and partition bounds survive the ledger's JSON."""
    manifest = listed_manifest(staged(tmp_path), 7)
    assert manifest.content == ManifestContent.DATA
    assert (manifest.partition_spec_id, manifest.added_snapshot_id) == (4, 7)
    assert (manifest.added_files_count, manifest.added_rows_count) == (2, 3)
    assert (manifest.existing_files_count, manifest.deleted_files_count) == (0, 0)
    day, text = manifest.partitions or []
    assert (day.contains_null, text.contains_null) == (False, True)
    bounds = [
        int.from_bytes(bound or b"", "little") for bound in (day.lower_bound, day.upper_bound)
    ]
    assert bounds == [1, 19782]  # Days since 1970.
    assert (text.lower_bound, text.upper_bound) == (b"b", b"b")


def test_entries_name_the_files_and_their_partitions(tmp_path: Path) -> None:
    """A reader plans with path, size, rows and partition."""
    group = staged(tmp_path)
    found = {entry.data_file.file_path: entry.data_file for entry in entries(group)}
    assert {path: (f.record_count, f.file_size_in_bytes) for path, f in found.items()} == {
        file.path: (file.rows, file.size_bytes) for file in group.files
    }
    partitions = {(f.partition[0], f.partition[1]) for f in found.values()}
    assert partitions == {(19782, "b"), (1, None)}


def test_pyiceberg_finds_our_file_io_by_its_name(tmp_path: Path) -> None:
    """The dotted path in `py-io-impl` makes a catalog use it."""
    found = load_file_io({"py-io-impl": FILE_IO_PATH}, f"file://{tmp_path}")
    assert isinstance(found, HoldfastFileIO)


def test_an_object_is_written_and_read_through_our_file_io(tmp_path: Path) -> None:
    """It is written, measured, read and deleted; it does not exist before the stream is closed."""
    io, uri = HoldfastFileIO(), f"file://{tmp_path}/a b/größe.avro"
    output = io.new_output(uri)
    assert not output.exists()
    with output.create() as stream:
        stream.write(b"abc")
        stream.write(b"def")
        assert not output.exists()
    assert (len(output), output.exists(), output.to_input_file().exists()) == (6, True, True)
    read = io.new_input(uri)
    with read.open() as stream_in:
        stream_in.seek(2)
        assert stream_in.read() == b"cdef"
    assert len(read) == 6
    io.delete(uri)
    assert not read.exists()
    io.delete(read)


def test_a_stream_that_ends_in_an_error_leaves_no_object(tmp_path: Path) -> None:
    """Half a manifest is never visible."""
    output = HoldfastFileIO().new_output(f"file://{tmp_path}/x")

    def write_half() -> None:
        with output.create() as stream:
            stream.write(b"half")
            raise RuntimeError

    with pytest.raises(RuntimeError):
        write_half()
    assert not output.exists()


def test_an_existing_object_is_overwritten_only_on_request(tmp_path: Path) -> None:
    """PyIceberg relies on the difference."""
    output = HoldfastFileIO().new_output(f"file://{tmp_path}/x")
    output.create().close()
    with pytest.raises(FileExistsError):
        output.create()
    with output.create(overwrite=True) as stream:
        stream.write(b"new")
    assert len(output.to_input_file()) == 3


def test_a_missing_object_raises_the_error_that_pyiceberg_expects(tmp_path: Path) -> None:
    """PyIceberg expects Python's own error for it."""
    read = HoldfastFileIO().new_input(f"file://{tmp_path}/none")
    with pytest.raises(FileNotFoundError):
        read.open()
    with pytest.raises(FileNotFoundError):
        len(read)


def test_a_close_that_fails_is_not_repeated_behind_the_callers_back() -> None:
    """The caller saw it fail; an object that appears later would be a surprise."""
    io, storage = HoldfastFileIO(), MemoryStorage()
    io.storage = storage
    stream = io.new_output("mem://x").create()
    stream.write(b"abc")
    storage.failures["put"] = 1
    with pytest.raises(OSError, match="no answer to put"):
        stream.close()
    del stream
    assert storage.objects == {}


def test_our_file_io_survives_pickle(tmp_path: Path) -> None:
    """It travels with tables; connections stay behind."""
    payload = pickle.dumps(HoldfastFileIO({"s3.region": "x"}))
    io: HoldfastFileIO = pickle.loads(payload)  # noqa: S301 - ours.
    with io.new_output(f"file://{tmp_path}/x").create() as stream:
        stream.write(b"1")
    assert io.new_input(f"file://{tmp_path}/x").exists()


# ---- Manifests are read with the partition values that were written, however PyIceberg decodes

# Only the last three can be held in a float.
DOUBLES = [0.1, 19.99, -1e308, 5e-324, math.pi, 2**53 + 1.0, 0.5, -0.0, math.inf]


def by_temperature(folder: Path, values: list[float], kind: PrimitiveType | None = None) -> Tables:
    """Return a table partitioned by a column of these values, with three rows of each."""
    tables = Tables(folder)
    tables.create(
        Schema(
            NestedField(1, "id", LongType()),
            NestedField(2, "temperature", kind or DoubleType()),
        ),
        partition_spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p")),
    )
    add(tables, values * 3)
    return tables


def add(tables: Tables, values: list[float]) -> None:
    """Add rows with our own writer: PyIceberg's fails on NaN."""
    sink = IcebergSink(tables.catalog, "db.t", "main")
    if tables.load().current_snapshot() is None:
        sink.post_empty(sink.load())
    view = sink.load()
    schema = arrow_schema(tables.load().schema())
    writer = sink.writer_spec(view).open(f"task-{view.next_sequence_number}")
    columns = {"id": list(range(len(values))), "temperature": values}
    writer.write(writer.fit(pa.RecordBatch.from_pydict(columns, schema=schema)))
    mark = RunMark(
        run_nonce="n",
        intent_number=1,
        snapshot_id=sink.new_snapshot_id(view),
        sequence_number=view.next_sequence_number,
    )
    assert (
        sink.post(view, f"r{mark.sequence_number}", mark, Change(adds=writer.cut()))
        is Outcome.LANDED
    )


def test_pyiceberg_still_narrows_doubles() -> None:
    """Once this fails, PyIceberg is fixed: require that version, and drop the `_Exact` classes."""
    assert CythonBinaryDecoder(struct.pack("<d", 0.1)).read_double() == 0.10000000149011612


@pytest.mark.parametrize("value", DOUBLES)
def test_a_scan_finds_the_rows_of_each_double_partition(tmp_path: Path, value: float) -> None:
    """It compares by equality and from either side: a narrowed value would be pruned."""
    tables = by_temperature(tmp_path, DOUBLES)
    for sign, compare in (("=", operator.eq), ("<=", operator.le), (">=", operator.ge)):
        expected = sum(3 for double in DOUBLES if compare(double, value))
        assert tables.scan(where=[("temperature", sign, value)]).pin().whole.rows == expected


def test_no_table_of_ours_is_read_with_pyicebergs_decoding_of_doubles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This holds for scans, and for what a loaded table reads by itself."""
    tables = by_temperature(tmp_path, DOUBLES)

    def narrowed(*_: object) -> float:
        raise AssertionError("PyIceberg decodes a double")

    monkeypatch.setattr(DoubleReader, "read", narrowed)
    assert tables.scan(where="temperature = 0.1").pin().whole.rows == 3
    assert tables.load().scan("temperature = 19.99").to_arrow().num_rows == 3
    with pytest.raises(AssertionError, match="PyIceberg decodes"):
        list(tables.catalog.load_table("db.t").scan().plan_files())


@pytest.mark.parametrize("kind", [DoubleType(), FloatType()])
def test_deletes_in_the_partition_of_nan_are_found(tmp_path: Path, kind: PrimitiveType) -> None:
    """They are looked up by partition value, and NaN is not equal to NaN."""
    tables = by_temperature(tmp_path, [math.nan, 0.5], kind)
    add(tables, [math.nan, math.nan])
    where = "temperature is nan"
    paths = [task.file.file_path for task in tables.load().scan(where).plan_files()]
    assert len(paths) == 2
    delete_positions(tables.load(), {path: [1] for path in paths}, partition=Record(math.nan))
    assert [len(file.deletes) for file in tables.scan(where=where).pin().files] == [1, 1]


def test_a_server_that_plans_scans_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its catalog may not let clients see the manifests."""
    tables = by_temperature(tmp_path, [0.1])
    planned: list[FileScanTask] = []

    def by_the_server(_: DataScan) -> Iterable[FileScanTask]:
        return planned

    plans: Any = DataScan
    monkeypatch.setattr(plans, "_plan_files_server_side", by_the_server)
    monkeypatch.setattr(tables.catalog, "supports_server_side_planning", lambda: True)
    assert tables.load().scan().plan_files() is planned


def test_a_table_without_a_snapshot_has_no_files(tmp_path: Path) -> None:
    """There is no manifest to read."""
    tables = Tables(tmp_path)
    assert not list(tables.create().scan().plan_files())
    assert not list(tables.load().scan().plan_files())


# ---- Copies of staged groups on a real table: only the names differ
NOON = dt.datetime(2024, 2, 29, 12, tzinfo=dt.timezone.utc)
PARTITIONS: list[tuple[IcebergType, Transform[Any, Any], list[Any]]] = [
    (LongType(), IdentityTransform(), [1, -(2**62), None]),
    (DoubleType(), IdentityTransform(), [0.5, float("inf"), None]),
    # A float cannot hold these exactly.
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
    """Return a sink on a table partitioned by one column."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "p", kind))
    field = PartitionField(source_id=2, field_id=1000, transform=transform, name="part")
    sink, _ = new_table(folder, schema, partition_spec=PartitionSpec(field))
    sink.post_empty(sink.load())
    return sink


def plain_sink(folder: Path) -> IcebergSink:
    """Return a sink on a table with two columns and no partitions."""
    return table_of(folder, LongType(), VoidTransform())


def staged_groups(sink: IcebergSink, view: TableView, values: Sequence[Any]) -> list[StagedGroup]:
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
    """Return everything a manifest says about a file, as comparable values."""
    values = [file[position] for position in range(len(file))]
    return [dict(value) if isinstance(value, Mapping) else value for value in values]


@pytest.mark.parametrize(("kind", "transform", "values"), PARTITIONS, ids=str)
def test_a_copy_differs_in_its_names_only(
    tmp_path: Path, kind: IcebergType, transform: Transform[Any, Any], values: list[Any]
) -> None:
    """Partitions, bounds and statistics are kept, whatever the table is partitioned by."""
    sink = table_of(tmp_path, kind, transform)
    view = sink.load()
    (group,) = staged_groups(sink, view, values)
    (copy,) = copied(sink, view, [group])
    for name in ("spec_id", "partitions", "header", "listed"):
        assert copy.detail[name] == group.detail[name]
    for entry, other in zip(entries(group), entries(copy), strict=True):
        old, new = entry.data_file, other.data_file
        assert local_path(old.file_path).read_bytes() == local_path(new.file_path).read_bytes()
        old[1] = new.file_path
        assert (entry.status, facts(old)) == (other.status, facts(new))


def test_copies_land_even_if_the_originals_are_gone(tmp_path: Path) -> None:
    """The table no longer names the old files."""
    sink = table_of(tmp_path, StringType(), IdentityTransform())
    view = sink.load()
    groups = staged_groups(sink, view, ["a", "b", "a"])
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
    """This holds for manifests and data files."""
    sink = plain_sink(tmp_path)
    view = sink.load()
    (group,) = staged_groups(sink, view, [1])
    before = time.time() - 3600
    for path in group.paths:
        assert sink.old_groups(view, [group], before) == []
        os.utime(local_path(path), (before - 10, before - 10))
        assert sink.old_groups(view, [group], before) == [group]
        os.utime(local_path(path))


def test_a_source_that_is_gone_stops_the_copy(tmp_path: Path) -> None:
    """Whichever file it is, the rows are computed again, not left out."""
    sink = plain_sink(tmp_path)
    view = sink.load()
    (group,) = staged_groups(sink, view, [1])
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
    """Rows would be left out, or other runs' files published."""
    sink = table_of(tmp_path, StringType(), IdentityTransform())
    view = sink.load()
    (group,) = staged_groups(sink, view, ["a", "b"])
    less = StagedGroup.from_json({**group.to_json(), "files": group.to_json()["files"][:1]})
    with pytest.raises(LedgerDamagedError, match="different files"):
        copied(sink, view, [less])


def test_a_group_of_a_lost_spec_is_not_copied(tmp_path: Path) -> None:
    """The table can no longer say what its partitions mean."""
    sink = plain_sink(tmp_path)
    view = sink.load()
    (group,) = staged_groups(sink, view, [1])
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
