"""Random nested columns, randomly sliced: the values are the same after as before."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.sinks.conform import Conformer


@dataclass(frozen=True)
class Pair:
    """A type of the output, the table's type for it, values of it, and what they become."""

    source: pa.DataType
    target: pa.DataType
    values: st.SearchStrategy[Any]
    becomes: Callable[[Any], Any] = lambda value: value


def _null(pair: Pair) -> st.SearchStrategy[Any]:
    return st.none() | pair.values


_small = st.integers(-(2**7), 2**7 - 1)
_text = st.text(max_size=20)
_decimals = st.integers(-(10**5) + 1, 10**5 - 1).map(lambda unscaled: Decimal(unscaled) / 100)
_leaves = st.sampled_from(
    [
        Pair(pa.int8(), pa.int64(), _small),
        Pair(pa.int64(), pa.int64(), _small),
        Pair(pa.uint16(), pa.int32(), st.integers(0, 2**16 - 1)),
        Pair(pa.float32(), pa.float64(), st.floats(width=32, allow_nan=False)),
        Pair(pa.bool_(), pa.bool_(), st.booleans()),
        Pair(pa.large_string(), pa.string(), _text),
        Pair(pa.string_view(), pa.string(), _text),
        Pair(pa.dictionary(pa.int8(), pa.string()), pa.string(), _text),
        Pair(pa.binary(), pa.binary(), st.binary(max_size=5)),
        Pair(pa.decimal128(5, 2), pa.decimal128(9, 4), _decimals),
        Pair(pa.string(), pa.uuid(), st.uuids().map(str), uuid.UUID),
    ]
)
# Only as a whole column: pyarrow 26 itself handles maps of lists of it wrongly.
_untyped = st.just(Pair(pa.null(), pa.int64(), st.none()))


def _list(pair: Pair, kind: Callable[[pa.DataType], pa.DataType]) -> Pair:
    return Pair(
        kind(pair.source),
        pa.list_(pa.field("element", pair.target)),
        st.lists(_null(pair), max_size=4),
        lambda rows: [_become(pair, row) for row in rows],
    )


def _fixed_list(pair: Pair) -> Pair:
    return Pair(
        pa.list_(pair.source, 2),
        pa.list_(pa.field("element", pair.target)),
        st.lists(_null(pair), min_size=2, max_size=2),
        lambda rows: [_become(pair, row) for row in rows],
    )


def _map(pair: Pair) -> Pair:
    return Pair(
        pa.map_(pa.large_string(), pair.source),
        pa.map_(pa.string(), pair.target),
        st.dictionaries(_text, _null(pair), max_size=3).map(lambda found: list(found.items())),
        lambda rows: [(key, _become(pair, value)) for key, value in rows],
    )


def _struct(one: Pair, two: Pair) -> Pair:
    # The table has the fields in another order, and one that the output lacks.
    return Pair(
        pa.struct([("one", one.source), ("two", two.source)]),
        pa.struct([("two", two.target), ("lacks", pa.int64()), ("one", one.target)]),
        st.fixed_dictionaries({"one": _null(one), "two": _null(two)}),
        lambda row: {
            "two": _become(two, row["two"]),
            "lacks": None,
            "one": _become(one, row["one"]),
        },
    )


def _become(pair: Pair, value: Any) -> Any:  # noqa: ANN401 - any value of any type.
    return None if value is None else pair.becomes(value)


_pairs = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        inner.map(lambda pair: _list(pair, pa.list_)),
        inner.map(lambda pair: _list(pair, pa.large_list)),
        inner.map(_fixed_list),
        inner.map(_map),
        st.builds(_struct, inner, inner),
    ),
    max_leaves=4,
)


@st.composite
def _columns(draw: st.DrawFn) -> tuple[Pair, list[Any], int, int]:
    pair = draw(_pairs | _untyped)
    rows = draw(st.lists(_null(pair), max_size=6))
    start = draw(st.integers(0, len(rows)))
    return pair, rows, start, draw(st.integers(start, len(rows)))


@pytest.mark.slow_unit
@given(_columns())
@settings(max_examples=200)
def test_values_are_the_same_after_as_before(column: tuple[Pair, list[Any], int, int]) -> None:
    """Whatever the nesting, the NULLs and the slice: `to_pylist` agrees, the array is valid."""
    pair, rows, start, end = column
    values = pa.array(rows, pair.source).slice(start, end - start)
    source = pa.schema([("c", pair.source)])
    target = pa.schema([("c", pair.target)])
    batch = pa.RecordBatch.from_arrays([values], schema=source)
    fitted = Conformer("t", source, target, may_lack=None)(batch)
    fitted.validate(full=True)
    assert fitted.schema == target
    assert fitted.column(0).to_pylist() == [_become(pair, row) for row in rows[start:end]]
