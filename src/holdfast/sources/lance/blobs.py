"""Blobs: columns whose values stand apart, and are fetched only for rows that are handed on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from holdfast.errors import UnsupportedTableError
from holdfast.model.widening import is_any_list
from holdfast.sources.tagging import Numbers

# Fetched at a time, about.
_BYTES = 16 * 1024 * 1024
_TYPE = "lance.blob.v2"
# How older datasets say so, in the metadata of a field.
_OLD_MARK = b"lance-encoding:blob"
# What the pins say of such a column.
MARK = b"holdfast:blob"
# A blob's kind, where its bytes stand in an object that is not the dataset's.
_ELSEWHERE = 3


def is_blob(field: pa.Field) -> bool:
    """Whether Lance keeps the values of a column apart."""
    return (
        getattr(field.type, "extension_name", "") == _TYPE
        or (field.metadata or {}).get(_OLD_MARK) == b"true"
    )


def holds_blobs(kind: pa.DataType) -> bool:
    """Whether there are blobs inside a type."""
    if pt.is_struct(kind):
        inner = [kind.field(number) for number in range(kind.num_fields)]
    elif pt.is_map(kind):
        inner = [kind.key_field, kind.item_field]
    else:
        inner = [kind.value_field] if is_any_list(kind) else []
    return any(is_blob(one) or holds_blobs(one.type) for one in inner)


def blob_columns(schema: pa.Schema) -> tuple[str, ...]:
    """Return the columns that the pins mark as blobs."""
    return tuple(one.name for one in schema if MARK in (one.metadata or {}))


def with_blobs(
    dataset: Any,  # noqa: ANN401 - Lance ships no types.
    rows: pa.RecordBatch,
    columns: Sequence[str],
    addresses: Numbers,
) -> Iterator[pa.RecordBatch]:
    """Yield rows with bytes in place of what describes them, as many at a time as is sensible.

    Args:
        dataset: Where the bytes are fetched from.
        rows: Rows with descriptions.
        columns: Which columns are blobs.
        addresses: The address of each row.

    Raises:
        UnsupportedTableError: A blob stands outside the dataset.
    """
    sizes = np.zeros(rows.num_rows, dtype=np.int64)
    for name in columns:
        sizes += _sizes(dataset.uri, name, rows.column(name))
    for start, stop in pairwise(_cuts(sizes)):
        piece = rows.slice(start, stop - start)
        for name in columns:
            asked = addresses[start:stop].tolist()
            found = dataset.read_blobs(name, addresses=asked, preserve_order=True)
            # Another row's bytes would be a silent mistake.
            assert [address for address, _ in found] == asked  # noqa: S101
            values = pa.array([data for _, data in found], pa.large_binary())
            index = piece.schema.get_field_index(name)
            field = pa.field(name, pa.large_binary(), rows.schema.field(name).nullable)
            piece = piece.set_column(index, field, values)
        yield piece


def _sizes(uri: str, name: str, described: pa.StructArray) -> Numbers:
    """Return how large blobs are.

    Raises:
        UnsupportedTableError: One stands outside the dataset.
    """
    if described.type.get_field_index("kind") >= 0:
        kinds = described.field("kind")
        if pa.compute.any(pa.compute.equal(kinds, _ELSEWHERE)).as_py():
            raise UnsupportedTableError(
                table=uri,
                what=f"column {name!r} has blobs that stand outside the dataset, where nothing "
                "keeps them as they are",
                cure="leave the column out by columns=, or read the files with hf.scan_files",
            )
    sizes: Numbers = np.asarray(described.field("size").fill_null(0)).astype(np.int64)
    return sizes


def _cuts(sizes: Numbers) -> list[int]:
    """Return where to cut rows, so that each piece has about as many bytes as is sensible."""
    cuts, held = [0], 0
    for number, size in enumerate(sizes.tolist()):
        if held and held + size > _BYTES:
            cuts.append(number)
            held = 0
        held += size
    return [*cuts, len(sizes)]
