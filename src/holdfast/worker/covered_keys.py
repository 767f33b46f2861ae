"""Covered keys: which input rows the record to come will cover."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.ledger.key_files import KeyFile
from holdfast.model.work import NOTHING, Coverage
from holdfast.sources.base import KEY_HASH, ROW_HASH
from holdfast.storage.port import Storage
from holdfast.worker.key_hash import hash_sums, hashable, key_hashes
from holdfast.worker.tags import hashes_of


class NullKeysError(Exception):
    """Rows have NULL in their key. Only without an input check does a task see them."""

    def __init__(self, rows: int) -> None:
        """Keep how many."""
        super().__init__(rows)
        self.rows = rows


def refuse_null_keys(batch: pa.RecordBatch, key: Sequence[str]) -> None:
    """Stop before rows without a key are paid for: a join would never find them finished.

    Raises:
        NullKeysError: There are some.
    """
    columns = zip(batch.schema.names, batch.columns, strict=True)
    if nulls := max((column.null_count for name, column in columns if name in key), default=0):
        raise NullKeysError(nulls)


class CoveredKeys:
    """Adds up the keys of one record and writes them down."""

    def __init__(self, storage: Storage, uri: str, key: Sequence[str]) -> None:
        """Start empty.

        Args:
            storage: How the store is reached.
            uri: Where the keys are to stand.
            key: The key columns.
        """
        self._key = tuple(key)
        self._file = KeyFile(storage, uri)
        self._rows = self._low = self._high = 0
        self._row_low: int | None = None
        self._row_high: int | None = None
        self._span: tuple[int, int] | None = None
        self._grows = True

    @property
    def rows(self) -> int:
        """How many rows were added."""
        return self._rows

    def add(self, batch: pa.RecordBatch, tags: pa.Array | None) -> None:
        """Cover more input rows.

        Args:
            batch: The rows.
            tags: What Spark itself has hashed of each row; None to hash the key here.
        """
        columns = [batch.column(name) for name in self._key]
        hashed = hashes_of(tags)
        low, high = hash_sums(hashed[KEY_HASH] if KEY_HASH in hashed else key_hashes(columns))
        if ROW_HASH in hashed:
            row_low, row_high = hash_sums(hashed[ROW_HASH])
            self._row_low = (self._row_low or 0) + row_low
            self._row_high = (self._row_high or 0) + row_high
        self._rows += batch.num_rows
        self._low += low
        self._high += high
        self._follow(columns)
        self._file.add(self._key, columns)

    def finish(self) -> Coverage:
        """Make the keys durable."""
        if not self._rows:
            return NOTHING
        return Coverage(
            rows=self._rows,
            low=self._low,
            high=self._high,
            row_low=self._row_low,
            row_high=self._row_high,
            keys_bytes=self._file.finish(),
            span=self._span if self._grows else None,
        )

    def abandon(self) -> None:
        """Give the keys up."""
        self._file.abandon()

    def _follow(self, columns: Sequence[pa.Array]) -> None:
        """Keep the span, as long as the keys grow from row to row."""
        if not self._grows:
            return
        (first, *others) = columns
        if others or not pa.types.is_integer(first.type) or first.null_count or not len(first):
            self._grows = False
            return
        low, high = first[0].as_py(), first[-1].as_py()
        goes_on = self._span is None or low > self._span[1]
        # Of a single row there is nothing to compare, and pyarrow says NULL of nothing.
        self._grows = goes_on and pc.all(pc.greater(first[1:], first[:-1])).as_py() is not False
        if self._grows:
            self._span = (low if self._span is None else self._span[0], high)


def needs_hash_column(types: Sequence[pa.DataType]) -> bool:
    """Whether Spark must add the hash, because it is not computed here for such keys."""
    return not all(hashable(kind) for kind in types)
