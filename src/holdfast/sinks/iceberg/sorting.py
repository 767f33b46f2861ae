"""A table's sort order, as far as a row group can follow it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.schema import Schema
from pyiceberg.table.sorting import NullOrder, SortDirection, SortOrder
from pyiceberg.transforms import IdentityTransform
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    IntegerType,
    LongType,
    StringType,
    TimestampType,
    TimestamptzType,
    TimeType,
)

_PYARROW_WITH_NULLS_PER_KEY = 25
_SORTABLE = (
    BooleanType,
    IntegerType,
    LongType,
    DecimalType,
    DateType,
    TimeType,
    TimestampType,
    TimestamptzType,
    StringType,
    BinaryType,
)


class RowSorter:
    """Sorts row groups by a table's sort order, where Arrow's order is the same.

    Transforms, nested columns, UUIDs and floats (Arrow puts NaN beside NULL) are left as they
    come; then no file claims to be sorted.
    """

    def __init__(self, schema: Schema, order: SortOrder) -> None:
        """Work out the sort keys.

        Args:
            schema: The table's schema, in the names that rows have.
            order: The table's sort order.
        """
        self._keys: list[tuple[str, str]] = []
        self._nulls = "at_start"
        self.order_id: int | None = None
        placements = {field.null_order for field in order.fields}
        columns = {
            field.field_id: field.name
            for field in schema.fields
            if isinstance(field.field_type, _SORTABLE)
        }
        plain = all(
            isinstance(field.transform, IdentityTransform) and field.source_id in columns
            for field in order.fields
        )
        # Before pyarrow 25 NULLs go to one side for all keys; so only such orders are followed.
        if order.is_unsorted or not plain or len(placements) != 1:
            return
        self._keys = [
            (
                columns[field.source_id],
                "ascending" if field.direction == SortDirection.ASC else "descending",
            )
            for field in order.fields
        ]
        self._nulls = "at_start" if placements == {NullOrder.NULLS_FIRST} else "at_end"
        self.order_id = order.order_id

    def sort(self, rows: pa.Table) -> pa.Table:
        """Return the rows in order."""
        if not self._keys:
            return rows
        if int(pa.__version__.partition(".")[0]) >= _PYARROW_WITH_NULLS_PER_KEY:
            keys = [(name, direction, self._nulls) for name, direction in self._keys]
            return rows.take(pc.sort_indices(rows, sort_keys=keys))
        order = pc.sort_indices(rows, sort_keys=self._keys, null_placement=self._nulls)
        return rows.take(order)
