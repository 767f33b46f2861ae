"""Key hashes: the very numbers that Spark's xxhash64 gave for the same values, without Spark."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.worker.coverage import hash_sums, hashable, key_hashes

# Asked of Spark 4.1.4, which prints the hash as a signed number. Dates are days, times are
# microseconds, both from 1970; -719162 and 2932896 are the first and the last day of SQL.
SMALL = {0: 3614696996920510707, 1: -6698625589789238999, -1: 2017008487422258757}
LARGE = {0: -5252525462095825812, -1: 3858142552250413010}
KNOWN: dict[pa.DataType, dict[Any, int]] = {
    pa.bool_(): {False: SMALL[0], True: SMALL[1]},
    pa.int8(): {**SMALL, -128: 4160238337661960656, 127: 8632298611707923906},
    pa.int16(): {
        -32768: -904511417458573795,
        1000: -3226198733444762270,
        32767: 8952525448871805501,
    },
    pa.int32(): {**SMALL, -(2**31): 2073849959933241805, 2**31 - 1: 1508894993788531228},
    pa.date32(): {0: SMALL[0], -719162: 6773727150484150602, 2932896: 7061898801283288394},
    pa.int64(): {
        **LARGE,
        42: -6876166290308861218,
        -(2**63): -8619748838626508300,
        2**63 - 1: -3246596055638297850,
    },
    pa.timestamp("us"): {**LARGE, 1709210096789012: -2021281541725647388},
    pa.timestamp("us", "UTC"): {**LARGE, 1709210096789012: -2021281541725647388},
    pa.decimal128(9, 2): {
        Decimal(0): LARGE[0],
        Decimal("-1234567.89"): -4851583529704802603,
        Decimal("9999999.99"): 6810183316718625826,
    },
    pa.decimal128(18, 2): {
        Decimal("0.01"): -7001672635703045582,
        Decimal("-9999999999999999.99"): 4265531446127695490,
        Decimal("9999999999999999.99"): 2162198894918931945,
    },
}
NOT_HASHED = [
    pa.string(),
    pa.binary(),
    pa.float32(),
    pa.float64(),
    pa.uint32(),
    pa.date64(),
    pa.timestamp("ms"),
    pa.timestamp("ns", "UTC"),
    pa.decimal128(19, 2),
    pa.dictionary(pa.int32(), pa.int64()),
    pa.null(),
]


def signed(*columns: pa.Array) -> list[int]:
    """Return the hashes as Spark prints them."""
    hashes: list[int] = key_hashes(columns).view(np.int64).tolist()
    return hashes


@pytest.mark.parametrize("kind", KNOWN, ids=str)
def test_each_value_has_the_hash_that_spark_gives_it(kind: pa.DataType) -> None:
    """Extremes and negative numbers are hashed as Spark does, for every type done here."""
    known = KNOWN[kind]
    assert hashable(kind)
    assert signed(pa.array(list(known), kind)) == list(known.values())


@pytest.mark.parametrize("kind", KNOWN, ids=str)
def test_null_has_the_seed_as_its_hash(kind: pa.DataType) -> None:
    """A NULL is left out of the hash, and its neighbours are not."""
    (first, first_hash), (second, second_hash) = list(KNOWN[kind].items())[:2]
    column = pa.array([None, first, None, second, None], kind)
    assert signed(column) == [42, first_hash, 42, second_hash, 42]


@pytest.mark.parametrize("kind", KNOWN, ids=str)
def test_a_slice_is_hashed_from_its_own_first_row(kind: pa.DataType) -> None:
    """An array that starts inside a buffer, also inside a byte, gives its own rows' hashes."""
    values, hashes = list(KNOWN[kind]), list(KNOWN[kind].values())
    column = pa.array([None, *values * 4, None, *values], kind)
    expected = [42, *hashes * 4, 42, *hashes]
    for start in range(len(column)):
        assert signed(column.slice(start, 5)) == expected[start : start + 5]


