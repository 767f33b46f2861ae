"""The rolling writer: which files a task leaves behind, and what they hold."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import DoubleType, IntegerType, LongType, NestedField, StringType

from holdfast.errors import SchemaMismatchError, UnsupportedTableError
from holdfast.sinks.iceberg import writer as module
from holdfast.sinks.iceberg.data_file import OpenDataFile
from holdfast.sinks.iceberg.rows import PartitionSplitter
from holdfast.storage.port import StorageError
from holdfast.storage.upload import Upload
from tests.fakes.iceberg_tables import (
    entries,
    local_path,
    parquet_metadata,
    rows_of,
    write,
    writer_spec,
)

SCHEMA = Schema(
    NestedField(1, "id", LongType(), required=True),
    NestedField(2, "part", IntegerType()),
    NestedField(3, "text", StringType()),
    NestedField(4, "ratio", DoubleType()),
)
BY_PART = PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "part"))
BY_RATIO = PartitionSpec(PartitionField(4, 1000, IdentityTransform(), "ratio"))


def batch(*ids: int, parts: int = 1, ratio: float = 0.5) -> pa.RecordBatch:
    """Return rows with these ids, spread over this many partitions."""
    return pa.RecordBatch.from_pydict(
        {
            "id": pa.array(ids, pa.int64()),
            "part": pa.array([i % parts for i in ids], pa.int32()),
            "text": [f"text of {i}" * 10 for i in ids],
            "ratio": [ratio] * len(ids),
        }
    )


def files_below(folder: Path) -> list[str]:
    """Return all files below a folder, by their paths in it."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_a_task_without_rows_leaves_no_file(tmp_path: Path) -> None:
    """Without input there is neither a manifest nor a data file."""
    assert writer_spec(tmp_path, SCHEMA).open("job-0-0").cut() == []
    assert files_below(tmp_path) == []


@pytest.mark.parametrize("spec", [UNPARTITIONED_PARTITION_SPEC, BY_PART])
def test_a_transform_that_drops_every_row_leaves_no_file(
    tmp_path: Path, spec: PartitionSpec
) -> None:
    """A filter returns batches without rows; they must not become empty data files."""
    assert write(writer_spec(tmp_path, SCHEMA, spec=spec), batch(), batch()) == []
    assert files_below(tmp_path) == []


def test_rows_are_written_with_their_totals(tmp_path: Path) -> None:
    """The group names manifest and data file with their sizes in the store."""
    writer = writer_spec(tmp_path, SCHEMA).open("job-7-9")
    writer.write(writer.fit(batch(1, 2)))
    writer.write(writer.fit(batch(3)))
    (group,) = writer.cut()
    (file,) = group.files
    assert files_below(tmp_path) == ["t/data/job-7-9-00000.parquet", "t/metadata/job-7-9-m0.avro"]
    assert file.rows == 3
    assert file.size_bytes == local_path(file.path).stat().st_size
    assert group.size_bytes == local_path(group.path).stat().st_size
    assert writer.cut() == []


@pytest.mark.parametrize("spec", [UNPARTITIONED_PARTITION_SPEC, BY_PART])
def test_each_cut_stages_what_was_written_since_the_last_one(
    tmp_path: Path, spec: PartitionSpec
) -> None:
    """A cut closes every file, and each file is in exactly one manifest."""
    writer = writer_spec(tmp_path, SCHEMA, spec=spec).open("job-0-0")
    staged = []
    for ids in ([1, 2, 3], [4, 5], []):
        writer.write(writer.fit(batch(*ids, parts=2)))
        staged.append(writer.cut())
    (first,), (second,), third = staged
    assert third == []
    assert first.path != second.path
    files = [[entry.data_file for entry in entries(group)] for group in (first, second)]
    ids_of = [sorted(row["id"] for file in group for row in rows_of(file)) for group in files]
    assert ids_of == [[1, 2, 3], [4, 5]]
    assert len({file.file_path for group in files for file in group}) == sum(map(len, files))


def test_a_writer_is_full_when_its_files_are(tmp_path: Path) -> None:
    """Fullness counts what was written since the last cut, relative to the target file size."""
    properties = {"write.target-file-size-bytes": "5000", "write.parquet.row-group-limit": "10"}
    writer = writer_spec(tmp_path, SCHEMA, properties=properties).open("job-0-0")
    for _ in range(2):
        seen = [writer.fullness]
        while seen[-1] < 1:
            writer.write(writer.fit(batch(*range(10))))
            seen.append(writer.fullness)
        assert (seen[0], seen == sorted(seen), len(seen) > 2) == (0, True, True)
        (group,) = writer.cut()
        assert [file.size_bytes >= 5000 for file in group.files] == [True]


def test_fitted_rows_have_the_stored_schema(tmp_path: Path) -> None:
    """A chunk in the ledger holds them like this, and a later task writes them unchanged."""
    writer = writer_spec(tmp_path, SCHEMA).open("job-0-0")
    fitted = writer.fit(pa.RecordBatch.from_pydict({"id": pa.array([1], pa.int8())}))
    assert fitted.schema.equals(writer.stored_schema)


