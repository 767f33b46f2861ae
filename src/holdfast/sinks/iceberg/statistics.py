"""Column statistics of a data file, from its Parquet metadata and the table's metrics modes.

PyIceberg does the counting. Ours are: bounds of fields inside structs (which Spark's writer
keeps, so filters on them prune alike), the limit on columns that get statistics by default, no
bounds at all where they would hide rows, and bounds of values that PyIceberg cannot express:
dates and times that Python has no objects for, and texts whose next character is a surrogate.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    StatisticsCollector,
    StatsAggregator,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    match_metrics_mode,
)
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.types import (
    BinaryType,
    DateType,
    NestedField,
    StringType,
    StructType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

_MODE_DEFAULT = TableProperties.DEFAULT_WRITE_METRICS_MODE
_MODE_OF_COLUMN = TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX
_INFERRED_MAX = "write.metadata.metrics.max-inferred-column-defaults"
_INFERRED_MAX_DEFAULT = 100
_TIMES = (DateType, TimeType, TimestampType, TimestamptzType)
_SURROGATES = range(0xD800, 0xE000)


def file_statistics(
    metadata: pq.FileMetaData,
    plan: dict[int, StatisticsCollector],
    leaf_paths: Mapping[str, int],
) -> dict[str, Any]:
    """Return the statistics as arguments of a manifest's data file.

    Args:
        metadata: The finished file's own.
        plan: What `statistics_plan` gave for the table.
        leaf_paths: Field ids by Parquet path.
    """
    temporal = {field_id for field_id, column in plan.items() if _is_bounded_time(column)}
    counted = MetricsMode(MetricModeTypes.COUNTS)
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=metadata,
        stats_columns=plan | {one: replace(plan[one], mode=counted) for one in temporal},
        parquet_column_mapping=dict(leaf_paths),
    )
    bounds = statistics.column_aggregates
    bounds |= _bounds_of_times(metadata, leaf_paths, {one: plan[one] for one in temporal})
    for field_id, column in list(bounds.items()):
        if isinstance(column.primitive_type, StringType):
            bounds[field_id] = _TextBounds.of(column)
    for field_id in _columns_without_bounds(metadata, leaf_paths):
        bounds.pop(field_id, None)
    return statistics.to_serialized_dict()


def statistics_plan(
    schema: Schema, properties: Mapping[str, str]
) -> dict[int, StatisticsCollector]:
    """Return how each column's statistics are kept, as the table's properties ask.

    Args:
        schema: The table's schema: metrics modes are named by its columns.
        properties: The table's.
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
    """Bounds of texts; PyIceberg's upper one fails next to the surrogates."""

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
    """Return the least text of a length that is not below the given one; None if there is none."""
    if length is None or len(text) <= length:
        return text
    for end in range(length, 0, -1):
        code = ord(text[end - 1]) + 1
        if code == _SURROGATES.start:  # They are no characters: Java skips them, too.
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
    """Return the bounds of columns of dates and times, from the numbers that stand for them.

    Python's own dates end with the year 9999, Parquet's and Spark's do not.
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
    """Yield the leaves that are reached through structs alone: one value a row at most."""
    for field in struct.fields:
        if isinstance(field.field_type, StructType):
            yield from _fields_in_structs(field.field_type)
        else:
            yield field


def _columns_without_bounds(metadata: pq.FileMetaData, leaf_paths: Mapping[str, int]) -> set[int]:
    """Return the columns whose bounds would be a lie.

    Parquet leaves out minimum and maximum of a row group whose values are too long (or all
    NaN). Bounds from the other row groups would then hide this one from a reader that prunes.
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
