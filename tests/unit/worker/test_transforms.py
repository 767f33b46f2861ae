"""Transforms: what they may return, the errors for all else, and how often they are built."""

from __future__ import annotations

import datetime as dt
import pickle
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from holdfast import per_worker
from holdfast.sinks.conform import Conformer
from holdfast.worker import transforms
from holdfast.worker.batch_steps import apply_to
from holdfast.worker.transforms import (
    BatchFormat,
    TransformOutputError,
    converted,
    output_batches,
    ready,
)

BATCH = pa.RecordBatch.from_pydict({"id": [1, 2]})
ROWS = [{"id": 1}, {"id": 2}]


def generated() -> Iterator[Any]:
    """Yield one row as each kind of output that a transform may yield."""
    yield pa.RecordBatch.from_pydict({"id": [1]})
    yield pa.table({"id": [2]})
    yield {"id": [3]}


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        (BATCH, ROWS),
        (BATCH.slice(1), ROWS[1:]),
        (pa.table({"id": [1, 2]}), ROWS),
        (pa.concat_tables([pa.table({"id": [1]}), pa.table({"id": [2]})]), ROWS),
        ({"id": [1, 2]}, ROWS),
        ({"id": np.array([1, 2])}, ROWS),
        ({"id": pa.array([1, 2])}, ROWS),
        ([BATCH, BATCH], ROWS + ROWS),
        ((BATCH,), ROWS),
        ([], []),
        (pa.table({"id": pa.array([], pa.int64())}), []),
        (pd.DataFrame({"id": [1, 2]}), ROWS),
        (pd.DataFrame({"id": [0, 1, 2]}).query("id > 0"), ROWS),
        (pl.DataFrame({"id": [1, 2]}), ROWS),
        ([pl.DataFrame({"id": [1]}), pd.DataFrame({"id": [2]})], ROWS),
    ],
)
def test_each_kind_of_output_becomes_its_rows(output: object, expected: list[Any]) -> None:
    """It may be a batch, a Table, a DataFrame, a dict of columns, or several of these."""
    assert [row for batch in output_batches(output) for row in batch.to_pylist()] == expected


def test_a_generator_may_mix_the_kinds() -> None:
    """Each item that it yields is handled on its own."""
    rows = [row for batch in output_batches(generated()) for row in batch.to_pylist()]
    assert rows == [{"id": 1}, {"id": 2}, {"id": 3}]


@pytest.mark.parametrize(
    ("output", "named"),
    [
        (None, "NoneType"),
        (7, "int"),
        ("id", "str"),
        (b"id", "bytes"),
        ([BATCH, None], "NoneType"),
        ([[BATCH]], "list"),
        (["id"], "str"),
        (pd.Series([1], name="id"), "Series"),
        (pl.Series("id", [1]), "Series"),
        (pl.LazyFrame({"id": [1]}), "LazyFrame"),
        (pa.array([1]), "Array"),
    ],
)
def test_anything_else_is_named_in_the_error(output: object, named: str) -> None:
    """The message names the type that the user's own function returned."""
    with pytest.raises(TransformOutputError, match=rf"it returned \w*{named},"):
        list(output_batches(output))


# ---- Formats: what a transform is called with
VALUES = pa.RecordBatch.from_pydict(
    {
        "whole": pa.array([2**53 + 1, None], pa.int64()),
        "unsigned": pa.array([2**64 - 1, None], pa.uint64()),
        "real": pa.array([0.1, None], pa.float64()),
        "text": pa.array(["a", None], pa.string()),
        "bytes": pa.array([b"a", None], pa.binary()),
        "fixed": pa.array([b"0123456789abcdef", None], pa.binary(16)),
        "flag": pa.array([True, None], pa.bool_()),
        "moment": pa.array([dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc), None]),
        "local": pa.array([253402300799999999, None], pa.timestamp("us")),
        "day": pa.array([dt.date(1, 1, 1), None], pa.date32()),
        "time": pa.array([dt.time(23, 59, 59, 999999), None], pa.time64("us")),
        "money": pa.array([Decimal("1.10"), None], pa.decimal128(38, 10)),
        "list": pa.array([[1, None], None], pa.list_(pa.int32())),
        "vector": pa.array([[1.0, 2.0], None], pa.list_(pa.float32(), 2)),
        "struct": pa.array([{"a": 1, "b": "x"}, None]),
        "map": pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())),
    }
)


