"""Parts: large bodies that a record points to, as Parquet, checked by digest when read back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.failpoints import failpoint
from holdfast.ledger.answers import answers, read_whole
from holdfast.ledger.decoded import damage_at, parquet_batches
from holdfast.ledger.layout import RunLayout
from holdfast.model.records import PartReference
from holdfast.model.stored import RecordDamagedError
from holdfast.model.work import TaskRecord, Work
from holdfast.storage.port import Storage

# What is encoded at a time: Arrow needs several times as much to do it.
_PORTION_BYTES = 1 << 20
# What is decoded at a time.
_READ_ROWS = 1024
_SCHEMA = pa.schema([("record", pa.string())])


def write_work(storage: Storage, layout: RunLayout, name: str, work: Work) -> PartReference:
    """Write the accepted records as one part and return what a seal needs to name it.

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
        RecordDamagedError: They are no task records.
    """
    if batch.schema != _SCHEMA:
        raise RecordDamagedError(f"it has other columns: {', '.join(batch.schema.names)}")
    for text in batch.column("record").to_pylist():
        yield TaskRecord.from_text(text or "")


def _portions(work: Work) -> Iterator[list[str]]:
    """Yield the records as texts: some at a time, for one that lists many files is large."""
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
