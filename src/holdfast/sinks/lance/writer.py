"""The writer: output batches become fragments of a Lance dataset that no version names yet.

Lance pulls rows from a reader until it ends, while a task pushes them as they come. A writer thread
connects the two, with a queue that holds a few batches: while Lance encodes and sends one, the task
computes the next, and a slow store slows the task instead of filling memory.
"""

from __future__ import annotations

import contextlib
import json
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import lance
import pyarrow as pa
import pyarrow.compute as pc
from lance import blob_array
from lance.blob import BlobType
from lance.file import LanceFileReader
from lance.fragment import FragmentMetadata, write_fragments

from holdfast.errors import StoreUnavailableError, UnsupportedTableError
from holdfast.failpoints import failpoint
from holdfast.model.lasting import lasts
from holdfast.model.limits import DEFAULT_LIMITS, Limits
from holdfast.model.work import StagedFile, StagedGroup
from holdfast.sinks.base import MayLack
from holdfast.sinks.conform import Conformer, ValueMisfitError
from holdfast.sinks.lance.dataset import DatasetPlace, is_gone
from holdfast.text import reason_and_cause


# ---- Blob columns: a user gives plain bytes, Lance wraps them in its own type
def has_blobs(schema: pa.Schema) -> bool:
    """Whether a column keeps its values in files beside the data file."""
    return any(isinstance(field.type, BlobType) for field in schema)


def given_schema(stored: pa.Schema) -> pa.Schema:
    """Return the dataset's schema in the form users give rows: blobs are bytes."""
    return pa.schema(
        [
            field.with_type(pa.large_binary()) if isinstance(field.type, BlobType) else field
            for field in stored
        ]
    )


def written_schema(stored: pa.Schema) -> pa.Schema:
    """Return the dataset's schema in the form Lance takes rows.

    A dataset with an older kind of blobs has fewer parts in its type than `blob_array` gives. Lance
    takes either, but not a mix within a stream of rows.
    """
    return pa.schema(
        [
            field.with_type(BlobType()) if isinstance(field.type, BlobType) else field
            for field in stored
        ]
    )


def plain_schema(batch: pa.RecordBatch, table: str) -> pa.RecordBatch:
    """Return rows whose blobs, if the user made any, are bytes again.

    Args:
        batch: The output of a transform.
        table: The dataset's display name.

    Raises:
        ValueMisfitError: A blob refers to bytes stored elsewhere.
    """
    if not has_blobs(batch.schema):
        return batch
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not isinstance(column.type, BlobType):
            columns.append(column)
            continue
        data = column.storage.field(0)
        if pc.any(pc.and_(data.is_null(), column.is_valid())).as_py():
            raise ValueMisfitError(
                table=table, column=name, problem="a blob refers to another file; return its bytes"
            )
        columns.append(pc.if_else(column.is_valid(), data, None))
    return pa.RecordBatch.from_arrays(columns, schema=given_schema(batch.schema))


