"""A trial: the first rows go the way of all rows, and nothing is left of them."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast import per_row
from holdfast.worker.probe import TrialPlan, Tried
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import ScanTask
from tests.fakes.memory_scan import MemoryScan
from tests.fakes.row_functions import QUICK, RowFunction, batch
from tests.fakes.task_ledgers import ListWriterSpec, WatchedStorage, job_ledger
from tests.fakes.watched_transform import WatchedTransform

TABLE = pa.schema([("id", pa.int64())])


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keep temporary folders where the test sees them."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def tried(*batches: pa.RecordBatch, **options: Any) -> tuple[Tried, TaskReport]:  # noqa: ANN401
    """Try some rows; return what became of them, and the task's report."""
    fields: dict[str, Any] = {"batch_rows": None, "key": ("id",), "on_error": "quarantine"}
    fields |= {"writer": ListWriterSpec(TABLE), "job_nonce": "trial", "rows_max": 5}
    fields |= {"ledger": job_ledger(WatchedStorage())}
    report = TrialPlan(**{**fields, **options}).run(batches, place=0, attempt=0)
    report = TaskReport.from_json(report.to_json())
    return Tried.from_json(report.results[0]), report


def test_only_so_many_rows_are_transformed_and_returned_as_the_table_would_get_them() -> None:
    """Whatever batches they come in; the cost is theirs."""
    spec, transform = ListWriterSpec(TABLE), WatchedTransform()
    found, report = tried(
        batch(range(3)), batch(range(3, 30)), transform=transform, writer=spec, cost=0.5
    )
    assert transform.ids == [0, 1, 2, 3, 4]
    assert found.output.to_pydict() == {"id": [0, 1, 2, 3, 4]}
    assert (found.input_rows, found.output_rows, found.cost) == (5, 5, 2.5)
    assert (found.failed, report.end, spec.files) == (None, "complete", {})


def test_rows_that_fail_or_do_not_fit_are_returned_with_their_errors() -> None:
    """The others are tried all the same."""
    function = RowFunction()
    function.fails_at = {1: ValueError("bad")}
    function.returns = {3: {"id": "misfit"}}
    found, _ = tried(batch(range(5)), transform=per_row(function, retry=QUICK), cost=lambda _: 1.0)
    assert found.output.to_pydict() == {"id": [0, 2, 4]}
    assert found.failed is not None
    assert [row["id"] for row in found.failed["input"].to_pylist()] == [1, 3]
    assert "ValueError: bad" in found.failed["error"][0].as_py()
    assert (found.input_rows, found.cost) == (5, 4.0)


def test_a_column_that_the_table_does_not_have_is_a_problem() -> None:
    """No row can fit."""
    _, report = tried(batch(range(5)), transform=lambda rows: rows.rename_columns(["other"]))
    assert report.problem is not None
    assert (report.problem.kind, report.end) == ("schema", "stopped")


@pytest.mark.parametrize("read_rows", [1, 4])
def test_the_first_rows_of_a_scan_are_tried(read_rows: int) -> None:
    """No further row is paid for, however many are read at a time."""
    scan = MemoryScan(range(30), batch_rows=read_rows)
    pins = scan.pin()
    items = [[part for item in pins.items(pins.whole, 1, 1 << 60) for part in item]]
    task = ScanTask(reader=scan.reader(pins), items=items)
    numbers = pa.RecordBatch.from_pydict({"id": [0]})
    transform = WatchedTransform()
    found, _ = tried(numbers, transform=transform, scan=task, key=(), cost=0.5)
    assert transform.ids == found.output["id"].to_pylist() == [0, 1, 2, 3, 4]
    assert found.cost == 2.5


def test_nothing_is_left_of_a_trial(folder: Path) -> None:
    """Neither if it fails."""
    tried(batch(range(5)), transform=WatchedTransform())
    tried(batch(range(5)), transform=lambda rows: rows.rename_columns(["other"]))
    assert list(folder.iterdir()) == []


def test_much_output_is_counted_and_not_all_returned(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is collected on the driver."""
    monkeypatch.setattr("holdfast.worker.probe._SHOWN_BYTES_MAX", 20)
    found, _ = tried(batch(range(5)), transform=WatchedTransform(), batch_rows=2)
    assert (found.output_rows, found.output.num_rows) == (5, 2)


def test_no_rows_give_no_output() -> None:
    """The table's columns are known all the same."""
    found, _ = tried(batch([]), transform=WatchedTransform())
    assert (found.output.schema, found.input_rows, found.cost) == (TABLE, 0, 0.0)
