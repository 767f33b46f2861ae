"""Pin Parquet files: what their footers say of them, without holding all footers at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from holdfast.errors import SettingsError
from holdfast.model.pins import PinnedFile
from holdfast.sources.filters import groups_left_out
from holdfast.sources.hive_paths import path_schema, path_values, typed
from holdfast.sources.parquet.footers import NoParquetError, parse_footer, read_footer
from holdfast.sources.parquet.schemas import CommonSchema, file_schema
from holdfast.storage.port import ObjectFacts, Storage
from holdfast.storage.runtime import io_runtime

_FOOTERS_AT_ONCE = 256
_AnyFile = TypeVar("_AnyFile", ObjectFacts, PinnedFile)


def pinned_files(
    storage: Storage, found: Sequence[ObjectFacts]
) -> tuple[tuple[PinnedFile, ...], pa.Schema]:
    """Return files as they are now, and the columns of all of them.

    Raises:
        SettingsError: They do not fit together, or one is no Parquet file.
        StorageError: The storage does not answer.
    """
    values = {one.uri: path_values(one.uri) for one in found}
    in_files, files = CommonSchema(), []
    for one, footer in footers(storage, found):
        metadata = parse_footer(footer)
        own = file_schema(metadata)
        in_files.add(one.uri, own)
        in_path = {name: text for name, text in values[one.uri].items() if name not in own.names}
        files.append(pinned_file(one, metadata, in_path))
    schema = in_files.schema()
    more = [one for one in path_schema([*values.values()]) if one.name not in schema.names]
    schema = pa.schema([*schema, *more])
    for file in files:
        _typed_values(file, schema)  # Stops at a value that is none.
    return tuple(files), schema


def with_left_out(
    storage: Storage, files: Sequence[PinnedFile], where: pc.Expression, schema: pa.Schema
) -> tuple[PinnedFile, ...]:
    """Return the files with those of their row groups left out that hold no row asked for.

    Raises:
        SettingsError: One is no Parquet file any more.
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
    """Yield each file with its footer, read some ahead.

    Raises:
        SettingsError: One is no Parquet file.
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
    """Return a file as its footer shows it.

    Args:
        one: Which file.
        metadata: What its footer says.
        values: Columns that stand in its path.
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
