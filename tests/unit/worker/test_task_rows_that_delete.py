"""Whole tasks into Iceberg files, of whose output some rows only delete."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from holdfast import per_row
from holdfast.errors import SchemaMismatchError
from holdfast.sinks.base import MayLack
from holdfast.sinks.conform import Conformer
from holdfast.sinks.iceberg.writer import IcebergWriterSpec
from holdfast.worker import transforms
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import TaskPlan
from tests.fakes.iceberg_tables import local_path, writer_spec
from tests.fakes.task_ledgers import ATTEMPT, PLACE, WatchedStorage, job_ledger, logged

SCHEMA = Schema(NestedField(1, "id", LongType(), required=True), NestedField(2, "by", StringType()))


@pytest.fixture
def storage() -> Iterator[WatchedStorage]:
    """Return an empty store; forget what was built for the test."""
    yield WatchedStorage()
    transforms._BUILT.clear()  # noqa: SLF001 - a test must not find clients of another.


def spec_of(folder: Path, may_lack: MayLack = frozenset()) -> IcebergWriterSpec:
    """Return a writer whose output says with `gone` which rows delete."""
    spec = writer_spec(folder, SCHEMA, may_lack=may_lack)
    return replace(spec, on=("id",), delete_column="gone")


def run(
    storage: WatchedStorage,
    spec: IcebergWriterSpec,
    transform: Any,  # noqa: ANN401
    *ids: int,
    **options: Any,  # noqa: ANN401 - any of `TaskPlan`.
) -> TaskReport:
    """Run a task over ids."""
    plan = TaskPlan(
        **{"transform": transform, "batch_rows": None, "key": ("id",), "one_to_one": True}
        | options,
        writer=spec,
        ledger=job_ledger(storage),
        job_nonce="job",
    )
    return plan.run([pa.RecordBatch.from_pydict({"id": list(ids)})], place=PLACE, attempt=ATTEMPT)


def staged(storage: WatchedStorage) -> tuple[list[int], list[int]]:
    """Return the ids to write and those to delete, as far as they are in files."""
    groups = [group for record in logged(job_ledger(storage)) for group in record.groups]
    files = [(bool(g.deleted_keys), file.path) for g in groups for file in g.with_keys]
    found: dict[bool, list[int]] = {False: [], True: []}
    for deletes, path in files:
        found[deletes] += pq.read_table(local_path(path))["id"].to_pylist()
    return sorted(found[False]), sorted(found[True])


def answer(row: dict[str, Any]) -> dict[str, Any]:
    """Delete every third row; such a row has nothing but its key."""
    gone = row["id"] % 3 == 0
    return {"id": row["id"], "by": None if gone else "new", "gone": gone}


def test_a_row_function_says_which_rows_delete(storage: WatchedStorage, tmp_path: Path) -> None:
    """Each answer is one row, whether it is written or not."""
    report = run(storage, spec_of(tmp_path), per_row(answer), *range(7))
    assert staged(storage) == ([1, 2, 4, 5], [0, 3, 6])
    (record,) = logged(job_ledger(storage))
    assert (record.coverage.rows, report.rows_in, record.end) == (7, 7, "complete")


@pytest.mark.parametrize("may_lack", [frozenset(), None])
def test_an_answer_that_does_not_say_it_fails(
    may_lack: MayLack, storage: WatchedStorage, tmp_path: Path
) -> None:
    """Other columns may be missing if the user says so; that does not mean that a row stays."""

    def forgets(row: dict[str, Any]) -> dict[str, Any]:
        found = answer(row)
        return found if row["id"] != 4 else {"id": 4, "by": "new"}

    report = run(
        storage, spec_of(tmp_path, may_lack), per_row(forgets), *range(7), on_error="quarantine"
    )
    assert staged(storage) == ([1, 2, 5], [0, 3, 6])
    assert report.failed_rows == 1
    assert "says which rows delete" in report.failed_example


def _without_keys(batch: pa.RecordBatch) -> dict[str, Any]:
    ids = batch["id"].to_pylist()
    return {
        "id": [None if id_ == 3 else id_ for id_ in ids],
        "by": ["new"] * len(ids),
        "gone": [id_ % 3 == 0 for id_ in ids],
    }


def test_a_row_that_deletes_without_a_key_is_set_aside(
    storage: WatchedStorage, tmp_path: Path
) -> None:
    """Its batch is halved until it is found."""
    report = run(storage, spec_of(tmp_path), _without_keys, *range(7), on_error="quarantine")
    assert staged(storage) == ([1, 2, 4, 5], [0, 6])
    assert report.failed_rows == 1


def _fails_at_five(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    ids = batch["id"].to_pylist()
    yield {"id": ids, "by": ["new"] * len(ids), "gone": [True] * len(ids)}
    if 5 in ids:
        raise ValueError("5 fails")


def test_a_batch_that_fails_deletes_nothing(storage: WatchedStorage, tmp_path: Path) -> None:
    """Its keys were taken before it failed; those of the batch before it are in a chunk."""
    report = run(
        storage,
        spec_of(tmp_path),
        _fails_at_five,
        *(2, 3, 4, 5),
        batch_rows=2,
        checkpoint_every_s=1e9,
    )
    (record,) = logged(job_ledger(storage))
    assert report.end == "stopped"
    assert record.chunk is not None
    assert (record.chunk.rows, record.coverage.rows, staged(storage)) == (2, 2, ([], []))
    assert not list(tmp_path.rglob("*-k*"))


def test_input_without_the_column_is_refused_before_a_task_starts(tmp_path: Path) -> None:
    """Without a transform the columns of the output are those of the input."""
    spec, lacks = spec_of(tmp_path, None), pa.schema([("id", pa.int64()), ("by", pa.string())])

    def check(schema: pa.Schema) -> Callable[..., object]:
        return Conformer(spec.table, schema, spec.schema, may_lack=spec.may_lack)

    check(lacks.append(pa.field("gone", pa.bool_())))
    with pytest.raises(SchemaMismatchError, match=r"'gone'.*missing"):
        check(lacks)
    with pytest.raises(SchemaMismatchError, match=r"'gone'.*int64 cannot be cast"):
        check(lacks.append(pa.field("gone", pa.int64())))
