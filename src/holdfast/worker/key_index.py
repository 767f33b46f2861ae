"""The key index of an upsert: the keys of its output rows, sorted, in files of the ledger.

A job builds it once all rows are staged, from the key columns of the staged files. Tasks that look
for old rows in the table's files read it, and never see a row of the output. Keys are compared by
value; where that is slow, their hashes are compared first.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pyarrow.types as pt

from holdfast.errors import LedgerDamagedError
from holdfast.failpoints import failpoint
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.parts import IndexFile
from holdfast.ledger.row_files import damage_at, parquet_batches
from holdfast.ledger.store import read_whole
from holdfast.model.limits import DEFAULT_LIMITS, Limits
from holdfast.sinks.base import KeyReaderSpec
from holdfast.storage.port import Storage
from holdfast.storage.runtime import io_runtime
from holdfast.storage.upload import DigestingArrowFile
from holdfast.worker.coverage import is_text, key_hashes
from holdfast.worker.reports import TaskReport

# How many stretches of keys without a large gap are told apart in one file.
_STRETCHES_MAX = 256
_EXAMPLES = 3

_Numbers = npt.NDArray[np.int64]
_Found = npt.NDArray[np.bool_]


# ---- Keys in memory, to be found by the keys of other rows


class KeySet:
    """Keys without duplicates, held so that the keys of other rows are found among them."""

    def __init__(self, keys: Sequence[pa.Array]) -> None:
        """Prepare the search.

        Args:
            keys: The key columns, none of them with NULL; sorted, if there is one column.
        """
        self._columns = [_comparable(column) for column in keys]
        self._is_number = len(keys) == 1 and pt.is_int64(self._columns[0].type)
        if self._is_number:
            self._sorted: npt.NDArray[Any] = _numbers(self._columns[0])
        else:
            hashes = key_hashes(self._columns)
            self._order = np.argsort(hashes)
            self._sorted = hashes[self._order]

    def found(self, keys: Sequence[pa.Array]) -> _Found:
        """Return for each row whether its key is among these; a key with NULL never is."""
        columns = [_comparable(column) for column in keys]
        found = np.zeros(len(columns[0]), dtype=bool)
        if not len(self._sorted) or not len(found):
            return found
        known = np.ones(len(found), dtype=bool)
        for column in columns:
            if column.null_count:
                known &= column.is_valid().to_numpy(zero_copy_only=False)
        rows = np.flatnonzero(known)
        if self._is_number:
            values = _numbers(columns[0])[rows]
            at = np.minimum(np.searchsorted(self._sorted, values), len(self._sorted) - 1)
            found[rows] = self._sorted[at] == values
            return found
        hashes = key_hashes(columns)[rows]
        at = np.searchsorted(self._sorted, hashes)
        while len(rows):  # As often as different keys share a hash.
            inside = at < len(self._sorted)
            rows, hashes, at = rows[inside], hashes[inside], at[inside]
            alike = self._sorted[at] == hashes
            rows, hashes, at = rows[alike], hashes[alike], at[alike]
            same = self._same(columns, rows, self._order[at])
            found[rows[same]] = True
            rows, hashes, at = rows[~same], hashes[~same], at[~same] + 1
        return found

    def _same(self, columns: Sequence[pa.Array], rows: _Numbers, places: _Numbers) -> _Found:
        """Return whether each of some rows has the key at a place."""
        same = np.ones(len(rows), dtype=bool)
        for theirs, ours in zip(columns, self._columns, strict=True):
            equal = pc.equal(theirs.take(pa.array(rows)), ours.take(pa.array(places)))
            same &= equal.to_numpy(zero_copy_only=False)
        return same


def _comparable(column: pa.Array) -> pa.Array:
    """Return a key column as int64 or bytes: equal if and only if the values are."""
    if isinstance(column, pa.ExtensionArray):
        column = column.storage
    kind = column.type
    if pt.is_timestamp(kind) or pt.is_time64(kind):
        return column.view(pa.int64())
    if pt.is_date32(kind):
        return column.view(pa.int32()).cast(pa.int64())
    if pt.is_integer(kind) or pt.is_boolean(kind):
        return column.cast(pa.int64())
    if pt.is_decimal(kind):
        width = kind.bit_width // 8
        column = pa.Array.from_buffers(
            pa.binary(width), len(column), column.buffers(), offset=column.offset
        )
    return column if is_text(column.type) else column.cast(pa.binary())


def _numbers(column: pa.Array) -> _Numbers:
    """Return a column of int64, with any number in place of NULL."""
    filled = column.fill_null(0) if column.null_count else column
    return np.asarray(filled.to_numpy(zero_copy_only=False), dtype=np.int64)


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
                batch = _from_text(file.stretches)
                found += zip(batch.column(0), batch.column(1), strict=True)
        return found

    def found(self, keys: Sequence[pa.Array]) -> _Found:
        """Return for each row whether its key is in the index. Runs on an executor.

        Raises:
            LedgerDamagedError: A file of the index is gone, or not as it was written.
        """
        global _last_read  # noqa: PLW0603 - one for each process.
        known, sets = _last_read
        if known != self.files:
            sets = [self._read(file) for file in self.files]
            _last_read = (self.files, sets)
        found = np.zeros(len(keys[0]), dtype=bool)
        for keyset in sets:
            found |= keyset.found(keys)
        return found

    def _read(self, file: IndexFile) -> KeySet:
        uri = self.layout.part(file.name)
        data = read_whole(self.storage, uri, file.digest)
        table = pa.Table.from_batches(parquet_batches(uri, data, rows=file.rows))
        if table.num_columns != len(self.on):
            raise LedgerDamagedError(uri=uri, reason="it has other columns than the key")
        return KeySet([_one_array(column) for column in table.columns])


# The index that was last read in this process, for the next task. Its files have digests: the same
# files are the same keys.
_last_read: tuple[tuple[IndexFile, ...], list[KeySet]] = ((), [])


def _one_array(column: pa.ChunkedArray) -> pa.Array:
    chunks = column.chunks
    return pa.concat_arrays(chunks) if chunks else pa.array([], column.type)


# ---- Building it, on an executor


@dataclass(frozen=True, kw_only=True)
class IndexPlan:
    """The work of the job that builds an index. Pickled on the driver, never stored."""

    reader: KeyReaderSpec
    storage: Storage = field(repr=False)
    layout: RunLayout
    name: str
    limits: Limits = DEFAULT_LIMITS

    def run(self, batches: Iterable[pa.RecordBatch], *, place: int, attempt: int) -> TaskReport:
        """Write the keys of each work item into one file of the index. Runs on an executor."""
        reader, built = self.reader.open(), []
        with io_runtime().bounded(self.limits.in_flight_bytes):
            items = (text for batch in batches for text in batch.column(0).to_pylist())
            for number, item in enumerate(items):
                keys = pa.Table.from_batches(reader.keys(item), schema=reader.schema)
                name = f"{self.name}-{place:05d}-{attempt}-{number}.parquet"
                built.append(self._write(name, keys).to_json())
        return TaskReport(place=place, results=tuple(built))

    def _write(self, name: str, keys: pa.Table) -> Built:
        ordered = _sorted(keys)
        doubles = _doubles(ordered)
        if doubles.num_rows:
            examples = doubles.slice(0, _EXAMPLES).to_pylist()
            return Built(doubles=doubles.num_rows, examples=[str(row) for row in examples])
        failpoint("before-index")
        file = DigestingArrowFile(self.storage.open_sink(self.layout.part(name)))
        pq.write_table(
            ordered,
            pa.PythonFile(file, mode="w"),
            compression="zstd",
            use_dictionary=False,
            write_statistics=False,
            write_page_checksum=True,
        )
        file.finish()
        failpoint("after-index")
        return Built(
            file=IndexFile(
                name=name,
                digest=file.digest,
                rows=ordered.num_rows,
                size_bytes=file.size_bytes,
                stretches=_stretches(_one_array(ordered.column(0))),
            )
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What became of one work item: a file of the index, or keys that are there twice."""

    file: IndexFile | None = None
    doubles: int = 0
    examples: Sequence[str] = ()

    def to_json(self) -> str:
        """Return it as JSON text: it is reported to the driver, and never stored."""
        return json.dumps([self.file and self.file.to_json(), self.doubles, list(self.examples)])

    @classmethod
    def from_json(cls, text: str) -> Built:
        """Read back what `to_json` gave."""
        file, doubles, examples = json.loads(text)
        made = None if file is None else IndexFile.from_json(file)
        return cls(file=made, doubles=doubles, examples=examples)


