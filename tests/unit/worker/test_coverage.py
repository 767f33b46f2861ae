"""Covered keys of a record, and key hashes equal to Spark's."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.ledger.row_files import read_keys
from holdfast.model.coverage import NOTHING, Coverage
from holdfast.sources.base import TAG_COLUMN
from holdfast.worker.coverage import (
    CoveredKeys,
    NullKeysError,
    hash_sums,
    hashable,
    key_hashes,
    needs_hash_column,
    refuse_null_keys,
    split_tag,
)
from tests.fakes.task_ledgers import WatchedStorage

# ---- Covered keys: rows, hash sums and span of one record, and its key file
URI = "mem://store/tasks/0000.keys"


@pytest.fixture
def storage() -> WatchedStorage:
    """Return an empty store."""
    return WatchedStorage()


def numbers(*ids: int | None, kind: pa.DataType | None = None) -> pa.RecordBatch:
    """Return rows with these ids, and a column that is not a key."""
    return pa.RecordBatch.from_arrays(
        [pa.array(["wide"] * len(ids)), pa.array(ids, kind or pa.int64())], names=["text", "id"]
    )


def covered(
    storage: WatchedStorage, *batches: pa.RecordBatch, key: tuple[str, ...] = ("id",)
) -> Coverage:
    """Cover the batches in one record."""
    keys = CoveredKeys(storage, URI, key)
    for batch in batches:
        keys.add(batch, None)
    return keys.finish()


def test_rows_and_hash_sums_add_up_over_batches(storage: WatchedStorage) -> None:
    """However the input was split, the sums are those of all its keys."""
    found = covered(storage, numbers(5, 1), numbers(9), numbers(7, 7, 2))
    low, high = hash_sums(key_hashes([pa.array([5, 1, 9, 7, 7, 2])]))
    assert (found.rows, found.low, found.high) == (6, low, high)


def test_only_the_key_columns_are_written_down(storage: WatchedStorage) -> None:
    """They are in the order of the key, which may differ from the input's."""
    days = pa.array(["mo", "tu"])
    batch = pa.RecordBatch.from_arrays([days, pa.array([1.5, 2.5]), pa.array([8, 9])], list("abc"))
    keys = CoveredKeys(storage, URI, ("c", "a"))
    keys.add(batch, pa.array([1, 2], pa.int64()))
    assert keys.finish().keys_bytes == storage.size(URI)
    schema = pa.schema([("c", pa.int64()), ("a", pa.string())])
    rows = [row for keys in read_keys(storage, URI, schema) for row in keys.to_pylist()]
    assert rows == [{"c": 8, "a": "mo"}, {"c": 9, "a": "tu"}]


def test_sparks_hashes_are_used_unchanged(storage: WatchedStorage) -> None:
    """The halves are those of the signed number's bits; a sum may exceed 64 bits."""
    keys = CoveredKeys(storage, URI, ("id",))
    keys.add(numbers(1, 2), pa.array([-1, -(2**63)], pa.int64()))
    keys.add(numbers(3), pa.array([(7 << 32) + 9], pa.int64()))
    found = keys.finish()
    assert (found.low, found.high) == (0xFFFFFFFF + 9, 0xFFFFFFFF + 0x80000000 + 7)


def test_without_rows_nothing_is_covered_or_written(storage: WatchedStorage) -> None:
    """A replay, or the end of a task right after a chunk, covers no row of its own."""
    assert covered(storage) == NOTHING
    assert storage.sinks == []


def test_rows_are_counted_before_they_are_durable(storage: WatchedStorage) -> None:
    """A task asks whether there is anything to record."""
    keys = CoveredKeys(storage, URI, ("id",))
    assert keys.rows == 0
    keys.add(numbers(1, 2), None)
    assert keys.rows == 2


def test_abandoned_keys_leave_nothing(storage: WatchedStorage) -> None:
    """The rows are given up, and so are their keys."""
    keys = CoveredKeys(storage, URI, ("id",))
    keys.add(numbers(1, 2), None)
    keys.abandon()
    assert storage.objects == {}


