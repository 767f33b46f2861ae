"""The row window: always full, never too full, and finished rows do not wait for slow ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, cast
from unittest import mock

import pyarrow as pa
import pytest

from holdfast import per_row
from holdfast.sources.base import TAG_COLUMN
from holdfast.worker import row_steps
from holdfast.worker.calls import Answer, Calls
from holdfast.worker.row_steps import RowWindow, Slot
from tests.fakes.row_functions import Row, RowFunction, batch
from tests.fakes.task_ledgers import ManualClock


class EndedError(Exception):
    """The task must stop."""


@dataclass
class HandCalls:
    """Calls whose answers a test controls; each look for answers takes a while."""

    clock: ManualClock
    seconds: float = 0.25
    # Rows that are answered only when no other row waits, or never.
    slow: set[int] = field(default_factory=set)
    stuck: set[int] = field(default_factory=set)
    # Answers for rows, if not the row itself.
    values: dict[int, Any] = field(default_factory=dict)
    started: list[int] = field(default_factory=list)
    waiting: dict[int, Row] = field(default_factory=dict)
    # How many rows waited at each look, and the timeout of each look.
    seen: list[int] = field(default_factory=list)
    timeouts: list[float] = field(default_factory=list)
    ends: list[str] = field(default_factory=list)

    @property
    def in_flight(self) -> int:
        """How many rows wait for an answer."""
        return len(self.waiting)

    def start(self, number: int, row: Row) -> None:
        """Start one row."""
        self.started.append(number)
        self.waiting[number] = row

    def answers(self, timeout_s: float) -> list[Answer]:
        """Return one answer, that of the newest row; slow ones come last."""
        self.seen.append(len(self.waiting))
        self.timeouts.append(timeout_s)
        self.clock.now_s += self.seconds
        ready = [number for number in self.waiting if number not in self.stuck]
        quick = [number for number in ready if number not in self.slow] or ready
        if not quick or (self.ends and quick[-1] in self.slow):
            # No further call is made: a slow row waits for its next one.
            gone = [number for number in quick if self.waiting.pop(number)]
            return [Answer(number=number, is_undone=True) for number in gone]
        number = quick[-1]
        row = self.waiting.pop(number)
        return [Answer(number=number, value=self.values.get(number, row), attempts=1)]

    def stop_waiting(self) -> None:
        """Make no further call."""
        self.ends.append("stop")

    def cancel(self) -> None:
        """Cancel the calls under way."""
        self.ends.append("cancel")
        self.waiting.clear()


@dataclass
class Window:
    """A window over hand-made calls."""

    concurrency: int = 3
    is_due: Callable[[], bool] = lambda: False
    clock: ManualClock = field(default_factory=ManualClock)
    looks: list[float] = field(default_factory=list)
    # How many looks the task may make.
    looks_max: int = 1_000_000

    def __post_init__(self) -> None:
        """Make the window."""
        self.calls = HandCalls(self.clock)
        self.window = RowWindow(
            cast("Calls", self.calls),
            concurrency=self.concurrency,
            is_due=self.is_due,
            look=self.look,
            clock=self.clock,
        )

    def look(self) -> None:
        """Record the time of a look."""
        if len(self.looks) >= self.looks_max:
            raise EndedError
        self.looks.append(self.clock.now_s - 1000.0)

    def groups(self, *batches: pa.RecordBatch) -> Iterator[list[int]]:
        """Work on all rows; yield the positions in each group."""
        for slots in self.window.groups(batches):
            yield positions(slots)


def positions(slots: Iterable[Slot]) -> list[int]:
    """Return which rows these are."""
    return [slot.position for slot in slots]


def test_the_window_is_full_as_long_as_there_are_rows_and_never_exceeds_its_size() -> None:
    """Each look for an answer finds as many rows at work as allowed."""
    window = Window(concurrency=3)
    list(window.groups(batch(range(5)), batch(range(5, 8))))
    assert window.calls.seen == [3, 3, 3, 3, 3, 3, 2, 1]
    assert window.calls.started == list(range(8))


def test_a_slow_row_does_not_keep_the_window_from_being_full() -> None:
    """The others go on meanwhile."""
    window = Window(concurrency=2)
    window.calls.slow = {0}
    list(window.groups(batch(range(6))))
    assert window.calls.seen == [2, 2, 2, 2, 2, 1]


def test_real_calls_are_bounded_too() -> None:
    """There are never more than allowed, but also not only one at a time."""
    function = RowFunction()
    function.seconds = dict.fromkeys(range(20), 0.002)
    window = RowWindow(
        Calls(per_row(function, concurrency=4)),
        concurrency=4,
        is_due=lambda: False,
        look=lambda: None,
    )
    (slots,) = window.groups([batch(range(20))])
    assert (function.most_at_work, len(function.ids)) == (4, 20)
    assert [slot.answer.value["id"] for slot in slots if slot.answer] == list(range(20))


def test_rows_that_end_in_any_order_are_handed_on_in_the_inputs_order() -> None:
    """This holds as long as nothing is waiting for them."""
    window = Window(concurrency=4)
    window.calls.slow = {0, 2}
    assert list(window.groups(batch(range(7)))) == [list(range(7))]


def test_a_slow_row_does_not_keep_finished_ones_from_a_checkpoint() -> None:
    """Rows that are paid for become durable in time; the slow row follows when it is done."""
    due = iter([False, False, False, True, False, False, False, False])
    window = Window(concurrency=2, is_due=lambda: next(due))
    window.calls.slow = {0}
    assert list(window.groups(batch(range(6)))) == [[1, 2, 3, 4], [0, 5]]


def test_a_due_checkpoint_without_finished_rows_hands_nothing_on() -> None:
    """There is nothing to make durable."""
    window = Window(is_due=lambda: True)
    window.calls.stuck = {0, 1, 2}
    window.looks_max = 3
    with pytest.raises(EndedError):
        list(window.groups(batch(range(9))))
    assert window.calls.started == [0, 1, 2]


def test_the_oldest_finished_rows_are_handed_on_when_they_make_a_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """They are in order, and end before the first unfinished row."""
    monkeypatch.setattr(row_steps, "_STEP_ROWS", 3)
    window = Window(concurrency=2)
    window.calls.slow = {4}
    assert list(window.groups(batch(range(8)))) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_large_rows_make_a_step_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits is bounded in bytes too, including the answers."""
    monkeypatch.setattr(row_steps, "_STEP_BYTES", 100)
    window = Window(concurrency=1)
    window.calls.values = {1: {"text": "x" * 90}, 3: [b"x" * 60, {"y": ["z" * 60]}]}
    assert list(window.groups(batch(range(6)))) == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    ("name", "bound"), [("_HELD_ROWS_MAX", 4), ("_HELD_BYTES_MAX", 4 * 16)], ids=["rows", "bytes"]
)
def test_finished_rows_behind_a_slow_row_are_bounded(
    name: str, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that hangs for an hour must not fill the memory with its neighbours."""
    monkeypatch.setattr(row_steps, name, bound)
    window = Window(concurrency=2)
    window.calls.slow = {0}
    found = list(window.groups(batch(range(11))))
    assert found == [[1, 2, 3, 4], [5, 6, 7, 8], [0, 9, 10]]


def test_rows_that_were_handed_on_no_longer_count() -> None:
    """They count neither twice nor as rows that still wait."""
    window = Window(concurrency=1, is_due=lambda: True)
    assert list(window.groups(batch(range(4)))) == [[0], [1], [2], [3]]
    assert window.window.drain(None) == []


def test_it_looks_before_the_first_row_and_then_once_a_second() -> None:
    """It does not look at each answer: a look is a request to the store."""
    window = Window(concurrency=1)
    window.calls.seconds = 0.25
    list(window.groups(batch(range(10))))
    assert window.looks == [0.0, 1.0, 2.0]
    assert set(window.calls.timeouts) == {1.0}


def test_a_task_that_must_not_start_calls_nothing() -> None:
    """The look comes before the first call is paid for."""
    window = Window(looks_max=0)
    with pytest.raises(EndedError):
        list(window.groups(batch(range(3))))
    assert window.calls.started == []


def test_draining_waits_for_the_calls_under_way() -> None:
    """They are paid for; rows that only wait for their next call are dropped."""
    window = Window(concurrency=4, looks_max=1)
    window.calls.slow = {0}
    window.calls.seconds = 1.0
    with pytest.raises(EndedError):
        list(window.groups(batch(range(9))))
    assert (sorted(window.calls.waiting), window.calls.started) == ([0, 1, 2], [0, 1, 2, 3])
    assert positions(window.window.drain(None)) == [1, 2, 3]
    assert (window.calls.ends, window.calls.in_flight) == (["stop", "cancel"], 0)


def test_draining_with_a_grace_ends_with_it() -> None:
    """Rows that are finished by then count; calls that hang are cancelled."""
    window = Window(concurrency=3, looks_max=1)
    window.calls.seconds, window.calls.stuck = 1.0, {0, 2}
    with pytest.raises(EndedError):
        list(window.groups(batch(range(9))))
    window.calls.timeouts.clear()
    before = window.clock()
    window.calls.seconds = 0.75
    assert positions(window.window.drain(2.0)) == [1]
    assert window.clock() - before == 2.25
    assert window.calls.timeouts == [1.0, 1.0, 0.5]
    assert window.calls.ends == ["stop", "cancel"]


def test_draining_an_empty_window_gives_nothing() -> None:
    """It does not wait."""
    window = Window()
    assert window.window.drain(5.0) == []
    assert window.calls.timeouts == []


def test_a_row_holds_only_its_own_memory() -> None:
    """A slice would keep all of Spark's batch in memory as long as its slowest row."""
    window = Window(concurrency=1)
    rows = batch(range(1000), text=["x" * 1000] * 1000)
    slot = next(window.window.groups([rows]))[0]
    assert sum(part.size for part in slot.row["text"].buffers() if part is not None) < 5000
    assert slot.row.to_pylist() == [{"id": 0, "text": "x" * 1000}]


def test_sparks_own_hash_goes_with_its_row_and_the_function_does_not_see_it() -> None:
    """The hash covers keys that cannot be hashed here."""
    window = Window(concurrency=1)
    hashes = pa.array([11, 22, 33], pa.int64())
    (slots,) = window.window.groups([batch([7, 8, 9], **{TAG_COLUMN: hashes})])
    assert [slot.tags.to_pylist() for slot in slots if slot.tags is not None] == [
        [11],
        [22],
        [33],
    ]
    assert [slot.answer.value for slot in slots if slot.answer] == [{"id": i} for i in (7, 8, 9)]


def test_rows_that_end_together_are_handed_on_in_groups_of_bounded_size() -> None:
    """A group becomes one batch: it must not hold many cells of many megabytes."""
    window = Window(concurrency=6)
    window.calls.slow = set(range(6))
    window.calls.values = {number: {"b": bytes(20 << 20)} for number in range(5)}
    with mock.patch.object(window.calls, "answers", _all_at_once(window)):
        assert list(window.groups(batch(range(6)))) == [[0], [1], [2], [3], [4, 5]]


def _all_at_once(window: Window) -> Callable[[float], list[Answer]]:
    def answers(_timeout_s: float) -> list[Answer]:
        found = [
            Answer(number=number, value=window.calls.values.get(number, row), attempts=1)
            for number, row in window.calls.waiting.items()
        ]
        window.calls.waiting.clear()
        return found

    return answers
