"""Input check: what is covered must be disjoint, and add up to the input."""

from __future__ import annotations

from typing import NoReturn

from holdfast.engine.ports import Submitter
from holdfast.engine.unique_keys import all_differ
from holdfast.errors import DuplicateKeyError, InputChangedError
from holdfast.ledger.key_files import KeyFiles
from holdfast.model.work import Work


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
    _refuse_duplicates(submitter)
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
    _refuse_duplicates(submitter)
    gone = submitter.gone(finished)
    if gone.keys:
        raise InputChangedError(
            what=f"{gone.keys} of {work.sums.rows} finished keys are not in it any more, "
            f"for example {gone.examples}"
        )
    raise InputChangedError(what="it gives other rows each time it is read")


def _refuse_duplicates(submitter: Submitter) -> None:
    found = submitter.duplicates()
    if found.keys:
        raise DuplicateKeyError(keys=found.keys, examples=found.examples)
