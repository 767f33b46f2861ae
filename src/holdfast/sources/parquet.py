"""Scan Parquet: which files, and what their footers say is in them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.errors import SettingsError
from holdfast.ledger.store import answers
from holdfast.model.coverage import PinnedFile, Pins
from holdfast.reading.parquet_file import NoParquetError, parse_footer, read_footer
from holdfast.sources.base import NewFiles, Tagging, checked_columns, checked_paths
from holdfast.sources.filters import (
    CommonSchema,
    as_expression,
    chosen,
    file_schema,
    groups_left_out,
    text_of,
    with_needed,
)
from holdfast.sources.find import compare_files, find_files, path_schema, path_values, typed
from holdfast.sources.parquet_reader import ByName, ParquetReader
from holdfast.storage.port import ObjectFacts, Storage
from holdfast.storage.runtime import io_runtime

# ---- Pin Parquet files: what their footers say, without holding all footers at once

_FOOTERS_AT_ONCE = 256
_AnyFile = TypeVar("_AnyFile", ObjectFacts, PinnedFile)


def pinned_files(
    storage: Storage, found: Sequence[ObjectFacts]
) -> tuple[tuple[PinnedFile, ...], pa.Schema]:
    """Return the current state of the files, and the columns of all of them.

    Raises:
        SettingsError: They do not fit together, or one is not a Parquet file.
        StorageError: The storage does not answer.
    """
    values = {facts.uri: path_values(facts.uri) for facts in found}
    in_files, files = CommonSchema(), []
    for facts, footer in footers(storage, found):
        metadata = parse_footer(footer)
        own = file_schema(metadata)
        in_files.add(facts.uri, own)
        in_path = {name: text for name, text in values[facts.uri].items() if name not in own.names}
        files.append(pinned_file(facts, metadata, in_path))
    schema = in_files.schema()
    more = [field for field in path_schema([*values.values()]) if field.name not in schema.names]
    schema = pa.schema([*schema, *more])
    for file in files:
        _typed_values(file, schema)  # Raises for an invalid value.
    return tuple(files), schema


def with_left_out(
    storage: Storage, files: Sequence[PinnedFile], where: pc.Expression, schema: pa.Schema
) -> tuple[PinnedFile, ...]:
    """Return the files without the row groups in which no row matches.

    Raises:
        SettingsError: One is no longer a Parquet file.
        StorageError: The storage does not answer.
    """
    found = [
        replace(
            file,
            left_out=groups_left_out(footer, where, schema, _typed_values(file, schema)),
        )
        for file, footer in footers(storage, files)
    ]
    return tuple(found)


def footers(storage: Storage, files: Sequence[_AnyFile]) -> Iterator[tuple[_AnyFile, bytes]]:
    """Yield each file with its footer, reading some ahead.

    Raises:
        SettingsError: One is not a Parquet file.
    """

    def footer(one: _AnyFile) -> bytes:
        try:
            return read_footer(storage, one.uri, one.size_bytes, one.tag)
        except NoParquetError as error:
            raise SettingsError(what=str(error), cure="name Parquet files only") from error

    for first in range(0, len(files), _FOOTERS_AT_ONCE):
        some = files[first : first + _FOOTERS_AT_ONCE]
        yield from zip(some, io_runtime().each(footer, some), strict=True)


def pinned_file(
    one: ObjectFacts, metadata: pq.FileMetaData, values: Mapping[str, str | None]
) -> PinnedFile:
    """Return a file as its footer describes it.

    Args:
        one: The file.
        metadata: The content of its footer.
        values: The columns in its path.
    """
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    return PinnedFile(
        uri=one.uri,
        size_bytes=one.size_bytes,
        tag=one.tag,
        group_rows=tuple(group.num_rows for group in groups),
        group_bytes=tuple(_stored_bytes(group) for group in groups),
        values=values,
    )


def _typed_values(file: PinnedFile, schema: pa.Schema) -> dict[str, pa.Scalar]:
    return {
        name: typed(file.uri, name, text, schema.field(name).type)
        for name, text in file.values.items()
    }


def _stored_bytes(group: pq.RowGroupMetaData) -> int:
    return sum(group.column(number).total_compressed_size for number in range(group.num_columns))


# ---- Scan Parquet: which files, and what is in them

_SUFFIX = ".parquet"


@dataclass(frozen=True, kw_only=True)
class ParquetScan:
    """Parquet files that workers read directly; returned by `hf.scan_parquet`."""

    paths: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    where: pc.Expression | None = None
    new_files: NewFiles = "refuse"
    # Storage options, with credentials: never shown, never stored.
    options: Mapping[str, str] | None = field(default=None, repr=False)

    def on(self, storage: Storage) -> PinnedParquetScan:
        """Return the scan together with its storage."""
        return PinnedParquetScan(self, storage)


def scan_parquet(
    paths: str | Sequence[str],
    *,
    columns: Sequence[str] | None = None,
    where: pc.Expression | Sequence[object] | None = None,
    new_files: NewFiles = "refuse",
    options: Mapping[str, str] | None = None,
) -> ParquetScan:
    """Read Parquet files on the workers, without passing through the JVM. No key is needed.

    Files are pinned when the run begins: if one changes later, the error names it.

    Args:
        paths: Files, folders or globs (`s3://raw/products/**/*.parquet`).
        columns: The columns to read, including those of `day=…` folders; by default all.
        where: The rows to read: an expression (`pc.field("price") > 3`), or a list of triples such
            as `("price", ">", 3)`. Row groups that cannot match are not read.
        new_files: What to do about files that were added since the run began: "refuse" to continue,
            or "leave" them to another run.
        options: Storage options in Iceberg's names (`s3.endpoint`, ...). By default the session's
            `spark.holdfast.scan.*`, else the environment's credential chain.

    Raises:
        SettingsError: An argument cannot be used.
    """
    return ParquetScan(
        paths=checked_paths("scan_parquet", paths, new_files),
        columns=checked_columns(columns),
        where=as_expression(where),
        new_files=new_files,
        options=options,
    )


class PinnedParquetScan:
    """A scan together with its storage."""

    def __init__(self, scan: ParquetScan, storage: Storage) -> None:
        """Keep both; nothing is read yet."""
        self._scan = scan
        self._storage = storage

    @property
    def identity(self) -> str:
        """What is read from the files, as a string."""
        scan = self._scan
        facts = {"scan": "parquet", "columns": scan.columns, "where": text_of(scan.where)}
        return json.dumps(facts)

    def pin(self) -> Pins:
        """Find the files and their contents.

        Raises:
            SettingsError: There are no files, or they do not fit together.
            StoreUnavailableError: The storage does not answer.
        """
        scan = self._scan
        found = find_files(self._storage, scan.paths, suffix=_SUFFIX)
        with answers(scan.paths[0]):
            files, schema = pinned_files(self._storage, found)
            needed = with_needed(chosen(schema, scan.columns), scan.where, schema)
            if scan.where is not None:
                files = with_left_out(self._storage, files, scan.where, schema)
        return Pins(files=files, schema=needed)

    def compare(self, pins: Pins) -> str:
        """Return which files are new; empty if none are.

        Raises:
            InputChangedError: A pinned file was changed or deleted.
            StoreUnavailableError: The storage does not answer.
        """
        found = find_files(self._storage, self._scan.paths, suffix=_SUFFIX, must_exist=False)
        may_grow = self._scan.new_files == "leave"
        return compare_files(self._storage, found, pins, may_grow=may_grow)

    def reader(self, pins: Pins) -> ParquetReader:
        """Return the reader that executors use for the pinned files."""
        where = self._scan.where
        return ParquetReader(
            storage=self._storage,
            fit=ByName(schema=pins.schema),
            tagging=Tagging(
                columns=tuple(self.schema(pins).names),
                where=where,
                is_sparse=where is not None,
            ),
        )

    def schema(self, pins: Pins) -> pa.Schema:
        """Return the columns that the transform gets."""
        return chosen(pins.schema, self._scan.columns)
