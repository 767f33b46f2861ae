"""Avro files as rows: what a manifest stores, in a test's terms."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any, cast

import fastavro

from holdfast.sinks.iceberg.avro import avro_file, blocks, read_header
from holdfast.sinks.iceberg.rewrite import encoded, parsed


def avro_rows(data: bytes) -> list[dict[str, Any]]:
    """Return the rows of an Avro file, as they are stored."""
    schema = parsed(read_header(data).schema)
    streams = [(count, io.BytesIO(block)) for count, block in blocks(data)]
    return [
        cast("dict[str, Any]", fastavro.schemaless_reader(stream, schema, None))
        for count, stream in streams
        for _ in range(count)
    ]


def avro_of(
    schema: Mapping[str, Any], metadata: Mapping[str, bytes], rows: Sequence[Mapping[str, Any]]
) -> bytes:
    """Return an Avro file of the rows."""
    known = parsed(schema)
    return avro_file(schema, metadata, [encoded(known, row) for row in rows], "deflate")
