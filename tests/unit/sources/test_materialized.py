"""A materialized input: what its tasks write, which files count, and how they are read."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import ExecutorSetupError, JobFailedError
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.parts import read_pins, write_pins
from holdfast.model.coverage import Ranges
from holdfast.sources import materialized
from holdfast.sources.materialized import MaterializedScan, WritePlan
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.parquet_scans import read

FOLDER = "s3://store/run/input/nonce"
SCHEMA = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])


def batches(*ids: int) -> list[pa.RecordBatch]:
    """Return rows as Spark hands them over, in the session's time zone."""
    zone = pa.timestamp("us", "Europe/Amsterdam")
    return [
        pa.RecordBatch.from_pydict({"id": [number], "at": pa.array([number], zone)})
        for number in ids
    ]


def scan_of(storage: MemoryStorage, *partitions: Iterable[pa.RecordBatch]) -> MaterializedScan:
    """Return a scan whose job writes these partitions, the last one first."""

    def write(plan: WritePlan) -> list[str]:
        done = [
            plan.run(rows, place=place, attempt=100 + place).to_json()
            for place, rows in enumerate(partitions)
        ]
        return done[::-1]

    return MaterializedScan(storage, FOLDER, SCHEMA, write)


def test_rows_are_written_once_and_read_from_the_files() -> None:
    """They have the DataFrame's schema and partition order; empty partitions leave no file."""
    storage = MemoryStorage()
    scan = scan_of(storage, batches(1, 2), [], batches(3))
    layout = RunLayout.of("s3://b", "r")
    pins = read_pins(storage, layout, write_pins(storage, layout, "p", scan.pin()))
    found = read(scan, pins)
    assert [row["id"] for row in found.rows] == [1, 2, 3]
    assert found.schema == scan.schema(pins) == SCHEMA
    assert found.accounted == [0, 1, 2]
    assert [file.uri for file in pins.files] == [
        f"{FOLDER}/000000-100-0.parquet",
        f"{FOLDER}/000002-102-0.parquet",
    ]
    assert scan.compare(pins) == ""


def test_an_input_without_rows_has_no_files() -> None:
    """There is nothing to do."""
    assert scan_of(MemoryStorage(), []).pin().whole == Ranges()


def test_large_partitions_become_several_files_of_several_row_groups(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise memory and work items would grow with them."""
    monkeypatch.setattr(materialized, "_GROUP_BYTES", 30)
    monkeypatch.setattr(materialized, "_FILE_BYTES", 1500)
    scan = scan_of(MemoryStorage(), batches(*range(20)))
    pins = scan.pin()
    assert len(pins.files) > 1
    assert all(rows == 2 for file in pins.files for rows in file.group_rows)
    assert [row["id"] for row in read(scan, pins).rows] == list(range(20))


def test_a_task_that_fails_leaves_no_file_and_reports_nothing() -> None:
    """Spark runs it again as another attempt; only what is reported counts."""

    def broken() -> Iterator[pa.RecordBatch]:
        yield from batches(1, 2)
        raise ConnectionError

    storage = MemoryStorage()
    plan = WritePlan(storage=storage, folder=FOLDER)
    with pytest.raises(ConnectionError):
        plan.run(broken(), place=0, attempt=7)
    assert storage.list(FOLDER) == []
    plan.run(batches(1, 2), place=0, attempt=8)  # A speculative twin, whose report is ignored.
    pins = MaterializedScan(
        storage, FOLDER, SCHEMA, lambda p: [p.run(batches(1, 2), place=0, attempt=9).to_json()]
    ).pin()
    assert [file.uri for file in pins.files] == [f"{FOLDER}/000000-9-0.parquet"]
    assert pins.whole.rows == 2


def test_a_place_that_reports_twice_is_an_error() -> None:
    """Its rows would be duplicated."""

    def write(plan: WritePlan) -> list[str]:
        return [plan.run(batches(1), place=0, attempt=attempt).to_json() for attempt in (1, 2)]

    with pytest.raises(JobFailedError, match="1 partitions reported twice"):
        MaterializedScan(MemoryStorage(), FOLDER, SCHEMA, write).pin()


def test_an_executor_without_holdfast_is_named() -> None:
    """The executor's first lines report it."""
    problem = {"kind": "setup", "host": "node-7", "facts": {"what": "no holdfast", "cure": "pip"}}
    report = json.dumps({"place": 0, "problem": problem})
    with pytest.raises(ExecutorSetupError, match="node-7"):
        MaterializedScan(MemoryStorage(), FOLDER, SCHEMA, lambda _: [report]).pin()


def test_the_marker_only_holds_the_dataframe() -> None:
    """Nothing runs before `append`."""
    df = object()
    assert hf.materialize(df).df is df
