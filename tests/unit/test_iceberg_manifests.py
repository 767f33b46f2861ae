"""Manifests and our FileIO: what executors write, and how PyIceberg reaches storage."""

from __future__ import annotations

import datetime as dt
import pickle
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.io import load_file_io
from pyiceberg.manifest import ManifestContent, ManifestEntryStatus
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import DateType, LongType, NestedField, StringType

from holdfast.model.work import StagedGroup
from holdfast.sinks.iceberg.file_io import FILE_IO_PATH, HoldfastFileIO
from holdfast.sinks.iceberg.manifests import listed_manifest
from tests.fakes.iceberg_tables import entries, writer_spec
from tests.fakes.memory_storage import MemoryStorage

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
    """Write one task's output and return its group, as the driver gets it: through JSON."""
    writer = writer_spec(folder, SCHEMA, spec=SPEC).open("job-0-0")
    writer.write(writer.fit(BATCH))
    (group,) = writer.cut()
    return StagedGroup.from_json(group.to_json())


def test_entries_leave_snapshot_and_sequence_numbers_to_inherit(tmp_path: Path) -> None:
    """A manifest is written before anyone knows which snapshot it will be part of."""
    group = staged(tmp_path)
    raw = HoldfastFileIO().storage.get(group.path)
    manifest = listed_manifest(group, 7)
    from_file = manifest.fetch_manifest_entry(HoldfastFileIO(), discard_deleted=False)
    assert [entry.status for entry in from_file] == [ManifestEntryStatus.ADDED] * 2
    # Inherited from the list's entry, so nothing else can stand in the file itself.
    for snapshot_id in (7, 8):
        read = listed_manifest(group, snapshot_id).fetch_manifest_entry(HoldfastFileIO())
        assert {entry.snapshot_id for entry in read} == {snapshot_id}
    assert HoldfastFileIO().storage.get(group.path) == raw


def test_a_listed_manifest_says_what_is_in_it(tmp_path: Path) -> None:
    """Counts, spec and partition bounds survive the way through the ledger's JSON."""
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
    """What a reader plans with: path, size, rows, partition."""
    group = staged(tmp_path)
    found = {entry.data_file.file_path: entry.data_file for entry in entries(group)}
    assert {path: (f.record_count, f.file_size_in_bytes) for path, f in found.items()} == {
        file.path: (file.rows, file.size_bytes) for file in group.files
    }
    partitions = {(f.partition[0], f.partition[1]) for f in found.values()}
    assert partitions == {(19782, "b"), (1, None)}


def test_pyiceberg_finds_our_file_io_by_its_name(tmp_path: Path) -> None:
    """The dotted path in `py-io-impl` is how a catalog is told to use it."""
    found = load_file_io({"py-io-impl": FILE_IO_PATH}, f"file://{tmp_path}")
    assert isinstance(found, HoldfastFileIO)


def test_an_object_goes_through_our_file_io_and_back(tmp_path: Path) -> None:
    """Write, measure, read, delete; nothing is there before the stream is closed."""
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


def test_an_existing_object_is_overwritten_only_when_told(tmp_path: Path) -> None:
    """PyIceberg relies on the difference."""
    output = HoldfastFileIO().new_output(f"file://{tmp_path}/x")
    output.create().close()
    with pytest.raises(FileExistsError):
        output.create()
    with output.create(overwrite=True) as stream:
        stream.write(b"new")
    assert len(output.to_input_file()) == 3


def test_a_missing_object_is_what_pyiceberg_expects(tmp_path: Path) -> None:
    """It knows Python's own error for it."""
    read = HoldfastFileIO().new_input(f"file://{tmp_path}/none")
    with pytest.raises(FileNotFoundError):
        read.open()
    with pytest.raises(FileNotFoundError):
        len(read)


def test_a_close_that_fails_is_not_repeated_behind_the_callers_back() -> None:
    """The caller was told that it failed; an object that appears later would be a surprise."""
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
