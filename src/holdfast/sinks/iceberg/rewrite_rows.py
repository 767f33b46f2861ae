"""Data files rewritten without the rows that go, or rows of them deleted by their numbers.

One file in, at most one out. The new file has the columns of the old one under their own ids, even
those that the table has dropped since; it is in the same partition of the same spec, and its rows
are in the same order. Rows that position deletes hide are not carried over: the deletes name the
old file only, so they would come back. In place of a new file there can be a file of position
deletes: then the old one stays, and nothing but the rows' numbers is written.

A file is read twice. First the columns of the filter only, to find out which rows go: often none,
and then the file stays as it is. Then all columns, of the row groups that keep a row. Row groups
are read and written one after the other, so memory does not grow with the file.
"""

from __future__ import annotations

import base64
import pickle
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.io.pyarrow import pyarrow_to_schema
from pyiceberg.manifest import DataFile, ManifestContent
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table
from pyiceberg.table.locations import load_location_provider
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record

from holdfast.errors import InputChangedError, UnsupportedTableError
from holdfast.model.work import Rewrite, StagedGroup
from holdfast.reading.iceberg_rows import (
    ByFieldId,
    FieldsDifferError,
    PositionDeletes,
    cast_to,
    compact_first,
    field_id,
    names_of,
)
from holdfast.reading.parquet_file import (
    NoParquetError,
    Numbers,
    ParquetSource,
    UnreadableFileError,
)
from holdfast.sinks.iceberg.data_file import (
    FileLayout,
    OpenDataFile,
    WriteOptions,
    statistics_plan,
    without_code,
)
from holdfast.sinks.iceberg.file_io import HoldfastFileIO
from holdfast.sinks.iceberg.manifests import NewManifest, write_staged_manifest
from holdfast.sinks.iceberg.position_deletes import (
    LosingFile,
    parquet_options,
    staged_deletes,
    write_position_deletes,
)
from holdfast.sinks.iceberg.rewrite import LiveFile
from holdfast.sinks.iceberg.schemas import Layout, layouts_of, reads_as
from holdfast.sinks.iceberg.writer import IcebergWriterSpec, data_location
from holdfast.text import in_short

_PARQUET = "PARQUET"
_POSITION_DELETES, _EQUALITY_DELETES = 1, 2

# ---- Which deletes apply to a data file, by Iceberg's rules


class AppliedDeletes:
    """The delete files of a snapshot, found by the data files that they apply to."""

    def __init__(self, files: Iterable[LiveFile], unpartitioned: Iterable[int]) -> None:
        """Sort the files.

        Args:
            files: All live files; data files are ignored.
            unpartitioned: The ids of specs without fields: equality deletes apply everywhere there.
        """
        everywhere = set(unpartitioned)
        self._everywhere: list[LiveFile] = []
        self._by_path: dict[str, list[LiveFile]] = defaultdict(list)
        self._by_partition: dict[Any, list[LiveFile]] = defaultdict(list)
        for file in files:
            if file.content == _EQUALITY_DELETES and file.spec_id in everywhere:
                self._everywhere.append(file)
            elif file.content == _POSITION_DELETES and file.referenced is not None:
                self._by_path[file.referenced].append(file)
            elif file.content in {_POSITION_DELETES, _EQUALITY_DELETES}:
                self._by_partition[file.spec_id, file.partition].append(file)

    def to(self, file: LiveFile) -> list[LiveFile]:
        """Return the delete files that apply to a data file."""
        found = [
            *self._everywhere,
            *self._by_path.get(file.path, ()),
            *self._by_partition.get((file.spec_id, file.partition), ()),
        ]
        return [delete for delete in found if _is_later(delete, file)]


def _is_later(delete: LiveFile, file: LiveFile) -> bool:
    """Whether a delete was written after the file; for position deletes, not before it."""
    if delete.content == _EQUALITY_DELETES:
        return delete.sequence_number > file.sequence_number
    return delete.sequence_number >= file.sequence_number


