"""One Parquet data file: how the table wants it written, its row groups, its statistics.

Parquet's writer builds a dictionary for every column and drops it when it grows too large: for
columns of nearly distinct values that costs a third of the encoding time and makes files larger.
The first rows of a file are enough to recognise such columns.

PyIceberg does the counting. This module adds: bounds of fields inside structs (which Spark's writer
keeps, so filters on them prune alike), the limit on columns that get statistics by default, no
bounds at all where they would hide rows, bounds of values that PyIceberg cannot express (dates
and times that Python has no objects for, and texts whose next character is a surrogate), and how
many values are NaN. Bounds leave NaN out. A file with bounds and without that count looks to other
engines as if it had none: `DELETE ... WHERE f < 5` drops such a file whole, with its rows of NaN.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.io.pyarrow import (
    PYARROW_PARQUET_FIELD_ID_KEY,
    MetricModeTypes,
    MetricsMode,
    StatisticsCollector,
    StatsAggregator,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    match_metrics_mode,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import (
    DATA_FILE_TYPE,
    DEFAULT_READ_VERSION,
    DataFile,
    DataFileContent,
    FileFormat,
)
from pyiceberg.schema import Schema, sanitize_column_names
from pyiceberg.table import TableProperties
from pyiceberg.typedef import Record
from pyiceberg.types import (
    BinaryType,
    DateType,
    DoubleType,
    FloatType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

from holdfast.errors import UnsupportedTableError
from holdfast.sinks.iceberg.schemas import parquet_schema
from holdfast.storage.port import Storage
from holdfast.storage.runtime import io_runtime
from holdfast.storage.upload import ArrowFile

# ---- The table properties that control how its files are written

# Properties that name classes, which PyIceberg would import.
CODE_PROPERTIES = (PY_IO_IMPL, TableProperties.WRITE_PY_LOCATION_PROVIDER_IMPL)

# Iceberg's own defaults, from its table properties.
_TARGET_FILE_BYTES = 512 * 1024 * 1024
_ROW_GROUP_BYTES = 128 * 1024 * 1024
_MANIFEST_BYTES = 8 * 1024 * 1024
_ROW_GROUP_ROWS = 1_048_576
_PAGE_BYTES = 1024 * 1024
_PAGE_ROWS = 20_000
_DICTIONARY_BYTES = 2 * 1024 * 1024
_CODECS = ("zstd", "gzip", "snappy", "lz4", "brotli", "uncompressed", "none")


def without_code(properties: Mapping[str, str]) -> dict[str, str]:
    """Return a table's properties without those that name code, so that none is imported."""
    return {name: value for name, value in properties.items() if name not in CODE_PROPERTIES}


@dataclass(frozen=True, slots=True, kw_only=True)
class WriteOptions:
    """How files are sized and encoded."""

    target_file_bytes: int
    row_group_bytes: int
    row_group_rows: int
    manifest_bytes: int
    # Arguments of pyarrow's ParquetWriter.
    parquet: Mapping[str, Any]

    @classmethod
    def of(cls, table: str, properties: Mapping[str, str]) -> WriteOptions:
        """Read the table's properties.

        Args:
            table: The table's name, for errors.
            properties: All its properties.

        Raises:
            UnsupportedTableError: The file format is not Parquet, its compression is not known, or
                a size is not a number.
        """
        file_format = properties.get("write.format.default", "parquet").lower()
        if file_format != "parquet":
            raise UnsupportedTableError(
                table=table,
                what=f"its files are written as {file_format}",
                cure="set the table property write.format.default to parquet",
            )
        codec = properties.get("write.parquet.compression-codec", "zstd").lower()
        if codec not in _CODECS:
            raise UnsupportedTableError(
                table=table,
                what=f"its files are compressed with {codec}",
                cure="set the table property write.parquet.compression-codec to zstd",
            )
        level = properties.get("write.parquet.compression-level")
        parquet: dict[str, Any] = {
            "compression": "none" if codec == "uncompressed" else codec,
            "data_page_size": _number(
                table, properties, "write.parquet.page-size-bytes", _PAGE_BYTES
            ),
            "dictionary_pagesize_limit": _number(
                table, properties, "write.parquet.dict-size-bytes", _DICTIONARY_BYTES
            ),
            # Pages end at a batch of rows; smaller batches let page statistics prune.
            "write_batch_size": _number(
                table, properties, "write.parquet.page-row-limit", _PAGE_ROWS
            ),
            "store_decimal_as_integer": True,
        }
        if level is not None and codec in ("zstd", "gzip", "brotli"):
            parquet["compression_level"] = _number(
                table, properties, "write.parquet.compression-level", 1, least=None
            )
        _refuse_metrics(table, properties)
        return cls(
            target_file_bytes=_number(
                table, properties, "write.target-file-size-bytes", _TARGET_FILE_BYTES
            ),
            row_group_bytes=_number(
                table, properties, "write.parquet.row-group-size-bytes", _ROW_GROUP_BYTES
            ),
            row_group_rows=_number(
                table, properties, "write.parquet.row-group-limit", _ROW_GROUP_ROWS
            ),
            manifest_bytes=_number(
                table, properties, "commit.manifest.target-size-bytes", _MANIFEST_BYTES
            ),
            parquet=parquet,
        )