def test_files_close_at_the_target_size(tmp_path: Path) -> None:
    """Each row group is at least as large as the target here, so each is a file of its own."""
    properties = {"write.target-file-size-bytes": "1000", "write.parquet.row-group-limit": "100"}
    made = writer_spec(tmp_path, SCHEMA, properties=properties)
    found = write(made, *(batch(*range(start, start + 50)) for start in range(0, 500, 50)))
    assert [file.record_count for file in found] == [100] * 5
    assert sorted(row["id"] for file in found for row in rows_of(file)) == list(range(500))
    assert len({file.file_path for file in found}) == 5


def test_a_file_below_its_target_takes_more_row_groups(tmp_path: Path) -> None:
    """Row groups end at their limit and the file goes on; split offsets are where they begin."""
    made = writer_spec(tmp_path, SCHEMA, properties={"write.parquet.row-group-limit": "100"})
    (file,) = write(made, *(batch(*range(start, start + 50)) for start in range(0, 250, 50)))
    footer = parquet_metadata(file)
    assert [footer.row_group(i).num_rows for i in range(footer.num_row_groups)] == [100, 100, 50]
    assert file.split_offsets is not None
    assert len(file.split_offsets) == 3


def test_kept_rows_are_bounded_in_bytes_over_all_partitions(tmp_path: Path) -> None:
    """Rows wait for their row group only while all waiting rows fit the bound."""
    made = writer_spec(
        tmp_path, SCHEMA, spec=BY_PART, properties={"write.parquet.row-group-size-bytes": "20000"}
    )
    writer = made.open("job-0-0")
    for start in range(0, 2000, 100):
        writer.write(writer.fit(batch(*range(start, start + 100), parts=7)))
        kept = writer._kept  # noqa: SLF001 - the bound is inside.
        batches = [*kept._unsplit, *(b for p in kept.partitions.values() for b in p.batches)]  # noqa: SLF001
        assert sum(rows.nbytes for rows in batches) == kept.size_bytes < 20_000
    assert sum(file.rows for group in writer.cut() for file in group.files) == 2000


def test_small_batches_are_split_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each split makes a piece for each partition: fifty batches must not make fifty of each."""
    splits: list[int] = []
    split = PartitionSplitter.split

    def count(splitter: PartitionSplitter, rows: pa.RecordBatch) -> Iterator[Any]:
        splits.append(rows.num_rows)
        return split(splitter, rows)

    monkeypatch.setattr(PartitionSplitter, "split", count)
    batches = [batch(*range(start, start + 20), parts=10) for start in range(0, 1000, 20)]
    files = write(writer_spec(tmp_path, SCHEMA, spec=BY_PART), *batches)
    assert splits == [1000]
    found = {file.partition[0]: [row["id"] for row in rows_of(file)] for file in files}
    assert found == {part: list(range(part, 1000, 10)) for part in range(10)}


def test_open_files_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch that touches many partitions does not hold an upload open for each."""
    opened: list[object] = []

    class Watched(OpenDataFile):
        def __init__(self, *args: Any) -> None:  # noqa: ANN401 - the file's own.
            super().__init__(*args)
            opened.append(self)
            assert len(opened) <= 16

        def close(self, sort_order_id: int | None, *, in_order: bool = False) -> DataFile:
            opened.remove(self)
            return super().close(sort_order_id, in_order=in_order)

    monkeypatch.setattr(module, "OpenDataFile", Watched)
    made = writer_spec(
        tmp_path, SCHEMA, spec=BY_PART, properties={"write.parquet.row-group-limit": "1"}
    )
    found = write(made, batch(*range(60), parts=30), batch(*range(60), parts=30))
    assert opened == []
    assert sorted(row["id"] for file in found for row in rows_of(file)) == sorted(
        [*range(60), *range(60)]
    )


def test_each_file_holds_one_partition_and_says_which(tmp_path: Path) -> None:
    """The path, the entry and the rows agree."""
    found = write(
        writer_spec(tmp_path, SCHEMA, spec=BY_PART), batch(*range(9), parts=3), batch(1, 4, parts=3)
    )
    assert sorted(file.partition[0] for file in found) == [0, 1, 2]
    for file in found:
        assert f"/part={file.partition[0]}/" in file.file_path
        assert {row["part"] for row in rows_of(file)} == {file.partition[0]}


def test_nan_is_one_partition(tmp_path: Path) -> None:
    """NaN is not equal to itself, but rows of many batches still share one file."""
    batches = [batch(i, ratio=float("nan")) for i in range(5)]
    assert len(write(writer_spec(tmp_path, SCHEMA, spec=BY_RATIO), *batches)) == 1


def test_the_object_store_layout_is_followed(tmp_path: Path) -> None:
    """Hashed folders spread the load over the store's partitions."""
    properties = {"write.object-storage.enabled": "true"}
    (file,) = write(writer_spec(tmp_path, SCHEMA, spec=BY_PART, properties=properties), batch(0))
    below = Path(file.file_path).relative_to(f"file:/{tmp_path}/t/data")
    assert len(below.parts) > 3
    assert below.name == "job-0-0-00000.parquet"
    assert rows_of(file)[0]["id"] == 0


