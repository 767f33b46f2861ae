"""Input check: keys are unique, and covered rows are disjoint and add up to the input.

Integer keys are compared directly, other keys by hash: equal keys have equal hashes, so if all
hashes differ, all keys do. Sorting twelve million of them took 0.3 s (ADR 0006). Spark compares
the keys if there are more than sixteen million, if their hash is not computed here (only that of
large decimals), or if two hashes are equal: two different keys may share a hash.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn

import numpy as np
import pyarrow as pa

from holdfast.engine.options import WriteOptions
from holdfast.engine.ports import Submitter
from holdfast.engine.workbook import Workbook
from holdfast.errors import (
    DuplicateKeyError,
    InputChangedError,
    JobError,
    JobFailedError,
    LedgerDamagedError,
    NullKeyError,
    RunMismatchError,
)
from holdfast.ledger.ledger import Ports
from holdfast.ledger.row_files import KeyFiles, read_key_table
from holdfast.ledger.store import answers
from holdfast.model.coverage import InputSums, changed_columns
from holdfast.model.work import TaskRecord, Work
from holdfast.worker.coverage import hash_sums, hashable, key_hashes

# ---- Unique keys: a quick proof on the driver that no key is covered twice

_ROWS_MAX = 16_000_000
# How much is read at once: so many key files, or so many bytes of them.
_READS_AT_ONCE = 256
_READ_BYTES = 32 << 20


def all_differ(work: Work, finished: KeyFiles) -> bool:
    """Whether it is proved that no key is covered twice; False if that is not known.

    Raises:
        LedgerDamagedError: A key file is not as it was written.
        StoreUnavailableError: The store did not answer.
    """
    if work.proves_unique():
        return True
    records = work.with_keys
    if work.sums.rows > _ROWS_MAX:
        return False
    # In one array: with parts to be joined there would be twice as much at the end.
    keys = np.empty(sum(record.coverage.rows for record in records), np.uint64)
    filled = 0
    are_hashes: set[bool] = set()
    for some in _portions(records):
        uris = [finished.uris[record.name] for record in some]
        with answers(uris[0]):
            files = finished.storage.get_many(uris)
        for record, uri, data in zip(some, uris, files, strict=True):
            part, is_hash = _comparable(record, uri, data)
            are_hashes.add(is_hash)
            # A column's type may have changed: a number is not comparable with a number's hash.
            if part is None or len(are_hashes) > 1:
                return False
            keys[filled : filled + len(part)] = part
            filled += len(part)
    keys.sort()
    return not bool(np.any(keys[1:] == keys[:-1]))


def _portions(records: Sequence[TaskRecord]) -> Iterator[list[TaskRecord]]:
    """Yield records whose key files are read at once: many small ones, or few large ones."""
    some: list[TaskRecord] = []
    size = 0
    for record in records:
        some.append(record)
        size += record.coverage.keys_bytes
        if len(some) >= _READS_AT_ONCE or size >= _READ_BYTES:
            yield some
            some, size = [], 0
    if some:
        yield some


def _comparable(record: TaskRecord, uri: str, data: bytes | None) -> tuple[np.ndarray | None, bool]:
    """Return one record's keys as numbers, and whether these are hashes.

    None if they cannot be hashed here.

    Raises:
        LedgerDamagedError: The key file is not as it was written.
    """
    if data is None:
        raise LedgerDamagedError(uri=uri, reason="missing")
    keys = read_key_table(uri, data, record.coverage.rows)
    columns = [column.combine_chunks() for column in keys.columns]
    if len(columns) == 1 and pa.types.is_integer(columns[0].type):
        # Whole numbers need no hash; as 64 bits without a sign they still differ.
        values: np.ndarray = columns[0].to_numpy(zero_copy_only=False)
        return values.astype(np.int64, copy=False).view(np.uint64), False
    if not all(hashable(column.type) for column in columns):
        return None, True
    hashes = key_hashes(columns)
    if hash_sums(hashes) != (record.coverage.low, record.coverage.high):
        raise LedgerDamagedError(uri=uri, reason="its keys are not the ones that were covered")
    return hashes, True


# ---- Input check: covered rows must be disjoint, and add up to the input

# An input that differs each time it is read may settle; if it does not, stop paying for it.
_DROPS_MAX = 5
# Up to this many keys, read within this time, are all compared before the first row is computed,
# which costs about as much again. For larger inputs a sample is compared.
_COMPARED_ROWS_MAX = 1_000_000
_COMPARED_SECONDS_MAX = 10.0
# If a job runs longer than this, all keys are compared while it runs.
_COMPARED_AFTER_S = 60.0
_NOT_ALL_ARRIVED = (
    "some rows of run.remaining() are missing here; the steps in between must keep every row "
    "and its key"
)


class InputCheck:
    """Compares the rows that one start has covered with its input."""

    def __init__(
        self,
        book: Workbook,
        submitter: Submitter,
        source: Submitter | None,
        options: WriteOptions,
        ports: Ports,
    ) -> None:
        """Take the parts; nothing is read yet.

        Args:
            book: The accepted work.
            submitter: The input.
            source: The whole input, if `submitter` reads a *derived* one: made from the rows that
                `remaining` returned, and so without the finished rows.
            options: Whether to check at all, and whether rows have a price.
            ports: Time, and how to run a check during the job.
        """
        self._book = book
        self._submitter = submitter
        self._is_derived = source is not None
        self._source = source or submitter
        self._options = options
        self._ports = ports
        # What a check during the job has found.
        self._found: DuplicateKeyError | None = None
        # The records whose rows a derived input lacks.
        self._counted_on = {record.name for record in book.work.with_keys} if source else set()
        self._drops = 0

    def errors_max(self, rows_seen: int) -> int:
        """Return how many rows may fail, based on the input's rows or else on those seen."""
        rows = self.measured().rows if self._options.verify_input else rows_seen
        return self._options.errors_max(rows)

    def rows_are_missing(self) -> bool:
        """Whether some input rows are not covered; records that cover a row twice are dropped.

        Raises:
            NullKeyError: Some rows have no key.
            DuplicateKeyError: Some rows share a key.
            InputChangedError: Finished and remaining rows do not add up to the input.
            RunMismatchError: Whole rows are to be compared, but finished rows have no row sums.
        """
        book = self._book
        if not self._options.verify_input and not book.all_rows_seen:
            return True
        if self._options.compares_rows and book.work.rows_without_sums:
            raise RunMismatchError(
                run_id=book.run_id, differences=without_row_sums(book.work.rows_without_sums)
            )
        if self._options.verify_input and not book.work.sums.matches(self.measured()):
            return self._remaining_rows() > 0
        clean = without_overlaps(book.work, self._source, book.finished)
        if clean is book.work:
            return False
        self._drop(clean)
        return True

    def _remaining_rows(self) -> int:
        """Return how many rows are left; together with the finished ones they are the input.

        Raises:
            InputChangedError: Finished and remaining rows do not add up to the input.
            DuplicateKeyError: Rows have a price, and some share a key.
        """
        book = self._book
        if not book.finished:
            rows = self.measured().rows
            if self._options.is_priced and not book.keys_differ:
                refuse_duplicates(self._source)
                book.keys_differ = True
            return rows
        return self._rest_rows()

    def _rest_rows(self) -> int:
        """Return how many unfinished rows the input itself holds.

        Raises:
            InputChangedError: Finished and remaining rows do not add up to the input.
        """
        book = self._book
        remaining = self._measure(book.finished)
        together = book.work.sums.plus(remaining)
        if not together.matches(self.measured()):
            clean = without_overlaps(book.work, self._source, book.finished)
            if clean is book.work and self._is_derived:
                raise InputChangedError(what=_NOT_ALL_ARRIVED)
            if clean is book.work and together.has_keys_of(self.measured()):
                raise InputChangedError(what=self._changed_values())
            if clean is book.work:
                refuse_mismatch(book.work, self._submitter, book.finished)
            self._drop(clean)
            return self._remaining_rows()
        return remaining.rows

    def stop_if_rows_are_gone(self) -> None:
        """Stop if a job read the whole input, and missing rows are not in it.

        A first job is planned from what was measured, which for a derived input is its source.

        Raises:
            InputChangedError: Missing rows are not in the input.
        """
        if self._options.verify_input and self._book.all_rows_seen:
            self._rest_rows()

    def _drop(self, clean: Work) -> None:
        """Leave out records that cover a row twice, so that their rows are computed again.

        Raises:
            InputChangedError: This has happened too often.
        """
        self._drops += 1
        if self._drops > _DROPS_MAX:
            raise InputChangedError(what="it returns different rows each time it is read")
        while self._book.drop(clean):  # What was replaced counts again, and may overlap, too.
            clean = without_overlaps(self._book.work, self._source, self._book.finished)
        self.stop_if_out_of_reach()

    def stop_if_out_of_reach(self) -> None:
        """Stop if rows must be computed again that a derived input does not hold.

        Raises:
            JobFailedError: The input was made from `remaining` when they counted as finished.
        """
        gone = self._counted_on - {record.name for record in self._book.work.with_keys}
        if gone:
            self._book.seal_changes()  # So that the next `remaining` returns their rows.
            raise JobFailedError(
                reason=f"{len(gone)} parts of the finished work no longer count, which "
                "run.remaining() did not know; run the same script again"
            )

    def measured(self) -> InputSums:
        """Read the input's keys once, before any row is paid for, and return their sums.

        Raises:
            NullKeyError: Some rows have no key.
        """
        book = self._book
        if book.input_sums is None and not book.finished and self._options.transform is not None:
            measure_and_compare(book, self._source, self._options, self._ports)
        if book.input_sums is None:
            book.input_sums = self._measure(KeyFiles(storage=book.finished.storage))
        refuse_null_keys(book.input_sums)
        return book.input_sums

    def compare_beside(self, ask_to_stop: Callable[[str], object]) -> Callable[[], None]:
        """Compare all keys during a long job, unless that is done; return what ends the check.

        Args:
            ask_to_stop: Asks the tasks to end in good order; takes the reason.
        """
        book, source = self._book, self._source
        if not self._options.verify_input or book.keys_differ:
            return lambda: None

        def compare() -> None:
            try:
                refuse_duplicates(source, beside=True)
            except DuplicateKeyError as error:
                self._found = error
                ask_to_stop(type(error).__name__)
            except JobError:
                return  # Keys are compared again when all rows are done.
            else:
                book.keys_differ = True

        end = self._ports.beside("key check", _COMPARED_AFTER_S, compare)

        def end_both() -> None:
            end()
            source.cancel_beside()

        return end_both

    def refuse_found(self) -> None:
        """Stop if a check during the job has found a key in two rows.

        Raises:
            DuplicateKeyError: A key is in two rows.
        """
        if self._found is not None:
            raise self._found

    def _measure(self, finished: KeyFiles) -> InputSums:
        return self._submitter.measure(finished, whole_rows=self._options.compares_rows)

    def _changed_values(self) -> str:
        """Say what has changed if finished and remaining rows together have the input's keys."""
        if changed := changed_columns(self._book.planned_columns, self.measured().columns):
            return changed
        return (
            f"the keys are the same, but some of the {self._book.work.sums.rows:,} finished rows "
            'now have different values (to keep them as they are, pass verify_input="keys")'
        )


