"""Manifests are read with the partition values that were written, whatever PyIceberg decodes."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.avro.decoder_fast import CythonBinaryDecoder
from pyiceberg.avro.reader import DoubleReader
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import DataScan, FileScanTask
from pyiceberg.transforms import IdentityTransform
from pyiceberg.typedef import Record
from pyiceberg.types import DoubleType, FloatType, LongType, NestedField, PrimitiveType

from holdfast.sinks.base import Change, Outcome, RunMark
from holdfast.sinks.iceberg.schemas import arrow_schema
from holdfast.sinks.iceberg.sink import IcebergSink
from tests.fakes.iceberg_scans import Tables
from tests.fakes.position_deletes import delete_positions

# None of them can be held in a float, but the last three.
DOUBLES = [0.1, 19.99, -1e308, 5e-324, math.pi, 2**53 + 1.0, 0.5, -0.0, math.inf]


def by_temperature(folder: Path, values: list[float], kind: PrimitiveType | None = None) -> Tables:
    """Return a table that is partitioned by a column of such numbers, with three rows of each."""
    tables = Tables(folder)
    tables.create(
        Schema(
            NestedField(1, "id", LongType()),
            NestedField(2, "temperature", kind or DoubleType()),
        ),
        partition_spec=PartitionSpec(PartitionField(2, 1000, IdentityTransform(), "p")),
    )
    add(tables, values * 3)
    return tables


def add(tables: Tables, values: list[float]) -> None:
    """Add rows by our own writer: PyIceberg's fails on NaN."""
    sink = IcebergSink(tables.catalog, "db.t", "main")
    if tables.load().current_snapshot() is None:
        sink.post_empty(sink.load())
    view = sink.load()
    schema = arrow_schema(tables.load().schema())
    writer = sink.writer_spec(view).open(f"task-{view.next_sequence_number}")
    columns = {"id": list(range(len(values))), "temperature": values}
    writer.write(writer.fit(pa.RecordBatch.from_pydict(columns, schema=schema)))
    mark = RunMark(
        run_nonce="n",
        intent_number=1,
        snapshot_id=sink.new_snapshot_id(view),
        sequence_number=view.next_sequence_number,
    )
    assert (
        sink.post(view, f"r{mark.sequence_number}", mark, Change(adds=writer.cut()))
        is Outcome.LANDED
    )


def test_pyiceberg_still_narrows_doubles() -> None:
    """Once this fails, PyIceberg is mended: require that version, and drop `manifest_reads.py`."""
    assert CythonBinaryDecoder(struct.pack("<d", 0.1)).read_double() == 0.10000000149011612


@pytest.mark.parametrize("value", DOUBLES)
def test_a_scan_finds_the_rows_of_each_double_partition(tmp_path: Path, value: float) -> None:
    """By equality, and from either side: a narrowed value was pruned away."""
    tables = by_temperature(tmp_path, DOUBLES)
    for sign, compare in (("=", operator.eq), ("<=", operator.le), (">=", operator.ge)):
        expected = sum(3 for one in DOUBLES if compare(one, value))
        assert tables.scan(where=[("temperature", sign, value)]).pin().whole.rows == expected


def test_no_table_of_ours_is_read_with_pyicebergs_decoding_of_doubles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scans, and what a loaded table reads by itself."""
    tables = by_temperature(tmp_path, DOUBLES)

    def narrowed(*_: object) -> float:
        raise AssertionError("PyIceberg decodes a double")

    monkeypatch.setattr(DoubleReader, "read", narrowed)
    assert tables.scan(where="temperature = 0.1").pin().whole.rows == 3
    assert tables.load().scan("temperature = 19.99").to_arrow().num_rows == 3
    with pytest.raises(AssertionError, match="PyIceberg decodes"):
        list(tables.catalog.load_table("db.t").scan().plan_files())


@pytest.mark.parametrize("kind", [DoubleType(), FloatType()])
def test_deletes_in_the_partition_of_nan_are_found(tmp_path: Path, kind: PrimitiveType) -> None:
    """They are looked up by the partition's value, and a NaN is not equal to another."""
    tables = by_temperature(tmp_path, [math.nan, 0.5], kind)
    add(tables, [math.nan, math.nan])
    where = "temperature is nan"
    paths = [task.file.file_path for task in tables.load().scan(where).plan_files()]
    assert len(paths) == 2
    delete_positions(tables.load(), {path: [1] for path in paths}, partition=Record(math.nan))
    assert [len(file.deletes) for file in tables.scan(where=where).pin().files] == [1, 1]


def test_a_server_that_plans_scans_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its catalog may not let others see the manifests."""
    tables = by_temperature(tmp_path, [0.1])
    planned: list[FileScanTask] = []

    def by_the_server(_: DataScan) -> Iterable[FileScanTask]:
        return planned

    plans: Any = DataScan
    monkeypatch.setattr(plans, "_plan_files_server_side", by_the_server)
    monkeypatch.setattr(tables.catalog, "supports_server_side_planning", lambda: True)
    assert tables.load().scan().plan_files() is planned


def test_a_table_without_a_snapshot_has_no_files(tmp_path: Path) -> None:
    """There is no manifest to read."""
    tables = Tables(tmp_path)
    assert not list(tables.create().scan().plan_files())
    assert not list(tables.load().scan().plan_files())
