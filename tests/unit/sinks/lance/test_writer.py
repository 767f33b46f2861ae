"""Blob columns of every Lance format: rows go in as bytes, and come back the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pytest

from holdfast.sinks.base import Change, Outcome, RunMark, TaskWriter
from holdfast.sinks.conform import ValueMisfitError
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
