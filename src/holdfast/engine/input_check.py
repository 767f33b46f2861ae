"""Input check: keys are unique, and what is covered is disjoint and adds up to the input.

Whole numbers are compared as they are. Of other keys the hashes are: equal keys have equal
hashes, so hashes that all differ prove it. Sorting twelve million of them took 0.3 s (ADR 0006).
Spark is asked for more than sixteen million, for keys whose hash is not computed here, and when
two are equal: two different keys may have one hash.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NoReturn

import numpy as np
import pyarrow as pa

from holdfast.engine.options import Choices
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
from holdfast.ledger.ports import Ports
from holdfast.ledger.row_files import KeyFiles, read_key_table
from holdfast.ledger.store import answers
from holdfast.model.coverage import InputSums, changed_columns
from holdfast.model.work import TaskRecord, Work
from holdfast.worker.coverage import hash_sums, hashable, key_hashes

# ---- Unique keys: a quick proof on the driver that no key is covered twice

_ROWS_MAX = 16_000_000
_READS_AT_ONCE = 8


def all_differ(work: Work, finished: KeyFiles) -> bool:
    """Whether it is proven that no key is covered twice; False if that is not known.

    Raises:
        LedgerDamagedError: A key file is not as it was written.
        StoreUnavailableError: The store did not answer.
    """
    if work.proves_unique():
        return True
    records = work.with_keys
    if work.sums.rows > _ROWS_MAX:
        return False
    found: list[np.ndarray] = []
    for start in range(0, len(records), _READS_AT_ONCE):
        some = records[start : start + _READS_AT_ONCE]
        uris = [finished.uris[record.name] for record in some]
        with answers(uris[0]):
            files = finished.storage.get_many(uris)
        for record, uri, data in zip(some, uris, files, strict=True):
            part = _comparable(record, uri, data)
            if part is None:
                return False
            found.append(part)
    keys = np.concatenate(found)
    keys.sort()
    return not bool(np.any(keys[1:] == keys[:-1]))


def _comparable(record: TaskRecord, uri: str, data: bytes | None) -> np.ndarray | None:
    """Return one record's keys as numbers that differ if the keys do; None if there are none.

    Raises:
        LedgerDamagedError: The key file is not as it was written.
    """
    if data is None:
        raise LedgerDamagedError(uri=uri, reason="missing")
    keys = read_key_table(uri, data, record.coverage.rows)
    columns = [column.combine_chunks() for column in keys.columns]
    if len(columns) == 1 and pa.types.is_integer(columns[0].type):
        values: np.ndarray = columns[0].to_numpy(
            zero_copy_only=False
        )  # Whole numbers need no hash.
        return values
    if not all(hashable(column.type) for column in columns):
        return None
    hashes = key_hashes(columns)
    if hash_sums(hashes) != (record.coverage.low, record.coverage.high):
        raise LedgerDamagedError(uri=uri, reason="other keys than were covered")
    return hashes


# ---- Input check: what is covered must be disjoint, and add up to the input

# An input that differs each time it is read may settle; one that does not must not be paid for
# again and again.
_DROPS_MAX = 5
# So few keys, read so quickly, are all compared before the first row is computed: that costs
# about as much again. Of larger inputs a sample is.
_COMPARED_ROWS_MAX = 1_000_000
_COMPARED_SECONDS_MAX = 10.0
# A job that runs for longer has all keys compared beside it.
_COMPARED_AFTER_S = 60.0
_NOT_ALL_ARRIVED = (
    "not every row of run.remaining() has arrived here; the steps between must keep each row "
    "and its key"
)


class InputCheck:
    """Compares what one start of a run has covered with its input."""

    def __init__(
        self,
        book: Workbook,
        submitter: Submitter,
        source: Submitter | None,
        choices: Choices,
        ports: Ports,
    ) -> None:
        """Take the parts; nothing is read yet.

        Args:
            book: What counts.
            submitter: The input.
            source: Where the input is *derived* from: it was made from the rows that `remaining`
                gave, and does not hold the finished ones.
            choices: Whether to check at all, and whether rows have a price.
            ports: Time, and what lets a check happen beside the job.
        """
        self._book = book
        self._submitter = submitter
        self._is_derived = source is not None
        self._source = source or submitter
        self._choices = choices
        self._ports = ports
        # What a check beside the job has found.
        self._found: DuplicateKeyError | None = None
        # The records whose rows a derived input lacks.
        self._counted_on = {one.name for one in book.work.with_keys} if source else set()
        self._drops = 0

    def errors_max(self, rows_seen: int) -> int:
        """Return how many rows may fail: of the input, or else of those that were seen."""
        rows = self.measured().rows if self._choices.verify_input else rows_seen
        return self._choices.errors_max(rows)

    def rows_are_missing(self) -> bool:
        """Whether input rows are not covered; leave out what is covered twice.

        Raises:
            NullKeyError: Some rows have no key.
            DuplicateKeyError: Some rows share a key.
            InputChangedError: Finished and remaining rows do not add up to the input.
            RunMismatchError: Values are to be compared, and were not noted for finished rows.
        """
        book = self._book
        if not self._choices.verify_input and not book.all_rows_seen:
            return True
        if self._choices.compares_rows and book.work.rows_without_sums:
            raise RunMismatchError(
                run_id=book.run_id, differences=without_row_sums(book.work.rows_without_sums)
            )
        if self._choices.verify_input and not book.work.sums.matches(self.measured()):
            return self._remaining_rows() > 0
        clean = without_overlaps(book.work, self._source, book.finished)
        if clean is book.work:
            return False
        self._drop(clean)
        return True

    def _remaining_rows(self) -> int:
        """Return how many rows are left; together with the finished ones they are the input.

        Raises:
            InputChangedError: They are not.
            DuplicateKeyError: Rows have a price, and some share a key.
        """
        book = self._book
        if not book.finished:
            rows = self.measured().rows
            if self._choices.is_priced and not book.keys_differ:
                refuse_duplicates(self._source)
                book.keys_differ = True
            return rows
        return self._rest_rows()

    def _rest_rows(self) -> int:
        """Return how many rows the input itself holds that are not finished.

        Raises:
            InputChangedError: Together with the finished ones they are not the input.
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
        """Stop if a job went through the whole input, and missing rows are not in it.

        A first job is planned from what was measured: of an input that is derived, the source.

        Raises:
            InputChangedError: They are not.
        """
        if self._choices.verify_input and self._book.all_rows_seen:
            self._rest_rows()

    def _drop(self, clean: Work) -> None:
        """Leave out what is covered twice, and compute it again.

        Raises:
            InputChangedError: It keeps happening.
        """
        self._drops += 1
        if self._drops > _DROPS_MAX:
            raise InputChangedError(what="it gives other rows each time it is read")
        self._book.drop(clean)
        self.stop_if_out_of_reach()

    def stop_if_out_of_reach(self) -> None:
        """Stop if rows have to be computed again that the input does not hold.

        Raises:
            JobFailedError: It was made from `remaining` when they counted as finished.
        """
        gone = self._counted_on - {record.name for record in self._book.work.with_keys}
        if gone:
            self._book.seal_changes()  # So the next `remaining` gives their rows.
            raise JobFailedError(
                reason=f"{len(gone)} parts of the finished work do not count any more, and "
                "run.remaining() did not know it; run the same script again"
            )

    def measured(self) -> InputSums:
        """Read the input's keys, once, before any row is paid for.

        Raises:
            NullKeyError: Some rows have no key.
        """
        book = self._book
        if book.input_sums is None and not book.finished and self._choices.transform is not None:
            measure_and_compare(book, self._source, self._choices, self._ports)
        if book.input_sums is None:
            book.input_sums = self._measure(KeyFiles(storage=book.finished.storage))
        refuse_null_keys(book.input_sums)
        return book.input_sums

    def compare_beside(self, ask_to_stop: Callable[[str], object]) -> Callable[[], None]:
        """Compare all keys beside a job, if it takes long and that is not done: return its end.

        Args:
            ask_to_stop: Lets the tasks end in good order; gets the reason.
        """
        book, source = self._book, self._source
        if not self._choices.verify_input or book.keys_differ:
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
        """Stop if a check beside the job has found a key in two rows.

        Raises:
            DuplicateKeyError: It has.
        """
        if self._found is not None:
            raise self._found

    def _measure(self, finished: KeyFiles) -> InputSums:
        return self._submitter.measure(finished, whole_rows=self._choices.compares_rows)

    def _changed_values(self) -> str:
        """Say what has changed where finished and remaining rows have the input's keys."""
        if changed := changed_columns(self._book.planned_columns, self.measured().columns):
            return changed
        return (
            f"the keys are the same, but some of the {self._book.work.sums.rows:,} finished rows "
            'have other values now (to keep them as they were done, pass verify_input="keys")'
        )