def test_what_stands_in_memory_below_a_null_has_no_say() -> None:
    """Two arrays that differ only where they are NULL have the same hashes."""
    validity = pa.py_buffer(bytes([0b101]))
    values = pa.py_buffer(np.array([42, 7, -1], dtype=np.int64))
    column = pa.Array.from_buffers(pa.int64(), 3, [validity, values])
    assert signed(column) == [KNOWN[pa.int64()][42], 42, LARGE[-1]]


def test_the_hash_of_one_column_is_the_seed_of_the_next() -> None:
    """Two columns are hashed in their order; a NULL in either leaves the other's hash."""
    longs = pa.array([7, None, 7, None], pa.int64())
    ints = pa.array([-3, -3, None, None], pa.int32())
    alone_7, alone_minus_3 = -2864211556195259663, 1399955818750051488
    assert signed(longs, ints) == [-1800260234864422186, alone_minus_3, alone_7, 42]
    assert signed(ints, longs) == [-4636393500875974585, alone_minus_3, alone_7, 42]


def test_three_columns_are_hashed_as_one_key() -> None:
    """The chain goes on past the second column."""
    columns = pa.array([7], pa.int64()), pa.array([-3], pa.int32()), pa.array([True])
    assert signed(*columns) == [6622971450793165686]


def test_many_rows_are_hashed_as_each_would_be_alone() -> None:
    """Rows beyond the first block get their own columns' hashes, not those of another block."""
    rows = 40_001  # Two blocks and a part of a third.
    longs = pa.array([None if row % 7 == 0 else row for row in range(rows)], pa.int64())
    ints = pa.array(range(rows), pa.int32())
    hashes = signed(longs, ints)
    assert len(set(hashes)) == len(hashes) == rows
    for row in (0, 1, 16_383, 16_384, 16_385, 32_767, 32_768, 39_998, 40_000):
        assert hashes[row : row + 1] == signed(longs.slice(row, 1), ints.slice(row, 1))


def test_no_rows_have_no_hashes() -> None:
    """An empty column gives an empty result, whose sums are zero."""
    hashes = key_hashes([pa.array([], pa.int64())])
    assert (len(hashes), str(hashes.dtype), hash_sums(hashes)) == (0, "uint64", (0, 0))


@pytest.mark.parametrize("kind", NOT_HASHED, ids=str)
def test_other_types_are_refused_and_never_hashed_wrongly(kind: pa.DataType) -> None:
    """Who does not ask first gets an error that names the type."""
    assert not hashable(kind)
    with pytest.raises(TypeError, match="cannot be hashed here") as refusal:
        key_hashes([pa.array([1], pa.int64()), pa.nulls(1, kind)])
    assert str(kind) in str(refusal.value)


@pytest.mark.parametrize("lengths", [(), (3, 1), (0, 1)])
def test_columns_that_make_no_key_are_refused(lengths: tuple[int, ...]) -> None:
    """One row is not stretched over the others, and no columns are not no rows."""
    with pytest.raises(ValueError, match="one or more columns of one length"):
        key_hashes([pa.nulls(length, pa.int64()) for length in lengths])


def test_the_sums_are_those_of_the_two_halves() -> None:
    """Low and high bits are added up apart, as Spark does it for the same rows."""
    hashes = np.array([0xFFFFFFFF_00000001, 0x00000002_FFFFFFFF, 2**63], dtype=np.uint64)
    assert hash_sums(hashes) == (0x1_0000_0000, 0xFFFFFFFF + 2 + 2**31)


def test_the_sums_are_exact_for_large_hashes() -> None:
    """Three million of the largest hashes lose no unit, and come back as plain numbers."""
    rows = 3_000_001
    low, high = hash_sums(np.full(rows, 2**64 - 1, dtype=np.uint64))
    assert low == high == rows * (2**32 - 1)
    assert low > 2**53  # A float would no longer count by ones here.
    assert (type(low), type(high)) == (int, int)