# ---- One file to rewrite, and what becomes of it


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetFile:
    """A data file of the table. Pickled with a task."""

    path: str
    size_bytes: int
    # Including those that deletes hide.
    rows: int
    spec_id: int
    # In the order of the spec's fields.
    partition: tuple[Any, ...]
    sort_order_id: int | None
    # The files of position deletes that apply to it.
    deletes: tuple[str, ...]

    @classmethod
    def of(cls, table: str, file: DataFile, deletes: Sequence[LiveFile]) -> TargetFile:
        """Return a file that can be rewritten.

        Args:
            table: The table's name, for errors.
            file: The file, as `Manifest.data_files` yields it.
            deletes: What `AppliedDeletes.to` returns for it.

        Raises:
            UnsupportedTableError: Its rows cannot be read or carried over.
        """
        if problem := _problem(file, deletes):
            raise UnsupportedTableError(table=table, what=problem, cure=compact_first(table))
        partition = file.partition
        return cls(
            path=file.file_path,
            size_bytes=file.file_size_in_bytes,
            rows=file.record_count,
            spec_id=file.spec_id,
            partition=tuple(partition[at] for at in range(len(partition))),
            sort_order_id=file.sort_order_id,
            deletes=tuple(sorted(delete.path for delete in deletes)),
        )


def _problem(file: DataFile, deletes: Sequence[LiveFile]) -> str:
    """Return why a file cannot be rewritten; empty if it can, as far as metadata tells."""
    formats = {file.file_path: file.file_format.name}
    formats |= {delete.path: delete.file_format for delete in deletes}
    for path, name in formats.items():
        if name != _PARQUET:
            return f"{path} has format {name}"
    if any(delete.content == _EQUALITY_DELETES for delete in deletes):
        return f"equality deletes apply to {file.file_path}"
    if file.key_metadata is not None or any(delete.is_encrypted for delete in deletes):
        return f"{file.file_path} or its deletes are encrypted"
    return ""


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenFile:
    """What became of a file. If no row was removed, it stays in the table as it is."""

    # The rows that the filter removed, and those left; what deletes hide is in neither.
    removed_rows: int
    kept_rows: int
    # The new file, or the deletes; None if none was written, because no row was removed, or all.
    group: StagedGroup | None
    # See `Rewrite.hits`.
    hits: str = ""


class RowTest(Protocol):
    """Decides which rows of a file go. Pickled with a task."""

    def columns(self, names: NameMapping | None, constants: Mapping[int, Any]) -> ByFieldId:
        """Return how the columns that it looks at are found in a file of the table.

        Raises:
            FieldsDifferError: A column has a default that cannot be used.
        """

    def search(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Numbers]:
        """Yield a number for each row: -1 if it stays, else that of the key that it has.

        Args:
            batches: The columns that it looks at. More of them may be asked for at a time.
        """

    def written_hits(self, numbers: Numbers) -> str:
        """Keep the numbers of the rows that go, and return them as text."""


@dataclass(frozen=True, kw_only=True)
class RewriteSpec:
    """All that an executor needs to rewrite a table's files. Pickled with a task, never stored."""

    writer: IcebergWriterSpec
    where: RowTest
    # Each partition spec, and a schema of the table that has its columns, as JSON; by spec id.
    layouts: Mapping[int, tuple[str, str]]
    names_json: str | None
    # Whether rows are deleted by their numbers; else their files are written anew.
    by_position: bool = False

    @classmethod
    def of(
        cls, table: Table, writer: IcebergWriterSpec, where: RowTest, *, by_position: bool = False
    ) -> RewriteSpec:
        """Return the spec of a loaded table.

        Args:
            table: The table.
            writer: What its writers get.
            where: The rows that go.
            by_position: Whether they are deleted by their numbers.
        """
        names = names_of(writer.table, table.metadata)
        return cls(
            writer=writer,
            where=where,
            layouts=layouts_of(table),
            names_json=names.model_dump_json() if names else None,
            by_position=by_position,
        )

    def open(self, task_name: str) -> FileRewriter:
        """Return a rewriter whose files carry the task's name."""
        return FileRewriter(self, task_name)


@dataclass(frozen=True, slots=True)
class IcebergRewriterSpec:
    """The same behind the engine's protocol: files are work items. Pickled with a task."""

    spec: RewriteSpec

    def open(self, task_name: str) -> IcebergRewriter:
        """Return a rewriter whose files carry the task's name."""
        return IcebergRewriter(self.spec.open(task_name))