def test_data_and_metadata_paths_are_followed(tmp_path: Path) -> None:
    """A table may keep its files elsewhere."""
    properties = {
        "write.data.path": f"file://{tmp_path}/elsewhere",
        "write.metadata.path": f"file://{tmp_path}/notes",
    }
    write(writer_spec(tmp_path, SCHEMA, properties=properties), batch(1))
    assert files_below(tmp_path) == ["elsewhere/job-0-0-00000.parquet", "notes/job-0-0-m0.avro"]


@pytest.mark.parametrize(
    ("codec", "found"),
    [(None, "ZSTD"), ("snappy", "SNAPPY"), ("GZIP", "GZIP"), ("uncompressed", "UNCOMPRESSED")],
)
def test_the_tables_compression_is_used(tmp_path: Path, codec: str | None, found: str) -> None:
    """The default is Iceberg's own, zstd."""
    properties = {"write.parquet.compression-codec": codec} if codec else {}
    (file,) = write(writer_spec(tmp_path, SCHEMA, properties=properties), batch(1))
    assert parquet_metadata(file).row_group(0).column(0).compression == found


def test_a_batch_with_another_schema_is_fitted_too(tmp_path: Path) -> None:
    """Batches of one task may differ, as long as each fits the table."""
    made = writer_spec(tmp_path, SCHEMA)
    (file,) = write(made, batch(1), pa.RecordBatch.from_pydict({"id": pa.array([2], pa.int8())}))
    assert [row["id"] for row in rows_of(file)] == [1, 2]
    assert rows_of(file)[1]["text"] is None


def test_rows_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """The error names table and column."""
    with pytest.raises(SchemaMismatchError, match=r"'id'.*lake\.db\.t"):
        write(writer_spec(tmp_path, SCHEMA), pa.RecordBatch.from_pydict({"id": ["x"]}))


def test_an_abandoned_writer_abandons_each_upload_and_makes_no_noise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts of what was begun would stay on a server; garbage collection reports nothing.

    Method: count, because a local upload shows nothing before its end, abandoned or not.
    """
    begun, abandoned = [], []
    write_bytes, abandon = Upload.write, Upload.abandon

    def counted_write(upload: Upload, data: bytes | memoryview, /) -> int:
        if not upload.tell():
            begun.append(upload)
        return write_bytes(upload, data)

    def counted_abandon(upload: Upload) -> None:
        abandoned.append(upload)
        abandon(upload)

    monkeypatch.setattr(Upload, "write", counted_write)
    monkeypatch.setattr(Upload, "abandon", counted_abandon)
    properties = {"write.parquet.row-group-limit": "1"}
    writer = writer_spec(tmp_path, SCHEMA, spec=BY_PART, properties=properties).open("job-0-0")
    writer.write(writer.fit(batch(*range(6), parts=3)))
    assert (len(begun), abandoned) == (3, [])  # A file of each partition is open.
    writer.abandon()
    assert {id(upload) for upload in abandoned} == {id(upload) for upload in begun}
    del writer
    assert files_below(tmp_path) == []


def test_a_table_of_another_file_format_is_refused(tmp_path: Path) -> None:
    """Parquet files in a table of ORC files would surprise its owner."""
    with pytest.raises(UnsupportedTableError, match="orc"):
        writer_spec(tmp_path, SCHEMA, properties={"write.format.default": "ORC"}).open("x")


def test_files_are_uploaded_concurrently_and_a_cut_waits_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store takes a while to answer: twelve small files must not wait for each other."""
    together = threading.Barrier(12, timeout=10)
    close = Upload.close

    def late(upload: Upload) -> None:
        if upload.tell() and "parquet" in upload._uri:  # noqa: SLF001 - which file it is.
            together.wait()  # Breaks unless all twelve are under way at once.
        close(upload)

    monkeypatch.setattr(Upload, "close", late)
    files = write(writer_spec(tmp_path, SCHEMA, spec=BY_PART), batch(*range(36), parts=12))
    sizes = [local_path(file.file_path).stat().st_size for file in files]
    assert sizes == [file.file_size_in_bytes for file in files]
    assert sorted(row["id"] for file in files for row in rows_of(file)) == list(range(36))


@pytest.mark.parametrize("number", [0, 5, 19])
def test_a_file_that_does_not_arrive_fails_the_cut(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """No manifest may name the file, whichever it is."""
    close = Upload.close

    def refuse(upload: Upload) -> None:
        if f"-{number:05d}.parquet" in upload._uri:  # noqa: SLF001 - which file it is.
            raise StorageError("no answer")
        close(upload)

    monkeypatch.setattr(Upload, "close", refuse)
    writer = writer_spec(tmp_path, SCHEMA, spec=BY_PART).open("job-0-0")
    with pytest.raises(StorageError, match="no answer"):  # noqa: PT012 - one of both.
        writer.write(writer.fit(batch(*range(40), parts=20)))
        writer.cut()
    writer.abandon()
    assert not [name for name in files_below(tmp_path) if name.endswith(".avro")]
