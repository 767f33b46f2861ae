"""The key index of an upsert: the keys of its output rows, sorted, in files of the ledger.

A job builds it once all rows are staged, from the key columns of the staged files. Tasks that look
for old rows in the table's files read it, and never see a row of the output.

A small index is one file, sorted by value, which each worker process holds in memory. A large one
is many, divided and sorted by hash, which a search streams from the executor's disk
(`key_search`). Either way each key has a number, its place in the files: so it can be counted how
many keys were found.

A large index is built in many tasks. A first job reads the key columns of staged files, some at a
time. What fits into its memory is put into the order of hashes, and written as one object, a
*piece*, that is divided into slots at hashes which are the same in all pieces. A second job merges
slots: each of its tasks has some slots of all pieces, and so all keys with these hashes. Whether a
key is there twice is decided there, by value. No task holds more than a piece, or a few slots.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import LedgerDamagedError
from holdfast.failpoints import failpoint
from holdfast.ledger.key_hits import write_hits
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.parts import IndexFile, KeyPiece
from holdfast.ledger.row_files import arrow_batches, damage_at, parquet_batches
from holdfast.ledger.store import answers, read_whole
from holdfast.model.limits import DEFAULT_LIMITS, Limits
from holdfast.sinks.base import StagedReaderSpec
from holdfast.storage.port import Storage, StorageError
from holdfast.storage.runtime import io_runtime, read_ahead
from holdfast.storage.upload import DigestingArrowFile
from holdfast.worker.key_search import BucketSearch
from holdfast.worker.key_values import (
    Flags,
    KeySet,
    Places,
    as_text,
    by_hash,
    by_value,
    comparable,
    doubles,
    one_array,
    rough_stretches,
    stretches_in,
    stretches_of,
)
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import item_texts

_EXAMPLES = 3
# Keys that one task sorts, and each worker process holds, in its memory: see ADR 0029.
SMALL_ROWS = 1_000_000
SMALL_BYTES = 32 * 1024 * 1024


# ---- The index: its files, and which stretches of values they hold


@dataclass(frozen=True, kw_only=True)
class KeyIndex:
    """The keys of all rows that a run writes. Pickled with a task."""

    # The key columns, and what distinguishes this index from any other of the run.
    on: tuple[str, ...]
    name: str
    files: tuple[IndexFile, ...]
    storage: Storage = field(repr=False)
    layout: RunLayout
    # Which of the keys are those of rows to delete, as `written_hits` returns them. Only the driver
    # has them.
    deleting: tuple[str, ...] = ()

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what was read."""
        names = ("on", "name", "files", "storage", "layout")
        return {name: getattr(self, name) for name in names}

    @property
    def rows(self) -> int:
        """How many keys there are."""
        return sum(file.rows for file in self.files)

    @cached_property
    def stretches(self) -> list[tuple[pa.Scalar, pa.Scalar]]:
        """The first and last value of each stretch of the first key column, in order.

        Raises:
            LedgerDamagedError: They cannot be read.
        """
        found: list[tuple[pa.Scalar, pa.Scalar]] = []
        for file in self.files:
            with damage_at(self.layout.part(file.name)):
                batch = stretches_in(file.stretches)
                found += zip(batch.column(0), batch.column(1), strict=True)
        return found

    @property
    def is_large(self) -> bool:
        """Whether it is divided by hash: then it is searched on disk."""
        return any(file.order == "hash" for file in self.files)

    def found(self, keys: Sequence[pa.Array]) -> Flags:
        """Return for each row whether its key is in the index: see `search`."""
        places = list(self.search([keys]))
        return np.concatenate([np.zeros(0, dtype=np.int64), *places]) >= 0

    def search(self, batches: Iterable[Sequence[pa.Array]]) -> Iterator[Places]:
        """Yield the number of each row's key; -1 if it is not in the index. Runs on an executor.

        Args:
            batches: The key columns of rows.

        Yields:
            The numbers of the rows in order, not of as many rows at a time as a batch has.

        Raises:
            LedgerDamagedError: A file of the index is gone, or not as it was written.
            ExecutorSetupError: The executor's disk has no room for the index.
        """
        global _last_read  # noqa: PLW0603 - one for each process.
        known, search = _last_read
        if known != self.files or search is None:
            search = self._large() if self.is_large else self._small()
            _last_read = (self.files, search)
        elif isinstance(search, BucketSearch):
            search.storage = self.storage  # Its credentials are newer.
        return search.search(batches)

    def written_hits(self, numbers: Places) -> str:
        """Keep the numbers of keys that were found, and return them as text: see `key_hits`."""
        return write_hits(self.storage, self.layout, numbers, self.rows)

    def _large(self) -> BucketSearch:
        return BucketSearch(
            storage=self.storage, layout=self.layout, files=self.files, columns=len(self.on)
        )

    def _small(self) -> _InMemory:
        return _InMemory([(self._read(file), file.rows) for file in self.files])

    def _read(self, file: IndexFile) -> KeySet:
        uri = self.layout.part(file.name)
        data = read_whole(self.storage, uri, file.digest)
        table = pa.Table.from_batches(parquet_batches(uri, data, rows=file.rows))
        if table.num_columns != len(self.on):
            raise LedgerDamagedError(uri=uri, reason="it has other columns than the key")
        return KeySet([one_array(column) for column in table.columns])


