"""Column files: values of new columns for rows that are there, in files beside those of the rows.

Tasks write the values of the rows that they were given, with the number of each row beside them. A
file that holds all rows of a fragment, in order, becomes part of the fragment as it is: Lance
reads from a file only the columns that the fragment names. From others, one file for the fragment
is put together: if each holds rows that follow each other, their encoded pages are copied, and
otherwise a few thousand rows at a time are put in order.
"""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
from lance import LanceDataset
from lance.file import LanceFileReader
from lance.fragment import FragmentMetadata

from holdfast.errors import LedgerDamagedError, StoreUnavailableError, TableMissingError
from holdfast.failpoints import failpoint
from holdfast.model.lasting import lasts
from holdfast.model.limits import DEFAULT_LIMITS, Limits
from holdfast.model.stored import parse_typed
from holdfast.model.work import Rewrite, StagedFile, StagedGroup
from holdfast.reading.lance_rows import Positions, RowIds, live_positions
from holdfast.sinks.base import NUMBER_COLUMN, MayLack
from holdfast.sinks.conform import Conformer
from holdfast.sinks.lance.dataset import DatasetPlace
from holdfast.sinks.lance.pages import write_joined
from holdfast.sinks.lance.placing import Assembly, AssemblyPart, Order, Places, refuse_doubles
from holdfast.sinks.lance.writer import FragmentStream, NullStructs
from holdfast.storage.port import StorageError
from holdfast.text import reason_and_cause

_OPEN_S = 600.0
# What a staged group says of itself, besides Lance's metadata of its file.
FRAGMENT, COLUMN = "fragment", "column"
# A file is never split, however many rows its fragment has. Lance takes the lower 32 bits of the
# number of rows.
_ROWS_MAX, _BYTES_MAX = (1 << 32) - 1, 1 << 60


@dataclass(frozen=True, kw_only=True)
class ColumnPlace:
    """Where column files go, and what is in them. Pickled with the task, never stored."""

    table: str
    place: DatasetPlace
    # The new columns, in the form that users give them.
    schema: pa.Schema
    # The version of Lance's file format that the dataset uses.
    storage_version: str

    @property
    def how(self) -> Mapping[str, Any]:
        """The arguments of Lance's writer: it writes files for a schema of their own."""
        return {
            "mode": "overwrite",
            "max_rows_per_file": _ROWS_MAX,
            "max_bytes_per_file": _BYTES_MAX,
            "data_storage_version": self.storage_version,
        }

    def group(
        self, fragment: FragmentMetadata, facts: Mapping[str, Any], names: Sequence[str]
    ) -> StagedGroup:
        """Return a file that Lance has written, as staged.

        Args:
            fragment: Lance's metadata of the file.
            facts: Which rows it holds.
            names: Its columns, in order.
        """
        (data_file,) = fragment.files
        path, size = f"{self.place.data}/{data_file.path}", data_file.file_size_bytes or 0
        file = StagedFile(path=path, size_bytes=size, rows=fragment.physical_rows)
        return StagedGroup(
            path=path,
            size_bytes=size,
            files=(file,),
            detail={
                FRAGMENT: json.dumps(fragment.to_json()),
                COLUMN: {**facts, "names": list(names)},
            },
        )


# ---- The writer: values as they come, one file at a time, each for rows of one fragment
@dataclass(frozen=True, kw_only=True)
class ColumnWriterSpec:
    """All that an executor needs to write values. Pickled with the task, never stored."""

    columns: ColumnPlace
    # The number of each pinned fragment's first row, followed by the total number of rows.
    bases: tuple[int, ...]
    bytes_per_file: int
    may_lack: MayLack = frozenset()
    delete_column: str = ""

    @property
    def table(self) -> str:
        """The dataset's URI."""
        return self.columns.table

    @property
    def schema(self) -> pa.Schema:
        """The new columns."""
        return self.columns.schema

    def open(
        self,
        task_name: str,  # noqa: ARG002 - Lance names its files.
        limits: Limits = DEFAULT_LIMITS,  # noqa: ARG002 - it has one file open, and sends it itself.
    ) -> ColumnWriter:
        """Start a writer."""
        return ColumnWriter(self)


