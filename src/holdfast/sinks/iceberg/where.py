"""The filter of an overwrite: which rows of a table go, and which files that concerns.

A row goes if the filter is TRUE for it; for NULL it is not. Two parties judge: metadata decides
for whole files, Arrow for single rows. Both get the same expression, in which every operator that
one of them lets NULL pass has `IS NOT NULL` beside it, and no `NOT` is left: PyIceberg's metrics
take all rows of a file for `a != 5` if 5 is out of bounds, and Arrow's `NOT IN` finds NULL.

Metadata decides less than it could. Without counts of NULL a file is read. Bounds of floats are
never used: writers disagree about NaN and -0.0. A file that is read needlessly costs time; a wrong
verdict costs rows.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyiceberg.conversions import from_bytes
from pyiceberg.expressions import (
    BooleanExpression,
    BoundEqualTo,
    BoundGreaterThan,
    BoundGreaterThanOrEqual,
    BoundIn,
    BoundIsNull,
    BoundLessThan,
    BoundLessThanOrEqual,
    BoundLiteralPredicate,
    BoundNotEqualTo,
    BoundNotIn,
    BoundNotNull,
    BoundNotStartsWith,
    BoundPredicate,
    BoundStartsWith,
    BoundUnaryPredicate,
)
from pyiceberg.expressions.visitors import (
    BooleanExpressionVisitor,
    bind,
    expression_evaluator,
    extract_field_ids,
    visit,
)
from pyiceberg.io.pyarrow import expression_to_pyarrow
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table.name_mapping import NameMapping
from pyiceberg.transforms import (
    TimeTransform,
    TruncateTransform,
    UnknownTransform,
    VoidTransform,
)
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, FloatType, NestedField, StructType

from holdfast.errors import SettingsError
from holdfast.reading.iceberg_rows import (
    NAMES,
    ByFieldId,
    as_expression,
    columns_to_read,
    for_columns,
    text_of,
)
from holdfast.text import in_short

_EXAMPLES = 3
_ROW = "__holdfast_row"
_FLOATS = (FloatType, DoubleType)
_CURE = 'pass a string ("day = \'2026-01-31\'") or a list of triples (("price", ">", 3))'

# ---- The filter itself, and its verdict on rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Rows for which a filter is not TRUE."""

    rows: int
    # The columns that the filter uses, of the first few such rows, as text.
    examples: tuple[str, ...]


# What a filter, or one predicate of it, says about all rows of a file: it is TRUE for each, for
# none, or the rows must be read.
Verdict = Literal["all", "none", "some"]


