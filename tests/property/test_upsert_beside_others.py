"""Random upserts beside random writers: the rows are always as if others had written first."""

from __future__ import annotations

import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC, PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import BucketTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    DateType,
    DecimalType,
    IcebergType,
    LongType,
    NestedField,
    StringType,
)

from holdfast.sinks.base import Change, Outcome, RunMark, TableView
from holdfast.sinks.iceberg.sink import IcebergSink
from tests.fakes.iceberg_tables import Lake, new_table
from tests.fakes.memory_submitter import MemorySubmitter

WRITES: dict[str, dict[str, Any]] = {
    "copy-on-write": {},
    "merge-on-read": {"write_mode": "merge-on-read"},
}
Row = tuple[Any, Any, str]
_KEYS = 24
_PREFIX = "longer than the bounds of a column "
# Types of the two key columns, and the value of a small number; numbers in another order, too.
TYPES: dict[str, tuple[IcebergType, Any]] = {
    "long": (LongType(), lambda n: (n - 9) * 10**17),
    "text": (StringType(), lambda n: _PREFIX + chr(0xFFF0 + 7 * n)),
    "decimal": (DecimalType(38, 2), lambda n: Decimal(5 - n) / 100),
    "date": (DateType(), lambda n: date(1970, 1, 1) + timedelta(days=400 * (n - 9))),
    "bytes": (BinaryType(), lambda n: bytes([n % 3, 0]) * n),
}
LAYOUTS = {
    "plain": UNPARTITIONED_PARTITION_SPEC,
    "key": PartitionSpec(PartitionField(1, 1000, IdentityTransform(), "p")),
    "bucket": PartitionSpec(PartitionField(2, 1000, BucketTransform(3), "p")),
    "value": PartitionSpec(PartitionField(3, 1000, IdentityTransform(), "p")),
}
ACTIONS = ("append", "delete", "compact", "overwrite", "roll back", "empty", "partition")

_numbers = st.integers(0, _KEYS - 1)
_pairs = st.tuples(st.none() | _numbers, st.none() | _numbers, st.sampled_from("xyz"))
_files = st.lists(st.lists(_pairs, min_size=1, max_size=12), min_size=1, max_size=4)
_meddling = st.lists(st.tuples(st.sampled_from(ACTIONS), st.lists(_pairs, max_size=3)), max_size=3)
_sources = st.lists(st.tuples(_numbers, _numbers), min_size=1, max_size=12, unique=True)


class Merged:
    """A table of two key columns and a value, and what others do to it right before posts."""

    def __init__(self, folder: Path, layout: str, kinds: Sequence[str]) -> None:
        """Make the table."""
        types, self._values = zip(*(TYPES[kind] for kind in kinds), strict=True)
        fields = [NestedField(n, name, types[n - 1]) for n, name in ((1, "a"), (2, "b"))]
        schema = Schema(*fields, NestedField(3, "v", StringType()))
        sink, _ = new_table(folder, schema, partition_spec=LAYOUTS[layout])
        self.lake = Lake(sink)
        # Files have the times of this machine.
        self.lake.time.pass_by(time.time() - self.lake.time.now())
        self.left: list[tuple[str, list[Any]]] = []

    def rows(self, pairs: Iterable[tuple[int | None, int | None, str]]) -> pa.Table:
        """Return rows of small numbers."""
        made = [
            [None if n is None else value(n) for n, value in zip(pair, self._values, strict=False)]
            for pair in (row[:2] for row in pairs)
        ]
        values = [row[2] for row in pairs]
        columns = [[row[at] for row in made] for at in range(2)]
        schema = self.lake.table.schema().as_arrow()
        return pa.Table.from_arrays(
            [
                pa.array(column, field.type)
                for column, field in zip((*columns, values), schema, strict=True)
            ],
            names=schema.names,
        )

    def meddle(self) -> None:
        """Let another writer act, if it still wants to."""
        action, pairs = self.left.pop(0) if self.left else ("nothing", [])
        table, rows = self.lake.table, self.rows(pairs)
        if action == "append":
            table.append(rows)
        elif action == "delete":
            table.delete("v = 'x'")
        elif action == "compact":
            table.overwrite(table.scan().to_arrow())
        elif action == "overwrite":
            table.overwrite(rows)
        elif action == "empty":
            table.delete()
        elif action == "partition" and table.schema().find_field("a").field_id not in {
            field.source_id
            for field in table.spec().fields  # PyIceberg takes one for a column.
        }:
            with table.update_spec() as spec:
                spec.add_field("a", BucketTransform(4), f"p{uuid.uuid4().hex}")
        elif action == "roll back":
            _roll_back(table)

    def found(self, snapshot_id: int | None) -> Counter[Row]:
        """Return the rows of a snapshot."""
        if snapshot_id is None:
            return Counter()
        rows = self.lake.table.scan(snapshot_id=snapshot_id).to_arrow()
        return Counter(zip(*(rows[name].to_pylist() for name in "abv"), strict=True))


