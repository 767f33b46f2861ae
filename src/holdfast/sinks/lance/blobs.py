"""Blob columns: a user gives plain bytes, Lance wants its own type around them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
from lance import blob_array
from lance.blob import BlobType

from holdfast.sinks.conform import ValueMisfitError


def has_blobs(schema: pa.Schema) -> bool:
    """Whether a column keeps its values in files beside the data file."""
    return any(isinstance(field.type, BlobType) for field in schema)


def given_schema(stored: pa.Schema) -> pa.Schema:
    """Return a dataset's schema as rows are given: blobs are bytes."""
    return pa.schema(
        [
            field.with_type(pa.large_binary()) if isinstance(field.type, BlobType) else field
            for field in stored
        ]
    )


def written_schema(stored: pa.Schema) -> pa.Schema:
    """Return a dataset's schema as Lance is given rows.

    A dataset made of an older kind of blobs has fewer parts in its type than `blob_array` gives.
    Lance takes either, but not one in place of the other within a stream of rows.
    """
    return pa.schema(
        [
            field.with_type(BlobType()) if isinstance(field.type, BlobType) else field
            for field in stored
        ]
    )


def plain_schema(batch: pa.RecordBatch, table: str) -> pa.RecordBatch:
    """Return rows whose blobs, if the user made some, are bytes again.

    Args:
        batch: What a transform has returned.
        table: The dataset's name for people.

    Raises:
        ValueMisfitError: A blob names bytes that stand elsewhere.
    """
    if not has_blobs(batch.schema):
        return batch
    columns = []
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        if not isinstance(column.type, BlobType):
            columns.append(column)
            continue
        data = column.storage.field(0)
        if pc.any(pc.and_(data.is_null(), column.is_valid())).as_py():
            raise ValueMisfitError(
                table=table, column=name, problem="a blob that names another file; give its bytes"
            )
        columns.append(pc.if_else(column.is_valid(), data, None))
    return pa.RecordBatch.from_arrays(columns, schema=given_schema(batch.schema))


def as_blobs(batch: pa.RecordBatch, written: pa.Schema) -> pa.RecordBatch:
    """Return rows as Lance is given them, in the schema of `written_schema`."""
    if not has_blobs(written):
        return batch
    columns = [
        blob_array(column.to_pylist()) if isinstance(field.type, BlobType) else column
        for field, column in zip(written, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=written)
