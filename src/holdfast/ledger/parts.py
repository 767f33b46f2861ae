"""Parts: large bodies that a record points to, as Parquet, checked by digest when read back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.failpoints import failpoint
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.row_files import damage_at, parquet_batches
from holdfast.ledger.store import answers, read_whole
from holdfast.model.coverage import Origin, PinnedFile, Pins
from holdfast.model.records import PartReference
from holdfast.model.stored import (
    Count,
    RecordDamagedError,
    Segment,
    Sum,
    parse_json,
    parse_typed,
    refuse_deep,
    typed,
)
from holdfast.model.work import TaskRecord, Work
from holdfast.storage.port import Storage

# ---- Parts: large bodies that a record points to, as Parquet, checked by digest when read back

# How much is encoded at a time: Arrow needs several times as much memory for it.
_PORTION_BYTES = 1 << 20
# How many rows are decoded at a time.
_READ_ROWS = 1024
_SCHEMA = pa.schema([("record", pa.string())])


def write_work(storage: Storage, layout: RunLayout, name: str, work: Work) -> PartReference:
    """Write the accepted records as one part and return the reference for a seal.

    Raises:
        StoreUnavailableError: The store did not take it.
    """
    buffer = pa.BufferOutputStream()
    with pq.ParquetWriter(buffer, _SCHEMA, compression="zstd", use_dictionary=False) as file:
        for texts in _portions(work):
            file.write_table(pa.table({"record": texts}, schema=_SCHEMA))
    data = buffer.getvalue().to_pybytes()
    failpoint("before-part")
    with answers(layout.part(name)):
        storage.put(layout.part(name), data)
    failpoint("after-part")
    return PartReference(
        name=name, digest=hashlib.sha256(data).hexdigest(), records=len(work.records)
    )


def read_work(storage: Storage, layout: RunLayout, reference: PartReference) -> Work:
    """Read back what `write_work` wrote.

    Raises:
        LedgerDamagedError: The part is missing or not as written.
        StoreUnavailableError: The store did not answer.
    """
    uri = layout.part(reference.name)
    data = read_whole(storage, uri, reference.digest)
    batches = parquet_batches(uri, data, rows=reference.records, batch_rows=_READ_ROWS)
    with damage_at(uri):
        return Work(records=tuple(record for batch in batches for record in _records(batch)))


def _records(batch: pa.RecordBatch) -> Iterator[TaskRecord]:
    """Yield the task records in some rows of a part.

    Raises:
        RecordDamagedError: The rows are not task records.
    """
    if batch.schema != _SCHEMA:
        raise RecordDamagedError(f"it has unexpected columns: {', '.join(batch.schema.names)}")
    for text in batch.column("record").to_pylist():
        yield TaskRecord.from_text(text or "")


def _portions(work: Work) -> Iterator[list[str]]:
    """Yield the records as texts, in portions: a record that lists many files is large."""
    texts: list[str] = []
    size = 0
    for record in work.records:
        texts.append(json.dumps(record.to_json(), sort_keys=True))
        size += len(texts[-1])
        if size >= _PORTION_BYTES:
            yield texts
            texts, size = [], 0
    if texts:
        yield texts


# ---- Objects that a post writes, as a part of the ledger: a sweep finds them there

_OBJECT_SCHEMA = pa.schema([("path", pa.string()), ("size_bytes", pa.int64())])


def write_objects(
    storage: Storage, layout: RunLayout, name: str, sizes: Mapping[str, int]
) -> PartReference:
    """Write paths with their sizes as one part and return the reference for a record.

    Raises:
        StoreUnavailableError: The store did not take it.
    """
    columns = {"path": list(sizes), "size_bytes": list(sizes.values())}
    return _write_table(storage, layout, name, pa.table(columns, schema=_OBJECT_SCHEMA))


def read_objects(storage: Storage, layout: RunLayout, reference: PartReference) -> dict[str, int]:
    """Read back what `write_objects` wrote.

    Raises:
        LedgerDamagedError: The part is missing or not as written.
        StoreUnavailableError: The store did not answer.
    """
    uri, batches = _read_table(storage, layout, reference)
    with damage_at(uri):
        rows = [typed(row, _Object) for batch in batches for row in batch.to_pylist()]
    return {row.path: row.size_bytes for row in rows}


class _Object(msgspec.Struct):
    path: str
    size_bytes: Count


# ---- Lists of things that are texts: what became of files, merged groups, files of an index


class Listed(Protocol):
    """What can be an entry of a list."""

    def to_json(self) -> str:
        """Return it as JSON text."""

    @classmethod
    def from_json(cls, text: str) -> Any:  # noqa: ANN401 - one of its kind.
        """Read back what `to_json` gave; anything else is a RecordDamagedError."""


_Entry = TypeVar("_Entry", bound=Listed)


def write_list(
    storage: Storage, layout: RunLayout, name: str, entries: Iterable[Listed]
) -> PartReference:
    """Write entries as one part and return the reference for a record.

    Raises:
        StoreUnavailableError: The store did not take it.
    """
    return _write_texts(storage, layout, name, [entry.to_json() for entry in entries])


def read_list(
    storage: Storage, layout: RunLayout, reference: PartReference, kind: type[_Entry]
) -> list[_Entry]:
    """Read back what `write_list` wrote.

    Raises:
        LedgerDamagedError: The part is missing or not as written.
        StoreUnavailableError: The store did not answer.
    """
    texts = _read_texts(storage, layout, reference)
    with damage_at(layout.part(reference.name)):
        return [kind.from_json(text) for text in texts]


IndexOrder = Literal["value", "hash"]


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """One file of an index: sorted keys, none of them twice."""

    name: str
    digest: str
    rows: int
    size_bytes: int
    # Two columns, as an Arrow stream in base64: the first and last value of each stretch of the
    # first key column.
    stretches: str
    # "hash": it is one of many, with the keys between two hashes, in the order of these; a file on
    # an executor's disk that holds them has `local_bytes`.
    order: IndexOrder = "value"
    first: int = 0
    last: int = 0
    local_bytes: int = 0

    def to_json(self) -> str:
        """Return it as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> IndexFile:
        """Read back what `to_json` gave; anything else is a RecordDamagedError."""
        return cls(**msgspec.structs.asdict(parse_typed(text.encode(), _IndexFileJson)))


