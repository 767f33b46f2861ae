"""Python values as Arrow: each keeps its meaning, or is that row's failure."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from holdfast.errors import SchemaMismatchError
from holdfast.sinks.conform import Conformer
from holdfast.worker.row_steps import as_batch
from holdfast.worker.transforms import TransformOutputError

F16, F32, F64 = pa.float16(), pa.float32(), pa.float64()
US, NS = pa.timestamp("us"), pa.timestamp("ns")
LATE = pd.Timestamp("2024-01-01T00:00:00.000001002")
WHOLE = pd.Timestamp("2024-01-01T00:00:00.000001")


def written(value: object, kind: pa.DataType) -> Any:  # noqa: ANN401 - of the type.
    """Return what a table gets for a value that a row function returned."""
    schema = pa.schema([("v", kind)])
    batch = as_batch([{"v": value}], schema)
    return Conformer("lake.db.t", batch.schema, schema, may_lack=None)(batch)["v"].to_pylist()[0]


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (1e39, F32),
        (-1e39, F32),
        (3.4028235677973366e38, F32),  # The smallest that is rounded up.
        (np.float64(1e39), F32),
        (10**39, F32),
        (65520.0, F16),
        (70_000, F16),
        (np.float32(1e5), F16),
        (10**400, F64),
        (np.longdouble("1e400"), F64),
        ([1.0, 1e39], pa.list_(F32)),
        ([1.0, 1e39], pa.list_(F32, 2)),
        ((1.0, 1e39), pa.large_list(F32)),
        (np.array([1.0, -1e39]), pa.list_(F32, 2)),
        (np.array([1, 70_000]), pa.list_(F16)),
        (np.array([1, -(2**63)]), pa.list_(F16)),
        ([[1.0], [1e39]], pa.list_(pa.list_(F32))),
        ({"a": {"b": 1e39}}, pa.struct([("a", pa.struct([("b", F32)]))])),
        ({"a": 1e39}, pa.map_(pa.string(), F32)),
        ([("a", [1e39])], pa.map_(pa.string(), pa.list_(F32, 1))),
    ],
    ids=str,
)
def test_no_finite_number_becomes_infinite(value: object, kind: pa.DataType) -> None:
    """A score that overflows is that row's failure, in vectors and below structs, too."""
    with pytest.raises(TransformOutputError, match=r"column 'v': .* too large for"):
        written(value, kind)


@pytest.mark.parametrize("kind", [F32, F64, pa.list_(F64), pa.map_(pa.string(), F64)], ids=str)
def test_a_large_number_of_numpy_does_not_become_negative(kind: pa.DataType) -> None:
    """Pyarrow takes those beyond 2**63 for negative ones where it converts them to floats."""
    for number in (np.uint64(2**63), np.uint64(2**64 - 1)):
        value: Any = [number] if pa.types.is_list(kind) else number
        with pytest.raises(TransformOutputError, match="return a float"):
            written({"k": number} if pa.types.is_map(kind) else value, kind)
    assert written(np.uint64(2**53), F64) == float(2**53)


def test_a_single_number_is_no_list() -> None:
    """NumPy's arrays without a dimension cannot be cut."""
    with pytest.raises((ValueError, TypeError, SchemaMismatchError, TransformOutputError)):
        written(np.array(5.0), pa.list_(F64))


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (math.inf, F32, math.inf),
        (-math.inf, F16, -math.inf),
        (np.float32("inf"), F16, None),
        (3.4028234e38, F32, 3.4028234663852886e38),
        (math.nextafter(3.4028235677973366e38, 0), F32, 3.4028234663852886e38),
        (65519.0, F16, 65504.0),
        (np.float16(3), F16, 3.0),
        (1e308, F64, 1e308),
        (1e-60, F32, 0.0),
        (16777217.0, F32, 16777216.0),
        (np.array([1.0, math.inf]), pa.list_(F32), [1.0, math.inf]),
        (np.array([1.5], np.float32), pa.list_(F32, 1), [1.5]),
    ],
    ids=str,
)
def test_other_numbers_are_rounded_as_before(
    value: object, kind: pa.DataType, expected: object
) -> None:
    """Infinity stays what it is, and fractions are rounded to the type."""
    if expected is None:  # Arrow takes no float32 for a float16.
        with pytest.raises(SchemaMismatchError):
            written(value, kind)
    else:
        assert written(value, kind) == expected


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (LATE, US),
        (LATE, pa.timestamp("ms")),
        (LATE.tz_localize("UTC"), pa.timestamp("us", "UTC")),
        (LATE.tz_localize("UTC"), US),
        ([LATE], pa.list_(US)),
        ({"a": LATE}, pa.struct([("a", US)])),
        (LATE, pa.date32()),
        (LATE.to_datetime64(), US),
        (np.array([LATE.to_datetime64()]), pa.list_(US)),
        (pd.Timedelta(1, "ns"), pa.duration("us")),
        (dt.timedelta(microseconds=1), pa.duration("s")),
        (dt.time(1, 2, 3, 4), pa.time32("s")),
    ],
    ids=str,
)
def test_no_fraction_of_a_second_is_dropped(value: object, kind: pa.DataType) -> None:
    """Nanoseconds that the column cannot hold are that row's failure."""
    with pytest.raises((TransformOutputError, SchemaMismatchError)):
        written(value, kind)


@pytest.mark.parametrize(
    ("value", "kind", "expected"),
    [
        (WHOLE, US, WHOLE.to_pydatetime()),
        (WHOLE.to_datetime64(), US, WHOLE.to_pydatetime()),
        (LATE, NS, LATE),
        (LATE.to_datetime64(), NS, LATE),
        ([LATE], pa.list_(NS), [LATE]),
        (pd.Timedelta(1, "ns"), pa.duration("ns"), pd.Timedelta(1, "ns")),
        (dt.time(1, 2, 3), pa.time32("s"), dt.time(1, 2, 3)),
    ],
    ids=str,
)
def test_times_that_fit_are_kept(value: object, kind: pa.DataType, expected: object) -> None:
    """A column of nanoseconds takes them, and a whole microsecond fits one of these."""
    assert written(value, kind) == expected
