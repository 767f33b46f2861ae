"""Build a large index in many tasks: keys are divided by hash into pieces, and these are merged.

A first job reads the key columns of staged files, some at a time. What fits into its memory is put
into the order of hashes, and written as one object, a *piece*, that is divided into slots at hashes
which are the same in all pieces. A second job merges slots: each of its tasks has some slots of
all pieces, and so all keys with these hashes. Whether a key is there twice is decided there, by
value. No task holds more than a piece, or a few slots.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import count

import numpy as np
import pyarrow as pa

from holdfast.errors import LedgerDamagedError
from holdfast.failpoints import failpoint
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.parts import IndexFile, KeyPiece
from holdfast.ledger.row_files import arrow_batches
from holdfast.ledger.store import answers
from holdfast.model.limits import DEFAULT_LIMITS, Limits
from holdfast.sinks.base import StagedReaderSpec
from holdfast.storage.port import Storage, StorageError
from holdfast.storage.runtime import io_runtime, read_ahead
from holdfast.worker.key_index import Built, write_keys
from holdfast.worker.key_values import (
    as_text,
    by_hash,
    comparable,
    one_array,
    rough_stretches,
)
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import item_texts

# How many bytes of keys one task holds to make a piece of them.
_PIECE_BYTES = 24 * 1024 * 1024
_HASH_BITS = 64
_DIGEST_BYTES = 32
_EXAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class PiecePlan:
    """The work of the job that divides keys by hash. Pickled on the driver, never stored."""

    reader: StagedReaderSpec
    storage: Storage = field(repr=False)
    layout: RunLayout
    name: str
    # There are 2 to the power of this many slots.
    slot_bits: int
    limits: Limits = DEFAULT_LIMITS

    def run(self, batches: Iterable[pa.RecordBatch], *, place: int, attempt: int) -> TaskReport:
        """Write the keys of each work item as pieces. Runs on an executor."""
        reader, pieces = self.reader.open(), []
        with io_runtime().bounded(self.limits.in_flight_bytes):
            keys = (batch for item in item_texts(batches) for batch in reader.rows(item))
            for number, portion in enumerate(_portions(keys)):
                name = f"{self.name}-{place:05d}-{attempt}-{number}.keys"
                pieces.append(self._written(name, portion).to_json())
        return TaskReport(place=place, results=tuple(pieces))

    def _written(self, name: str, keys: pa.RecordBatch) -> KeyPiece:
        arranged = by_hash([comparable(column) for column in keys.columns])
        order = arranged.few
        slots = np.arange(1, 1 << self.slot_bits, dtype=np.uint64)
        limits = slots << np.uint64(_HASH_BITS - self.slot_bits)
        kept = arranged.few_hashes
        ends = [0, *np.searchsorted(kept, limits).tolist(), len(kept)]
        failpoint("before-piece")
        uri = self.layout.part(name)
        rows, sizes = [], []
        sink = self.storage.open_sink(uri)
        try:
            for slot, start in enumerate(ends[:-1]):
                rows.append(ends[slot + 1] - start)
                some = keys.take(pa.array(order[start : ends[slot + 1]]))
                data = _sealed(name, slot, some) if rows[-1] else b""
                sizes.append(len(data))
                sink.write(data)
        except BaseException:
            sink.abandon()
            raise
        sink.close()
        failpoint("after-piece")
        return KeyPiece(
            name=name,
            rows=tuple(rows),
            sizes=tuple(sizes),
            key_bytes=keys.nbytes * len(order) // keys.num_rows,
            left_out=keys.num_rows - len(order),
            stretches=rough_stretches(keys.column(0)),
        )


def _portions(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield batches as one, up to the bound of a piece."""
    held: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        if batch.num_rows:
            held.append(batch)
            size += batch.nbytes
        if size >= _PIECE_BYTES:
            yield _as_one(held)
            size = 0
    if held:
        yield _as_one(held)


def _as_one(held: list[pa.RecordBatch]) -> pa.RecordBatch:
    """Return batches as one, and let go of them."""
    schema = held[0].schema
    columns = [pa.concat_arrays([batch.column(at) for batch in held]) for at in range(len(schema))]
    held.clear()
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _sealed(name: str, slot: int, keys: pa.RecordBatch) -> bytes:
    """Return keys of a slot as bytes that show damage, and where they belong."""
    stream = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="lz4")
    with pa.ipc.new_stream(stream, keys.schema, options=options) as writer:
        writer.write_batch(keys)
    data: bytes = stream.getvalue().to_pybytes()
    return _digest(name, slot, data) + data


def _digest(name: str, slot: int, data: bytes) -> bytes:
    return hashlib.sha256(f"{name} {slot} ".encode() + data).digest()


# ---- The second job: some slots of all pieces become one file of the index