@pytest.mark.parametrize("batch_format", ["arrow", "pandas", "polars"])
def test_a_value_survives_the_round_trip_through_a_transform(batch_format: BatchFormat) -> None:
    """A NULL must not turn whole numbers into floats, nor change large ones."""
    (output,) = output_batches(converted(VALUES, batch_format))
    table = VALUES.schema
    assert Conformer("t", output.schema, table, may_lack=None)(output).equals(VALUES)


def test_a_nan_that_a_transform_computes_is_not_null() -> None:
    """This holds for columns of the transform's frame; in NumPy's own columns NaN is NULL."""
    frame = converted(pa.RecordBatch.from_pydict({"x": [0.0, None]}), "pandas")
    frame["y"] = frame["x"] / frame["x"]
    (output,) = output_batches(frame)
    assert [str(value) for value in output["y"].to_pylist()] == ["nan", "None"]


@pytest.mark.parametrize(
    ("batch_format", "kind"),
    [("arrow", pa.RecordBatch), ("pandas", pd.DataFrame), ("polars", pl.DataFrame)],
)
def test_a_transform_gets_the_format_that_was_chosen(batch_format: BatchFormat, kind: type) -> None:
    """It may return another one."""
    got: list[object] = []

    def transform(batch: object) -> pa.RecordBatch:
        got.append(batch)
        return BATCH

    outputs = apply_to(transform, BATCH, one_to_one=True, batch_format=batch_format)
    assert [row for batch in outputs for row in batch.to_pylist()] == ROWS
    assert [type(batch) for batch in got] == [kind]


class Counted:
    """A transform that counts how often it is built."""

    built: list[tuple[tuple[Any, ...], dict[str, Any]]] = []  # noqa: RUF012 - that is the point.

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        """Count."""
        self.built.append((args, kwargs))

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as they are."""
        return batch


@pytest.fixture(autouse=True)
def fresh_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each test like a new worker process."""
    transforms._BUILT.clear()  # noqa: SLF001 - there is no other way to start fresh.
    monkeypatch.setattr(Counted, "built", [])


def test_a_worker_builds_its_object_once_over_many_tasks() -> None:
    """Every task unpickles its own copy; all copies find the same object."""
    payload = pickle.dumps(per_worker(Counted, "minilm", device="cpu"))
    first, second = (ready(pickle.loads(payload)) for _ in range(2))  # noqa: S301 - ours.
    assert first is second
    assert Counted.built == [(("minilm",), {"device": "cpu"})]


def test_nothing_is_built_on_the_driver() -> None:
    """Only the factory and its arguments are sent."""
    pickle.dumps(per_worker(Counted, "large"))
    assert Counted.built == []


def test_two_transforms_have_objects_of_their_own() -> None:
    """Two `per_worker` calls make two transforms, even with the same factory and arguments."""
    one, two = per_worker(Counted, 1), per_worker(Counted, 1)
    assert ready(one) is not ready(two)
    assert ready(one) is ready(one)
    assert len(Counted.built) == 2


def test_a_worker_keeps_only_the_objects_it_used_last() -> None:
    """A long-lived worker of many jobs does not keep every model it ever loaded."""
    makers = [per_worker(Counted, number) for number in range(5)]
    for maker in makers[:4]:
        ready(maker)
    ready(makers[0])
    ready(makers[4])
    ready(makers[0])
    assert len(Counted.built) == 5
    ready(makers[1])
    assert len(Counted.built) == 6


def test_without_a_transform_rows_are_passed_on() -> None:
    """The batch is handed on as it is, not copied."""
    assert ready(None)(BATCH) is BATCH


@pytest.mark.parametrize("container", [dict, pd.DataFrame])
@pytest.mark.parametrize("is_nested", [False, True])
def test_objects_with_nanoseconds_are_refused(container: Any, *, is_nested: bool) -> None:  # noqa: ANN401
    """Of objects pyarrow would take the microseconds; a typed column has all."""
    moments = [pd.Timestamp(0), pd.NaT, pd.Timestamp("2024-01-01T00:00:00.000001002")]

    def column(values: list[Any]) -> Any:  # noqa: ANN401 - what the container takes.
        return pd.Series([[{"at": v}] if is_nested else v for v in values], dtype=object)

    with pytest.raises(TransformOutputError, match=r"'a': .*000001002 has nanoseconds"):
        list(output_batches(container({"a": column(moments)})))
    (whole,) = output_batches(container({"a": column(moments[:2])}))
    assert whole.num_rows == 2
    (typed,) = output_batches(container({"a": pd.Series(moments)}))
    assert typed["a"].to_pylist() == [moments[0], None, moments[2]]