@dataclass(frozen=True, slots=True)
class IcebergRewriter:
    """Rewrites files that are given as work items."""

    files: FileRewriter

    def rewrite(self, item: str) -> Rewrite:
        """Write the rows of a file that stay into a new one, unless all of them stay or go.

        Raises:
            UnsupportedTableError: The file cannot be read, or not be written as it was.
            FileNotFoundError: The file or one of its deletes is gone.
            StorageError: The storage does not answer.
        """
        state, target = as_target(item)
        done = self.files.rewrite(target)
        return Rewrite(
            state=state,
            removed_rows=done.removed_rows,
            kept_rows=done.kept_rows,
            group=done.group,
            hits=done.hits,
        )


def as_item(state: str, file: TargetFile) -> str:
    """Return a file as the text of a work item: it goes to an executor, and is never stored."""
    return base64.b64encode(pickle.dumps((state, file))).decode()


def as_target(item: str) -> tuple[str, TargetFile]:
    """Return the state and the file of a work item."""
    state, file = pickle.loads(base64.b64decode(item))  # noqa: S301 - from our own driver.
    return state, file


# ---- Rewriting, on an executor


class FileRewriter:
    """Rewrites files one after the other."""

    def __init__(self, spec: RewriteSpec, task_name: str) -> None:
        """Open nothing yet."""
        self._given = spec
        self._table = spec.writer.table
        self._task_name = task_name
        self._files_begun = 0
        self._properties = dict(spec.writer.properties)
        self._options = WriteOptions.of(self._table, self._properties)
        self._schema = Schema.model_validate_json(spec.writer.schema_json)
        self._statistics = statistics_plan(self._schema, self._properties)
        names = spec.names_json
        self._names = None if names is None else NameMapping.model_validate_json(names)
        self._io = HoldfastFileIO(dict(spec.writer.io_properties), spec.writer.vendor)
        # A table's property must not name code that executors import.
        self._locations = load_location_provider(
            spec.writer.location, without_code(self._properties)
        )
        self._deletes = PositionDeletes(storage=self._io.storage)
        # Most files of a table have the same columns.
        self._last_layout: tuple[Any, FileLayout] | None = None

    def rewrite(self, file: TargetFile) -> RewrittenFile:
        """Write the rows of a file that stay into a new one, unless all of them stay or go.

        Calling again with the same file writes a second one.

        Raises:
            UnsupportedTableError: The file cannot be read, or not be written as it was.
            FileNotFoundError: The file or one of its deletes is gone: it is no longer in the table.
            StorageError: The storage does not answer.
        """
        if file.spec_id not in self._given.layouts:
            raise self._refused(file, "the columns of its partition are in no schema of the table")
        layout = Layout.of(*self._given.layouts[file.spec_id])
        source = self._opened(file)
        by_position, group = self._given.by_position, None
        own = None if by_position else self._own_schema(file, source)
        try:
            judged = self._judged(source, file, layout.spec)
            kept = sum(judged.kept)
            if judged.removed and kept:
                if own is None:
                    group = self._deleted(judged, file, layout)
                else:
                    group = self._written(source, judged, file, layout, own)
        except UnreadableFileError as error:
            raise self._refused(file, in_short(error)) from error
        hits = self._given.where.written_hits(judged.hits)
        return RewrittenFile(removed_rows=judged.removed, kept_rows=kept, group=group, hits=hits)

    def _opened(self, file: TargetFile) -> ParquetSource:
        """Read a file's footer.

        Raises:
            UnsupportedTableError: The file cannot be rewritten.
            FileNotFoundError: The file is gone.
        """
        try:
            source = ParquetSource.of(self._io.storage, file.path, file.size_bytes, file.deletes)
        except NoParquetError as error:
            raise self._refused(file, in_short(error)) from error
        rows = sum(source.pinned.group_rows)
        if rows != file.rows:
            raise UnsupportedTableError(
                table=self._table,
                what=f"{file.path} has {rows} rows, but the table says {file.rows}",
                cure="the table is damaged: repair it first",
            )
        return source

    def _own_schema(
        self, file: TargetFile, source: ParquetSource, only: Collection[str] | None = None
    ) -> Schema:
        """Return a file's columns in Iceberg's terms; by default all.

        Raises:
            UnsupportedTableError: Arrow cannot read one of them, or not write it as it was.
        """
        columns = [column for column in source.own if only is None or column.name in only]
        leaves = [source.leaves.column(at) for at in range(len(source.leaves))]
        leaves = [leaf for leaf in leaves if only is None or leaf.path in only]
        if any(leaf.physical_type == "INT96" for leaf in leaves):
            raise self._refused(file, "it has INT96 timestamps, which Arrow cannot write")
        try:
            own = pyarrow_to_schema(pa.schema(columns), self._names, format_version=2)
        except Exception as error:  # PyIceberg has errors of many kinds for this.
            raise self._refused(file, in_short(error)) from error
        wanted = index_by_id(self._schema)
        for number, column in index_by_id(own).items():
            now = wanted.get(number)
            if now is not None and not reads_as(column.field_type, now.field_type):
                raise self._refused(
                    file, f"column {column.name!r} is {column.field_type}, not {now.field_type}"
                )
        return own

    def _judged(self, source: ParquetSource, file: TargetFile, spec: PartitionSpec) -> _Judged:
        """Find out which rows of a file stay.

        Raises:
            UnsupportedTableError: The columns of the filter cannot be read.
            FileNotFoundError: A delete file is gone.
        """
        constants = {
            field.source_id: file.partition[at]
            for at, field in enumerate(spec.fields)
            if isinstance(field.transform, IdentityTransform)
        }
        try:
            fit = self._given.where.columns(self._names, constants)
            fit.check(source.own)
        except FieldsDifferError as error:
            raise self._refused(file, str(error)) from error
        if self._given.by_position:  # Other columns are not read.
            if self._names is None and all(field_id(column) is None for column in source.own):
                raise self._refused(file, "it has no field-ids, and the table no name mapping")
            self._own_schema(file, source, set(fit.wanted(source.own)))
        try:
            deleted = self._deletes.numbers(source.pinned)
        except InputChangedError as error:
            raise FileNotFoundError(str(error)) from error
        goes = np.zeros(file.rows, dtype=bool)
        is_live = _live(0, file.rows, deleted)
        rows = (fit.fit(batch) for _, batches in source.groups(fit.wanted) for batch in batches)
        judged, first, hits = _Judged(), 0, []
        for numbers in self._given.where.search(rows):
            part = slice(first, first + len(numbers))
            goes[part] = numbers >= 0
            # A row that a delete hides is not replaced: it is in the table no more.
            hits.append(numbers[goes[part] & is_live[part]])
            first = part.stop
        first = 0
        for rows_of_group in source.pinned.group_rows:
            part = slice(first, first + rows_of_group)
            judged.add(is_live[part], goes[part])
            first = part.stop
        judged.hits = np.concatenate([judged.hits, *hits])
        return judged

    def _deleted(self, judged: _Judged, file: TargetFile, layout: Layout) -> StagedGroup:
        """Write the numbers of the rows that go; those that were deleted before are not repeated.

        Raises:
            StorageError: The storage does not answer.
        """
        name = f"{self._task_name}-{self._files_begun:05d}-deletes.parquet"
        record = Record(*file.partition)
        uri = data_location(self._locations, name, layout.spec, record, layout.schema)
        self._files_begun += 1
        deletes = write_position_deletes(
            self._io.storage,
            uri,
            of=LosingFile(path=file.path, spec_id=file.spec_id, partition=record),
            positions=judged.gone,
            parquet=parquet_options(self._table, self._properties),
        )
        content = ManifestContent.DELETES
        made = NewManifest.of(layout.schema, layout.spec, self._properties, [deletes], content)
        return staged_deletes(deletes, made)

    def _written(
        self,
        source: ParquetSource,
        judged: _Judged,
        file: TargetFile,
        layout: Layout,
        own: Schema,
    ) -> StagedGroup:
        """Write the rows that stay, and a manifest over the new file.

        Raises:
            UnsupportedTableError: A value cannot be carried over.
            StorageError: The storage does not answer.
        """
        name = f"{self._task_name}-{self._files_begun:05d}"
        record = Record(*file.partition)
        uri = data_location(self._locations, f"{name}.parquet", layout.spec, record, layout.schema)
        self._files_begun += 1
        shape = self._file_layout(own, file.spec_id)
        new: OpenDataFile | None = None
        try:
            for rows in self._row_groups(source, judged, shape.schema):
                if new is None:
                    new = OpenDataFile(self._io.storage, uri, record, shape, rows)
                new.write_row_group(rows)
            assert new is not None  # noqa: S101 - some rows stay.
            data_file = new.close(file.sort_order_id, in_order=True)
        except BaseException as error:
            if new is not None:
                new.abandon()
            # A text that is not UTF-8 cannot be a bound.
            if isinstance(error, pa.ArrowException | UnicodeDecodeError):
                raise self._refused(file, in_short(error)) from error
            raise
        new.arrived()
        return write_staged_manifest(
            self._io,
            self._locations.new_metadata_location(f"{name}-m.avro"),
            schema=layout.schema,
            spec=layout.spec,
            properties=self._properties,
            data_files=[data_file],
        )

    def _row_groups(
        self, source: ParquetSource, judged: _Judged, schema: pa.Schema
    ) -> Iterator[pa.Table]:
        """Yield the rows that stay, as many at a time as the table wants in a row group."""
        waiting: list[pa.RecordBatch] = []
        rows = size_bytes = 0
        for number, batches in source.groups(lambda own: own.names, judged.groups):
            stays, at = judged.mask(number), 0
            for batch in batches:
                kept = batch.filter(pa.array(stays[at : at + batch.num_rows]))
                at += batch.num_rows
                if not kept.num_rows:
                    continue
                columns = [
                    cast_to(column, field.type)
                    for column, field in zip(kept.columns, schema, strict=True)
                ]
                waiting.append(pa.RecordBatch.from_arrays(columns, schema=schema))
                rows, size_bytes = rows + kept.num_rows, size_bytes + kept.nbytes
                if (
                    rows >= self._options.row_group_rows
                    or size_bytes >= self._options.row_group_bytes
                ):
                    yield pa.Table.from_batches(waiting)
                    waiting, rows, size_bytes = [], 0, 0
        if rows:
            yield pa.Table.from_batches(waiting)

    def _file_layout(self, own: Schema, spec_id: int) -> FileLayout:
        """Return how the new file is written: the old one's columns, the table's statistics."""
        key = (own, spec_id)
        if self._last_layout is None or self._last_layout[0] != key:
            layout = FileLayout(own, spec_id, self._properties, self._options.parquet)
            for field_id, column in layout.statistics.items():
                if field_id in self._statistics:
                    mode = self._statistics[field_id].mode
                    layout.statistics[field_id] = replace(column, mode=mode)
            self._last_layout = (key, layout)
        return self._last_layout[1]

    def _refused(self, file: TargetFile, what: str) -> UnsupportedTableError:
        cure = f"{compact_first(self._table)}; an upsert may do with write_mode='merge-on-read'"
        return UnsupportedTableError(table=self._table, what=f"{file.path}: {what}", cure=cure)


