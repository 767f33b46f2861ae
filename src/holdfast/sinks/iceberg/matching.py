"""The rows of a table that an upsert replaces: those that have the key of a row that it writes.

Columns are found by their ids in each file, as everywhere in the table: a file may have a key
column under another name, in a narrower type, or only in its partition. Metadata decides for whole
files, where the bounds of the first key column lie between two stretches of keys.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    FixedType,
    IntegerType,
    LongType,
    NestedField,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
    UUIDType,
)

from holdfast.errors import SettingsError
from holdfast.reading.iceberg_rows import ByFieldId
from holdfast.reading.parquet_file import ParquetSource
from holdfast.sinks.base import Keys
from holdfast.sinks.iceberg.file_io import HoldfastFileIO
from holdfast.sinks.iceberg.where import Verdict, bound_of, nulls_in, parts_of
from holdfast.sinks.iceberg.writer import IcebergWriterSpec

_NUMBERS = (BooleanType, IntegerType, LongType, DateType, TimeType, TimestampType, TimestamptzType)
# Types whose bounds are compared as Python compares their values.
_ORDERED = (*_NUMBERS, DecimalType, StringType, BinaryType, FixedType)
_KEY_TYPES = (*_ORDERED, UUIDType)


@dataclass(frozen=True, kw_only=True)
class KeyColumns:
    """The columns of a table that tell its rows apart. Pickled with a task."""

    schema_json: str
    on: tuple[str, ...]

    @classmethod
    def of(cls, table: str, schema: Schema, on: Sequence[str]) -> KeyColumns:
        """Return columns that can be a key.

        Raises:
            SettingsError: There is no such column, or it cannot be part of a key.
        """
        made = cls(schema_json=schema.model_dump_json(), on=tuple(on))
        for name in on:
            columns = [field for field in schema.fields if field.name == name]
            if not columns:
                raise SettingsError(
                    what=f"{table} has no column {name!r} to merge on",
                    cure=f"the columns are {[field.name for field in schema.fields]}",
                )
            if not isinstance(columns[0].field_type, _KEY_TYPES):
                raise SettingsError(
                    what=f"column {name!r} of {table} is {columns[0].field_type}, and rows cannot "
                    "be merged on it",
                    cure="name columns with whole numbers, texts, dates, times, decimals, UUIDs "
                    "or bytes",
                )
        return made

    @classmethod
    def all_of(cls, schema: Schema) -> KeyColumns:
        """Return all columns, whether or not they can be a key."""
        names = tuple(field.name for field in schema.fields)
        return cls(schema_json=schema.model_dump_json(), on=names)

    @property
    def meaning(self) -> str:
        """Which columns the names are, and of which types."""
        return ", ".join(f"{f.name} {f.field_id} {f.field_type}" for f in self.fields)

    @cached_property
    def fields(self) -> list[NestedField]:
        """The columns."""
        schema = Schema.model_validate_json(self.schema_json)
        return [schema.find_field(name) for name in self.on]

    def columns(
        self, names: NameMapping | None = None, constants: Mapping[int, Any] | None = None
    ) -> ByFieldId:
        """Return how the columns are found in a file of the table.

        Args:
            names: How the table finds columns in files without ids.
            constants: Values that only the file's partition has, by column id.

        Raises:
            FieldsDifferError: A column has a default that cannot be used.
        """
        return ByFieldId.of(self.fields, names, constants)

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what can be worked out again."""
        return {"schema_json": self.schema_json, "on": self.on}


@dataclass(frozen=True, kw_only=True)
class Matching:
    """Which rows of a table have one of some keys. Pickled with a task."""

    key: KeyColumns
    # None while they are not known: then all rows may match.
    keys: Keys | None

    @property
    def basis(self) -> tuple[str, ...]:
        """What verdicts depend on, apart from the file."""
        return (self.key.schema_json, self.keys.name if self.keys else "", *self.key.on)

    @property
    def meaning(self) -> str:
        """What decides which rows match: other keys, or other columns, may match others."""
        return f"{self.key.meaning} in {self.keys.name if self.keys else ''}"

    def verdict(self, file: DataFile, spec: PartitionSpec) -> Verdict:
        """Return whether rows of a data file may match, as far as metadata tells."""
        parts = parts_of(file, spec)
        for column in self.key.fields:
            own = [value for part, value in parts if part.source_id == column.field_id]
            if nulls_in(file, column.field_id, own) == "all":
                return "none"
        column = self.key.fields[0]
        if not isinstance(column.field_type, _ORDERED):
            return "some"
        lower = bound_of(column, file.lower_bounds)
        upper = bound_of(column, file.upper_bounds)
        if self.keys is None or lower is None or upper is None:
            return "some"
        firsts, lasts = self._stretches
        at = bisect.bisect_left(lasts, lower)
        return "some" if at < len(firsts) and firsts[at] <= upper else "none"

    def search(self, batches: Iterable[pa.RecordBatch]) -> Iterator[npt.NDArray[np.int64]]:
        """Yield the number of each row's key; -1 for a row that has none of the keys.

        Args:
            batches: The key columns, as `columns` fits them.
        """
        assert self.keys is not None  # noqa: S101 - tasks get them.
        return self.keys.search(batch.columns for batch in batches)

    def written_hits(self, numbers: npt.NDArray[np.int64]) -> str:
        """Keep which keys the rows that go have: see `Keys.written_hits`."""
        assert self.keys is not None  # noqa: S101 - tasks get them.
        return self.keys.written_hits(numbers)

    def columns(
        self, names: NameMapping | None = None, constants: Mapping[int, Any] | None = None
    ) -> ByFieldId:
        """Return how the key columns are found in a file: see `KeyColumns.columns`."""
        return self.key.columns(names, constants)

    @cached_property
    def _stretches(self) -> tuple[list[Any], list[Any]]:
        """The first and last values of the stretches, as PyIceberg decodes bounds."""
        found = self.keys.stretches if self.keys else ()
        is_number = isinstance(self.key.fields[0].field_type, _NUMBERS)
        ends = [(_plain(a, is_number=is_number), _plain(b, is_number=is_number)) for a, b in found]
        return [first for first, _ in ends], [last for _, last in ends]

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what can be worked out again."""
        return {"key": self.key, "keys": self.keys}


def _plain(value: pa.Scalar, *, is_number: bool) -> Any:  # noqa: ANN401 - of whatever type it is.
    return value.value if is_number and hasattr(value, "value") else value.as_py()


@dataclass(frozen=True, kw_only=True)
class IcebergStagedReaderSpec:
    """All that an executor needs to read columns of staged files. Pickled with a task."""

    writer: IcebergWriterSpec
    columns: KeyColumns

    def open(self) -> IcebergStagedReader:
        """Return a reader."""
        return IcebergStagedReader(self)


class IcebergStagedReader:
    """Reads columns of staged files."""

    def __init__(self, spec: IcebergStagedReaderSpec) -> None:
        """Open nothing yet."""
        self._storage = HoldfastFileIO(dict(spec.writer.io_properties), spec.writer.vendor).storage
        self._fit = spec.columns.columns()
        self.schema = self._fit.fit(_no_rows()).schema

    def rows(self, item: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of staged files.

        Raises:
            FileNotFoundError: A file is gone.
        """
        for path, size_bytes in json.loads(item):
            source = ParquetSource.of(self._storage, path, size_bytes)
            for _, batches in source.groups(self._fit.wanted):
                for batch in batches:
                    yield self._fit.fit(batch)


def _no_rows() -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist([], schema=pa.schema([]))
