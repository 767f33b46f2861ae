"""Covered keys: rows, hash sums and span of one record, and its key file."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from holdfast.ledger.row_files import read_keys
from holdfast.model.work import NOTHING, Coverage
from holdfast.sources.base import TAG_COLUMN
from holdfast.worker.coverage import (
    CoveredKeys,
    NullKeysError,
    hash_sums,
    key_hashes,
    needs_hash_column,
    refuse_null_keys,
    split_tag,
)
from tests.fakes.task_ledgers import WatchedStorage

URI = "mem://store/tasks/0000.keys"


@pytest.fixture
def storage() -> WatchedStorage:
    """Return an empty store."""
    return WatchedStorage()


def numbers(*ids: int | None, kind: pa.DataType | None = None) -> pa.RecordBatch:
    """Return rows of these ids, beside a column that is no key."""
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
    """However the input was cut, the sums are those of all its keys."""
    found = covered(storage, numbers(5, 1), numbers(9), numbers(7, 7, 2))
    low, high = hash_sums(key_hashes([pa.array([5, 1, 9, 7, 7, 2])]))
    assert (found.rows, found.low, found.high) == (6, low, high)


def test_only_the_key_columns_are_written_down(storage: WatchedStorage) -> None:
    """In the key's order, which need not be the input's."""
    days = pa.array(["mo", "tu"])
    batch = pa.RecordBatch.from_arrays([days, pa.array([1.5, 2.5]), pa.array([8, 9])], list("abc"))
    keys = CoveredKeys(storage, URI, ("c", "a"))
    keys.add(batch, pa.array([1, 2], pa.int64()))
    assert keys.finish().keys_bytes == storage.size(URI)
    schema = pa.schema([("c", pa.int64()), ("a", pa.string())])
    rows = [row for one in read_keys(storage, URI, schema) for row in one.to_pylist()]
    assert rows == [{"c": 8, "a": "mo"}, {"c": 9, "a": "tu"}]


def test_sparks_hashes_are_taken_as_they_are(storage: WatchedStorage) -> None:
    """A signed number's halves are those of its bits; a sum over many may exceed 64 bits."""
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
    """Only then does it prove that no key is there twice; once broken it stays so."""
    found = covered(storage, *(numbers(*ids) for ids in batches))
    assert found.span == span


@pytest.mark.parametrize("batches", [[(1,)], [(1,), (2,), (3,)], [(1, 2), (3,)]])
def test_a_batch_of_one_row_keeps_the_span(
    storage: WatchedStorage, batches: list[tuple[int, ...]]
) -> None:
    """Slow rows come one at a time, and the last batch of a partition may be of one row."""
    found = covered(storage, *(numbers(*ids) for ids in batches))
    assert found.span == (1, batches[-1][-1])


@pytest.mark.parametrize("kind", [pa.int8(), pa.int16(), pa.int32()])
def test_every_whole_number_has_a_span(storage: WatchedStorage, kind: pa.DataType) -> None:
    """The span is a plain number, whatever the column's width."""
    assert covered(storage, numbers(-2, 100, kind=kind)).span == (-2, 100)


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us"), pa.bool_()])
def test_other_types_have_no_span(storage: WatchedStorage, kind: pa.DataType) -> None:
    """They may grow as well, but no driver compares them."""
    ids = pa.array([0, 1], pa.int32() if kind == pa.date32() else pa.int64()).cast(kind)
    batch = pa.RecordBatch.from_arrays([ids], ["id"])
    assert covered(storage, batch).span is None


def test_a_key_of_two_columns_has_no_span(storage: WatchedStorage) -> None:
    """Its first column alone proves nothing."""
    batch = pa.RecordBatch.from_pydict({"id": [1, 2], "day": [1, 1]})
    assert covered(storage, batch, key=("id", "day")).span is None


@pytest.mark.parametrize("key", [("id",), ("text", "id")])
def test_a_row_without_a_key_is_refused(key: tuple[str, ...]) -> None:
    """No join would ever find it finished, so it is refused before it is paid for."""
    refuse_null_keys(numbers(1), key)
    with pytest.raises(NullKeysError) as caught:
        refuse_null_keys(numbers(2, None, None), key)
    assert caught.value.rows == 2


def test_the_hash_column_is_taken_off() -> None:
    """The transform must not see it; without one there is nothing to take."""
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
    """One column of the key is enough."""
    assert needs_hash_column(types) is needed


def test_a_slice_is_covered_as_itself(storage: WatchedStorage) -> None:
    """Pace cuts batches into slices: offsets must not shift keys."""
    whole = numbers(*range(100))
    found = covered(storage, whole.slice(10, 5), whole.slice(15, 3))
    low, high = hash_sums(key_hashes([pa.array(np.arange(10, 18))]))
    assert (found.low, found.high, found.span) == (low, high, (10, 17))
