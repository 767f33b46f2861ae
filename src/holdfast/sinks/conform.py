"""Fit output to the table's schema: by name, losslessly, or with an error naming the column.

Arrow and Parquet require a value in every slot of a required child, even below a NULL parent, where
no reader ever looks. Filler values go there.

The conversion from one Arrow schema to the other is worked out once and then applied to every
batch; columns that already fit are passed on unchanged.
"""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from holdfast.errors import SchemaMismatchError
from holdfast.model.arrow_types import is_any_binary, is_any_list, is_any_string, is_uuid, widens
from holdfast.sinks.base import ColumnPath, MayLack


# ---- Vectors: fixed-length lists, such as embeddings. Spark returns lists of any length
def refuse_other_lengths(lists: pa.Array, size: int) -> None:
    """Refuse a list that does not have the wanted length.

    Raises:
        ValueError: A list has another length.
    """
    lengths = pc.list_value_length(lists)
    other = pc.fill_null(pc.not_equal(lengths, size), fill_value=False)
    if pc.any(other).as_py():
        row = pc.index(other, value=True).as_py()
        raise ValueError(f"{lengths[row]} elements instead of {size} in row {row} of a batch")


def vectors(lists: pa.Array, values: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the values of lists as vectors.

    Args:
        lists: Lists of the right length, or NULL.
        values: The elements of the non-NULL lists, one after another.
        kind: The type of the vectors.
    """
    found = pa.FixedSizeListArray.from_arrays(values, type=kind)
    if not lists.null_count:
        return found
    valid = lists.is_valid()
    number = pc.subtract(pc.cumulative_sum(valid.cast(pa.int64())), 1)
    return found.take(pc.if_else(valid, number, None))


# ---- Texts that are not UTF-8: Spark keeps them, and readers of Parquet or Arrow may refuse them
def refuse_broken_text(array: pa.Array) -> None:
    """Refuse a text that is not UTF-8, at any depth.

    Only what the rows hold counts, not all that a slice was cut from.

    Raises:
        ValueError: There is such a text.
    """
    kind = array.type
    if is_any_string(kind):
        try:
            array.validate(full=True)
        except pa.ArrowInvalid as error:
            raise ValueError(f"a text is not UTF-8 ({error})") from error
    elif isinstance(array, pa.ExtensionArray):
        refuse_broken_text(array.storage)
    elif not _has_text(kind):
        return
    elif pt.is_dictionary(kind):
        used = array.dictionary.take(pc.unique(array.indices.drop_null()))
        refuse_broken_text(used)
    elif pt.is_struct(kind):
        for child in array.flatten():
            refuse_broken_text(child)
    elif pt.is_map(kind):
        refuse_broken_text(array.cast(pa.list_(pa.struct([kind.key_field, kind.item_field]))))
    else:
        refuse_broken_text(array.flatten())


def _has_text(kind: pa.DataType) -> bool:
    if pt.is_dictionary(kind):
        return _has_text(kind.value_type)
    below = [kind.field(i).type for i in range(kind.num_fields)]
    return is_any_string(kind) or any(map(_has_text, below))


# ---- Values in slots that are never read
def null_array(length: int, kind: pa.DataType) -> pa.Array:
    """Return NULLs of any type, with fillers in required children."""
    if not pt.is_struct(kind):
        return pa.nulls(length, kind)
    fields = [kind.field(i) for i in range(kind.num_fields)]
    children = [null_array(length, field.type) for field in fields]
    children = [
        child if field.nullable else filled(child)
        for field, child in zip(fields, children, strict=True)
    ]
    mask = pa.array([True] * length, pa.bool_())
    return pa.StructArray.from_arrays(children, fields=fields, mask=mask)


def filled(array: pa.Array) -> pa.Array:
    """Return the array with a filler in place of each NULL."""
    if not array.null_count:
        return array
    if isinstance(array, pa.ExtensionArray):
        return pa.ExtensionArray.from_storage(array.type, filled(array.storage))
    with_filler = pa.concat_arrays([array, pa.array([_filler(array.type)], array.type)])
    positions = pa.array(range(len(array)), pa.int64())
    return with_filler.take(pc.if_else(array.is_null(), len(array), positions))


def _filler(kind: pa.DataType) -> Any:  # noqa: ANN401 - one of Arrow's many Python values.
    if isinstance(kind, pa.BaseExtensionType):
        return _filler(kind.storage_type)
    if pt.is_struct(kind):
        fields = [kind.field(i) for i in range(kind.num_fields)]
        return {field.name: None if field.nullable else _filler(field.type) for field in fields}
    if pt.is_fixed_size_binary(kind):
        return bytes(kind.byte_width)
    if pt.is_temporal(kind):
        return _temporal_filler(kind)
    if pt.is_map(kind) or pt.is_list(kind):
        return []
    return pa.scalar(0, pa.int8()).cast(kind).as_py() if _is_number(kind) else _empty(kind)


def _is_number(kind: pa.DataType) -> bool:
    return bool(pt.is_integer(kind) or pt.is_floating(kind) or pt.is_decimal(kind))


def _empty(kind: pa.DataType) -> str | bytes | bool:
    if pt.is_boolean(kind):
        return False
    return b"" if pt.is_binary(kind) else ""


def _temporal_filler(kind: pa.DataType) -> Any:  # noqa: ANN401 - one of Arrow's many Python values.
    if pt.is_date(kind):
        return dt.date(1970, 1, 1)
    return dt.time() if pt.is_time(kind) else pa.scalar(0, pa.int64()).cast(kind)


# ---- Fit output to the table's schema: by name, losslessly, or with an error naming the column

Convert = Callable[[pa.Array], pa.Array]

_UUID_BYTES = 16
# The reach of 32-bit offsets.
_ARRAY_BYTES_MAX = 2**31 - 1
# The problem shown for a missing column.
MISSING = 'missing from the output; return it (None is fine), or pass missing_columns="null"'
# The problem shown for the column that says which rows delete: NULL in all rows is not the same.
NO_FLAG = "missing from the output, and it says which rows delete (delete_column=)"
# What a list or a map adds to the path of a column below it.
ELEMENT, KEY, VALUE = "element", "key", "value"


class ValueMisfitError(SchemaMismatchError):
    """A value in some row does not fit; other rows with the same columns may."""


class Conformer:
    """Converts batches of one schema into the table's."""

    def __init__(
        self,
        table: str,
        source: pa.Schema,
        target: pa.Schema,
        written: pa.Schema | None = None,
        *,
        may_lack: MayLack = frozenset(),
    ) -> None:
        """Work out how each column fits.

        Args:
            table: The table's name, for errors.
            source: The schema of the output.
            target: The schema of the table; columns are matched by its names.
            written: The same columns by position, under their names in files; by default `target`.
            may_lack: The columns that may be missing from the output.

        Raises:
            SchemaMismatchError: A column does not fit, or is missing from the output.
        """
        self._written = target if written is None else written
        self._plans = _Plans(table, may_lack)
        whole = pa.struct(list(target))
        self._plans.refuse_strangers((), list(source), whole)
        self._columns: list[tuple[ColumnPath, pa.Field, int | None, Convert | None]] = []
        for field, named in zip(target, self._written, strict=True):
            path, index = (field.name,), source.get_field_index(field.name)
            if index < 0:
                self._plans.refuse_missing(path, field)
                self._columns.append((path, named, None, None))
                continue
            convert = self._plans.plan(path, source.field(index).type, field.type, named.type)
            self._columns.append((path, named, index, convert))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the batch in the table's schema, under the names used in files.

        Raises:
            ValueMisfitError: A value does not fit.
        """
        arrays = []
        for path, field, index, convert in self._columns:
            if index is None:
                arrays.append(null_array(batch.num_rows, field.type))
                continue
            try:
                array = _apply(convert, batch.column(index))
                refuse_broken_text(array)
            except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
                raise self._plans.misfit(path, _reason(batch.column(index), error)) from error
            if not field.nullable:
                self._plans.refuse_null(path, array.is_null())
            arrays.append(array)
        return pa.RecordBatch.from_arrays(arrays, schema=self._written)


class _Plans:
    """Works out how columns of one table are converted; None if there is nothing to do."""

    def __init__(self, table: str, may_lack: MayLack) -> None:
        self._table = table
        self._may_lack = may_lack

    def mismatch(self, path: ColumnPath, problem: str) -> SchemaMismatchError:
        return SchemaMismatchError(table=self._table, column=".".join(path), problem=problem)

    def misfit(self, path: ColumnPath, problem: str) -> ValueMisfitError:
        return ValueMisfitError(table=self._table, column=".".join(path), problem=problem)

    def refuse_strangers(
        self, above: ColumnPath, fields: list[pa.Field], target: pa.DataType
    ) -> None:
        names = [field.name for field in fields]
        for name in names:
            if target.get_field_index(name) < 0:
                raise self.mismatch((*above, name), "the table has no such column")
            if names.count(name) > 1:
                raise self.mismatch((*above, name), "it appears twice in the output")

    def refuse_missing(self, path: ColumnPath, field: pa.Field) -> None:
        if not field.nullable:
            raise self.mismatch(path, "required, but missing from the output")
        if self._may_lack is not None and path not in self._may_lack:
            raise self.mismatch(path, MISSING)

    def refuse_null(self, path: ColumnPath, missing: pa.Array) -> None:
        if pc.any(missing).as_py():
            row = pc.index(missing, value=True).as_py()
            raise self.misfit(path, f"required, but NULL in row {row} of a batch")

    def plan(
        self, path: ColumnPath, source: pa.DataType, target: pa.DataType, written: pa.DataType
    ) -> Convert | None:
        if source.equals(written) and source.equals(target) and not _has_required_child(source):
            return None
        if pt.is_dictionary(target) or pt.is_dictionary(source):
            return self._plan_dictionary(path, source, target, written)
        if pt.is_null(source):
            return lambda array: null_array(len(array), written)
        if is_uuid(target):
            return self._plan_uuid(path, source, target)
        if widens(source, target):
            return lambda array: pc.cast(array, target, safe=True)
        return self._plan_nested(path, source, target, written)

    def _plan_dictionary(
        self, path: ColumnPath, source: pa.DataType, target: pa.DataType, written: pa.DataType
    ) -> Convert:
        if pt.is_dictionary(source):
            inner = self.plan(path, source.value_type, target, written)
            return lambda array: _apply(inner, array.dictionary_decode())
        plain = self.plan(path, source, target.value_type, target.value_type)
        return lambda array: _apply(plain, array).dictionary_encode().cast(written)

    def _plan_nested(
        self, path: ColumnPath, source: pa.DataType, target: pa.DataType, written: pa.DataType
    ) -> Convert:
        if pt.is_struct(target) and pt.is_struct(source):
            return self._plan_struct(path, source, target, written)
        if pt.is_map(target) and (fields := _entry_fields(source)):
            return self._plan_map(path, fields, target, written)
        if is_any_list(target) and is_any_list(source):
            return self._plan_list(path, source, target, written)
        raise self.mismatch(path, f"{source} cannot be cast to {target} without loss")

    def _plan_struct(
        self, path: ColumnPath, source: pa.DataType, target: pa.DataType, written: pa.DataType
    ) -> Convert:
        given = [source.field(i) for i in range(source.num_fields)]
        self.refuse_strangers(path, given, target)
        children: list[tuple[ColumnPath, pa.Field, int, Convert | None]] = []
        for position in range(target.num_fields):
            field, named = target.field(position), written.field(position)
            below, index = (*path, field.name), source.get_field_index(field.name)
            if index < 0:
                self.refuse_missing(below, field)
                children.append((below, named, index, None))
            else:
                inner = self.plan(below, given[index].type, field.type, named.type)
                children.append((below, named, index, inner))

        def convert(array: pa.Array) -> pa.Array:
            arrays = []
            for below, field, index, plan in children:
                if index < 0:
                    arrays.append(null_array(len(array), field.type))
                    continue
                child = _apply(plan, pc.struct_field(array, indices=[index]))
                if not field.nullable and child.null_count:
                    self.refuse_null(below, pc.and_(child.is_null(), array.is_valid()))
                    child = filled(child)  # The remaining NULLs are below a NULL parent.
                arrays.append(child)
            fields = [field for _, field, _, _ in children]
            return pa.StructArray.from_arrays(arrays, fields=fields, mask=array.is_null())

        return convert

    def _plan_map(
        self,
        path: ColumnPath,
        source: tuple[pa.Field, pa.Field],
        target: pa.DataType,
        written: pa.DataType,
    ) -> Convert:
        key, item = source
        keys = self.plan((*path, KEY), key.type, target.key_type, written.key_type)
        items = self.plan((*path, VALUE), item.type, target.item_type, written.item_type)
        as_list = pa.list_(pa.struct(source))

        def convert(array: pa.Array) -> pa.Array:
            entries = array.cast(as_list)
            flat = entries.flatten()
            values = _apply(items, pc.struct_field(flat, indices=[1]))
            if not target.item_field.nullable:
                self.refuse_null((*path, VALUE), values.is_null())
            new_keys = _apply(keys, pc.struct_field(flat, indices=[0]))
            self.refuse_null((*path, KEY), new_keys.is_null())  # A list's key may be NULL.
            return pa.MapArray.from_arrays(
                _offsets(entries), new_keys, values, type=written, mask=array.is_null()
            )

        return convert

    def _plan_list(
        self, path: ColumnPath, source: pa.DataType, target: pa.DataType, written: pa.DataType
    ) -> Convert:
        below = (*path, ELEMENT)
        element = self.plan(below, source.value_type, target.value_type, written.value_type)

        def convert(array: pa.Array) -> pa.Array:
            if pt.is_fixed_size_list(written):
                refuse_other_lengths(array, written.list_size)
            values = _apply(element, array.flatten())
            if not target.value_field.nullable:
                self.refuse_null(below, values.is_null())
            return _lists(array, values, written)

        return convert

    def _plan_uuid(self, path: ColumnPath, source: pa.DataType, target: pa.DataType) -> Convert:
        storage = target.storage_type

        def wrap(array: pa.Array) -> pa.Array:
            return pa.ExtensionArray.from_storage(target, array)

        def parse(array: pa.Array) -> pa.Array:
            texts = array.to_pylist()
            values = [None if text is None else uuid.UUID(text).bytes for text in texts]
            return wrap(pa.array(values, storage))

        if pt.is_fixed_size_binary(source) and source.byte_width == _UUID_BYTES:
            return wrap
        if is_any_binary(source):
            return lambda array: wrap(pc.cast(array, storage, safe=True))
        if is_any_string(source):
            return parse
        raise self.mismatch(path, f"{source} cannot be cast to a UUID")


def _reason(array: pa.Array, error: Exception) -> str:
    """Return why values cannot be converted; Arrow's own message does not mention their size."""
    if array.nbytes <= _ARRAY_BYTES_MAX:
        return f"a value cannot be converted: {str(error).splitlines()[0]}"
    what = "a value" if len(array) == 1 else f"{len(array):,} values"
    return f"{what} of {array.nbytes:,} bytes; at most {_ARRAY_BYTES_MAX:,} can be written at once"


def _lists(array: pa.Array, values: pa.Array, written: pa.DataType) -> pa.Array:
    if pt.is_fixed_size_list(written):
        return vectors(array, values, written)
    offsets, mask = _offsets(array), array.is_null()
    if pt.is_list(written):
        return pa.ListArray.from_arrays(offsets, values, type=written, mask=mask)
    offsets = offsets.cast(pa.int64())
    return pa.LargeListArray.from_arrays(offsets, values, type=written, mask=mask)


def _entry_fields(kind: pa.DataType) -> tuple[pa.Field, pa.Field] | None:
    """Return the fields of a map's entries; None if it is not a map.

    A list of structs of `key` and `value` is one too: so polars returns maps.
    """
    if pt.is_map(kind):
        return kind.key_field, kind.item_field
    if is_any_list(kind) and pt.is_struct(kind.value_type):
        fields = tuple(kind.value_type)
        if [field.name for field in fields] == ["key", "value"]:
            return fields
    return None


def _offsets(array: pa.Array) -> pa.Array:
    lengths = pc.fill_null(pc.list_value_length(array), 0).cast(pa.int32())
    ends = pc.cumulative_sum(lengths).cast(pa.int32())
    return pa.concat_arrays([pa.array([0], pa.int32()), ends])


def _has_required_child(kind: pa.DataType) -> bool:
    """Whether a required field that we declare is below this type; its values are checked."""
    if pt.is_map(kind):
        return not kind.item_field.nullable or _has_required_child(kind.item_type)
    fields = [kind.field(i) for i in range(kind.num_fields)] if pt.is_nested(kind) else []
    return any(not field.nullable or _has_required_child(field.type) for field in fields)


def _apply(convert: Convert | None, array: pa.Array) -> pa.Array:
    return array if convert is None else convert(array)