def without_row_sums(rows: int) -> str:
    """Say why values cannot be compared."""
    return (
        f'verify_input is "rows", but {rows:,} rows were done without it, so their values were '
        'not recorded; verify_input="keys" compares their keys'
    )


def without_overlaps(work: Work, submitter: Submitter, finished: KeyFiles) -> Work:
    """Return the work with no key covered twice.

    Of two records that share a key the earlier one is kept. This happens when the input returns
    different rows each time it is read; a key in two input rows is the user's to fix.

    Raises:
        DuplicateKeyError: The input has a key twice.
    """
    if not work.with_keys or all_differ(work, finished):
        return work
    overlaps = submitter.overlaps(finished)
    if not overlaps:
        return work
    refuse_duplicates(submitter)
    dropped: set[str] = set()
    for names in sorted(overlaps):
        first, *others = sorted(names)
        dropped |= set(others) or {first}
    return work.without(dropped)


def refuse_mismatch(work: Work, submitter: Submitter, finished: KeyFiles) -> NoReturn:
    """Say why finished and remaining rows do not add up to the input, though none overlap.

    Raises:
        DuplicateKeyError: The input has a key twice, and one of its rows is done.
        InputChangedError: The input has changed, or returns different rows at each read.
    """
    refuse_duplicates(submitter)
    gone = submitter.gone(finished)
    if gone.keys:
        raise InputChangedError(
            what=f"{gone.keys} of {work.sums.rows} finished keys are no longer in it, "
            f"for example {gone.examples}"
        )
    raise InputChangedError(what="it returns different rows each time it is read")


