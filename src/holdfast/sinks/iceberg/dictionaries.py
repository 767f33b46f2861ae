"""Which columns of a file are worth a dictionary.

Parquet's writer builds a dictionary for every column and gives it up when it grows too large:
for columns of nearly distinct values that costs a third of the encoding time and makes files
larger. A look at the first rows of a file is enough to tell them apart.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

_SAMPLE_ROWS_MAX = 32_768
# Values that repeat less often in a row group than about twice are not worth a dictionary, and an
# eighth of its rows tells. To count them all takes as long as to encode them.
_SAMPLE_SHARE = 8
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