@pytest.mark.parametrize(
    ("batches", "span"),
    [
        ([(1, 2, 3)], (1, 3)),
        ([(1, 5, 100), (200, 201)], (1, 201)),
        ([(-9, -3), (0, 1)], (-9, 1)),
        ([(-(2**63), 2**63 - 1)], (-(2**63), 2**63 - 1)),
        ([(1, 1)], None),
        ([(2, 1)], None),
        ([(1, 3, 2, 4)], None),
        ([(1, 2), (2, 3)], None),
        ([(5, 6), (1, 2)], None),
        ([(2, 1), (3, 4)], None),
        ([(1, 2), (2, 3), (4, 5)], None),
    ],
)
def test_a_span_is_kept_while_keys_grow_from_row_to_row(
    storage: WatchedStorage, batches: list[tuple[int, ...]], span: tuple[int, int] | None
) -> None:
    """Only then does it prove that no key is duplicated; once broken it stays broken."""
    found = covered(storage, *(numbers(*ids) for ids in batches))
    assert found.span == span


@pytest.mark.parametrize("batches", [[(1,)], [(1,), (2,), (3,)], [(1, 2), (3,)]])
def test_a_batch_of_one_row_keeps_the_span(
    storage: WatchedStorage, batches: list[tuple[int, ...]]
) -> None:
    """Slow rows come one at a time, and the last batch of a partition may have one row."""
    found = covered(storage, *(numbers(*ids) for ids in batches))
    assert found.span == (1, batches[-1][-1])


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32()])
def test_every_whole_number_has_a_span(storage: WatchedStorage, kind: pa.DataType) -> None:
    """The span is a plain number, whatever the column's width."""
    assert covered(storage, numbers(-2, 100, kind=kind)).span == (-2, 100)


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.bool_()])
def test_other_types_have_no_span(storage: WatchedStorage, kind: pa.DataType) -> None:
    """They may grow too, but no driver compares them."""
    ids = pa.array([0, 1], pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    batch = pa.RecordBatch.from_arrays([ids], ["id"])
    assert covered(storage, batch).span is None


def test_a_key_of_two_columns_has_no_span(storage: WatchedStorage) -> None:
    """Its first column alone proves nothing."""
    batch = pa.RecordBatch.from_pydict({"id": [1, 2], "day": [1, 1]})
    assert covered(storage, batch, key=("id", "day")).span is None


@pytest.mark.parametrize("key", [("id",), ("text", "id")])
def test_a_row_without_a_key_is_refused(key: tuple[str, ...]) -> None:
    """No join would ever match it as finished, so it is refused before it is paid for."""
    refuse_null_keys(numbers(1), key)
    with pytest.raises(NullKeysError) as caught:
        refuse_null_keys(numbers(2, None, None), key)
    assert caught.value.rows == 2


def test_the_hash_column_is_removed() -> None:
    """The transform must not see it; without one the batch is unchanged."""
    batch = numbers(1, 2)
    hashes = pa.array([10, 20], pa.int64())
    rest, found = split_tag(batch.append_column(TAG_COLUMN, hashes))
    assert rest.equals(batch)
    assert hashes.equals(found)
    assert split_tag(batch) == (batch, None)


@pytest.mark.parametrize(
    ("types", "needed"),
    [
        ([pa.int64()], False),
        ([pa.int64(), pa.date32(), pa.decimal128(18, 2)], False),
        ([pa.string()], True),
        ([pa.int64(), pa.binary()], True),
        ([pa.decimal128(19, 2)], True),
    ],
)
def test_spark_hashes_what_is_not_hashed_here(types: list[pa.DataType], *, needed: bool) -> None:
    """One such key column is enough."""
    assert needs_hash_column(types) is needed


def test_a_slice_covers_only_its_own_rows(storage: WatchedStorage) -> None:
    """Pace cuts batches into slices: offsets must not shift keys."""
    whole = numbers(*range(100))
    found = covered(storage, whole.slice(10, 5), whole.slice(15, 3))
    low, high = hash_sums(key_hashes([pa.array(np.arange(10, 18))]))
    assert (found.low, found.high, found.span) == (low, high, (10, 17))


# ---- Key hashes: the same numbers as Spark's xxhash64 for the same values, without Spark

# From Spark 4.1.4, which prints the hash as a signed number. Dates are days, times are
# microseconds, both from 1970; -719162 and 2932896 are the first and the last day of SQL.
SMALL = {0: 3614696996920510707, 1: -6698625589789238999, -1: 2017008487422258757}
LARGE = {0: -5252525462095825812, -1: 3858142552250413010}
# Without a stripe, with one and with several; with a word, half a word and bytes after them.
TEXTS = {
    "": -7444071767201028348,
    "a": -8582455328737087284,
    "abcd": -6810745876291105281,
    "Käse €": -3659936829219662391,
    "12345678": 6863040065134489090,
    "x" * 31: -1716462135722163746,
    "0123456789abcdef" * 2: 7380026953736478117,
    "0123456789abcdef" * 2 + "y": 1669035013115308429,
    "7c1d4a4e-9d9d-4d57-b6b5-3a1f3b0f2c11": 5945480954858589672,
    "holdfast " * 11: 1753262578929238516,
}
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
    pa.string(): TEXTS,
    pa.large_string(): TEXTS,
    pa.binary(): {text.encode(): digest for text, digest in TEXTS.items()},
    pa.large_binary(): {text.encode(): digest for text, digest in TEXTS.items()},
}
NOT_HASHED = [
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
    """Extremes and negative numbers are hashed as in Spark, for every type hashed here."""
    known = KNOWN[kind]
    assert hashable(kind)
    assert signed(pa.array(list(known), kind)) == list(known.values())


@pytest.mark.parametrize("kind", KNOWN, ids=str)
def test_null_has_the_seed_as_its_hash(kind: pa.DataType) -> None:
    """A NULL is left out of the hash; its neighbours are not."""
    (first, first_hash), (second, second_hash) = list(KNOWN[kind].items())[:2]
    column = pa.array([None, first, None, second, None], kind)
    assert signed(column) == [42, first_hash, 42, second_hash, 42]


@pytest.mark.parametrize("kind", KNOWN, ids=str)
def test_a_slice_is_hashed_from_its_own_first_row(kind: pa.DataType) -> None:
    """An array that starts inside a buffer, or inside a byte, gives its own rows' hashes."""
    values, hashes = list(KNOWN[kind]), list(KNOWN[kind].values())
    column = pa.array([None, *values * 4, None, *values], kind)
    expected = [42, *hashes * 4, 42, *hashes]
    for start in range(len(column)):
        assert signed(column.slice(start, 5)) == expected[start : start + 5]


def test_the_memory_below_a_null_does_not_matter() -> None:
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


def test_a_text_goes_on_from_the_hash_of_the_column_before_it() -> None:
    """Whether it has a stripe, whose four lanes begin with that hash, or not."""
    texts = pa.array(["abcd", None, "holdfast " * 11])
    alone_7 = -2864211556195259663
    expected = [247497006147837590, alone_7, -8992664883223100087]
    assert signed(pa.array([7, 7, 7], pa.int64()), texts) == expected


def test_three_columns_are_hashed_as_one_key() -> None:
    """The chain goes on past the second column."""
    columns = pa.array([7], pa.int64()), pa.array([-3], pa.int32()), pa.array([True])
    assert signed(*columns) == [6622971450793165686]


def test_many_rows_have_the_same_hashes_as_each_alone() -> None:
    """Rows beyond the first block get their own hashes, not those of another block."""
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
    """Without asking first, the caller gets an error that names the type."""
    assert not hashable(kind)
    with pytest.raises(TypeError, match="cannot be hashed here") as refusal:
        key_hashes([pa.array([1], pa.int64()), pa.nulls(1, kind)])
    assert str(kind) in str(refusal.value)


@pytest.mark.parametrize("lengths", [(), (3, 1), (0, 1)])
def test_columns_that_are_not_a_key_are_refused(lengths: tuple[int, ...]) -> None:
    """One row is not broadcast to the others, and a key needs at least one column."""
    with pytest.raises(ValueError, match="one or more columns of equal length"):
        key_hashes([pa.nulls(length, pa.int64()) for length in lengths])


def test_the_sums_are_those_of_the_two_halves() -> None:
    """Low and high bits are added up separately, as Spark does for the same rows."""
    hashes = np.array([0xFFFFFFFF_00000001, 0x00000002_FFFFFFFF, 2**63], dtype=np.uint64)
    assert hash_sums(hashes) == (0x1_0000_0000, 0xFFFFFFFF + 2 + 2**31)


def test_the_sums_are_exact_for_large_hashes() -> None:
    """Three million of the largest hashes add up exactly, as plain ints."""
    rows = 3_000_001
    low, high = hash_sums(np.full(rows, 2**64 - 1, dtype=np.uint64))
    assert low == high == rows * (2**32 - 1)
    assert low > 2**53  # A float would no longer count by ones here.
    assert (type(low), type(high)) == (int, int)
