"""The key index of an upsert: the keys of its output rows, sorted, in files of the ledger.

A job builds it once all rows are staged, from the key columns of the staged files. Tasks that look
for old rows in the table's files read it, and never see a row of the output.

A small index is one file, sorted by value, which each worker process holds in memory. A large one
is many, divided and sorted by hash (`key_buckets`), which a search streams from the executor's disk
(`key_search`). Either way each key has a number, its place in the files: so it can be counted how
many keys were found.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import LedgerDamagedError
from holdfast.failpoints import failpoint
from holdfast.ledger.key_hits import write_hits
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.parts import IndexFile
from holdfast.ledger.row_files import damage_at, parquet_batches
from holdfast.ledger.store import read_whole
from holdfast.model.limits import DEFAULT_LIMITS, Limits
from holdfast.sinks.base import StagedReaderSpec
from holdfast.storage.port import Storage
from holdfast.storage.runtime import io_runtime
from holdfast.storage.upload import DigestingArrowFile
from holdfast.worker.key_search import BucketSearch
from holdfast.worker.key_values import (
    Flags,
    KeySet,
    Places,
    by_value,
    doubles,
    one_array,
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
