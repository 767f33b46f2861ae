"""Input check: what is covered must be disjoint, and add up to the input."""

from __future__ import annotations

from typing import NoReturn

from holdfast.engine.choices import Choices
from holdfast.engine.ports import Submitter
from holdfast.engine.unique_keys import all_differ
from holdfast.engine.workbook import Workbook
from holdfast.errors import DuplicateKeyError, InputChangedError, JobFailedError, NullKeyError
from holdfast.ledger.key_files import KeyFiles
from holdfast.model.input_sums import InputSums
from holdfast.model.work import Work

# An input that differs each time it is read may settle; one that does not must not be paid for
# again and again.
_DROPS_MAX = 5
_NOT_ALL_ARRIVED = (
    "not every row of run.remaining() has arrived here; the steps between must keep each row "
    "and its key"
)


class InputCheck:
    """Compares what one start of a run has covered with its input."""

    def __init__(
        self, book: Workbook, submitter: Submitter, source: Submitter | None, choices: Choices
    ) -> None:
        """Take the parts; nothing is read yet.

        Args:
            book: What counts.
            submitter: The input.
            source: Where the input is *derived* from: it was made from the rows that `remaining`
                gave, and does not hold the finished ones.
            choices: Whether to check at all, and whether rows have a price.
        """
        self._book = book
        self._submitter = submitter
        self._is_derived = source is not None
        self._source = source or submitter
        self._choices = choices
        # The records whose rows a derived input lacks.
        self._counted_on = {one.name for one in book.work.with_keys} if source else set()
        self._drops = 0

    def rows_are_missing(self) -> bool:
        """Whether input rows are not covered; leave out what is covered twice.

        Raises:
            NullKeyError: Some rows have no key.
            DuplicateKeyError: Some rows share a key.
            InputChangedError: Finished and remaining rows do not add up to the input.
        """
        book = self._book
        if not self._choices.verify_input and not book.all_rows_seen:
            return True
        if self._choices.verify_input and book.work.sums != self.measured():
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
            if self._choices.is_priced:  # Else it is told when all rows are done, and paid for.
                refuse_duplicates(self._source)
            return self.measured().rows
        remaining = self._submitter.measure(book.finished)
        if book.work.sums.plus(remaining) != self.measured():
            clean = without_overlaps(book.work, self._source, book.finished)
            if clean is book.work and self._is_derived:
                raise InputChangedError(what=_NOT_ALL_ARRIVED)
            if clean is book.work:
                refuse_mismatch(book.work, self._submitter, book.finished)
            self._drop(clean)
            return self._remaining_rows()
        return remaining.rows

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
        sums = self._book.input_sums
        if sums is None:
            sums = self._submitter.measure(KeyFiles(storage=self._book.finished.storage))
            self._book.input_sums = sums
        if sums.null_keys:
            raise NullKeyError(rows=sums.null_keys)
        return sums


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


def refuse_duplicates(submitter: Submitter) -> None:
    """Stop if a key stands in two rows.

    Raises:
        DuplicateKeyError: One does.
    """
    found = submitter.duplicates()
    if found.keys:
        raise DuplicateKeyError(keys=found.keys, examples=found.examples)
