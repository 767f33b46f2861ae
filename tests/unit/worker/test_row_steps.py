"""Row steps: answers become batches of the table's types, failed rows and a cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from decimal import Decimal
from typing import Any, cast

import pyarrow as pa
import pytest

from holdfast.errors import SchemaMismatchError
from holdfast.sinks.conform import Conformer
from holdfast.worker.batch_steps import Step
from holdfast.worker.calls import Answer
from holdfast.worker.row_steps import RowSteps, RowWindow, Slot, as_batch, rows_of
from holdfast.worker.transforms import TransformOutputError
from tests.fakes.memory_writer import MemoryWriterSpec
from tests.fakes.row_functions import batch

# ---- Row outputs: dicts become batches with the table's types, or one row's error
SCHEMA = pa.schema(
    [
        ("id", pa.int32()),
        ("score", pa.float32()),
        ("price", pa.decimal128(9, 2)),
        ("at", pa.timestamp("us", tz="UTC")),
        ("tags", pa.list_(pa.string())),
        ("place", pa.struct([("x", pa.int64()), ("y", pa.int64())])),
    ]
)


def test_one_dict_is_one_row() -> None:
    """This holds with and without `one_to_one`."""
    assert rows_of({"id": 1}, one_to_one=True) == [{"id": 1}]
    assert rows_of({"id": 1}, one_to_one=False) == [{"id": 1}]


def test_without_one_to_one_a_list_is_its_rows_and_none_is_no_row() -> None:
    """An empty list means no row too."""
    assert rows_of([{"id": 1}, {"id": 2}], one_to_one=False) == [{"id": 1}, {"id": 2}]
    assert rows_of(({"id": 1},), one_to_one=False) == [{"id": 1}]
    assert rows_of(None, one_to_one=False) == rows_of([], one_to_one=False) == []


@pytest.mark.parametrize(
    ("answer", "kind"), [("text", "str"), (7, "int"), ({}, "an empty dict"), ([{}, "x"], "list")]
)
@pytest.mark.parametrize("one_to_one", [True, False])
def test_anything_else_is_not_a_row(answer: object, kind: str, *, one_to_one: bool) -> None:
    """The message says what was returned and what was expected."""
    with pytest.raises(TransformOutputError, match=f"returned {kind} for a row") as caught:
        rows_of(answer, one_to_one=one_to_one)
    assert ("a list of them, or None" in str(caught.value)) is not one_to_one


@pytest.mark.parametrize("answer", [None, [], [{"id": 1}]])
def test_with_one_to_one_only_a_dict_is_a_row(answer: object) -> None:
    """This includes a list of one: a function that returns lists means to return many rows."""
    with pytest.raises(TransformOutputError, match=r"not a dict of columns$"):
        rows_of(answer, one_to_one=True)


def test_values_get_the_tables_types() -> None:
    """Python's own types would differ."""
    at = datetime(2026, 11, 15, 9, 0, tzinfo=timezone.utc)
    row = {
        "id": 1,
        "score": 0.5,
        "price": Decimal("1.5"),
        "at": at,
        "tags": [],
        "place": {"x": 1, "y": None},
    }
    found = as_batch([row], SCHEMA)
    assert found.schema.equals(SCHEMA)
    assert found.to_pylist() == [{**row, "price": Decimal("1.50")}]


def test_none_has_the_tables_type_too() -> None:
    """A group of rows without any value must not make a column without a type."""
    found = as_batch([{"id": 1, "tags": None}, {"id": None, "tags": None}], SCHEMA)
    assert found.schema.types == [pa.int32(), pa.list_(pa.string())]
    assert found.to_pylist() == [{"id": 1, "tags": None}, {"id": None, "tags": None}]


def test_a_column_that_one_row_leaves_out_is_none_there() -> None:
    """Columns are in the order in which they first appear."""
    found = as_batch([{"id": 1}, {"score": 2.0, "id": 2}], SCHEMA)
    assert found.schema.names == ["id", "score"]
    assert found.to_pylist() == [{"id": 1, "score": None}, {"id": 2, "score": 2.0}]


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        ({"stranger": 7}, pa.int64()),
        ({"id": "text"}, pa.string()),
        ({"id": True}, pa.bool_()),
        ({"id": 1 << 40}, pa.int64()),
        ({"price": Decimal("1.239")}, pa.decimal128(4, 3)),
    ],
)
def test_values_that_the_tables_type_cannot_hold_keep_their_own(
    row: dict[str, Any], kind: pa.DataType
) -> None:
    """Fitting them to the table then says what is wrong, and in which column."""
    assert as_batch([row], SCHEMA).schema.types == [kind]


