"""What a case expects, and how it says so when it is disappointed.

Not by `assert`: pytest does not explain one in an installed package, and `python -O` drops it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import TypeVar

from holdfast.errors import CommitRefusedError
from holdfast.sinks.base import MarkFound, Outcome, TableView
from holdfast.testing.table_under_test import Attempt, TableUnderTest

_Error = TypeVar("_Error", bound=Exception)


def expect(actual: object, wanted: object, why: str) -> None:
    """Compare what was got with what the engine relies on.

    Raises:
        AssertionError: They differ.
    """
    __tracebackhide__ = True
    if actual != wanted:
        raise AssertionError(f"{why}: expected {wanted!r}, got {actual!r}")


def expect_not(actual: object, unwanted: object, why: str) -> None:
    """Make sure that something is not what the engine would go wrong with.

    Raises:
        AssertionError: It is.
    """
    __tracebackhide__ = True
    if actual == unwanted:
        raise AssertionError(f"{why}: must not be {unwanted!r}")


def expect_error(kind: type[_Error], action: Callable[[], object], why: str) -> _Error:
    """Return the error that an action must raise.

    Raises:
        AssertionError: It raises none of that kind.
    """
    __tracebackhide__ = True
    try:
        returned = action()
    except kind as error:
        return error
    raise AssertionError(f"{why}: expected {kind.__name__}, got the answer {returned!r}")


def expect_used_up(view: TableView, attempt: Attempt, why: str) -> None:
    """Make sure that an attempt's sequence number is given to nobody else.

    Raises:
        AssertionError: It is the next one, or will be.
    """
    __tracebackhide__ = True
    number, used = view.next_sequence_number, attempt.mark.sequence_number
    if number <= used:
        raise AssertionError(f"{why}: the next sequence number is {number}, but {used} was used")


def expect_landed(attempt: Attempt) -> None:
    """Post an attempt that nothing stands against.

    Raises:
        AssertionError: It does not land.
    """
    __tracebackhide__ = True
    expect(attempt.post(), Outcome.LANDED, "a post that nothing stands against")


def expect_refused(outcome: Outcome, why: str) -> None:
    """Make sure that a post was refused: by the table, or before it was sent.

    Raises:
        AssertionError: It has landed, or nothing tells.
    """
    __tracebackhide__ = True
    if outcome not in {Outcome.CONFLICT, Outcome.UNSENT}:
        raise AssertionError(f"{why}: expected a refusal, got {outcome!r}")


def expect_no_landing(table: TableUnderTest, post: Callable[[], Outcome], why: str) -> None:
    """Post, and find the same rows as before, whatever the words of the refusal.

    Raises:
        AssertionError: It says that it has landed, or there are other rows.
    """
    __tracebackhide__ = True
    before = table.rows()
    try:
        outcome = post()
    except CommitRefusedError:
        outcome = Outcome.CONFLICT
    if outcome is Outcome.LANDED:
        raise AssertionError(f"{why}: the post has landed")
    expect(Counter(table.rows()), Counter(before), f"{why}: rows")


def expect_found(found: MarkFound | None, why: str) -> MarkFound:
    """Return a mark that must be there.

    Raises:
        AssertionError: It is not.
    """
    __tracebackhide__ = True
    if found is None:
        raise AssertionError(f"{why}: no mark is found, so the engine would post the rows again")
    return found


def our_rows(table: TableUnderTest) -> list[int]:
    """Return the ids of the contract's own rows that a reader sees, sorted."""
    return sorted(number for number in table.rows() if number >= 0)
