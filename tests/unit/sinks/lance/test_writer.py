"""Blob columns of every Lance format: rows go in as bytes, and come back the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from holdfast.errors import SettingsError, UnsupportedTableError
from holdfast.sinks.base import Change, Outcome, RunMark, TaskWriter
from holdfast.sinks.conform import ValueMisfitError
from holdfast.sinks.lance.columns import LanceColumnSink
from holdfast.sinks.lance.dataset import DatasetPlace
from holdfast.sinks.lance.sink import LanceSink

BLOBS = [b"small", None, b"", b"y" * 100_000]
OLD = pa.field("blob", pa.large_binary(), metadata={"lance-encoding:blob": "true"})


class Dataset:
    """A dataset with one column of blobs."""

    def __init__(self, folder: Path, field: pa.Field, version: Any) -> None:  # noqa: ANN401
        """Create it, empty."""
        self.uri = f"file://{folder}/t.lance"
        rows = pa.schema([field]).empty_table()
        lance.write_dataset(rows, self.uri, data_storage_version=version)
        place = DatasetPlace(uri=self.uri, options={})
        self.sink = LanceSink(place, rows_per_file=1000, bytes_per_file=10**9)

    def writer(self) -> TaskWriter:
        """Return a task's writer."""
        return self.sink.writer_spec(self.sink.load()).open("task")

    def append(self, rows: pa.RecordBatch) -> None:
        """Write rows, and publish them."""
        view, writer = self.sink.load(), self.writer()
        writer.write(writer.fit(rows))
        number = view.next_sequence_number
        mark = RunMark(run_nonce="n", intent_number=1, snapshot_id=number, sequence_number=number)
        assert self.sink.post(view, "run", mark, Change(adds=writer.cut())) is Outcome.LANDED

    def blobs(self) -> list[bytes]:
        """Read all blobs with Lance; NULL reads as empty bytes."""
        dataset = lance.dataset(self.uri)
        count = dataset.count_rows()
        found = [dataset.take_blobs("blob", indices=[index]) for index in range(count)]
        return [blobs[0].read() if blobs and blobs[0] is not None else b"" for blobs in found]


@pytest.mark.parametrize(
    ("field", "version"),
    [
        (OLD, "2.0"),
        (OLD, "2.1"),
        # Lance turns it into new blobs, whose type has fewer parts than `blob_array` gives.
        (OLD, "2.2"),
        (lance.blob_field("blob"), "2.2"),
        (lance.blob_field("blob", inline_size_threshold=2), "2.2"),
    ],
    ids=["old in 2.0", "old in 2.1", "old in 2.2", "new", "new with a threshold"],
)
def test_bytes_are_written_to_blobs_of_every_format(
    tmp_path: Path, field: pa.Field, version: str
) -> None:
    """They include a NULL, an empty and a large one."""
    dataset = Dataset(tmp_path, field, version)
    dataset.append(pa.record_batch({"blob": pa.array(BLOBS, pa.binary())}))
    assert dataset.blobs() == [blob or b"" for blob in BLOBS]


def test_blobs_that_a_user_has_made_are_accepted(tmp_path: Path) -> None:
    """A transform may return Lance's own type."""
    dataset = Dataset(tmp_path, lance.blob_field("blob"), "2.2")
    dataset.append(pa.record_batch({"blob": lance.blob_array(BLOBS)}))
    assert dataset.blobs() == [blob or b"" for blob in BLOBS]


def test_a_blob_that_names_another_file_is_refused_by_column(tmp_path: Path) -> None:
    """Its bytes may be gone when it is read: no file of ours would hold them."""
    writer = Dataset(tmp_path, lance.blob_field("blob"), "2.2").writer()
    rows = pa.record_batch({"blob": lance.blob_array([b"here", "s3://elsewhere/file"])})
    with pytest.raises(ValueMisfitError, match="refers to another file") as caught:
        writer.fit(rows)
    assert caught.value.column == "blob"


STRUCT = pa.struct([("a", pa.int64())])
NULL_STRUCTS = {
    "a column": pa.array([{"a": 1}, None], STRUCT),
    "in a list": pa.array([[{"a": 1}, None], None], pa.list_(STRUCT)),
    "in a struct": pa.array([{"b": {"a": 1}}, {"b": None}], pa.struct([("b", STRUCT)])),
}


@pytest.mark.parametrize("name", NULL_STRUCTS)
def test_a_struct_that_is_null_is_refused_where_lance_cannot_hold_it(
    tmp_path: Path, name: str
) -> None:
    """By column, before a file is written; later formats keep it."""
    values = NULL_STRUCTS[name]
    rows = pa.record_batch({"t": values})
    old = Dataset(tmp_path / "old", pa.field("t", values.type), "2.0")
    with pytest.raises(ValueMisfitError, match=r"Lance 2\.0 cannot hold") as caught:
        old.writer().fit(rows)
    assert (caught.value.column, caught.value.retry_safe) == ("t", False)
    old.append(rows.slice(0, 0))
    new = Dataset(tmp_path / "new", pa.field("t", values.type), "2.1")
    new.append(rows)
    assert lance.dataset(new.uri).to_table()["t"].to_pylist() == values.to_pylist()


def test_the_first_file_format_is_refused_because_it_loses_nulls(tmp_path: Path) -> None:
    """Lance reads them back as 0 or as empty, and says nothing. Columns are refused as well."""
    dataset = Dataset(tmp_path, pa.field("n", pa.int64()), "legacy")
    with pytest.raises(UnsupportedTableError, match="loses NULLs"):
        dataset.writer()
    place = DatasetPlace(uri=dataset.uri, options={})
    columns = LanceColumnSink(place, rows_per_file=1000, bytes_per_file=10**9)
    with pytest.raises(UnsupportedTableError, match="loses NULLs"):
        columns.load_writable()


def test_columns_of_structs_need_a_format_that_holds_null(tmp_path: Path) -> None:
    """Rows that fail or were deleted have no value: it is said before a row is paid for."""
    for version, is_refused in (("2.0", True), ("2.1", False)):
        dataset = Dataset(tmp_path / version, pa.field("n", pa.int64()), version)
        place = DatasetPlace(uri=dataset.uri, options={})
        columns = LanceColumnSink(place, rows_per_file=1000, bytes_per_file=10**9)
        schema = pa.schema([("t", STRUCT)])
        if is_refused:
            with pytest.raises(SettingsError, match="does not encode struct validity"):
                columns.fit(schema, is_update=False)
        else:
            assert columns.fit(schema, is_update=False) == schema