def bucket_items(pieces: Sequence[KeyPiece], bucket_bytes: int) -> list[str]:
    """Return the work items of the second job: each some slots that follow one another.

    Args:
        pieces: All pieces.
        bucket_bytes: About how many bytes of keys an item has in memory.
    """
    slots = len(pieces[0].rows)
    rows = np.array([piece.rows for piece in pieces], dtype=np.int64)
    width = sum(piece.key_bytes for piece in pieces) / max(1, int(rows.sum()))
    sizes = rows.sum(axis=0) * width
    cuts = [0]
    held = 0.0
    for slot, size in enumerate(sizes.tolist()):
        if held and held + size > bucket_bytes:
            cuts.append(slot)
            held = 0.0
        held += size
    starts = np.zeros((len(pieces), slots + 1), dtype=np.int64)
    starts[:, 1:] = np.cumsum([piece.sizes for piece in pieces], axis=1)
    items = []
    for number, start in enumerate(cuts):
        stop = (*cuts, slots)[number + 1]
        parts = [
            [piece.name, int(starts[at, start]), piece.sizes[start:stop], piece.rows[start:stop]]
            for at, piece in enumerate(pieces)
            if sum(piece.rows[start:stop])
        ]
        if parts:
            items.append(json.dumps([number, start, parts]))
    return items


@dataclass(frozen=True, slots=True)
class _Part:
    """Some slots of a piece."""

    name: str
    first: int
    sizes: list[int]
    rows: list[int]
    slot: int

    @property
    def size_bytes(self) -> int:
        return sum(self.sizes)


@dataclass(frozen=True, kw_only=True)
class BucketPlan:
    """The work of the job that merges pieces. Pickled on the driver, never stored."""

    storage: Storage = field(repr=False)
    layout: RunLayout
    name: str
    schema: pa.Schema
    limits: Limits = DEFAULT_LIMITS

    def run(self, batches: Iterable[pa.RecordBatch], *, place: int, attempt: int) -> TaskReport:
        """Write a file of the index for each work item. Runs on an executor."""
        built, damaged = [], []
        with io_runtime().bounded(self.limits.in_flight_bytes):
            for text in item_texts(batches):
                number, slot, parts = json.loads(text)
                try:
                    keys = self._keys(
                        [
                            _Part(name, first, sizes, rows, slot)
                            for name, first, sizes, rows in parts
                        ]
                    )
                except LedgerDamagedError as error:  # What it was made of is still there.
                    damaged.append(f"{error.uri}: {error.reason}")
                    continue
                name = f"{self.name}-{number:05d}-{place:05d}-{attempt}.parquet"
                built.append(json.dumps([number, self._written(name, keys).to_json()]))
        return TaskReport(place=place, results=tuple(built), damaged=tuple(damaged))

    def _keys(self, parts: Sequence[_Part]) -> pa.Table:
        """Read slots of all pieces.

        Raises:
            LedgerDamagedError: A piece is gone, or not as it was written.
        """
        found: list[pa.RecordBatch] = []
        asked = read_ahead(parts, size_of=lambda part: part.size_bytes, ask=self._ask, at_least=1)
        for part, answer in asked:
            found += self._opened(part, answer)
        return pa.Table.from_batches(found)

    def _ask(self, part: _Part) -> Future[bytes | memoryview]:
        uri, start = self.layout.part(part.name), part.first
        stop = start + part.size_bytes
        return io_runtime().read(lambda: self.storage.get_range(uri, start, stop), part.size_bytes)

    def _bytes(self, part: _Part, answer: Future[bytes | memoryview]) -> bytes:
        """Wait for some slots of a piece.

        Raises:
            StorageError: The store did not answer.
        """
        try:
            return bytes(answer.result())
        except StorageError:
            if self.storage.size(self.layout.part(part.name)) >= part.first + part.size_bytes:
                raise
            return b""  # It is cut short: its digest will differ.

    def _opened(self, part: _Part, answer: Future[bytes | memoryview]) -> Iterator[pa.RecordBatch]:
        uri = self.layout.part(part.name)
        try:
            with answers(uri):
                data = self._bytes(part, answer)
        except FileNotFoundError as error:
            raise LedgerDamagedError(uri=uri, reason="missing") from error
        at = 0
        for slot, size, rows in zip(count(part.slot), part.sizes, part.rows, strict=False):
            sealed = data[at : at + size]
            at += size
            if not rows:
                continue
            inner = sealed[_DIGEST_BYTES:]
            if sealed[:_DIGEST_BYTES] != _digest(part.name, slot, inner):
                raise LedgerDamagedError(uri=uri, reason="the digest does not match the content")
            for batch in arrow_batches(uri, inner, rows):
                if batch.schema != self.schema:
                    raise LedgerDamagedError(uri=uri, reason="it has other columns than the key")
                yield batch

    def _written(self, name: str, keys: pa.Table) -> Built:
        arranged = by_hash([comparable(one_array(column)) for column in keys.columns])
        if doubled := int(arranged.is_second.sum()):
            rows = arranged.order[arranged.is_second][:_EXAMPLES]
            examples = [str(row) for row in keys.take(pa.array(rows)).to_pylist()]
            return Built(doubles=doubled, examples=examples)
        ordered = keys.take(pa.array(arranged.order))
        failpoint("before-index")
        file = write_keys(self.storage, self.layout.part(name), ordered)
        failpoint("after-index")
        nothing = keys.column(0).type
        return Built(
            file=IndexFile(
                name=name,
                digest=file.digest,
                rows=ordered.num_rows,
                size_bytes=file.size_bytes,
                # Those of all files are with the first: see `united_stretches`.
                stretches=as_text(pa.array([], nothing), pa.array([], nothing)),
                order="hash",
                first=int(arranged.hashes[0]),
                last=int(arranged.hashes[-1]),
                local_bytes=ordered.nbytes + 8 * ordered.num_rows + 4096,
            )
        )
