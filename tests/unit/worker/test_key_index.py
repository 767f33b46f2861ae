"""The key index: every key is found by its value, and no other."""

from __future__ import annotations

import datetime as dt
import decimal
import pickle
import random
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from holdfast.errors import LedgerDamagedError
from holdfast.ledger.layout import RunLayout
from holdfast.worker import key_values
from holdfast.worker.key_index import Built, IndexPlan, KeyIndex
from holdfast.worker.key_values import KeySet
from tests.fakes.memory_storage import MemoryStorage

LAYOUT = RunLayout.of("s3://store", "r")
DAY = dt.date(2026, 11, 18)
NOON = dt.datetime(2026, 11, 18, 12, tzinfo=dt.timezone.utc)
# Thirty different values of each type that a key column may have.
VALUES: dict[str, pa.Array] = {
    "long": pa.array([n * 10**15 - 10**16 for n in range(30)], pa.int64()),
    "int": pa.array(range(-15, 15), pa.int32()),
    "text": pa.array([f"text {n} ä" * (n % 4) + str(n) for n in range(30)], pa.large_string()),
    "bytes": pa.array([bytes([n, 0, 255]) for n in range(30)], pa.large_binary()),
    "fixed": pa.array([bytes([n % 7, n]) for n in range(30)], pa.binary(2)),
    "uuid": pa.ExtensionArray.from_storage(
        pa.uuid(), pa.array([uuid.UUID(int=n << 100).bytes for n in range(30)], pa.binary(16))
    ),
    "date": pa.array([DAY + dt.timedelta(days=n) for n in range(30)], pa.date32()),
    "time": pa.array([dt.time(n // 2, n) for n in range(30)], pa.time64("us")),
    "timestamp": pa.array(
        [NOON + dt.timedelta(microseconds=n) for n in range(30)], pa.timestamp("us", "UTC")
    ),
    "short decimal": pa.array(
        [decimal.Decimal(n - 15) / 4 for n in range(30)], pa.decimal128(9, 2)
    ),
    "long decimal": pa.array(
        [decimal.Decimal(n - 15) * 10**25 for n in range(30)], pa.decimal128(38, 2)
    ),
}


def with_null(values: pa.Array) -> pa.Array:
    """Return values with NULL between them, in memory of its own."""
    return pa.concat_arrays([values.slice(0, 3), pa.nulls(1, values.type), values.slice(3)])


@pytest.mark.parametrize("kind", VALUES)
def test_a_key_of_one_column_is_found_by_its_value(kind: str) -> None:
    """Also in a slice of an array, and beside NULL, which is never found."""
    values = VALUES[kind]
    known = [values.take(pa.array(range(0, 30, 2)))]
    found = KeySet(known).found([with_null(values)]) >= 0
    wanted = [n % 2 == 0 for n in range(30)]
    assert found.tolist() == [*wanted[:3], False, *wanted[3:]]
    assert (KeySet(known).found([values.slice(5, 4)]) >= 0).tolist() == wanted[5:9]
    places = KeySet(known).found([values]).tolist()
    assert [place for place in places if place >= 0] == list(range(15))


@pytest.mark.parametrize("kind", VALUES)
def test_a_key_of_several_columns_is_found_if_all_are_equal(kind: str) -> None:
    """Not if one of them is, nor if one is NULL."""
    values, numbers = VALUES[kind], pa.array([n % 5 for n in range(30)], pa.int64())
    known = KeySet([values.slice(0, 10), numbers.slice(0, 10)])
    assert known.found([values, numbers]).tolist() == [*range(10)] + [-1] * 20
    assert (known.found([values, pa.array([9] * 30, pa.int64())]) < 0).all()
    assert (known.found([values, pa.nulls(30, pa.int64())]) < 0).all()


def test_keys_that_share_a_hash_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are compared by value, each with all that share it."""
    monkeypatch.setattr(
        key_values, "key_hashes", lambda columns: np.zeros(len(columns[0]), np.uint64) + 7
    )
    known = KeySet([pa.array(["a", "b", "c"], pa.large_string())])
    others = pa.array(["c", "x", "a", "b", "y"], pa.large_string())
    assert known.found([others]).tolist() == [2, -1, 0, 1, -1]


def test_nothing_is_found_among_no_keys() -> None:
    """And no row finds nothing."""
    assert KeySet([pa.array([], pa.int64())]).found([pa.array([1, 2], pa.int64())]).max() < 0
    assert len(KeySet([pa.array([1], pa.int64())]).found([pa.array([], pa.int64())])) == 0


# ---- Built by a task, read by another


@dataclass(frozen=True)
class Columns:
    """Stands for the reader of staged files."""

    schema: pa.Schema
    batches: Sequence[pa.RecordBatch]

    def open(self) -> Columns:
        """Return itself."""
        return self

    def rows(self, _item: str) -> Iterator[pa.RecordBatch]:
        """Yield the keys."""
        yield from self.batches


def built(storage: MemoryStorage, columns: Sequence[pa.Array]) -> Built:
    """Let a task build an index of keys in two batches, out of order."""
    order = list(range(len(columns[0])))
    random.Random(len(order)).shuffle(order)
    mixed = [column.take(pa.array(order, pa.int64())) for column in columns]
    names = [f"c{n}" for n in range(len(columns))]
    batch = pa.RecordBatch.from_arrays(mixed, names=names)
    reader = Columns(batch.schema, [batch.slice(0, 7), batch.slice(7)])
    plan = IndexPlan(reader=reader, storage=storage, layout=LAYOUT, name="index-n")
    items = pa.RecordBatch.from_pydict({"chunks": ["[]"]})
    report = plan.run([items], place=0, attempt=1)
    return Built.from_json(report.results[0])


def index_of(storage: MemoryStorage, done: Built, columns: int) -> KeyIndex:
    """Return an index as a task gets it."""
    assert done.file is not None
    made = KeyIndex(
        on=tuple(f"c{n}" for n in range(columns)),
        name="index-n",
        files=(done.file,),
        storage=storage,
        layout=LAYOUT,
    )
    assert pickle.loads(pickle.dumps(made)).files == made.files  # noqa: S301
    return made


@pytest.mark.parametrize("kind", VALUES)
def test_an_index_holds_the_keys_in_order(kind: str) -> None:
    """Its stretches name the first and last value of each."""
    storage, values = MemoryStorage(), VALUES[kind]
    some = values.take(pa.array([*range(5), *range(20, 30)]))
    made = index_of(storage, built(storage, [some]), 1)
    assert made.found([values]).tolist() == [True] * 5 + [False] * 15 + [True] * 10
    firsts = [first.as_py() for first, _ in made.stretches]
    assert firsts == sorted(some.to_pylist(), key=_as_bytes_if(kind))
    assert made.rows == 15


def test_stretches_are_cut_at_the_largest_gaps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files between two of them cannot hold a key."""
    monkeypatch.setattr(key_values, "_STRETCHES_MAX", 3)
    storage = MemoryStorage()
    ids = [*range(10), *range(1000, 1005), *range(50_000, 50_003)]
    made = index_of(storage, built(storage, [pa.array(ids, pa.int64())]), 1)
    ends = [(first.as_py(), last.as_py()) for first, last in made.stretches]
    assert ends == [(0, 9), (1000, 1004), (50_000, 50_002)]
    names = [f"user-{n:05d}" for n in ids]
    made = index_of(storage, built(storage, [pa.array(names, pa.large_string())]), 1)
    texts = [(first.as_py(), last.as_py()) for first, last in made.stretches]
    assert texts == [(f"user-{a:05d}", f"user-{b:05d}") for a, b in ends]


def test_keys_that_are_there_twice_make_no_index() -> None:
    """Each is counted once, with examples."""
    storage = MemoryStorage()
    ids = pa.array([5, 1, 5, 2, 5, 2, 3, 4, 6], pa.int64())
    done = built(storage, [ids, pa.array([0] * 9, pa.int64())])
    assert (done.file, done.doubles) == (None, 2)
    assert list(done.examples) == ["{'c0': 2, 'c1': 0}", "{'c0': 5, 'c1': 0}"]
    assert not storage.objects


def test_an_index_of_no_keys() -> None:
    """It finds nothing, and has no stretch."""
    storage = MemoryStorage()
    made = index_of(storage, built(storage, [pa.array([], pa.int64())]), 1)
    assert (made.stretches, made.rows) == ([], 0)
    assert not made.found([pa.array([1, 2], pa.int64())]).any()


def test_an_index_is_read_once_by_the_tasks_of_a_process() -> None:
    """The next one is read again."""
    storage, ids = MemoryStorage(), pa.array([1, 5], pa.int64())
    done = built(storage, [ids])
    assert index_of(storage, done, 1).found([ids]).all()
    storage.objects.clear()
    assert index_of(storage, done, 1).found([ids]).all()
    other = built(storage, [pa.array([2], pa.int64())])
    assert not index_of(storage, other, 1).found([ids]).any()


@pytest.mark.parametrize("text", ["", "x", "AAAA"])
def test_damaged_stretches_are_an_error(text: str) -> None:
    """A file that they lack would keep its old rows."""
    storage = MemoryStorage()
    done = built(storage, [pa.array([1, 2], pa.int64())])
    assert done.file is not None
    made = index_of(storage, done, 1)
    object.__setattr__(made.files[0], "stretches", text)
    with pytest.raises(LedgerDamagedError):
        _ = made.stretches


def _as_bytes_if(kind: str) -> Any:  # noqa: ANN401
    return (lambda value: value.bytes) if kind == "uuid" else None