class _IndexFileJson(msgspec.Struct):
    name: Segment
    digest: str
    rows: Count
    size_bytes: Count
    stretches: str
    order: IndexOrder = "value"
    first: Sum = 0
    last: Sum = 0
    local_bytes: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyPiece:
    """Keys of some staged files, divided by their hashes into slots, each in order of these.

    Pieces are merged into the files of an index.
    """

    name: str
    # How many keys each slot has, and the bytes that it takes in the object.
    rows: tuple[int, ...]
    sizes: tuple[int, ...]
    # How many bytes the keys take in memory.
    key_bytes: int
    # Keys that are not here, because they are here twice already.
    left_out: int
    # As for `IndexFile`.
    stretches: str

    def to_json(self) -> str:
        """Return it as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> KeyPiece:
        """Read back what `to_json` gave; anything else is a RecordDamagedError."""
        return cls(**msgspec.structs.asdict(parse_typed(text.encode(), _KeyPieceJson)))


class _KeyPieceJson(msgspec.Struct):
    name: Segment
    rows: tuple[Count, ...]
    sizes: tuple[Count, ...]
    key_bytes: Count
    left_out: Count
    stretches: str


# ---- The states of a table's files, as a part of the ledger


def write_states(
    storage: Storage, layout: RunLayout, name: str, states: Iterable[str]
) -> PartReference:
    """Write states as one part and return the reference for a record.

    Raises:
        StoreUnavailableError: The store did not take it.
    """
    return _write_texts(storage, layout, name, sorted(states))


def read_states(storage: Storage, layout: RunLayout, reference: PartReference) -> frozenset[str]:
    """Read back what `write_states` wrote.

    Raises:
        LedgerDamagedError: The part is missing or not as written.
        StoreUnavailableError: The store did not answer.
    """
    return frozenset(_read_texts(storage, layout, reference))


def _write_texts(
    storage: Storage, layout: RunLayout, name: str, texts: Sequence[str]
) -> PartReference:
    return _write_table(storage, layout, name, pa.table({"record": texts}, schema=_SCHEMA))


def _read_texts(storage: Storage, layout: RunLayout, reference: PartReference) -> list[str]:
    uri, batches = _read_table(storage, layout, reference)
    with damage_at(uri):
        rows = [typed(row, _Text) for batch in batches for row in batch.to_pylist()]
    return [row.record for row in rows]


class _Text(msgspec.Struct):
    record: str


def _write_table(storage: Storage, layout: RunLayout, name: str, table: pa.Table) -> PartReference:
    buffer = pa.BufferOutputStream()
    pq.write_table(table, buffer, compression="zstd")
    data = buffer.getvalue().to_pybytes()
    with answers(layout.part(name)):
        storage.put(layout.part(name), data)
    digest = hashlib.sha256(data).hexdigest()
    return PartReference(name=name, digest=digest, records=table.num_rows)


def _read_table(
    storage: Storage, layout: RunLayout, reference: PartReference
) -> tuple[str, list[pa.RecordBatch]]:
    """Return where a part is, and its rows."""
    uri = layout.part(reference.name)
    data = read_whole(storage, uri, reference.digest)
    return uri, list(parquet_batches(uri, data, rows=reference.records))


# ---- Pins as a part of the ledger: one row per file, in Parquet, checked by digest

_PIN_SCHEMA = pa.schema(
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
    """Write the pins as one part and return the reference for a record.

    Raises:
        StoreUnavailableError: The store did not take it.
    """
    columns = {
        field.name: [
            json.dumps(dict(file.values)) if field.name == "values" else getattr(file, field.name)
            for file in pins.files
        ]
        for field in _PIN_SCHEMA
    }
    facts = {
        "schema": pins.schema.serialize().to_pybytes(),
        "origin": json.dumps(asdict(pins.origin)).encode(),
    }
    table = pa.table(columns, schema=_PIN_SCHEMA.with_metadata(facts))
    return _write_table(storage, layout, name, table)


def read_pins(storage: Storage, layout: RunLayout, reference: PartReference) -> Pins:
    """Read back what `write_pins` wrote.

    Raises:
        LedgerDamagedError: The part is missing or not as written.
        StoreUnavailableError: The store did not answer.
    """
    uri, batches = _read_table(storage, layout, reference)
    facts = batches[0].schema.metadata or {}
    with damage_at(uri):
        return Pins(
            files=tuple(_file(row) for batch in batches for row in batch.to_pylist()),
            schema=pa.ipc.read_schema(pa.BufferReader(_fact(facts, b"schema"))),
            origin=parse_typed(_fact(facts, b"origin") or b"{}", Origin),
        )


def _fact(facts: Mapping[bytes, bytes], name: bytes) -> bytes:
    if name not in facts:
        raise RecordDamagedError(f"it has no {name.decode()}")
    return facts[name]


def _file(row: dict[str, Any]) -> PinnedFile:
    values = parse_json(row.get("values") or "")
    refuse_deep(values)
    found = typed({**row, "values": values}, PinnedFile)
    if len(found.group_rows) != len(found.group_bytes):
        raise RecordDamagedError(f"{found.uri} has row groups without a size")
    return found
