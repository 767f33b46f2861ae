"""Blob columns: a user gives plain bytes, Lance wants its own type around them."""

from __future__ import annotations

import pyarrow as pa
from lance import blob_array
from lance.blob import BlobType


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


def plain_schema(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows whose blobs, if the user made some, are bytes again.

    Raises:
        ValueError: A blob names bytes that stand elsewhere.
    """
    if not has_blobs(batch.schema):
        return batch
    columns = []
    for column in batch.columns:
        if not isinstance(column.type, BlobType):
            columns.append(column)
            continue
        data = column.storage.field(0)
        if pa.compute.any(pa.compute.and_(data.is_null(), column.is_valid())).as_py():
            raise ValueError("a blob that names another file; give its bytes")
        columns.append(pa.compute.if_else(column.is_valid(), data, None))
    return pa.RecordBatch.from_arrays(columns, schema=given_schema(batch.schema))


def as_blobs(batch: pa.RecordBatch, stored: pa.Schema) -> pa.RecordBatch:
    """Return rows as the dataset stores them."""
    if not has_blobs(stored):
        return batch
    columns = [
        blob_array(column.to_pylist()) if isinstance(field.type, BlobType) else column
        for field, column in zip(stored, batch.columns, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=stored)
