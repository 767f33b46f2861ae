"""Pins as a part of the ledger: one row per file, in Parquet, checked by digest."""

from __future__ import annotations

import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.ledger.answers import answers, read_whole
from holdfast.ledger.layout import RunLayout
from holdfast.model.pins import PinnedFile, Pins
from holdfast.model.records import PartReference
from holdfast.storage.port import Storage

_SCHEMA = pa.schema(
    [
        ("uri", pa.string()),
        ("size_bytes", pa.int64()),
        ("tag", pa.string()),
        ("group_rows", pa.list_(pa.int64())),
        ("group_bytes", pa.list_(pa.int64())),
        ("left_out", pa.list_(pa.int64())),
        ("values", pa.string()),
        ("deletes", pa.list_(pa.string())),
    ]
)


def write_pins(storage: Storage, layout: RunLayout, name: str, pins: Pins) -> PartReference:
    """Write the pins as one part and return what a record needs to name it.

    Raises:
        StoreUnavailableError: The store did not take it.
    """
    columns = {
        field.name: [
            json.dumps(dict(file.values)) if field.name == "values" else getattr(file, field.name)
            for file in pins.files
        ]
        for field in _SCHEMA
    }
    facts = {"schema": pins.schema.serialize().to_pybytes(), "origin": pins.origin.encode()}
    table = pa.table(columns, schema=_SCHEMA.with_metadata(facts))
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd")
    data = buffer.getvalue().to_pybytes()
    with answers(layout.part(name)):
        storage.put(layout.part(name), data)
    digest = hashlib.sha256(data).hexdigest()
    return PartReference(name=name, digest=digest, records=len(pins.files))


def read_pins(storage: Storage, layout: RunLayout, reference: PartReference) -> Pins:
    """Read back what `write_pins` wrote.

    Raises:
        LedgerDamagedError: The part is missing or not as written.
        StoreUnavailableError: The store did not answer.
    """
    data = read_whole(storage, layout.part(reference.name), reference.digest)
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        table = file.read()
    facts = table.schema.metadata
    return Pins(
        files=tuple(
            PinnedFile(
                uri=row["uri"],
                size_bytes=row["size_bytes"],
                tag=row["tag"],
                group_rows=tuple(row["group_rows"]),
                group_bytes=tuple(row["group_bytes"]),
                left_out=tuple(row["left_out"]),
                values=json.loads(row["values"]),
                deletes=tuple(row["deletes"]),
            )
            for row in table.to_pylist()
        ),
        schema=pa.ipc.read_schema(pa.BufferReader(facts[b"schema"])),
        origin=facts[b"origin"].decode(),
    )