def _sorted(keys: pa.Table) -> pa.Table:
    """Return keys in the order of their values; of bytes, if they are no numbers."""
    columns = {str(n): _comparable(_one_array(c)) for n, c in enumerate(keys.columns)}
    order = pa.table(columns)
    if pt.is_decimal(keys.schema.field(0).type):  # Its bytes are not in the order of its values.
        order = order.set_column(0, "0", keys.column(0))
    return keys.take(pc.sort_indices(order, [(name, "ascending") for name in columns]))


def _doubles(ordered: pa.Table) -> pa.Table:
    """Return the keys that are there more than once, once each; the keys are sorted."""
    rows = ordered.num_rows
    if rows < 2:  # noqa: PLR2004
        return ordered.slice(0, 0)
    same = np.ones(rows - 1, dtype=bool)
    for column in ordered.columns:
        values = _comparable(_one_array(column))
        same &= pc.equal(values.slice(1), values.slice(0, rows - 1)).to_numpy(zero_copy_only=False)
    # Of a key that is there three times, only the first pair.
    firsts = same & ~np.concatenate(([False], same[:-1]))
    return ordered.take(pa.array(np.flatnonzero(firsts)))


def _stretches(values: pa.Array) -> str:
    """Return the first and last value of stretches of sorted values, cut at the largest gaps."""
    places = _places(_comparable(values), values)
    count = min(_STRETCHES_MAX, len(values)) - 1
    gaps = np.diff(places)
    cuts = np.sort(np.argsort(gaps)[len(gaps) - max(0, count) :])
    firsts = np.append([0], cuts + 1)[: len(values)]
    lasts = np.append(cuts, [len(values) - 1])[: len(values)]
    columns = [values.take(pa.array(ends.astype(np.int64))) for ends in (firsts, lasts)]
    stream = pa.BufferOutputStream()
    found = pa.record_batch(columns, ["first", "last"])
    with pa.ipc.new_stream(stream, found.schema) as writer:
        writer.write_batch(found)
    return base64.b64encode(stream.getvalue()).decode()


