"""Parts: large bodies that a record points to, as Parquet, checked by digest when read back."""

from __future__ import annotations

import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.failpoints import failpoint
from holdfast.ledger.answers import answers, read_whole
from holdfast.ledger.layout import RunLayout
from holdfast.model.records import PartReference
from holdfast.model.work import TaskRecord, Work
from holdfast.storage.port import Storage

_SCHEMA = pa.schema([("record", pa.string())])


def write_work(storage: Storage, layout: RunLayout, name: str, work: Work) -> PartReference:
    """Write the accepted records as one part and return what a seal needs to name it.

    Raises:
        StoreUnavailableError: The store did not take it.
    """
    texts = [json.dumps(record.to_json(), sort_keys=True) for record in work.records]
    buffer = pa.BufferOutputStream()
    table = pa.table({"record": texts}, schema=_SCHEMA)
    pq.write_table(table, buffer, compression="zstd", use_dictionary=False)
    data = buffer.getvalue().to_pybytes()
    failpoint("before-part")
    with answers(layout.part(name)):
        storage.put(layout.part(name), data)
    failpoint("after-part")
    return PartReference(name=name, digest=hashlib.sha256(data).hexdigest(), records=len(texts))


def read_work(storage: Storage, layout: RunLayout, reference: PartReference) -> Work:
    """Read back what `write_work` wrote.

    Raises:
        LedgerDamagedError: The part is missing or not as written.
        StoreUnavailableError: The store did not answer.
    """
    data = read_whole(storage, layout.part(reference.name), reference.digest)
    # Not `read_table`: its dataset machinery costs a millisecond a file.
    with pq.ParquetFile(pa.BufferReader(data)) as file:
        texts = file.read().column("record").to_pylist()
    return Work(records=tuple(TaskRecord.from_json(json.loads(text)) for text in texts))
