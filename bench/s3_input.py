"""The events on S3: uploaded once for each stack, in row groups and copies as a job wants them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from bench.data import ROWS, local_events
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.upload import ArrowFile
from tests.stack_access import Stack

_ROOT = "s3://lake/bench-input"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Input:
    """Files of a scan."""

    paths: tuple[str, ...]
    rows: int
    size_bytes: int


def upload_events(stack: Stack, *, rows: int = ROWS, group_rows: int, copies: int = 1) -> S3Input:
    """Put the events on the stack's S3 server, unless they are there.

    Args:
        stack: Where.
        rows: Which of the sets of events.
        group_rows: The rows of a row group.
        copies: How often, each in a folder of its own.
    """
    storage = ObjectStorage(stack.s3.store_options())
    layout = f"{rows}-groups-of-{group_rows}"
    size_bytes, paths = 0, []
    for copy in range(copies):
        paths.append(f"{_ROOT}/{layout}/copy-{copy}")
        for source in local_events(rows):
            uri = f"{paths[-1]}/{source.name}"
            (size,) = storage.sizes([uri])
            if size is None and copy:
                storage.put(uri, storage.get(f"{paths[0]}/{source.name}"))
            elif size is None:
                _upload(storage, source, uri, group_rows)
            size_bytes += size or storage.size(uri)
    return S3Input(paths=tuple(paths), rows=rows * copies, size_bytes=size_bytes)


def _upload(storage: ObjectStorage, source: Path, uri: str, group_rows: int) -> None:
    rows = pq.read_table(source, coerce_int96_timestamp_unit="us")
    at = rows.schema.get_field_index("at")
    rows = rows.set_column(at, "at", rows.column(at).cast(pa.timestamp("us", "UTC")))
    file = ArrowFile(storage.open_sink(uri))
    with pq.ParquetWriter(pa.PythonFile(file, mode="w"), rows.schema, compression="zstd") as writer:
        writer.write_table(rows, row_group_size=group_rows)
    file.finish()