@dataclass(frozen=True, kw_only=True)
class Where:
    """A user's filter on the rows of one table. Pickled with a task."""

    table: str
    schema_json: str
    given: str | Sequence[Any]

    @classmethod
    def of(cls, table: str, schema: Schema, where: str | Sequence[Any]) -> Where:
        """Return a filter that fits the table.

        Args:
            table: The table's name, for errors.
            schema: The table's schema.
            where: The filter as `scan_iceberg` takes it.

        Raises:
            SettingsError: It is not a filter, or it does not fit the schema.
        """
        if isinstance(where, bytes) or not isinstance(where, str | Sequence):
            raise SettingsError(what=f"where={where!r}", cure=_CURE)
        made = cls(table=table, schema_json=schema.model_dump_json(), given=where)
        made._check()
        return made

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what can be worked out again."""
        return {"table": self.table, "schema_json": self.schema_json, "given": self.given}

    @property
    def text(self) -> str:
        """The filter as a string: a different string is a different filter."""
        return text_of(self.given)

    @property
    def names(self) -> list[str]:
        """The columns that it uses."""
        return [field.name for field in self._needed]

    @property
    def meaning(self) -> str:
        """Which columns its names are, and of which types: after a change it may match others."""
        ids = sorted(extract_field_ids(self._bound))
        schema = self._schema
        return ", ".join(f"{schema.find_column_name(n)} {n} {schema.find_type(n)}" for n in ids)

    @property
    def basis(self) -> tuple[str, ...]:
        """What verdicts depend on, apart from the file."""
        return (self.schema_json, self.text)

    def verdict(self, file: DataFile, spec: PartitionSpec) -> Verdict:
        """Return which rows of a data file go, as far as metadata tells; deletes do not matter.

        Args:
            file: The file, as `Manifest.data_files` yields it.
            spec: The file's partition spec.
        """
        return visit(self._bound, _OfFile(file, spec))

    def matches(self, batch: pa.RecordBatch) -> pa.BooleanArray:
        """Return for each row whether it goes; never NULL.

        Args:
            batch: Rows of the table's schema. Columns are found by their ids, or by name.
        """
        rows = pa.Table.from_batches([self._own.fit(batch)])
        numbered = rows.append_column(_ROW, pa.array(np.arange(rows.num_rows)))
        found = np.zeros(rows.num_rows, dtype=bool)
        found[numbered.filter(self._rows).column(_ROW).to_numpy()] = True
        return pa.array(found)

    def search(self, batches: Iterable[pa.RecordBatch]) -> Iterator[npt.NDArray[np.int64]]:
        """Yield for each row 0 if it goes, else -1."""
        for batch in batches:
            yield np.where(np.asarray(self.matches(batch)), 0, -1)

    def written_hits(self, _numbers: npt.NDArray[np.int64]) -> str:
        """Keep nothing: a filter has no keys."""
        return ""

    def outside(self, batch: pa.RecordBatch) -> Outside:
        """Return the rows that would stay if they were in the table: an overwrite refuses them.

        Args:
            batch: Rows of the table's schema. Columns are found by their ids, or by name.
        """
        left = self._own.fit(batch).filter(pc.invert(self.matches(batch)))
        examples = tuple(
            ", ".join(f"{name} = {_shown(left.column(name)[row])}" for name in left.schema.names)
            for row in range(min(_EXAMPLES, left.num_rows))
        )
        return Outside(rows=left.num_rows, examples=examples)

    def columns(
        self, names: NameMapping | None = None, constants: Mapping[int, Any] | None = None
    ) -> ByFieldId:
        """Return how the columns that the filter uses are found in a file of the table.

        Args:
            names: How the table finds columns in files without ids.
            constants: Values that only the file's partition has, by column id.

        Raises:
            FieldsDifferError: A column has a default that cannot be used.
        """
        return ByFieldId.of(self._needed, names, constants)

    def _check(self) -> None:
        """Try the filter out on no rows.

        Raises:
            SettingsError: It is not a filter, or it does not fit the schema.
        """
        try:
            has_columns = bool(self._needed)
            self.matches(pa.RecordBatch.from_pylist([], schema=self._own.schema))
        except SettingsError:
            raise
        except Exception as error:
            # PyIceberg and Arrow have errors of many kinds for values that do not fit.
            raise SettingsError(
                what=f"{self.table}: where={self.text}: {in_short(error)}",
                cure=f"the columns are {self._schema.column_names}",
            ) from error
        if not has_columns:
            raise SettingsError(
                what=f"{self.table}: where={self.text} has the same answer for every row",
                cure="name a column in it; to replace all rows, call overwrite without where",
            )

    @cached_property
    def _schema(self) -> Schema:
        return Schema.model_validate_json(self.schema_json)

    @cached_property
    def _bound(self) -> BooleanExpression:
        """The expression that metadata and rows are judged by."""
        # A required field of a struct that is NULL is NULL, too: PyIceberg does not expect that.
        loose = Schema(*map(_optional, self._schema.fields))
        return bind(loose, for_columns(as_expression(self.given), loose), case_sensitive=True)

    @cached_property
    def _rows(self) -> pc.Expression:
        return expression_to_pyarrow(self._bound, self._schema)

    @cached_property
    def _needed(self) -> list[NestedField]:
        ids = extract_field_ids(self._bound)
        return [field for field in self._schema.fields if ids & Schema(field).field_ids]

    @cached_property
    def _own(self) -> ByFieldId:
        """How the columns are found in rows of the table's schema."""
        names = {field.name: field.field_id for field in self._needed}
        columns = columns_to_read(self._needed, None)
        return ByFieldId(schema=columns.with_metadata({NAMES: json.dumps(names)}))


