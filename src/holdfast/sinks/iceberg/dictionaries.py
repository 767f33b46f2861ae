"""Which columns of a file are worth a dictionary.

Parquet's writer builds a dictionary for every column and gives it up when it grows too large:
for columns of nearly distinct values that costs a third of the encoding time and makes files
larger. A look at the first rows of a file is enough to tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

_SAMPLE_ROWS = 32_768
# Nine in ten values of the sample are new: well over 100,000 different ones in a row group.
_DISTINCT_SHARE = 0.9
# Too few rows to judge by, and too few to matter.
_ROWS_MIN = 1_000


def dictionary_columns(first_rows: pa.Table, leaf_paths: Mapping[str, int]) -> list[str]:
    """Return the Parquet paths of the columns that get a dictionary.

    Args:
        first_rows: The file's first row group, in the file's own column names.
        leaf_paths: All of the file's Parquet paths.
    """
    if first_rows.num_rows < _ROWS_MIN:
        return list(leaf_paths)
    sample = first_rows.slice(0, _SAMPLE_ROWS)
    distinct = {name for name in sample.column_names if _nearly_distinct(sample.column(name))}
    return [path for path in leaf_paths if path not in distinct]


def _nearly_distinct(column: pa.ChunkedArray) -> bool:
    if pa.types.is_nested(column.type) or isinstance(column.type, pa.BaseExtensionType):
        return False
    found: int = pc.count_distinct(column, mode="only_valid").as_py()
    return found > _DISTINCT_SHARE * len(column)