@dataclass(slots=True)
class _OpenFile:
    """The file that is being written: which rows it has so far."""

    base: int
    stop: int
    stream: FragmentStream
    first: int
    next: int
    rows: int = 0
    is_in_order: bool = True


class _OpenDataset:
    """The dataset, reopened from time to time: a long task outlives its credentials.

    Not for each file: to open a dataset of many fragments takes longer than to write a small one.
    """

    def __init__(self, place: DatasetPlace) -> None:
        self._place = place
        self._dataset: LanceDataset | None = None
        self._opened_at = 0.0

    def open(self) -> LanceDataset:
        """Return the dataset."""
        if self._dataset is None or time.monotonic() - self._opened_at > _OPEN_S:
            self._dataset = self._place.open()
            self._opened_at = time.monotonic()
        return self._dataset


class ColumnWriter:
    """Writes the values of one task's rows."""

    def __init__(self, spec: ColumnWriterSpec) -> None:
        """Open nothing yet: a task without rows leaves no file."""
        self._spec = spec
        self._bases = np.asarray(spec.bases)
        self._conformer: tuple[pa.Schema, Conformer] | None = None
        self._nulls = NullStructs(spec.table, spec.schema, spec.columns.storage_version)
        self._stored = spec.schema.append(pa.field(NUMBER_COLUMN, pa.int64(), nullable=False))
        self._open: _OpenFile | None = None
        self._dataset = _OpenDataset(spec.columns.place)
        self._closed: list[StagedGroup] = []
        self._size_bytes = 0

    @property
    def stored_schema(self) -> pa.Schema:
        """The schema of the rows that `fit` returns for rows with numbers."""
        return self._stored

    @property
    def fullness(self) -> float:
        """How much of a good file size has been written since the last cut; 1.0 is all of it.

        Not before a fragment is complete: its file can then be used as it is.
        """
        if self._open is not None and self._size_bytes < 2 * self._spec.bytes_per_file:
            return 0.0
        return self._size_bytes / self._spec.bytes_per_file

    def fit(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return output rows in their stored form; their numbers, if they have them, stay.

        Raises:
            SchemaMismatchError: The rows are not those of the new columns.
        """
        index = batch.schema.get_field_index(NUMBER_COLUMN)
        numbers = None if index < 0 else batch.column(index)
        values = batch if index < 0 else batch.remove_column(index)
        if self._conformer is None or self._conformer[0] != values.schema:
            spec = self._spec
            conformer = Conformer(spec.table, values.schema, spec.schema, may_lack=spec.may_lack)
            self._conformer = (values.schema, conformer)
        fitted = self._nulls.refuse(self._conformer[1](values))
        if numbers is None:
            return fitted
        return pa.RecordBatch.from_arrays([*fitted.columns, numbers], schema=self._stored)

    def write(self, rows: pa.RecordBatch) -> None:
        """Add rows that `fit` has returned, with their numbers.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        if not rows.num_rows:
            return
        numbers = rows.column(NUMBER_COLUMN).to_numpy()
        files = np.searchsorted(self._bases, numbers, side="right") - 1
        edges = np.concatenate(([0], np.flatnonzero(np.diff(files)) + 1, [len(files)]))
        for start, stop in itertools.pairwise(edges):
            at = int(files[start])
            self._add(at, rows.slice(start, stop - start), numbers[start:stop])
        self._size_bytes += rows.nbytes

    def cut(self) -> list[StagedGroup]:
        """Close all files, and return what is staged.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        failpoint("before-files-are-closed")
        self._close()
        done, self._closed, self._size_bytes = self._closed, [], 0
        if done:
            failpoint("after-files-are-closed")
        return done

    def abandon(self) -> None:
        """Discard what is not finished."""
        if self._open is not None:
            self._open.stream.abandon()
        self._open, self._closed, self._size_bytes = None, [], 0

    def _add(self, at: int, rows: pa.RecordBatch, numbers: Positions) -> None:
        base, stop = int(self._bases[at]), int(self._bases[at + 1])
        if self._open is not None and self._open.base != base:
            self._close()
        if self._open is None:
            columns = self._spec.columns
            stream = FragmentStream(columns.place, self._stored, columns.how, self._dataset.open)
            first = int(numbers[0])
            self._open = _OpenFile(base=base, stop=stop, stream=stream, first=first, next=first)
        file = self._open
        expected = np.arange(file.next, file.next + len(numbers))
        file.is_in_order = file.is_in_order and bool(np.array_equal(numbers, expected))
        file.next = int(numbers[-1]) + 1
        file.rows += len(numbers)
        file.stream.put(rows)
        if file.is_in_order and (file.first, file.next) == (base, stop):
            self._close()

    def _close(self) -> None:
        if self._open is None:
            return
        file, self._open = self._open, None
        for fragment in file.stream.finish():
            is_whole = file.is_in_order and (file.first, file.next) == (file.base, file.stop)
            is_whole = is_whole and fragment.physical_rows == file.stop - file.base
            facts = {"base": file.base, "is_whole": is_whole}
            self._closed.append(self._spec.columns.group(fragment, facts, self._stored.names))


# ---- The assembler: from values in several files, the one file of a fragment

# How many values are put in order at a time, by their size.
_WINDOW_BYTES = 16 * 1024 * 1024
_WINDOW_ROWS = 64 * 1024
_ROW_BYTES = 16
# Of each file whose pages are copied so many rows are compared, spread over all of it.
_ROWS_COMPARED = 16
# Pages are copied if they are as large as this, on average.
_PAGE_BYTES_MIN = 128 * 1024


@dataclass(frozen=True, kw_only=True)
class AssemblerSpec:
    """All that an executor needs to assemble files. Pickled with the task, never stored."""

    columns: ColumnPlace

    def open(self, task_name: str) -> Assembler:  # noqa: ARG002 - Lance names its files.
        """Return an assembler."""
        return Assembler(self.columns)


class _GoneError(Exception):
    """A version is not there any more. A file with values that is missing is another matter."""


@dataclass(slots=True)
class _Source:
    """One file with values: where each of its rows belongs."""

    path: str
    size_bytes: int
    reader: LanceFileReader
    positions: Positions

    def __len__(self) -> int:
        return len(self.positions)


@dataclass
class Assembler:
    """Writes column files, one fragment after the other."""

    columns: ColumnPlace
    _options: dict[str, str] = field(default_factory=dict, init=False)

    def rewrite(self, item: str) -> Rewrite:
        """Write the column file of a fragment.

        Raises:
            FileNotFoundError: A version is gone: the dataset must be looked at again.
            LedgerDamagedError: The values are not those of the fragment's rows.
            StoreUnavailableError: The store does not answer.
        """
        work = msgspec.convert(parse_typed(item.encode(), dict[str, Any]), Assembly)
        self._options = self.columns.place.lance_options
        try:
            return self._rewrite(work)
        except _GoneError as error:
            raise FileNotFoundError(str(error)) from error
        except (ValueError, OSError, StorageError) as error:
            reason, cause = reason_and_cause(error, self.columns.place.options)
            raise StoreUnavailableError(
                uri=self.columns.table, reason=reason, retry_safe=not lasts(error)
            ) from cause

    def _rewrite(self, work: Assembly) -> Rewrite:
        fragment = self._fragment(work.fragment, work.version)
        if fragment.physical_rows != work.rows:
            raise _GoneError(work.state)
        group = self._copied(work)
        if group is None:
            group = self._written(work, fragment)
        return Rewrite(state=work.state, removed_rows=0, kept_rows=work.rows, group=group)

    def _written(self, work: Assembly, fragment: Any) -> StagedGroup:  # noqa: ANN401 - LanceFragment.
        """Write the file from values that are read and put in order.

        Raises:
            LedgerDamagedError: The values are not those of the fragment's rows.
        """
        live = live_positions(fragment)
        has_value = np.zeros(work.rows, dtype=bool)
        ids = RowIds.of(fragment) if work.since else None
        if ids is not None:
            has_value[ids.positions[ids.created > work.since]] = True
        sources: list[_Source] = []
        for part in work.parts:
            places = Places(work, part, ids, self._fragment)
            for start, stop in part.failed:
                failed = places.of(np.arange(start, stop))
                has_value[failed[failed >= 0]] = True
            own = [self._source(work, part, file, places) for file in part.files]
            refuse_doubles(work, [source.positions for source in own])
            for source in sources:  # A later part's values are those of the same rows, or newer.
                for other in own:
                    source.positions[np.isin(source.positions, other.positions)] = -1
            sources += own
        order = Order(work, [source.positions for source in sources], live, has_value)
        stream = FragmentStream(self.columns.place, self.columns.schema, self.columns.how)
        try:
            for batch in self._batches(work, sources, order, fragment, live):
                stream.put(batch)
        except BaseException:
            stream.abandon()
            raise
        (made,) = stream.finish()
        if made.physical_rows != work.rows:
            raise self._damaged(work, f"{made.physical_rows} rows were written")
        return self.columns.group(made, {"fragment": work.fragment}, self.columns.schema.names)

    def _fragment(self, number: int, version: int) -> Any:  # noqa: ANN401 - LanceFragment.
        """Return a fragment of a version.

        Raises:
            _GoneError: The version is gone.
        """
        try:
            found = self.columns.place.open(version).get_fragment(number)
        except TableMissingError as error:
            raise _GoneError(f"version {version}") from error
        if found is None:
            raise _GoneError(f"fragment {number} of version {version}")
        return found

    def _source(
        self, work: Assembly, part: AssemblyPart, file: tuple[str, int, int], places: Places
    ) -> _Source:
        path, rows, size_bytes = file
        pinned = self._numbers(path) - part.base
        if len(pinned) != rows or pinned.min() < 0:
            raise self._damaged(work, f"{path} does not hold its rows")
        reader = LanceFileReader(path, self._options, columns=self.columns.schema.names)
        return _Source(path, size_bytes, reader, places.of(pinned))

    def _numbers(self, path: str) -> Positions:
        reader = LanceFileReader(path, self._options, columns=[NUMBER_COLUMN])
        found = reader.read_all(batch_size=_WINDOW_ROWS).to_table()[NUMBER_COLUMN].to_numpy()
        numbers: Positions = found.astype(np.int64)
        return numbers

    def _copied(self, work: Assembly) -> StagedGroup | None:
        """Write the file by copying encoded pages; None if they are not in order, or not known."""
        if not work.like or work.since or len(work.parts) > 1:
            return None
        (part,) = work.parts
        places = Places(work, part, None, self._fragment)
        sources = [self._source(work, part, file, places) for file in part.files]
        ordered = sorted(sources, key=lambda source: source.positions[0])
        found = np.concatenate([source.positions for source in ordered])
        # Then none is missing, and none is there twice.
        if not np.array_equal(found, np.arange(work.rows)):
            return None
        place, files = self.columns.place, [(source.path, source.size_bytes) for source in ordered]
        written = write_joined(place.storage, place.data, files, _PAGE_BYTES_MIN)
        if written is None:
            return None
        path, size_bytes = written
        if not self._is_right(path, part.base, ordered):
            place.storage.delete([path])
            return None
        fragment = json.loads(work.like)
        fragment["physical_rows"] = work.rows
        (file,) = fragment["files"]
        file["path"], file["file_size_bytes"] = path.rpartition("/")[2], size_bytes
        made = FragmentMetadata.from_json(json.dumps(fragment))
        names = [*self.columns.schema.names, NUMBER_COLUMN]
        return self.columns.group(made, {"fragment": work.fragment}, names)

    def _is_right(self, path: str, base: int, sources: Sequence[_Source]) -> bool:
        """Whether a file of copied pages holds all rows in order, as far as can be seen quickly."""
        numbers = self._numbers(path)
        if not np.array_equal(numbers, np.arange(base, base + sum(map(len, sources)))):
            return False
        reader = LanceFileReader(path, self._options, columns=self.columns.schema.names)
        for source in sources:
            some = np.unique(
                np.linspace(0, len(source) - 1, _ROWS_COMPARED, dtype=np.int64)
            ).tolist()
            there = [int(source.positions[row]) for row in some]
            # As text, in which a NaN is the same as another.
            if repr(_rows_of(source.reader, some)) != repr(_rows_of(reader, there)):
                return False
        return True

    def _batches(
        self,
        work: Assembly,
        sources: Sequence[_Source],
        order: Order,
        fragment: Any,  # noqa: ANN401 - Lance ships no types.
        live: Positions,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the values of all rows, in order: NULL for rows without one."""
        files = [file for part in work.parts for file in part.files]
        size = sum(size_bytes for _, _, size_bytes in files)
        row_bytes = max(_ROW_BYTES, size // max(1, sum(rows for _, rows, _ in files)))
        window = max(1, min(_WINDOW_ROWS, _WINDOW_BYTES // row_bytes))
        for first in range(0, work.rows, window):
            stop = min(work.rows, first + window)
            rows, places = order.between(first, stop)
            schema = self.columns.schema
            parts = [_taken(sources[number].reader, rows[number], schema) for number in rows]
            indices = np.full(stop - first, -1)
            if work.keeps:
                kept, there = self._kept(fragment, live, first, stop)
                parts.append(kept)
                indices[there - first] = np.arange(len(there)) + len(places)
            values = pa.concat_tables([*parts, schema.empty_table()])
            indices[places - first] = np.arange(len(places))
            if np.array_equal(indices, np.arange(len(values))):
                yield from values.combine_chunks().to_batches()
                continue
            taken = values.take(pa.array(indices, mask=indices < 0))
            yield from taken.combine_chunks().to_batches()

    def _kept(
        self,
        fragment: Any,  # noqa: ANN401 - Lance ships no types.
        live: Positions,
        first: int,
        stop: int,
    ) -> tuple[pa.Table, Positions]:
        """Return the values that some rows have so far, and which rows these are."""
        low, high = np.searchsorted(live, [first, stop])
        schema = self.columns.schema
        if low == high:
            return schema.empty_table(), live[low:high]
        found = fragment.scanner(columns=schema.names, offset=int(low), limit=int(high - low))
        return _own_nulls(found.to_table().select(schema.names)).cast(schema), live[low:high]

    def _damaged(self, work: Assembly, reason: str) -> LedgerDamagedError:
        where = f"{self.columns.table} (fragment {work.fragment})"
        return LedgerDamagedError(uri=where, reason=reason)


def _rows_of(reader: LanceFileReader, rows: Sequence[int]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = reader.take_rows(list(rows)).to_table().to_pylist()
    return found


def _taken(reader: LanceFileReader, rows: Positions, schema: pa.Schema) -> pa.Table:
    """Return some rows of a file, in its order."""
    first, last = int(rows[0]), int(rows[-1])
    if last - first + 1 == len(rows):
        found = reader.read_range(first, len(rows), batch_size=len(rows))
    else:
        found = reader.take_rows(rows.tolist(), batch_size=len(rows))
    return _own_nulls(found.to_table().select(schema.names)).cast(schema)


def _own_nulls(rows: pa.Table) -> pa.Table:
    """Return rows whose dictionaries have no NULL among their values: Arrow joins no such two.

    Files of format 2.0 are read so. A NULL in the list of numbers means the same.
    """
    for at, column in enumerate(rows.columns):
        if any(pa.types.is_dictionary(c.type) and c.dictionary.null_count for c in column.chunks):
            chunks = [_numbered_anew(chunk) for chunk in column.chunks]
            rows = rows.set_column(at, rows.field(at), pa.chunked_array(chunks, column.type))
    return rows


def _numbered_anew(array: pa.DictionaryArray) -> pa.DictionaryArray:
    found, kind = array.dictionary_decode().dictionary_encode(), array.type
    numbers = found.indices.cast(kind.index_type)
    return pa.DictionaryArray.from_arrays(numbers, found.dictionary, ordered=kind.ordered)