def without_row_sums(rows: int) -> str:
    """Say why values cannot be compared."""
    return (
        f'verify_input is "rows", and {rows:,} rows were done without it: nothing was noted of '
        'their values; verify_input="keys" compares their keys'
    )


def without_overlaps(work: Work, submitter: Submitter, finished: KeyFiles) -> Work:
    """Return the work with no key covered twice.

    Of two records that share a key the earlier one stays. This happens when the input gives other
    rows each time it is read; a key that stands in two rows of the input is the user's to mend.

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
        InputChangedError: Anything else.
    """
    refuse_duplicates(submitter)
    gone = submitter.gone(finished)
    if gone.keys:
        raise InputChangedError(
            what=f"{gone.keys} of {work.sums.rows} finished keys are not in it any more, "
            f"for example {gone.examples}"
        )
    raise InputChangedError(what="it gives other rows each time it is read")


def measure_and_compare(
    book: Workbook, submitter: Submitter, choices: Choices, ports: Ports
) -> None:
    """Measure an input before any row of it is computed, and look whether its keys differ.

    All keys are compared if a sample of them shows a double, or if they are few; else the sample
    is all that is known.

    Raises:
        NullKeyError: Some rows have no key.
        DuplicateKeyError: Some rows share a key.
    """
    began = ports.now()
    book.input_sums, doubled = submitter.look(whole_rows=choices.compares_rows)
    refuse_null_keys(book.input_sums)
    is_quick = ports.now() - began <= _COMPARED_SECONDS_MAX
    if doubled or (is_quick and book.input_sums.rows <= _COMPARED_ROWS_MAX):
        refuse_duplicates(submitter)
        book.keys_differ = True


def refuse_null_keys(sums: InputSums) -> None:
    """Stop if rows have no key. Before keys are compared: NULL would count as doubled.

    Raises:
        NullKeyError: Some have none.
    """
    if sums.null_keys:
        raise NullKeyError(rows=sums.null_keys)


def refuse_duplicates(submitter: Submitter, *, beside: bool = False) -> None:
    """Stop if a key appears in two rows.

    Args:
        submitter: The input.
        beside: Whether a job runs at the same time.

    Raises:
        DuplicateKeyError: One does.
    """
    found = submitter.duplicates(beside=beside)
    if found.keys:
        raise DuplicateKeyError(keys=found.keys, examples=found.examples)