def _places(comparable: pa.Array, values: pa.Array) -> npt.NDArray[np.float64]:
    """Return numbers in the order of sorted values, roughly as far apart as these."""
    if not len(values):
        return np.array([])
    if pt.is_decimal(values.type):
        return np.asarray(values.cast(pa.float64()), dtype=np.float64)
    if pt.is_int64(comparable.type):
        return _numbers(comparable).astype(np.float64)
    data = comparable.cast(pa.binary())
    first, last = data[0].as_py(), data[-1].as_py()
    pairs = zip(first, last, strict=False)
    alike = next((at for at, pair in enumerate(pairs) if pair[0] != pair[1]), 0)
    heads = pc.binary_slice(data, alike, alike + 8)
    padded = [head.ljust(8, b"\0") for head in heads.to_pylist()]
    return np.frombuffer(b"".join(padded), dtype=">u8").astype(np.float64)


def _from_text(text: str) -> pa.RecordBatch:
    """Return the stretches of a file.

    Raises:
        ArrowInvalid: The text is damaged.
    """
    try:
        data = base64.b64decode(text, validate=True)
    except ValueError as error:
        raise pa.ArrowInvalid(str(error)) from error
    with pa.ipc.open_stream(pa.BufferReader(data)) as reader:
        batch = reader.read_next_batch()
    batch.validate(full=True)
    return batch


def file_item(files: Iterable[tuple[str, int]]) -> str:
    """Return staged files as the text of a work item: their paths and sizes."""
    return json.dumps([list(file) for file in files])