def _refuse_metrics(table: str, properties: Mapping[str, str]) -> None:
    """Refuse a mode of column statistics that `statistics_plan` could not read.

    Raises:
        UnsupportedTableError: A mode is not known, or a limit is not a number.
    """
    _number(table, properties, _INFERRED_MAX, _INFERRED_MAX_DEFAULT)
    for name, text in properties.items():
        if name == _MODE_DEFAULT or name.startswith(f"{_MODE_OF_COLUMN}."):
            try:
                match_metrics_mode(text)
            except ValueError as error:
                raise UnsupportedTableError(
                    table=table,
                    what=f"its property {name} is not a mode of statistics: {text!r}",
                    cure="set it to none, counts, truncate(16) or full",
                ) from error


def _number(
    table: str, properties: Mapping[str, str], name: str, default: int, least: int | None = 1
) -> int:
    text = properties.get(name, str(default))
    try:
        number = int(text)
    except ValueError as error:
        raise UnsupportedTableError(
            table=table,
            what=f"its property {name} is not a number: {text!r}",
            cure="set a number",
        ) from error
    return number if least is None else max(least, number)


# ---- Which columns of a file are worth a dictionary

_SAMPLE_ROWS_MAX = 32_768
# A dictionary does not pay off if values repeat fewer than about two times in a row group, and an
# eighth of its rows shows that. Counting them all takes as long as encoding them.
_SAMPLE_SHARE = 8
# Nine in ten values of the sample are new: well over 100,000 distinct ones in a row group.
_DISTINCT_SHARE = 0.9
# Too few rows to judge by, and too few to matter.
_ROWS_MIN = 1_000