def as_blobs(batch: pa.RecordBatch, written: pa.Schema) -> pa.RecordBatch:
    """Return rows in the form Lance takes them, in the schema of `written_schema`."""
    if not has_blobs(written):
        return batch
    columns = [
        blob_array(column.to_pylist()) if isinstance(field.type, BlobType) else column
        for field, column in zip(written, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=written)


# ---- The writer: output batches become fragments of a Lance dataset that no version names yet

# How many bytes of batches are passed at a time, and how many times before the task waits.
_HANDED_BYTES = 8 * 1024 * 1024
_HANDED_MAX = 2
# How many rows of a staged file are read at a time.
_READ_ROWS = 8192


@dataclass(frozen=True, kw_only=True)
class LanceWriterSpec:
    """All that an executor needs to write to one dataset. Pickled with the task, never stored."""

    table: str
    place: DatasetPlace
    # In the form users give rows; `stored` is the form the dataset keeps.
    schema: pa.Schema
    stored: pa.Schema
    rows_per_file: int
    bytes_per_file: int
    storage_version: str
    may_lack: MayLack = frozenset()
    delete_column: str = ""

    def open(
        self,
        task_name: str,  # noqa: ARG002 - Lance names its files.
        limits: Limits = DEFAULT_LIMITS,  # noqa: ARG002 - it has one file open, and sends it itself.
    ) -> LanceTaskWriter:
        """Start a writer."""
        return LanceTaskWriter(self)


class NullStructs:
    """Finds NULL in place of a struct, which files of Lance 2.0 cannot hold."""

    def __init__(self, table: str, schema: pa.Schema, storage_version: str) -> None:
        """Note the columns to look at.

        Args:
            table: The dataset's name, for errors.
            schema: The columns that are written.
            storage_version: The version of Lance's file format that the dataset uses.
        """
        self._table = table
        asked = schema if storage_version == "2.0" else ()
        self._columns = [column.name for column in asked if _has_struct(column.type)]

    def refuse(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows, which have none.

        Raises:
            ValueMisfitError: They do.
        """
        for name in self._columns:
            if _has_null_struct(rows.column(name)):
                raise ValueMisfitError(
                    table=self._table,
                    column=name,
                    problem="a struct is NULL, which files of Lance 2.0 cannot hold",
                )
        return rows


def _has_struct(kind: pa.DataType) -> bool:
    below = [kind.field(number).type for number in range(kind.num_fields)]
    return pa.types.is_struct(kind) or any(map(_has_struct, below))


def _has_null_struct(array: pa.Array) -> bool:
    if not _has_struct(array.type):
        return False
    if pa.types.is_struct(array.type):
        return bool(array.null_count) or any(map(_has_null_struct, array.flatten()))
    return _has_null_struct(array.flatten())


class LanceTaskWriter:
    """Writes one task's output."""

    def __init__(self, spec: LanceWriterSpec) -> None:
        """Open nothing yet: a task without rows leaves no file."""
        self._spec = spec
        self._conformer: tuple[pa.Schema, Conformer] | None = None
        self._nulls = NullStructs(spec.table, spec.schema, spec.storage_version)
        self._stream: FragmentStream | None = None
        self._rows = 0
        self._size_bytes = 0

    @property
    def stored_schema(self) -> pa.Schema:
        """The schema of the rows that `fit` returns."""
        return self._spec.schema

    @property
    def fullness(self) -> float:
        """How much of a good file size has been written since the last cut; 1.0 is all of it."""
        return max(
            self._rows / self._spec.rows_per_file, self._size_bytes / self._spec.bytes_per_file
        )

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return output rows in their stored form.

        Raises:
            SchemaMismatchError: The rows do not fit the dataset.
        """
        batch = plain_schema(batch, self._spec.table)
        if self._conformer is None or self._conformer[0] != batch.schema:
            spec = self._spec
            conformer = Conformer(spec.table, batch.schema, spec.schema, may_lack=spec.may_lack)
            self._conformer = (batch.schema, conformer)
        return self._nulls.refuse(self._conformer[1](batch))

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows that `fit` has returned.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        if not rows.num_rows:
            return
        if self._stream is None:
            spec = self._spec
            how = {
                "mode": "append",
                "max_rows_per_file": 2 * spec.rows_per_file,
                "max_bytes_per_file": 2 * spec.bytes_per_file,
            }
            self._stream = FragmentStream(spec.place, written_schema(spec.stored), how)
        self._stream.put(rows)
        self._rows += rows.num_rows
        self._size_bytes += rows.nbytes

    def cut(self) -> list[StagedGroup]:
        """Close all files, and return what is staged.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        failpoint("before-files-are-closed")
        if self._stream is None:
            return []
        fragments = self._stream.finish()
        self._stream = None
        self._rows = self._size_bytes = 0
        failpoint("after-files-are-closed")
        return [self._staged(fragment) for fragment in fragments]

    def abandon(self) -> None:
        """Discard what is not finished."""
        if self._stream is not None:
            self._stream.abandon()
            self._stream = None

    def _staged(self, fragment: FragmentMetadata) -> StagedGroup:
        place, (data_file, *_) = self._spec.place, fragment.files
        path = f"{place.data}/{data_file.path}"
        size_bytes = data_file.file_size_bytes or 0
        files = [StagedFile(path=path, size_bytes=size_bytes, rows=fragment.physical_rows)]
        if has_blobs(self._spec.stored):  # Large values are in files beside it.
            files += [
                StagedFile(path=blob.uri, size_bytes=blob.size_bytes, rows=0)
                for blob in place.storage.facts(path.removesuffix(".lance"))
            ]
        return StagedGroup(
            path=path,
            size_bytes=size_bytes,
            files=tuple(files),
            # As text, which takes a driver with 100,000 fragments a fifth of the memory.
            detail={"fragment": json.dumps(fragment.to_json())},
        )


class _AbandonedError(Exception):
    """The task has discarded its rows."""


class FragmentStream:
    """One call of Lance's writer on its own thread, fed by a queue."""

    def __init__(
        self,
        place: DatasetPlace,
        written: pa.Schema,
        how: Mapping[str, Any],
        opened: Callable[[], lance.LanceDataset] | None = None,
    ) -> None:
        """Start the thread.

        Args:
            place: The dataset's location.
            written: The rows' schema.
            how: The arguments of Lance's writer.
            opened: Returns the dataset; by default it is opened for this stream.
        """
        self._place = place
        self._opened = opened or place.open
        self._written = written
        self._how = how
        self._queue: queue.Queue[list[pa.RecordBatch] | Exception | None] = queue.Queue(_HANDED_MAX)
        self._kept: list[pa.RecordBatch] = []
        self._kept_bytes = 0
        self._fragments: list[FragmentMetadata] = []
        self._error: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-lance", daemon=True)
        self._thread.start()

    def put(self, rows: pa.RecordBatch) -> None:
        """Add rows; waits while Lance has enough of them."""
        self._kept.append(rows)
        self._kept_bytes += rows.nbytes
        if self._kept_bytes >= _HANDED_BYTES:
            self._send_kept()

    def finish(self) -> list[FragmentMetadata]:
        """Let Lance finish, and return the fragments that it made.

        Raises:
            StoreUnavailableError: Lance failed.
        """
        self._send_kept()
        self._send(None)
        self._thread.join()
        self._raise_error()
        return self._fragments

    def abandon(self) -> None:
        """Make Lance stop. It removes unfinished files itself."""
        self._kept = []
        self._send(_AbandonedError())
        self._thread.join()

    def _send_kept(self) -> None:
        if self._kept:
            kept, self._kept, self._kept_bytes = self._kept, [], 0
            self._send(kept)
            self._raise_error()

    def _send(self, item: list[pa.RecordBatch] | Exception | None) -> None:
        # Lance may have ended before it has taken everything: then the queue is never emptied.
        is_taken = False
        while not is_taken and not self._ended.is_set():
            with contextlib.suppress(queue.Full):
                self._queue.put(item, timeout=1.0)
                is_taken = True

    def _raise_error(self) -> None:
        if self._error is not None:
            place = self._place
            reason, cause = reason_and_cause(self._error, place.options)
            raise StoreUnavailableError(
                uri=place.uri, reason=reason, retry_safe=not lasts(self._error)
            ) from cause

    def _batches(self) -> Iterator[pa.RecordBatch]:
        while (item := self._queue.get()) is not None:
            if isinstance(item, Exception):
                raise item
            for rows in item:
                yield as_blobs(rows, self._written)

    def _run(self) -> None:
        reader = pa.RecordBatchReader.from_batches(self._written, self._batches())
        try:
            # Reopened for each file: a long task outlives its credentials.
            dataset = self._opened()
            self._fragments = write_fragments(reader, dataset, **self._how)
        except BaseException as error:  # noqa: BLE001 - raised in the task's own thread.
            self._error = error
        finally:
            self._ended.set()


# ---- Staged files, read before they are in the dataset


@dataclass(frozen=True, kw_only=True)
class LanceStagedReaderSpec:
    """All that an executor needs to read staged files. Pickled with a task."""

    writer: LanceWriterSpec

    @classmethod
    def of(cls, writer: LanceWriterSpec) -> LanceStagedReaderSpec:
        """Return how files of a writer are read.

        Raises:
            UnsupportedTableError: They hold blobs, which only a dataset can read.
        """
        if has_blobs(writer.stored):
            raise UnsupportedTableError(
                table=writer.table,
                what="staged blobs cannot be read before they are in the dataset",
                cure="commit the run, and read the dataset",
            )
        return cls(writer=writer)

    def open(self) -> LanceStagedReader:
        """Return a reader."""
        return LanceStagedReader(self.writer)


class LanceStagedReader:
    """Reads staged files."""

    def __init__(self, writer: LanceWriterSpec) -> None:
        """Open nothing yet."""
        self._writer = writer
        self.schema = writer.schema

    def rows(self, item: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of staged files.

        Raises:
            FileNotFoundError: A file is gone.
            StoreUnavailableError: The store does not answer.
        """
        for path, _ in json.loads(item):
            yield from self._of_file(path)

    def _of_file(self, path: str) -> Iterator[pa.RecordBatch]:
        place, table = self._writer.place, self._writer.table
        # Columns may have been added to the dataset since.
        fit: Conformer | None = None
        try:
            reader = LanceFileReader(path, storage_options=place.lance_options)
            for batch in reader.read_all(batch_size=_READ_ROWS).to_batches():
                fit = fit or Conformer(table, batch.schema, self.schema, may_lack=None)
                yield fit(batch)
        except (ValueError, OSError) as error:
            reason, cause = reason_and_cause(error, place.options)
            if is_gone(error):
                raise FileNotFoundError(path) from cause
            raise StoreUnavailableError(
                uri=path, reason=reason, retry_safe=not lasts(error)
            ) from cause
