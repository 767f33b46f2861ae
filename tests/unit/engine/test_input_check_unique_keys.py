"""Unique keys: a proof on the driver that no key is covered twice, and when it is not tried."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from holdfast.engine import input_check
from holdfast.engine.input_check import all_differ
from holdfast.errors import LedgerDamagedError, StoreUnavailableError
from holdfast.ledger.row_files import KeyFile, KeyFiles
from holdfast.model.coverage import Coverage
from holdfast.model.work import TaskRecord, Work
from holdfast.worker.coverage import hash_sums, hashable, key_hashes
from tests.fakes.logs import LAYOUT
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.rig import Rig

Keys = dict[str, list[object]]


def covered(*records: Keys) -> tuple[Work, KeyFiles]:
    """Return work with one record for each set of keys, and the files of these keys."""
    storage, made = MemoryStorage(), []
    for number, keys in enumerate(records):
        name = f"1/rows/{number}/0/0"
        file = KeyFile(storage, LAYOUT.keys(name))
        columns = [pa.array(values) for values in keys.values()]
        file.add(list(keys), columns)
        size = file.finish()
        known = all(hashable(column.type) for column in columns)
        low, high = hash_sums(key_hashes(columns)) if known else (0, 0)
        coverage = Coverage(rows=len(columns[0]), low=low, high=high, keys_bytes=size)
        made.append(TaskRecord(name=name, coverage=coverage, seconds=0.0))
    uris = {record.name: LAYOUT.keys(record.name) for record in made}
    return Work(records=tuple(made)), KeyFiles(storage=storage, uris=uris)


@pytest.mark.parametrize(
    ("records", "differ"),
    [
        ([{"id": [3, 1, 2]}, {"id": [5, 4]}], True),
        ([{"id": [3, 1, 2]}, {"id": [5, 3]}], False),
        ([{"id": [3, 1, 3]}], False),
        ([{"id": [3, 1, 3]}, {"id": [4]}], False),
        ([{"id": ["c", "a", "b"]}, {"id": ["d" * 40, "e"]}], True),
        ([{"id": ["c", "a", "b"]}, {"id": ["d" * 40, "c"]}], False),
        ([{"id": [b"c", b"a"]}, {"id": [b"", b"d" * 40]}], True),
        ([{"day": [1, 1], "id": ["a", "b"]}, {"day": [2, 2], "id": ["a", "b"]}], True),
        ([{"day": [1, 1], "id": ["a", "b"]}, {"day": [2, 1], "id": ["a", "b"]}], False),
        ([{"day": [1, 1], "id": [1, 2]}, {"day": [2, 2], "id": [1, 2]}], True),
        ([{"day": [1, 1], "id": [1, 2]}, {"day": [2, 1], "id": [1, 2]}], False),
    ],
)
def test_keys_of_all_records_are_compared_together(records: list[Keys], differ: bool) -> None:  # noqa: FBT001 - drawn.
    """In one record or in two, with one column or several."""
    assert all_differ(*covered(*records)) is differ


def test_keys_whose_hash_is_not_computed_here_prove_nothing() -> None:
    """Spark compares large decimals, also if only one of the records has them."""
    large: list[object] = [Decimal(10) ** 30, Decimal(10) ** 31]
    assert not all_differ(*covered({"id": large}))
    assert not all_differ(*covered({"id": [1, 2]}, {"id": large}))


def test_texts_with_one_hash_prove_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two different keys may share a hash: then Spark compares the keys themselves."""
    work, finished = covered({"id": ["a", "b"]}, {"id": ["c"]})
    assert all_differ(work, finished)
    monkeypatch.setattr(input_check, "hash_sums", lambda _hashes: (0, 0))
    monkeypatch.setattr(input_check, "key_hashes", lambda columns: np.zeros(len(columns[0]), "u8"))
    records = [
        replace(record, coverage=replace(record.coverage, low=0, high=0)) for record in work.records
    ]
    assert not all_differ(Work(records=tuple(records)), finished)


def test_too_many_keys_are_not_even_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The driver's memory is bounded, whatever the data's size."""
    monkeypatch.setattr(input_check, "_ROWS_MAX", 3)
    work, finished = covered({"id": [4, 1]}, {"id": [3, 2]})
    assert isinstance(finished.storage, MemoryStorage)
    assert not all_differ(work, finished)
    assert finished.storage.names_called("get") == []


def test_fewer_keys_than_were_covered_are_damage() -> None:
    """A proof over only some of the keys is not a proof."""
    work, finished = covered({"id": [2, 1]}, {"id": [4, 3, 5]})
    assert isinstance(finished.storage, MemoryStorage)
    first, second = finished.uris.values()
    finished.storage.objects[second] = finished.storage.objects[first]
    with pytest.raises(LedgerDamagedError, match="2 rows, but 3 were written"):
        all_differ(work, finished)


def test_damaged_keys_are_distinguished_from_an_unavailable_store() -> None:
    """Damage is permanent, an outage is not."""
    work, finished = covered({"id": [2, 1]})
    assert isinstance(finished.storage, MemoryStorage)
    finished.storage.failures["get"] = 1
    with pytest.raises(StoreUnavailableError):
        all_differ(work, finished)
    (uri,) = finished.uris.values()
    finished.storage.objects[uri] = b"no parquet"
    with pytest.raises(LedgerDamagedError, match=uri):
        all_differ(work, finished)
    finished.storage.objects.clear()
    with pytest.raises(LedgerDamagedError, match=uri):
        all_differ(work, finished)


def test_spark_is_not_asked_for_what_the_driver_can_prove() -> None:
    """A small unordered run costs no join."""
    submitter = MemorySubmitter([5, 1, 3], [4, 2])
    Rig().start(submitter)
    assert submitter.joins == 0


def test_one_flipped_bit_anywhere_is_damage_or_changes_nothing() -> None:
    """Pyarrow reports a damaged file in many ways; none of them reaches the user unchanged.

    Found by the simulation: a damaged page header is an OSError.
    """
    work, finished = covered({"id": [2, 1, 7]})
    assert isinstance(finished.storage, MemoryStorage)
    (uri,) = finished.uris.values()
    whole, damaged = finished.storage.objects[uri], 0
    for position in range(len(whole)):
        data = bytearray(whole)
        data[position] ^= 1
        finished.storage.objects[uri] = bytes(data)
        try:
            assert all_differ(work, finished)
        except LedgerDamagedError:
            damaged += 1
    assert damaged > len(whole) // 4
