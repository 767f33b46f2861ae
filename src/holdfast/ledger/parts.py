"""Parts: large bodies that a record points to, as Parquet, checked by digest when read back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import LedgerDamagedError, StoreUnavailableError
from holdfast.ledger.layout import RunLayout
from holdfast.model.input_sums import InputSums
from holdfast.model.records import PartReference
from holdfast.model.staged import StagedFile, StagedGroup
from holdfast.storage.port import Storage, StorageError

_TABLE_SCHEMA = b"holdfast.table-schema"
_INPUT_SUMS = b"holdfast.input-sums"
_FILE = pa.struct([("path", pa.string()), ("size_bytes", pa.int64()), ("rows", pa.int64())])
_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("size_bytes", pa.int64()),
        ("files", pa.list_(_FILE)),
        ("detail", pa.string()),
    ]
)


def write_staged(  # noqa: PLR0913 - they are what a part holds, and where.
    storage: Storage,
    layout: RunLayout,
    name: str,
    groups: Sequence[StagedGroup],
    schema: dict[str, Any],
    *,
    input_sums: InputSums | None = None,
) -> PartReference:
    """Write the groups as one part and return what a record needs to name it.

    Args:
        storage: How the store is reached.
        layout: Where the run stands.
        name: The part's own name.
        groups: What is staged.
        schema: The table's schema that the files were written for.
        input_sums: What the input was; None if it was not measured.

    Raises:
        StoreUnavailableError: The store did not take it.
    """
    rows = [
        {
            "path": group.path,
            "size_bytes": group.size_bytes,
            "files": [
                {"path": file.path, "size_bytes": file.size_bytes, "rows": file.rows}
                for file in group.files
            ],
            "detail": json.dumps(dict(group.detail), sort_keys=True),
        }
        for group in groups
    ]
    buffer = pa.BufferOutputStream()
    sums = None if input_sums is None else input_sums.to_json()
    facts = {_TABLE_SCHEMA: json.dumps(schema), _INPUT_SUMS: json.dumps(sums)}
    with_schema = _SCHEMA.with_metadata(facts)
    pq.write_table(pa.Table.from_pylist(rows, schema=with_schema), buffer, compression="zstd")
    data = buffer.getvalue().to_pybytes()
    try:
        storage.put(layout.part(name), data)
    except StorageError as error:
        raise StoreUnavailableError(uri=layout.part(name), reason=str(error)) from error
    return PartReference(name=name, digest=hashlib.sha256(data).hexdigest(), groups=len(groups))


def read_staged(
    storage: Storage, layout: RunLayout, reference: PartReference
) -> tuple[list[StagedGroup], dict[str, Any]]:
    """Read back what `write_staged` wrote: the groups, and the schema they were written for.

    Raises:
        LedgerDamagedError: The part is missing or not as written.
        StoreUnavailableError: The store did not answer.
    """
    table = _read(storage, layout, reference)
    groups = [
        StagedGroup(
            path=row["path"],
            size_bytes=row["size_bytes"],
            files=tuple(StagedFile(**file) for file in row["files"]),
            detail=json.loads(row["detail"]),
        )
        for row in table.to_pylist()
    ]
    return groups, json.loads(table.schema.metadata[_TABLE_SCHEMA])


def read_input_sums(
    storage: Storage, layout: RunLayout, reference: PartReference
) -> InputSums | None:
    """Return what the input was when the part was staged; None if it was not measured.

    Raises:
        LedgerDamagedError: The part is missing or not as written.
        StoreUnavailableError: The store did not answer.
    """
    facts = _read(storage, layout, reference).schema.metadata
    value = json.loads(facts.get(_INPUT_SUMS, b"null"))
    return None if value is None else InputSums.from_json(value)


def _read(storage: Storage, layout: RunLayout, reference: PartReference) -> pa.Table:
    uri = layout.part(reference.name)
    try:
        data = storage.get(uri)
    except FileNotFoundError as error:
        raise LedgerDamagedError(uri=uri, reason="missing") from error
    except StorageError as error:
        raise StoreUnavailableError(uri=uri, reason=str(error)) from error
    if hashlib.sha256(data).hexdigest() != reference.digest:
        raise LedgerDamagedError(uri=uri, reason="the digest does not fit the content")
    return pq.read_table(pa.BufferReader(data))
