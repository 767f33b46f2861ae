"""Rate limits: a pause that a server asks for holds for all rows of a task, and ends."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from holdfast import per_row
from holdfast.worker.calls import Answer, Calls
from holdfast.worker.transforms import Retry
from tests.fakes.row_functions import QUICK, HttpError, RowFunction, refused, take, until


def calls_of(
    function: RowFunction,
    retry: Retry = QUICK,
    **options: Any,  # noqa: ANN401 - any of `per_row`.
) -> Calls:
    """Return the calls of one task."""
    return Calls(per_row(function, retry=retry, **options))


def answered(
    function: RowFunction,
    count: int = 1,
    **options: Any,  # noqa: ANN401 - any of `per_row`.
) -> dict[int, Answer]:
    """Return the answers for rows 0 and on."""
    calls = calls_of(function, **options)
    for number in range(count):
        calls.start(number, {"id": number})
    return take(calls, count)


def test_refusals_for_the_rate_are_no_attempts() -> None:
    """They are not the row's fault; where they end it, it had at least one call."""
    function = RowFunction()
    function.errors[0] = deque([refused(), refused(0.001), HttpError(503)])
    retry = Retry(attempts=2, first_wait=0.001, longest_wait=0.001, patience=5)
    answer = answered(function, retry=retry)[0]
    assert (answer.value, answer.attempts, len(function.ids)) == ({"id": 0}, 2, 4)


def test_refusals_end_with_patience() -> None:
    """A server that is never ready fails the row in the end."""
    function = RowFunction()
    function.fails_at[0] = refused()
    answer = answered(function, retry=Retry(attempts=1, first_wait=0.004, patience=0.3))[0]
    assert (answer.error, answer.attempts) == (function.fails_at[0], 1)
    assert len(function.ids) > 2


def test_waits_grow_from_refusal_to_refusal() -> None:
    """Else a busy server is called again at the same pace until patience ends."""
    function = RowFunction()
    function.errors[0] = deque([refused(), refused(), refused(), refused()])
    assert answered(function, retry=Retry(first_wait=0.02))[0].value == {"id": 0}
    # A wait is at least half of what it may be: 0.02, 0.04, 0.08, 0.16.
    assert function.times[4] - function.times[3] >= 0.08
    assert function.times[4] - function.times[0] >= 0.15


def test_after_a_refusal_no_row_of_the_task_is_called_before_the_pause_ends() -> None:
    """The server has asked for it: other rows would only be refused as well."""
    function = RowFunction()
    function.errors[0] = deque([refused(0.1)])
    calls = calls_of(function)
    calls.start(0, {"id": 0})
    until(lambda: bool(function.ids) and not function.at_work)
    time.sleep(0.01)
    calls.start(1, {"id": 1})
    calls.start(2, {"id": 2})
    assert sorted(take(calls, 3)) == [0, 1, 2]
    first, *others = function.times
    assert len(others) == 3
    assert min(others) - first >= 0.1


def test_rows_that_wait_for_their_own_retry_wait_for_the_pause_too() -> None:
    """A row between two attempts must not call into a pause that another has got meanwhile."""
    function = RowFunction()
    function.errors = {0: deque([HttpError(503)]), 1: deque([refused(0.2)])}
    calls = calls_of(function, Retry(first_wait=0.1, longest_wait=0.1))
    for number in (0, 1):
        calls.start(number, {"id": number})
        until(lambda number=number: function.ids == [0, 1][: number + 1])  # type: ignore[misc]
    take(calls, 2)
    assert min(function.times[2:]) - function.times[1] >= 0.2


def test_other_errors_hold_no_other_row_up() -> None:
    """Only the server itself may ask for a pause."""
    function = RowFunction()
    function.errors[0] = deque([HttpError(503)])
    calls = calls_of(function, Retry(first_wait=30))
    calls.start(0, {"id": 0})
    calls.start(1, {"id": 1})
    assert list(take(calls, 1)) == [1]
    calls.cancel()


def test_patience_begins_with_the_rows_own_first_call() -> None:
    """A pause that was there before the row is not the row's time."""
    function = RowFunction()
    function.errors = {0: deque([refused(0.1)]), 1: deque([refused()])}
    calls = calls_of(function, Retry(first_wait=0.001, longest_wait=0.001, patience=0.05))
    calls.start(0, {"id": 0})
    until(lambda: bool(function.ids) and not function.at_work)
    time.sleep(0.01)
    calls.start(1, {"id": 1})
    assert take(calls, 2)[1].value == {"id": 1}