@dataclass(frozen=True, slots=True)
class _InMemory:
    """The files of an index that are small enough to be held."""

    sets: Sequence[tuple[KeySet, int]]

    def search(self, batches: Iterable[Sequence[pa.Array]]) -> Iterator[Places]:
        """Yield the number of each row's key: see `KeyIndex.search`."""
        for keys in batches:
            found, first = np.full(len(keys[0]), -1, dtype=np.int64), 0
            for keyset, rows in self.sets:
                places = keyset.found(keys)
                found = np.where(places < 0, found, places + first)
                first += rows
            yield found


# The index that was last read in this process, for the next task. Its files have digests: the same
# files are the same keys.
_last_read: tuple[tuple[IndexFile, ...], BucketSearch | _InMemory | None] = ((), None)


# ---- Building it, on an executor


@dataclass(frozen=True, kw_only=True)
class IndexPlan:
    """The work of the job that builds an index. Pickled on the driver, never stored."""

    reader: StagedReaderSpec
    storage: Storage = field(repr=False)
    layout: RunLayout
    name: str
    limits: Limits = DEFAULT_LIMITS

    def run(self, batches: Iterable[pa.RecordBatch], *, place: int, attempt: int) -> TaskReport:
        """Write the keys of each work item into one file of the index. Runs on an executor."""
        reader, built = self.reader.open(), []
        with io_runtime().bounded(self.limits.in_flight_bytes):
            for number, item in enumerate(item_texts(batches)):
                name = f"{self.name}-{place:05d}-{attempt}-{number}.parquet"
                held, size = [], 0
                for batch in reader.rows(item):
                    held.append(batch)
                    size += batch.nbytes
                    if size > SMALL_BYTES:
                        break
                if size > SMALL_BYTES:
                    built.append(Built(is_too_large=True).to_json())
                    continue
                keys = pa.Table.from_batches(held, schema=reader.schema)
                built.append(self._write(name, keys).to_json())
        return TaskReport(place=place, results=tuple(built))

    def _write(self, name: str, keys: pa.Table) -> Built:
        ordered = by_value(keys)
        doubled = doubles(ordered)
        if doubled.num_rows:
            examples = doubled.slice(0, _EXAMPLES).to_pylist()
            return Built(doubles=doubled.num_rows, examples=[str(row) for row in examples])
        failpoint("before-index")
        file = write_keys(self.storage, self.layout.part(name), ordered)
        failpoint("after-index")
        return Built(
            file=IndexFile(
                name=name,
                digest=file.digest,
                rows=ordered.num_rows,
                size_bytes=file.size_bytes,
                stretches=stretches_of(one_array(ordered.column(0))),
            )
        )


@dataclass(frozen=True, kw_only=True)
class FindPlan:
    """The work of the job that finds keys of staged files in the index. Pickled on the driver."""

    reader: StagedReaderSpec
    index: KeyIndex
    limits: Limits = DEFAULT_LIMITS

    def run(self, batches: Iterable[pa.RecordBatch], *, place: int, attempt: int) -> TaskReport:  # noqa: ARG002 - a plan's arguments.
        """Keep the numbers of the keys of each work item. Runs on an executor.

        Raises:
            LedgerDamagedError: The index lacks one of them.
        """
        reader, found = self.reader.open(), []
        with io_runtime().bounded(self.limits.in_flight_bytes):
            for item in item_texts(batches):
                keys = (batch.columns for batch in reader.rows(item))
                places = np.concatenate([np.zeros(0, np.int64), *self.index.search(keys)])
                if (places < 0).any():
                    uri = self.index.layout.part(self.index.name)
                    raise LedgerDamagedError(uri=uri, reason="it lacks keys of staged rows")
                found.append(self.index.written_hits(places))
        return TaskReport(place=place, results=tuple(found))


def write_keys(storage: Storage, uri: str, keys: pa.Table) -> DigestingArrowFile:
    """Write a file of an index, and return it."""
    file = DigestingArrowFile(storage.open_sink(uri))
    pq.write_table(
        keys,
        pa.PythonFile(file, mode="w"),
        compression="zstd",
        use_dictionary=False,
        write_statistics=False,
        write_page_checksum=True,
    )
    file.finish()
    return file


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What became of one work item: a file of the index, or keys that are there twice."""

    file: IndexFile | None = None
    doubles: int = 0
    examples: Sequence[str] = ()
    # Whether it has more keys than one task sorts.
    is_too_large: bool = False

    def to_json(self) -> str:
        """Return it as JSON text: it is reported to the driver, and never stored."""
        file = self.file and self.file.to_json()
        return json.dumps([file, self.doubles, list(self.examples), self.is_too_large])

    @classmethod
    def from_json(cls, text: str) -> Built:
        """Read back what `to_json` gave."""
        file, doubled, examples, is_too_large = json.loads(text)
        made = None if file is None else IndexFile.from_json(file)
        return cls(file=made, doubles=doubled, examples=examples, is_too_large=is_too_large)


def file_item(files: Iterable[tuple[str, int]]) -> str:
    """Return staged files as the text of a work item: their paths and sizes."""
    return json.dumps([list(file) for file in files])


# ---- A large index: keys are divided by hash into pieces, and these are merged
# How many bytes of keys one task holds to make a piece of them.
_PIECE_BYTES = 24 * 1024 * 1024
_HASH_BITS = 64
_DIGEST_BYTES = 32


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