@pytest.mark.parametrize("values", [(1, "text"), ({"a": 1}, 2), ("\ud800",), (object(),)])
def test_values_without_a_common_type_are_an_output_error(values: tuple[Any, ...]) -> None:
    """The error names the column."""
    with pytest.raises(TransformOutputError, match="column 'id'"):
        as_batch([{"id": value} for value in values], SCHEMA)


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.int64(), 1.9),
        (pa.int64(), Decimal("1.9")),
        (pa.list_(pa.int64()), [1.9]),
        (pa.date32(), datetime(2026, 1, 2, 3, 4)),  # noqa: DTZ001 - dates have no zone.
        (pa.timestamp("s"), datetime(2026, 1, 2, 3, 4, 5, 678901)),  # noqa: DTZ001
        (pa.struct([("x", pa.int64())]), {"x": 1, "stranger": 2}),
    ],
    ids=["float", "decimal", "in a list", "date", "timestamp", "struct"],
)
def test_no_part_of_a_value_is_lost_on_the_way_to_the_tables_type(
    kind: pa.DataType,
    value: Any,  # noqa: ANN401 - of any type.
) -> None:
    """A batch with the same values is refused, so rows must not lose them either."""
    schema = pa.schema([("column", kind)])
    found = as_batch([{"column": value}], schema)
    assert found.column("column").to_pylist() == [value]


# ---- Row steps: what a row function has finished, as output rows, failed rows and a cost
TABLE = pa.schema(
    [
        pa.field("id", pa.int64(), nullable=False),
        ("text", pa.string()),
        ("place", pa.struct([("x", pa.int32())])),
    ]
)


class HandWindow:
    """A window that hands on the groups that a test gives it."""

    def __init__(self, *groups: list[Slot]) -> None:
        """Take the groups."""
        self._groups = groups
        self.ends: list[object] = []

    def groups(self, _batches: object) -> Sequence[list[Slot]]:
        """Hand all groups on."""
        return self._groups

    def drain(self, grace_s: float | None) -> list[Slot]:
        """Return the first group, if there is one."""
        self.ends.append(grace_s)
        return self._groups[0] if self._groups else []

    def cancel(self) -> None:
        """Record it."""
        self.ends.append("cancel")


def slot(position: int, value: Any = None, error: Exception | None = None) -> Slot:  # noqa: ANN401
    """Return a finished row, whose hash is a hundred times its position."""
    answer = Answer(number=position, value=value, error=error, attempts=3)
    hashes = pa.array([100 * position], pa.int64())
    return Slot(position, batch([position]), hashes, answer)


def steps_of(
    *slots: Slot, one_to_one: bool = True, cost_of: Callable[[Any], float] | None = None
) -> RowSteps:
    """Return the steps of one group."""
    for each in slots:
        each.price(cost_of)
    window = HandWindow(list(slots)) if slots else HandWindow()
    return RowSteps(
        cast("RowWindow", window),
        spec=MemoryWriterSpec(TABLE, may_lack=None),
        fit=lambda rows: Conformer("t", rows.schema, TABLE, may_lack=None)(rows),
        one_to_one=one_to_one,
    )


def step_of(*slots: Slot, **options: Any) -> Step:  # noqa: ANN401 - any of `steps_of`.
    """Return the step of one group."""
    (step,) = steps_of(*slots, **options).all([])
    return step


def written(step: Step) -> list[dict[str, Any]]:
    """Return the output rows as the table gets them."""
    fitted = [Conformer("t", rows.schema, TABLE, may_lack=None)(rows) for rows in step.outputs]
    return [row for rows in fitted for row in rows.to_pylist()]


def failed_ids(step: Step) -> list[int]:
    """Return which rows have failed."""
    return [failed.row["id"][0].as_py() for failed in step.failed]


def full(number: int, text: str | None = None) -> dict[str, Any]:
    """Return a row as the table holds it."""
    return {"id": number, "text": text, "place": None}


def test_a_group_is_one_step_of_one_batch() -> None:
    """Its rows and their hashes are in the input's order."""
    step = step_of(slot(4, {"id": 40, "text": "a"}), slot(7, {"id": 70}))
    assert step.rows.to_pylist() == [{"id": 4}, {"id": 7}]
    assert step.tags is not None
    assert step.tags.to_pylist() == [400, 700]
    assert len(list(step.outputs)) == 1
    assert written(step) == [full(40, "a"), full(70)]
    assert (step.failed, step.cost) == ([], 0.0)


def test_rows_without_sparks_hash_have_none() -> None:
    """It is then computed from their keys."""
    one = slot(1, {"id": 1})
    one.tags = None
    assert step_of(one).tags is None


def test_a_row_whose_calls_failed_is_separated() -> None:
    """It keeps its error, its attempts and its hash."""
    error = ValueError("bad row")
    step = step_of(slot(1, {"id": 1}), slot(2, error=error), slot(3, {"id": 3}))
    assert (step.rows["id"].to_pylist(), written(step)) == ([1, 3], [full(1), full(3)])
    (failed,) = step.failed
    assert (failed.row.to_pylist(), failed.error, failed.attempts) == ([{"id": 2}], error, 3)
    assert failed.tags is not None
    assert failed.tags.to_pylist() == [200]


def test_a_group_in_which_all_rows_failed_covers_nothing() -> None:
    """It is still a step: its failed rows must be counted."""
    step = step_of(slot(1, error=ValueError("a")), slot(2, error=ValueError("b")))
    assert (step.rows.num_rows, step.tags, list(step.outputs)) == (0, None, [])
    assert step.rows.schema.names == ["id"]
    assert failed_ids(step) == [1, 2]


