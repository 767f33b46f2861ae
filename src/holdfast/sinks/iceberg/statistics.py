"""Column statistics of a data file, from its Parquet metadata and the table's metrics modes.

PyIceberg does the counting. Three things are ours: bounds of fields inside structs (which
Spark's writer keeps, so filters on them prune alike), the limit on columns that get statistics
by default, and no bounds at all where they would hide rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import pyarrow.parquet as pq
from pyiceberg.io.pyarrow import (
    MetricModeTypes,
    MetricsMode,
    StatisticsCollector,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    match_metrics_mode,
)
from pyiceberg.schema import Schema
from pyiceberg.table import TableProperties
from pyiceberg.types import BinaryType, NestedField, StringType, StructType

_MODE_DEFAULT = TableProperties.DEFAULT_WRITE_METRICS_MODE
_MODE_OF_COLUMN = TableProperties.METRICS_MODE_COLUMN_CONF_PREFIX
_INFERRED_MAX = "write.metadata.metrics.max-inferred-column-defaults"
_INFERRED_MAX_DEFAULT = 100


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
    statistics = data_file_statistics_from_parquet_metadata(
        parquet_metadata=metadata,
        stats_columns=plan,
        parquet_column_mapping=dict(leaf_paths),
    )
    for field_id in _columns_without_bounds(metadata, leaf_paths):
        statistics.column_aggregates.pop(field_id, None)
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