def measure_and_compare(
    book: Workbook, submitter: Submitter, options: WriteOptions, ports: Ports
) -> None:
    """Measure an input before any of its rows is computed, and check that its keys differ.

    All keys are compared if a sample shows a duplicate, or if they are few; otherwise only the
    sample is compared.

    Raises:
        NullKeyError: Some rows have no key.
        DuplicateKeyError: Some rows share a key.
    """
    began = ports.now()
    book.input_sums, doubled = submitter.look(whole_rows=options.compares_rows)
    refuse_null_keys(book.input_sums)
    is_quick = ports.now() - began <= _COMPARED_SECONDS_MAX
    if doubled or (is_quick and book.input_sums.rows <= _COMPARED_ROWS_MAX):
        refuse_duplicates(submitter)
        book.keys_differ = True


def refuse_null_keys(sums: InputSums) -> None:
    """Stop if rows have no key; called before keys are compared, as NULLs look like duplicates.

    Raises:
        NullKeyError: Some rows have no key.
    """
    if sums.null_keys:
        raise NullKeyError(rows=sums.null_keys)


def refuse_duplicates(submitter: Submitter, *, beside: bool = False) -> None:
    """Stop if a key appears in two rows.

    Args:
        submitter: The input.
        beside: Whether a job runs at the same time.

    Raises:
        DuplicateKeyError: A key appears in two rows.
    """
    found = submitter.duplicates(beside=beside)
    if found.keys:
        raise DuplicateKeyError(keys=found.keys, examples=found.examples)