def _roll_back(table: Table) -> None:
    head = table.current_snapshot()
    if head is not None and head.parent_snapshot_id is not None:
        table.manage_snapshots().rollback_to_snapshot(head.parent_snapshot_id).commit()


@pytest.mark.slow_unit
@pytest.mark.filterwarnings("ignore:Delete operation did not match any records")
@pytest.mark.parametrize("write", WRITES)
@given(
    layout=st.sampled_from(sorted(LAYOUTS)),
    kinds=st.tuples(st.sampled_from(sorted(TYPES)), st.sampled_from(sorted(TYPES))),
    on=st.sampled_from([("a",), ("b",), ("a", "b"), ("b", "a")]),
    files=_files,
    source=_sources,
    meddling=_meddling,
)
@settings(max_examples=15)
def test_the_rows_are_those_of_the_parent_under_other_keys_and_ours(  # noqa: PLR0913, PLR0917
    write: str,
    layout: str,
    kinds: tuple[str, str],
    on: tuple[str, ...],
    files: list[list[Any]],
    source: list[tuple[int, int]],
    meddling: list[tuple[str, list[Any]]],
) -> None:
    """Whatever came between the looks and the posts; and the report counts the rows that went."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patched:
        merged = Merged(Path(folder), layout, kinds)
        for pairs in files:
            merged.lake.table.append(merged.rows(pairs))
        at = ["ab".index(name) for name in on]
        unique = {tuple(pair[n] for n in at): pair for pair in source}.values()
        new = merged.rows([(*pair, "new") for pair in unique])
        post = IcebergSink.post

        def act_first(
            sink: IcebergSink, view: TableView, run_id: str, mark: RunMark, change: Change
        ) -> Outcome:
            merged.meddle()
            return post(sink, view, run_id, mark, change)

        patched.setattr(IcebergSink, "post", act_first)
        merged.left = list(meddling)
        report = merged.lake.start(
            MemorySubmitter(range(new.num_rows)),
            mode="upsert",
            on=on,
            transform=lambda batch: new.take(batch["id"]),
            **WRITES[write],
        )
        assert report.snapshot_id is not None
        landed = merged.lake.table.snapshot_by_id(report.snapshot_id)
        assert landed is not None
        keys = {tuple(row[n] for n in at) for row in zip(*new.columns, strict=True)}
        keys = {tuple(value.as_py() for value in key) for key in keys}
        parent = merged.found(landed.parent_snapshot_id)
        gone = Counter({row: n for row, n in parent.items() if tuple(row[k] for k in at) in keys})
        ours = Counter(zip(*(new[name].to_pylist() for name in "abv"), strict=True))
        assert merged.found(landed.snapshot_id) == parent - gone + ours
        assert report.replaced_rows == gone.total()
