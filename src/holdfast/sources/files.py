"""Scan files: one row for each object, whatever is in it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import pyarrow as pa

from holdfast.errors import SettingsError
from holdfast.model.coverage import FileSlice, PinnedFile, Pins, Span
from holdfast.sources.base import TAG_COLUMN, NewFiles, as_pinned, checked_paths
from holdfast.sources.find import compare_files, find_files
from holdfast.storage.port import ObjectFacts, Storage
from holdfast.storage.runtime import io_runtime, read_ahead

# ---- Read whole objects on an executor: the next ones are fetched ahead of time

# The limits of a batch: this many rows, or the object with which it reaches this many bytes.
_BATCH_ROWS = 64
_BATCH_BYTES = 16 << 20
# One request must end before the client gives up on it.
_PART_BYTES = 16 << 20

_Parts = Sequence["Future[bytes | memoryview]"]


@dataclass(frozen=True, kw_only=True)
class FilesReader:
    """Reads objects as rows. Pickled with a task."""

    storage: Storage
    schema: pa.Schema

    def read(
        self,
        slices: Sequence[FileSlice],
        passed_over: list[Span],  # noqa: ARG002 - no row is left out.
    ) -> Iterator[pa.RecordBatch]:
        """Yield the objects of some slices, tagged with their numbers.

        Raises:
            InputChangedError: An object is not the one that was pinned.
        """
        rows: list[tuple[FileSlice, bytes]] = []
        size = 0
        for file_slice, content in self._contents(slices):
            rows.append((file_slice, content))
            size += len(content)
            if size >= _BATCH_BYTES or len(rows) == _BATCH_ROWS:
                yield self._batch(rows)
                rows, size = [], 0
        if rows:
            yield self._batch(rows)

    def _contents(self, slices: Sequence[FileSlice]) -> Iterator[tuple[FileSlice, bytes]]:
        """Yield each object's bytes; a large object is fetched only when its turn comes."""
        asked = read_ahead(
            slices,
            size_of=lambda file_slice: file_slice.file.size_bytes,
            ask=lambda file_slice: self._ask(file_slice.file),
            at_least=0,
        )
        for file_slice, parts in asked:
            yield file_slice, _whole(file_slice.file, parts)

    def _ask(self, file: PinnedFile) -> _Parts:
        """Start fetching an object."""

        def ask(start: int) -> Future[bytes | memoryview]:
            stop = min(start + _PART_BYTES, file.size_bytes)
            return io_runtime().read(
                lambda: self.storage.get_range(file.uri, start, stop, tag=file.tag), stop - start
            )

        return [ask(start) for start in range(0, file.size_bytes, _PART_BYTES)]

    def _batch(self, rows: Sequence[tuple[FileSlice, bytes]]) -> pa.RecordBatch:
        files = [file_slice.file for file_slice, _ in rows]
        columns = {
            "path": [file.uri for file in files],
            "size": [file.size_bytes for file in files],
            "modified": [file.values["modified"] for file in files],
            "bytes": [content for _, content in rows],
        }
        batch = pa.RecordBatch.from_pydict(columns, schema=self.schema)
        numbers = pa.array([file_slice.base for file_slice, _ in rows], pa.int64())
        return batch.append_column(TAG_COLUMN, numbers)


def _whole(file: PinnedFile, parts: _Parts) -> bytes:
    """Return an object's bytes.

    Raises:
        InputChangedError: The object is not the one that was pinned.
    """
    with as_pinned(file):
        return b"".join(part.result() for part in parts)


# ---- Scan files: one row for each object, whatever is in it

_SCHEMA = pa.schema(
    [
        pa.field("path", pa.string(), nullable=False),
        pa.field("size", pa.int64(), nullable=False),
        pa.field("modified", pa.timestamp("us", tz="UTC"), nullable=False),
        pa.field("bytes", pa.large_binary(), nullable=False),
    ]
)
_LARGEST_BYTES = 1 << 30


@dataclass(frozen=True, kw_only=True)
class FilesScan:
    """Objects that workers read directly; returned by `hf.scan_files`."""

    paths: tuple[str, ...]
    new_files: NewFiles = "refuse"
    # Storage options, with credentials: never shown, never stored.
    options: Mapping[str, str] | None = field(default=None, repr=False)

    def on(self, storage: Storage) -> PinnedFilesScan:
        """Return the scan together with its storage."""
        return PinnedFilesScan(self, storage)


def scan_files(
    paths: str | Sequence[str],
    *,
    new_files: NewFiles = "refuse",
    options: Mapping[str, str] | None = None,
) -> FilesScan:
    """Read files of any kind on the workers, each as one row. No key is needed.

    The columns are `path`, `size`, `modified` and `bytes`, the whole content: at most 1 GiB. Files
    are pinned when the run begins: if one changes later, the error names it.

    Args:
        paths: Files, folders or globs (`s3://raw/scans/**/*.pdf`).
        new_files: What to do about files that were added since the run began: "refuse" to continue,
            or "leave" them to another run.
        options: Storage options in Iceberg's names (`s3.endpoint`, ...). By default the session's
            `spark.holdfast.scan.*`, else the environment's credential chain.

    Raises:
        SettingsError: An argument cannot be used.
    """
    named = checked_paths("scan_files", paths, new_files)
    return FilesScan(paths=named, new_files=new_files, options=options)


class PinnedFilesScan:
    """A scan together with its storage."""

    identity = json.dumps({"scan": "files"})

    def __init__(self, scan: FilesScan, storage: Storage) -> None:
        """Keep both; nothing is read yet."""
        self._scan = scan
        self._storage = storage

    def pin(self) -> Pins:
        """Find the files.

        Raises:
            SettingsError: There are no files, or one is too large.
            StoreUnavailableError: The storage does not answer.
        """
        found = find_files(self._storage, self._scan.paths)
        for file in found:
            if file.size_bytes > _LARGEST_BYTES:
                raise SettingsError(
                    what=f"{file.uri} has {file.size_bytes:,} bytes, but a row holds at most "
                    f"{_LARGEST_BYTES:,}",
                    cure="leave it out, or pass its path in a DataFrame and read it in parts",
                )
        return Pins(files=tuple(map(_pinned, found)), schema=_SCHEMA)

    def compare(self, pins: Pins) -> str:
        """Return which files are new; empty if none are.

        Raises:
            InputChangedError: A pinned file was changed or deleted.
            StoreUnavailableError: The storage does not answer.
        """
        found = find_files(self._storage, self._scan.paths, must_exist=False)
        may_grow = self._scan.new_files == "leave"
        return compare_files(self._storage, found, pins, may_grow=may_grow)

    def schema(self, pins: Pins) -> pa.Schema:
        """Return the columns that the transform gets."""
        return pins.schema

    def reader(self, pins: Pins) -> FilesReader:
        """Return the reader that executors use for the pinned files."""
        return FilesReader(storage=self._storage, schema=pins.schema)


def _pinned(one: ObjectFacts) -> PinnedFile:
    return PinnedFile(
        uri=one.uri,
        size_bytes=one.size_bytes,
        tag=one.tag,
        group_rows=(1,),
        group_bytes=(one.size_bytes,),
        # Pinned too: if a store later returned another time, a resume would produce other rows.
        values={"modified": round(one.modified * 1_000_000)},
    )