def _optional(field: NestedField) -> NestedField:
    kind = field.field_type
    if isinstance(kind, StructType):
        kind = StructType(*map(_optional, kind.fields))
    return NestedField(field.field_id, field.name, kind, required=False)


def _shown(value: pa.Scalar) -> str:
    try:
        return repr(value.as_py())
    except (OverflowError, ValueError):  # Python has no date outside the years 1 to 9999.
        return str(value.value)


# ---- Verdicts on files, by their metadata

_OPPOSITE: Mapping[Verdict, Verdict] = {"all": "none", "none": "all", "some": "some"}


class _OfFile(BooleanExpressionVisitor[Verdict]):
    """What an expression says about all rows of one file."""

    def __init__(self, file: DataFile, spec: PartitionSpec) -> None:
        self._file = file
        self._parts = parts_of(file, spec)

    def visit_true(self) -> Verdict:
        return "all"

    def visit_false(self) -> Verdict:
        return "none"

    def visit_not(self, child_result: Verdict) -> Verdict:
        raise ValueError(f"NOT is left: {child_result}")

    def visit_and(self, left_result: Verdict, right_result: Verdict) -> Verdict:
        if "none" in {left_result, right_result}:
            return "none"
        return "all" if {left_result, right_result} == {"all"} else "some"

    def visit_or(self, left_result: Verdict, right_result: Verdict) -> Verdict:
        if "all" in {left_result, right_result}:
            return "all"
        return "none" if {left_result, right_result} == {"none"} else "some"

    def visit_unbound_predicate(self, predicate: Any) -> Verdict:  # noqa: ANN401
        raise ValueError(f"not bound: {predicate}")

    def visit_bound_predicate(self, predicate: BoundPredicate) -> Verdict:
        column = predicate.term.ref().field
        parts = [part for part in self._parts if part[0].source_id == column.field_id]
        nulls = nulls_in(self._file, column.field_id, [value for _, value in parts])
        if isinstance(predicate, BoundIsNull):
            return nulls
        if isinstance(predicate, BoundNotNull):
            return _OPPOSITE[nulls]
        if nulls == "all":
            return "none"
        if isinstance(column.field_type, _FLOATS):
            return "some"
        found = self._of_values(predicate, column, parts)
        return "some" if found == "all" and nulls != "none" else found

    def _of_values(
        self,
        predicate: BoundPredicate,
        column: NestedField,
        parts: Sequence[tuple[PartitionField, Any]],
    ) -> Verdict:
        """Return what a predicate says about the values that are not NULL."""
        lower = bound_of(column, self._file.lower_bounds)
        upper = bound_of(column, self._file.upper_bounds)
        found = [_of_bounds(predicate, lower, upper)]
        found += [_of_partition(predicate, column, *part) for part in parts]
        return next((verdict for verdict in found if verdict != "some"), "some")


def nulls_in(file: DataFile, field_id: int, parts: Sequence[Any]) -> Verdict:
    """Return whether a column is NULL in all rows of a file, in none, or perhaps in some.

    Args:
        file: The file.
        field_id: The column.
        parts: What known transforms of the column are in the file's partition.
    """
    if parts:  # A transform gives NULL for NULL only.
        return "all" if any(value is None for value in parts) else "none"
    rows = file.record_count
    nulls = (file.null_value_counts or {}).get(field_id)
    if nulls is None or (file.value_counts or {}).get(field_id) != rows:
        return "some"
    if nulls == 0:
        return "none"
    return "all" if nulls == rows else "some"


def parts_of(file: DataFile, spec: PartitionSpec) -> list[tuple[PartitionField, Any]]:
    """Return the fields of a file's partition whose transforms are known, and their values."""
    return [
        (field, file.partition[at])
        for at, field in enumerate(spec.fields)
        if not isinstance(field.transform, VoidTransform | UnknownTransform)
    ]