@dataclass(slots=True)
class _Judged:
    """Which rows of a file stay and which go, a bit for each, by row group."""

    removed: int = 0
    kept: list[int] = field(default_factory=list)
    # The numbers of the keys that its rows which go have.
    hits: Numbers = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    _rows: list[int] = field(default_factory=list)
    _bits: list[npt.NDArray[np.uint8]] = field(default_factory=list)
    # Those that go: neither rows that stay, nor rows that were deleted before.
    _going: list[npt.NDArray[np.uint8]] = field(default_factory=list)

    def add(self, is_live: npt.NDArray[np.bool_], goes: npt.NDArray[np.bool_]) -> None:
        """Note the next row group."""
        stays, going = is_live & ~goes, is_live & goes
        self.removed += int(np.count_nonzero(going))
        self.kept.append(int(np.count_nonzero(stays)))
        self._rows.append(len(stays))
        self._bits.append(np.packbits(stays))
        self._going.append(np.packbits(going))

    @property
    def groups(self) -> list[int]:
        """The row groups that keep a row."""
        return [number for number, kept in enumerate(self.kept) if kept]

    @property
    def gone(self) -> Numbers:
        """The numbers of the rows that go, in order."""
        found, first = [], 0
        for bits, rows in zip(self._going, self._rows, strict=True):
            found.append(np.flatnonzero(np.unpackbits(bits, count=rows)) + first)
            first += rows
        return np.concatenate(found).astype(np.int64)

    def mask(self, number: int) -> npt.NDArray[np.bool_]:
        """Return whether each row of a row group stays."""
        return np.unpackbits(self._bits[number], count=self._rows[number]).astype(bool)


def _live(first: int, rows: int, deleted: Numbers | None) -> npt.NDArray[np.bool_]:
    """Return whether each row from a number on is there, or deleted."""
    found = np.ones(rows, dtype=bool)
    if deleted is not None:
        start, stop = np.searchsorted(deleted, [first, first + rows])
        found[deleted[start:stop] - first] = False
    return found