def test_without_one_to_one_a_row_may_become_many_or_none() -> None:
    """The input row is covered either way."""
    answers: list[Any] = [None, [], [{"id": 1}, {"id": 2}], {"id": 3}]
    step = step_of(
        *[slot(number, answer) for number, answer in enumerate(answers)], one_to_one=False
    )
    assert step.rows["id"].to_pylist() == [0, 1, 2, 3]
    assert [row["id"] for row in written(step)] == [1, 2, 3]


def test_rows_that_become_nothing_at_all_are_covered() -> None:
    """Otherwise every pass would call them again."""
    step = step_of(slot(1), slot(2), one_to_one=False)
    assert (step.rows.num_rows, list(step.outputs), step.failed) == (2, [], [])


@pytest.mark.parametrize("value", [None, [{"id": 1}], "text", {}])
def test_an_answer_that_is_not_a_row_fails_only_its_row(value: Any) -> None:  # noqa: ANN401
    """The other rows are written."""
    step = step_of(slot(1, value), slot(2, {"id": 2}))
    assert (failed_ids(step), written(step)) == ([1], [full(2)])
    assert isinstance(step.failed[0].error, TransformOutputError)


@pytest.mark.parametrize(
    "value",
    [
        {"id": "no number"},
        {"id": None},
        {"id": 1 << 70},
        {"text": "without the required column"},
        {"id": 2, "text": b"\xff"},
        {"id": 2, "text": "\ud800"},
        {"id": 2, "place": 7},
    ],
)
def test_a_value_that_does_not_fit_fails_only_its_row(value: dict[str, Any]) -> None:
    """The rows before and after it are written, in order, each once."""
    step = step_of(slot(1, {"id": 1}), slot(2, value), slot(3, {"id": 3, "text": "c"}))
    assert failed_ids(step) == [2]
    assert (step.rows["id"].to_pylist(), written(step)) == ([1, 3], [full(1), full(3, "c")])
    assert isinstance(step.failed[0].error, (TransformOutputError, SchemaMismatchError))


def test_a_nested_value_that_does_not_fit_fails_only_its_row() -> None:
    """Its column is there, so the next row may fit."""
    step = step_of(slot(1, {"id": 1}), slot(2, {"id": 2, "place": {"x": "no number"}}))
    assert (failed_ids(step), written(step)) == ([2], [full(1)])


def test_one_bad_output_row_fails_its_whole_input_row() -> None:
    """An input row is done with all of its output, or not at all."""
    answers: list[Any] = [[{"id": 1}, {"id": "x"}], [{"id": 2}, {"id": 3}]]
    step = step_of(slot(1, answers[0]), slot(2, answers[1]), one_to_one=False)
    assert failed_ids(step) == [1]
    assert [row["id"] for row in written(step)] == [2, 3]


@pytest.mark.parametrize("others", [[], [{"id": 3, "text": "fits"}]])
def test_a_column_that_the_table_does_not_have_ends_the_job(others: list[Any]) -> None:
    """No row of this function can fit, and paying for the rest would be a waste."""
    slots = [slot(1, {"id": 1, "stranger": 2}), *[slot(3, other) for other in others]]
    with pytest.raises(SchemaMismatchError, match="stranger"):
        step_of(*slots)


def test_the_cost_is_asked_once_for_each_row_that_was_answered() -> None:
    """This includes an answer that does not fit the table: it was paid for."""
    asked: list[Any] = []

    def cost_of(answer: dict[str, Any]) -> float:
        asked.append(answer["id"])
        return 1.5

    slots = [slot(1, {"id": 1}), slot(2, {"id": "misfit"}), slot(3, error=ValueError())]
    step = step_of(*slots, cost_of=cost_of)
    assert (asked, step.cost) == ([1, "misfit"], 3.0)


def test_a_cost_function_gets_the_whole_answer() -> None:
    """With `one_to_one=False` that is the list, not each of its rows."""
    step = step_of(
        slot(1, [{"id": 1}, {"id": 2}]), one_to_one=False, cost_of=lambda rows: len(rows) * 2
    )
    assert step.cost == 4.0


def test_a_cost_function_that_raises_fails_its_row() -> None:
    """It fails like the row function itself; the other rows keep their cost."""

    def cost_of(answer: dict[str, Any]) -> float:
        return 10.0 / abs(float(answer["id"]) - 2.0)

    step = step_of(*[slot(number, {"id": number}) for number in (1, 2, 3)], cost_of=cost_of)
    assert (failed_ids(step), step.cost) == ([2], 20.0)
    assert str(step.failed[0].error).startswith("cost= raised ZeroDivisionError")
    assert step.rows["id"].to_pylist() == [1, 3]


def test_draining_gives_one_more_step_if_anything_is_finished() -> None:
    """The grace is passed to the window."""
    steps = steps_of(slot(1, {"id": 1}))
    found = steps.drained(2.5)
    assert found is not None
    assert written(found) == [full(1)]
    assert steps_of().drained(None) is None
