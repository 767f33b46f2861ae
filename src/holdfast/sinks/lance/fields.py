"""Fields of a Lance dataset: a schema with more of them, if the installed pylance can make it.

Lance identifies a column by a number. A file lists the numbers of its columns, and the dataset's
schema says which column has which number now.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import lance
import pyarrow as pa
from lance import LanceDataset, LanceOperation
from lance.schema import LanceSchema

from holdfast.errors import LedgerDamagedError, SettingsError, UnsupportedTableError
from holdfast.reading.lance_rows import all_field_ids
from holdfast.sinks.lance.post import with_metadata

# ---- Whether this pylance does what the post relies on

# A number that the tried schema does not have.
_NUMBER = 40
_TRIED = pa.schema([pa.field("a", pa.struct([pa.field("b", pa.int64())]))])


@lru_cache(maxsize=1)
def refuse_other_pylance() -> None:
    """Refuse a pylance that a post could not be made with, before a row is paid for.

    Raises:
        SettingsError: It lacks an argument, or keeps schemas in a form that is not known here.
    """
    try:
        LanceOperation.Merge([], LanceSchema.from_pyarrow(_TRIED), preserves_nullability=True)
        marked = with_metadata(LanceSchema.from_pyarrow(_TRIED), {"mark": "1"})
        found = _with_fields(marked, _TRIED, _NUMBER)
        numbers = [(field.id(), field.children()[0].id()) for field in found.fields()]
        is_known = (found.to_pyarrow().metadata, numbers) == (
            {b"mark": b"1"},
            [(0, 1), (_NUMBER, _NUMBER + 1)],
        )
        problem = "" if is_known else "its schemas are not copied as they are"
    except Exception as error:  # noqa: BLE001 - another version fails in its own way.
        problem = str(error)
    if problem:
        raise SettingsError(
            what=f"pylance {lance.__version__} cannot be used for a commit: {problem}",
            cure='install a version that was tested: pip install "holdfast[lance]"',
        )


# ---- Which datasets a run may write to
def refuse_first_format(table: str, dataset: LanceDataset) -> None:
    """Refuse a dataset in Lance's first file format, which reads NULL back as 0 or as empty.

    Raises:
        UnsupportedTableError: It is one.
    """
    if dataset.data_storage_version in {"0.1", "legacy"}:
        raise UnsupportedTableError(
            table=table,
            what="its file format is Lance's first one, which loses NULLs",
            cure="write it anew with a current version of Lance",
        )


# ---- Fields: a schema with more of them, under numbers that nothing in the dataset has


def with_fields(dataset: LanceDataset, added: pa.Schema) -> Any:  # noqa: ANN401 - LanceSchema.
    """Return a dataset's schema with more columns, under numbers that no file uses.

    Lance has no way to do this that keeps the numbers of the others. It stores each field as a
    message of its own, in which the number and that of the field above are put in.
    """
    return _with_fields(dataset.lance_schema, added, next_field_id(dataset))


def _with_fields(schema: Any, added: pa.Schema, first: int) -> Any:  # noqa: ANN401 - LanceSchema.
    new: Any = LanceSchema.from_pyarrow(added)
    rebuild, (text, *fields) = schema.__reduce__()
    _, (_, *more) = new.__reduce__()
    return rebuild(text, *fields, *(_renumbered(field, first) for field in more))


def next_field_id(dataset: LanceDataset) -> int:
    """Return a number that no field has, nor any column of a file that was dropped since."""
    used = set(all_field_ids(dataset.lance_schema))
    for fragment in dataset.get_fragments():
        for file in fragment.metadata.files:
            used.update(file.fields)
    return max(used, default=-1) + 1


# The numbers of a message's parts: the field's own number, and that of the field above.
_ID, _PARENT = 3, 4
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5
# A field that is not in another one has a negative number there.
_SIGN = 1 << 63
_MASK = (1 << 64) - 1


def _renumbered(message: bytes, first: int) -> bytes:
    """Return a field's message with all numbers moved up."""
    numbers = {_ID: 0, _PARENT: 0}
    kept = bytearray()
    at = 0
    while at < len(message):
        tag, end = _varint(message, at)
        number, kind = tag >> 3, tag & 7
        value = 0
        if kind == _VARINT:
            value, end = _varint(message, end)
        elif kind == _BYTES:
            size, end = _varint(message, end)
            end += size
        else:
            end += {_FIXED_64: 8, _FIXED_32: 4}[kind]
        if number in numbers:
            numbers[number] = value
        else:
            kept += message[at:end]
        at = end
    parent = numbers[_PARENT]
    if not parent & _SIGN:
        parent += first
    own = _encoded(_ID << 3) + _encoded(numbers[_ID] + first)
    return bytes(kept) + own + _encoded(_PARENT << 3) + _encoded(parent)


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:  # noqa: PLR2004 - the last byte has no continuation bit.
            return value, at


def _encoded(value: int) -> bytes:
    found = bytearray()
    left = value & _MASK
    while left > 0x7F:  # noqa: PLR2004 - seven bits in each byte.
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


def numbers_in_dataset(
    own: pa.Schema,
    names: Sequence[str],
    schema: Any,  # noqa: ANN401 - LanceSchema.
) -> dict[int, int]:
    """Return the number in the dataset of each field of a file, by its number in the file.

    Args:
        own: The columns that the run computes.
        names: The file's columns, in order: these first.
        schema: The dataset's schema, with these columns.

    Raises:
        LedgerDamagedError: The file has other columns.
    """
    in_file = LanceSchema.from_pyarrow(own).fields()
    if list(names[: len(own)]) != own.names:
        raise LedgerDamagedError(uri="a column file", reason="it has other columns")
    there = {column.name(): column for column in schema.fields()}
    found: dict[int, int] = {}
    for column in in_file:
        found.update(_pairs(column, there[column.name()]))
    return found


def _pairs(one: Any, other: Any) -> Iterator[tuple[int, int]]:  # noqa: ANN401 - LanceField.
    yield one.id(), other.id()
    for child, partner in zip(one.children(), other.children(), strict=True):
        yield from _pairs(child, partner)