def dictionary_columns(first_rows: pa.Table, leaf_paths: Mapping[str, int]) -> list[str]:
    """Return the Parquet paths of the columns that get a dictionary.

    Args:
        first_rows: The file's first row group, in the file's own column names.
        leaf_paths: All of the file's Parquet paths.
    """
    rows = first_rows.num_rows
    if rows < _ROWS_MIN:
        return list(leaf_paths)
    sample = first_rows.slice(0, min(_SAMPLE_ROWS_MAX, max(_ROWS_MIN, rows // _SAMPLE_SHARE)))
    distinct = {name for name in sample.column_names if _nearly_distinct(sample.column(name))}
    return [path for path in leaf_paths if path not in distinct]


def _nearly_distinct(column: pa.ChunkedArray) -> bool:
    if pa.types.is_nested(column.type) or isinstance(column.type, pa.BaseExtensionType):
        return False
    found: int = pc.count_distinct(column, mode="only_valid").as_py()
    return found > _DISTINCT_SHARE * len(column)


# ---- Column statistics of a data file, from its Parquet metadata and the table's metrics modes

_MODE_DEFAULT = TableProperties.DEFAULT_WRITE_METRICS_MODE
_MODE_OF_COLUMN = TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX
_INFERRED_MAX = "write.metadata.metrics.max-inferred-column-defaults"
_INFERRED_MAX_DEFAULT = 100
_TIMES = (DateType, TimeType, TimestampType, TimestamptzType)
_SURROGATES = range(0xD800, 0xE000)
# Where PyIceberg's record of a data file has them; it offers no other way to change them.
_BOUNDS_AT = tuple(
    position
    for position, field in enumerate(DATA_FILE_TYPE[DEFAULT_READ_VERSION].fields)
    if field.name in {"lower_bounds", "upper_bounds"}
)


def file_statistics(
    metadata: pq.FileMetaData,
    plan: dict[int, StatisticsCollector],
    leaf_paths: Mapping[str, int],
    nans: Mapping[int, int],
) -> dict[str, Any]:
    """Return the statistics as arguments of a manifest's data file.

    Args:
        metadata: The finished file's metadata.
        plan: The result of `statistics_plan` for the table.
        leaf_paths: Field ids by Parquet path.
        nans: How many values are NaN, by field id; Parquet's metadata does not say.
    """
    temporal = {field_id for field_id, column in plan.items() if _is_bounded_time(column)}
    counted = MetricsMode(MetricModeTypes.COUNTS)
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=metadata,
        stats_columns=plan
        | {field_id: replace(plan[field_id], mode=counted) for field_id in temporal},
        parquet_column_mapping=dict(leaf_paths),
    )
    bounds = statistics.column_aggregates
    bounds |= _bounds_of_times(
        metadata, leaf_paths, {field_id: plan[field_id] for field_id in temporal}
    )
    for field_id, column in list(bounds.items()):
        if isinstance(column.primitive_type, StringType):
            bounds[field_id] = _TextBounds.of(column)
    for field_id in _columns_without_bounds(metadata, leaf_paths):
        bounds.pop(field_id, None)
    statistics.nan_value_counts.update(nans)
    return statistics.to_serialized_dict()


def statistics_plan(
    schema: Schema, properties: Mapping[str, str]
) -> dict[int, StatisticsCollector]:
    """Return how each column's statistics are kept, according to the table's properties.

    Args:
        schema: The table's schema: metrics modes refer to its columns.
        properties: The table's properties.
    """
    plan = compute_statistics_plan(schema, dict(properties))
    in_structs = {field.field_id for field in _fields_in_structs(schema.as_struct())}
    inferred_max = int(properties.get(_INFERRED_MAX, _INFERRED_MAX_DEFAULT))
    for position, (field_id, column) in enumerate(plan.items()):
        wanted = properties.get(f"{_MODE_OF_COLUMN}.{column.column_name}")
        if wanted is None and _MODE_DEFAULT not in properties and position >= inferred_max:
            plan[field_id] = replace(column, mode=MetricsMode(MetricModeTypes.NONE))
        elif field_id in in_structs:
            default = properties.get(
                _MODE_DEFAULT, TableProperties.DEFAULT_WRITE_METRICS_MODE_DEFAULT
            )
            plan[field_id] = replace(column, mode=_mode(wanted or default, column))
    return plan


class _TextBounds(StatsAggregator):
    """Bounds of texts; PyIceberg's upper bound fails next to the surrogates."""

    @classmethod
    def of(cls, column: StatsAggregator) -> _TextBounds:
        bounds = cls(StringType(), "BYTE_ARRAY", column.trunc_length)
        bounds.current_min, bounds.current_max = column.current_min, column.current_max
        return bounds

    def max_as_bytes(self) -> bytes | None:
        if self.current_max is None:
            return None
        upper = _upper_text(self.current_max, self.trunc_length)
        return None if upper is None else self.serialize(upper)


def _upper_text(text: str, length: int | None) -> str | None:
    """Return the smallest text of a length that is not below the given one, or None."""
    if length is None or len(text) <= length:
        return text
    for end in range(length, 0, -1):
        code = ord(text[end - 1]) + 1
        if code == _SURROGATES.start:  # They are not characters: Java skips them, too.
            code = _SURROGATES.stop
        if code <= sys.maxunicode:
            return text[: end - 1] + chr(code)
    return None


def _is_bounded_time(column: StatisticsCollector) -> bool:
    has_bounds = column.mode.type in (MetricModeTypes.TRUNCATE, MetricModeTypes.FULL)
    return has_bounds and isinstance(column.iceberg_type, _TIMES)


def _bounds_of_times(
    metadata: pq.FileMetaData,
    leaf_paths: Mapping[str, int],
    plan: Mapping[int, StatisticsCollector],
) -> dict[int, StatsAggregator]:
    """Return the bounds of date and time columns, from their integer values.

    Python's dates end with the year 9999; those of Parquet and Spark do not.
    """
    found: dict[int, StatsAggregator] = {}
    for group in range(metadata.num_row_groups if plan else 0):
        for position in range(metadata.num_columns):
            column = metadata.row_group(group).column(position)
            field_id, statistics = leaf_paths[column.path_in_schema], column.statistics
            if field_id not in plan or statistics is None or not statistics.has_min_max:
                continue
            if field_id not in found:
                kind = plan[field_id].iceberg_type
                found[field_id] = StatsAggregator(kind, statistics.physical_type)
            found[field_id].update_min(statistics.min_raw)
            found[field_id].update_max(statistics.max_raw)
    return found


def _mode(text: str, column: StatisticsCollector) -> MetricsMode:
    mode = match_metrics_mode(text)
    whole = not isinstance(column.iceberg_type, StringType | BinaryType)
    if mode.type == MetricModeTypes.TRUNCATE and whole:
        return MetricsMode(MetricModeTypes.FULL)
    return mode


def _fields_in_structs(struct: StructType) -> Iterator[NestedField]:
    """Yield the leaves that are reached only through structs: at most one value per row."""
    for field in struct.fields:
        if isinstance(field.field_type, StructType):
            yield from _fields_in_structs(field.field_type)
        else:
            yield field


def _columns_without_bounds(metadata: pq.FileMetaData, leaf_paths: Mapping[str, int]) -> set[int]:
    """Return the columns whose bounds would be wrong.

    Parquet omits the minimum and maximum of a row group whose values are too long (or all NaN).
    Bounds from the other row groups would then hide this one from a reader that prunes.
    """
    found = set()
    for group in range(metadata.num_row_groups):
        for position in range(metadata.num_columns):
            column = metadata.row_group(group).column(position)
            statistics = column.statistics
            if statistics is None or (
                not statistics.has_min_max and statistics.null_count != column.num_values
            ):
                found.add(leaf_paths[column.path_in_schema])
    return found


def drop_unsound_bounds(file: DataFile, schema: Schema) -> None:
    """Drop the bounds of floating-point columns whose NaN are not counted.

    Args:
        file: What a manifest is about to say of a file.
        schema: A schema of the table. A column that it lacks may be of any type.
    """
    counted = file.nan_value_counts or {}
    for at, bounds in zip(_BOUNDS_AT, (file.lower_bounds, file.upper_bounds), strict=True):
        file[at] = bounds and {
            field_id: bound
            for field_id, bound in bounds.items()
            if field_id in counted or _has_no_nan(schema, field_id)
        }


def _has_no_nan(schema: Schema, field_id: int) -> bool:
    try:
        field = schema.find_field(field_id)  # The schema keeps its index: there are many files.
    except ValueError:
        return False
    return not isinstance(field.field_type, FloatType | DoubleType)


def _places(fields: Iterable[pa.Field], parent: tuple[int, ...] = ()) -> dict[int, tuple[int, ...]]:
    """Return where a file's leaves are that have at most one value per row, by field id."""
    found: dict[int, tuple[int, ...]] = {}
    for position, field in enumerate(fields):
        place = (*parent, position)
        if pa.types.is_struct(field.type):
            found |= _places(field.type, place)
        elif not pa.types.is_nested(field.type):
            found[int(field.metadata[PYARROW_PARQUET_FIELD_ID_KEY])] = place
    return found


def _nans_in(rows: pa.Table, place: tuple[int, ...]) -> int:
    column, *inner = place
    values = rows.column(column)
    if inner:  # A value inside a struct that is NULL is not stored.
        values = pc.struct_field(values, inner)
    return pc.sum(pc.is_nan(values)).as_py() or 0


# ---- An open Parquet data file: row groups are written through, nothing is kept
class FileLayout:
    """What all data files of one table share, worked out once."""

    def __init__(
        self,
        schema: Schema,
        spec_id: int,
        properties: Mapping[str, str],
        parquet: Mapping[str, Any],
    ) -> None:
        """Precompute what takes PyIceberg longer than encoding a small file.

        Args:
            schema: The table's schema.
            spec_id: The partition spec that files are written with.
            properties: The table's properties.
            parquet: Arguments of pyarrow's ParquetWriter.
        """
        self.spec_id = spec_id
        self.parquet = parquet
        self.schema = parquet_schema(schema)
        # Field ids by Parquet path.
        self.leaf_paths = parquet_path_to_id_mapping(sanitize_column_names(schema))
        self.statistics = statistics_plan(schema, properties)

    @cached_property
    def floats(self) -> dict[int, tuple[int, ...]]:
        """Where the floating-point columns are that get statistics, by field id."""
        places = _places(self.schema)
        return {
            field_id: places[field_id]
            for field_id, column in self.statistics.items()
            if isinstance(column.iceberg_type, FloatType | DoubleType)
            and column.mode.type != MetricModeTypes.NONE
            and field_id in places
        }


class OpenDataFile:
    """A data file that is still being written."""

    def __init__(
        self, storage: Storage, uri: str, partition: Record, layout: FileLayout, sample: pa.Table
    ) -> None:
        """Open the upload; nothing is visible before `close`.

        Args:
            storage: Where the file is written.
            uri: The file's name.
            partition: The partition of all its rows.
            layout: What it shares with all files of the table.
            sample: Its first rows, to decide how to encode them; they are not written here.
        """
        self.uri = uri
        self._partition = partition
        self._layout = layout
        self._row_groups = 0
        self._nans: Counter[int] = Counter()
        self._arrival: Future[None] | None = None
        self._file = ArrowFile(storage.open_sink(uri))
        self._writer = pq.ParquetWriter(
            pa.PythonFile(self._file, mode="w"),
            layout.schema,
            use_dictionary=dictionary_columns(sample, layout.leaf_paths),
            **layout.parquet,
        )

    @property
    def size_bytes(self) -> int:
        """How many bytes have been encoded so far."""
        return self._file.size_bytes

    def write_row_group(self, rows: pa.Table) -> None:
        """Encode the rows, which are in the file's schema, as one row group and send it."""
        self._writer.write_table(rows, row_group_size=max(1, rows.num_rows))
        self._row_groups += 1
        for field_id, place in self._layout.floats.items():
            self._nans[field_id] += _nans_in(rows, place)

    def close(self, sort_order_id: int | None, *, in_order: bool = False) -> DataFile:
        """End the file, which has at least one row group, and return its manifest entry.

        The rest of the file is sent in the background: it has arrived once `arrived` returns.

        Args:
            sort_order_id: The order that each row group is sorted by, if any. Only a file that is
                sorted as a whole declares it.
            in_order: Whether a row group continues the one before it. A file with a single row
                group is sorted as a whole in any case.
        """
        self._writer.close()
        self._arrival = io_runtime().read(self._file.finish, 0)
        data_file = DataFile.from_args(
            content=DataFileContent.DATA,
            file_path=self.uri,
            file_format=FileFormat.PARQUET,
            partition=self._partition,
            file_size_in_bytes=self._file.size_bytes,
            sort_order_id=sort_order_id if in_order or self._row_groups == 1 else None,
            equality_ids=None,
            key_metadata=None,
            **file_statistics(
                self._writer.writer.metadata,
                self._layout.statistics,
                self._layout.leaf_paths,
                self._nans,
            ),
        )
        data_file.spec_id = self._layout.spec_id
        return data_file

    def arrived(self) -> None:
        """Wait until the closed file has arrived.

        Raises:
            StorageError: It did not arrive.
        """
        if self._arrival is not None:
            self._arrival.result()

    def abandon(self) -> None:
        """Discard the file; nothing becomes visible."""
        self._file.discard()
        self._writer.close()
