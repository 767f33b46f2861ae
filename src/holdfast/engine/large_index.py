"""A large index of keys: two jobs divide the keys by hash and merge them, at most twice.

What the first job wrote is recorded, so that a start after a kill goes on with the second. If it
has been lost since, both run again: the staged files hold the same keys.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from holdfast.engine.passes import raise_problems
from holdfast.engine.ports import Submitter, interruptible
from holdfast.errors import JobFailedError, LedgerDamagedError, UnsupportedTableError
from holdfast.ledger.ledger import Ledger, log_step
from holdfast.ledger.parts import KeyPiece, read_list, write_list
from holdfast.ledger.row_files import damage_at
from holdfast.model.limits import Limits
from holdfast.model.records import Indexed
from holdfast.model.report import counted
from holdfast.sinks.base import StagedReaderSpec
from holdfast.worker.key_index import BucketPlan, Built, PiecePlan, bucket_items, file_item
from holdfast.worker.key_values import united_stretches
from holdfast.worker.reports import TaskReport

# More bytes of keys are refused. What a key takes in memory counts: its value, and for a text or
# bytes of any length 8 more.
KEYS_BYTES_MAX = 32 * 10**9
# How many rows of staged files one task of the first job reads, about.
_ITEM_ROWS_MIN, _ITEM_ROWS_MAX = 500_000, 4_000_000
# How many keys a slot has, about; slots are what one file of the index cannot be less than.
_SLOT_ROWS = 32_768
_SLOT_BITS_MIN, _SLOT_BITS_MAX = 2, 11
# How many bytes of keys one file of the index has, about; for very many keys more.
_BUCKET_BYTES = 8 * 1024 * 1024
_BUCKETS = 1024
# How many characters the work items of one job have, about: Spark sends them with its plan.
_ITEMS_CHARACTERS = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class LargeIndex:
    """Builds one index."""

    ledger: Ledger
    table: str
    submitter: Submitter
    reader: StagedReaderSpec = field(repr=False)
    limits: Limits
    # What the keys are those of: see `Indexed`.
    work: str
    meaning: str

    def built(self, name: str, files: Sequence[tuple[str, int, int]], rows: int) -> list[Built]:
        """Return the files of the index, or the keys that are there twice.

        Args:
            name: The beginning of the names of its objects; no other index uses it.
            files: The staged files: path, size and rows.
            rows: How many rows they have.

        Raises:
            UnsupportedTableError: There are too many keys.
            LedgerDamagedError: What tasks had just written is gone.
            JobFailedError: Keys are missing.
            JobError: A job could not be run.
        """
        if (pieces := self._known(rows)) is not None:
            merged, damaged = self._merged(name, pieces)
            if not damaged:
                return merged
            log_step(self.ledger.run_id, f"divides the keys again: {damaged[0]}")
            name = f"{name}-again"
        pieces = self._pieces(name, files, rows)
        merged, damaged = self._merged(name, pieces)
        if damaged:
            uri, _, reason = damaged[0].partition(": ")
            raise LedgerDamagedError(uri=uri, reason=reason)
        return merged

    def _known(self, rows: int) -> list[KeyPiece] | None:
        """Return the pieces that an earlier start has recorded."""
        ledger = self.ledger
        for known in reversed(ledger.log.indexed):
            of = (known.work, known.meaning, known.rows)
            if known.is_in_pieces and of == (self.work, self.meaning, rows):
                try:
                    return read_list(ledger.storage, ledger.layout, known.index, KeyPiece)
                except LedgerDamagedError:
                    return None
        return None

    def _pieces(
        self, name: str, files: Sequence[tuple[str, int, int]], rows: int
    ) -> list[KeyPiece]:
        """Run the job that divides keys.

        Raises:
            UnsupportedTableError: There are too many keys.
            JobFailedError: Keys are missing.
            JobError: The job could not be run.
        """
        ledger = self.ledger
        self._refuse_too_large(8 * rows)
        items = _items(files, rows, self.submitter.slots)
        log_step(ledger.run_id, f"divides the keys in {counted(len(items), 'task')}")
        plan = PiecePlan(
            reader=self.reader,
            storage=ledger.storage,
            layout=ledger.layout,
            name=name,
            slot_bits=slot_bits(rows),
            limits=self.limits,
        )
        with interruptible(lambda _reason: None):
            reports = self.submitter.items(plan, items)
        raise_problems(reports)
        pieces = [KeyPiece.from_json(text) for report in reports for text in report.results]
        if sum(sum(piece.rows) + piece.left_out for piece in pieces) != rows:
            raise JobFailedError(reason="the index does not hold the keys of all staged rows")
        self._refuse_too_large(sum(piece.key_bytes for piece in pieces))
        part = write_list(ledger.storage, ledger.layout, f"{name}-pieces.parquet", pieces)
        known = Indexed(
            index=part, work=self.work, meaning=self.meaning, rows=rows, is_in_pieces=True
        )
        ledger.log.append(known)
        return pieces

    def _merged(self, name: str, pieces: Sequence[KeyPiece]) -> tuple[list[Built], list[str]]:
        """Run the job that merges pieces; return also what it found damaged.

        Raises:
            JobFailedError: Keys are missing.
            JobError: The job could not be run.
        """
        size = sum(piece.key_bytes for piece in pieces)
        items = bucket_items(pieces, max(_BUCKET_BYTES, size // _BUCKETS))
        log_step(self.ledger.run_id, f"sorts the keys in {counted(len(items), 'task')}")
        plan = BucketPlan(
            storage=self.ledger.storage,
            layout=self.ledger.layout,
            name=name,
            schema=self.reader.open().schema,
            limits=self.limits,
        )
        reports: list[TaskReport] = []
        for some in _by_size(items):
            with interruptible(lambda _reason: None):
                done = self.submitter.items(plan, some)
            raise_problems(done)
            reports += done
        if damaged := [text for report in reports for text in report.damaged]:
            return [], damaged
        texts = [json.loads(text) for report in reports for text in report.results]
        if sorted(number for number, _ in texts) != sorted(json.loads(item)[0] for item in items):
            raise JobFailedError(reason="tasks that sort keys are missing, or there twice")
        found = [Built.from_json(text) for _, text in sorted(texts)]
        if not any(some.doubles for some in found) and found[0].file is not None:
            with damage_at(self.ledger.layout.parts):
                stretches = united_stretches([piece.stretches for piece in pieces])
            found[0] = Built(file=replace(found[0].file, stretches=stretches))
        return found, []

    def _refuse_too_large(self, key_bytes: int) -> None:
        """Stop before an index is built that no executor could search.

        Raises:
            UnsupportedTableError: There are too many keys.
        """
        if key_bytes > KEYS_BYTES_MAX:
            raise UnsupportedTableError(
                table=self.table,
                what=f"the keys to be merged take {key_bytes / 10**9:,.1f} GB, and an upsert takes "
                f"{KEYS_BYTES_MAX / 10**9:,.0f} GB",
                cure="merge them in several runs, each with a part of the keys",
            )


def slot_bits(rows: int) -> int:
    """Return how many bits of a hash tell slots apart."""
    return min(_SLOT_BITS_MAX, max(_SLOT_BITS_MIN, (rows // _SLOT_ROWS).bit_length()))


def _by_size(items: Sequence[str]) -> Iterator[list[str]]:
    """Yield work items in as many jobs as their size needs."""
    some: list[str] = []
    for item in items:
        if some and sum(map(len, some)) + len(item) > _ITEMS_CHARACTERS:
            yield some
            some = []
        some.append(item)
    if some:
        yield some


def _items(files: Iterable[tuple[str, int, int]], rows: int, slots: int) -> list[str]:
    """Return staged files as work items of about as many rows."""
    rows_of_item = min(_ITEM_ROWS_MAX, max(_ITEM_ROWS_MIN, rows // max(1, slots)))
    items: list[list[tuple[str, int]]] = []
    held = rows_of_item
    for path, size, rows_of_file in files:
        if held >= rows_of_item:
            items.append([])
            held = 0
        items[-1].append((path, size))
        held += rows_of_file
    return [file_item(item) for item in items]