def bound_of(column: NestedField, bounds: Mapping[int, bytes] | None) -> Any:  # noqa: ANN401
    """Return a column's bound; None if it is not known, or not of the column's type."""
    data = (bounds or {}).get(column.field_id)
    try:
        return None if data is None else from_bytes(cast("Any", column.field_type), data)
    except Exception:  # noqa: BLE001 - a bound that cannot be read tells nothing.
        return None


def _of_bounds(predicate: BoundPredicate, lower: Any, upper: Any) -> Verdict:  # noqa: ANN401
    """Return what bounds say about a predicate; they may be wider than the values, or None."""
    if isinstance(predicate, BoundNotEqualTo | BoundNotIn | BoundNotStartsWith):
        return _OPPOSITE[_of_bounds(cast("BoundPredicate", ~predicate), lower, upper)]
    if isinstance(predicate, BoundIn):
        return _among(predicate.value_set, lower, upper)
    if not isinstance(predicate, BoundLiteralPredicate):
        return "some"
    value = predicate.literal.value
    if isinstance(predicate, BoundEqualTo):
        return _among({value}, lower, upper)
    if isinstance(predicate, BoundStartsWith):
        return _with_prefix(value, lower, upper)
    return _in_order(predicate, value, lower, upper)


def _in_order(predicate: BoundPredicate, value: Any, lower: Any, upper: Any) -> Verdict:  # noqa: ANN401
    is_less = isinstance(predicate, BoundLessThan | BoundLessThanOrEqual)
    comparisons: Mapping[type[BoundPredicate], Callable[[Any], bool]] = {
        BoundLessThan: lambda bound: bound < value,
        BoundLessThanOrEqual: lambda bound: bound <= value,
        BoundGreaterThan: lambda bound: bound > value,
        BoundGreaterThanOrEqual: lambda bound: bound >= value,
    }
    holds = comparisons[type(predicate)]
    # If it holds for the bound that is farthest from it, it holds for all.
    near, far = (lower, upper) if is_less else (upper, lower)
    if far is not None and holds(far):
        return "all"
    return "none" if near is not None and not holds(near) else "some"


def _among(values: set[Any], lower: Any, upper: Any) -> Verdict:  # noqa: ANN401
    if lower is not None and lower == upper:
        return "all" if lower in values else "none"
    inside = [
        value
        for value in values
        if (lower is None or lower <= value) and (upper is None or value <= upper)
    ]
    return "some" if inside else "none"


def _with_prefix(prefix: Any, lower: Any, upper: Any) -> Verdict:  # noqa: ANN401
    first = None if lower is None else lower[: len(prefix)]
    last = None if upper is None else upper[: len(prefix)]
    if first == prefix == last:
        return "all"
    is_beside = (first is not None and first > prefix) or (last is not None and last < prefix)
    return "none" if is_beside else "some"


def _of_partition(
    predicate: BoundPredicate,
    column: NestedField,
    field: PartitionField,
    value: Any,  # noqa: ANN401 - of whatever type the partition is.
) -> Verdict:
    """Return what a partition's value, which is not NULL, says about the values in it."""
    if isinstance(predicate, BoundUnaryPredicate) or not _is_sound(field, value):
        return "some"
    transform = field.transform
    partition = Schema(
        NestedField(
            field.field_id, field.name, transform.result_type(column.field_type), required=False
        )
    )

    def holds(projected: BooleanExpression) -> bool:
        return expression_evaluator(partition, projected, case_sensitive=True)(Record(value))

    try:
        strict = transform.strict_project(field.name, predicate)
        if strict is not None and holds(strict):
            return "all"
        inclusive = transform.project(field.name, predicate)
        return "none" if inclusive is not None and not holds(inclusive) else "some"
    except (OverflowError, ValueError):  # A value at the end of its type, or a year beyond 9999.
        return "some"


def _is_sound(field: PartitionField, value: Any) -> bool:  # noqa: ANN401
    """Whether a partition value can be trusted.

    Early writers rounded times before 1970 up. Java's `truncate` of the smallest numbers overflows:
    they are then among the largest.
    """
    transform = field.transform
    if isinstance(transform, TimeTransform):
        return bool(value > 0)
    if isinstance(transform, TruncateTransform) and isinstance(value, int):
        return value % transform.width == 0
    return True
