"""The first code on an executor: what it reports when it cannot run the job. No JVM is started."""

from __future__ import annotations

import gc
import importlib
import pickle
import sys
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from holdfast import __version__
from holdfast.ledger.layout import RunLayout
from holdfast.spark.bootstrap import bootstrap
from holdfast.storage.objects import ObjectStorage
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import TaskPlan
from tests.fakes.iceberg_tables import writer_spec
from tests.fakes.logs import job_ledger, task_records

BATCH = pa.RecordBatch.from_pydict({"id": pa.array([1, 2, 3], pa.int64())})


def run(payload: bytes, version: str = __version__) -> TaskReport:
    """Run one task as Spark would and return its report."""
    (answer,) = bootstrap(payload, version)(iter([BATCH]))
    assert answer.schema.names == ["report"]
    return TaskReport.from_json(answer.column("report")[0].as_py())


def plan(folder: Path) -> TaskPlan:
    """Return a plan that writes to a folder."""
    schema = Schema(NestedField(1, "id", LongType()))
    return TaskPlan(
        transform=None,
        batch_rows=None,
        key=("id",),
        writer=writer_spec(folder, schema),
        ledger=job_ledger(ObjectStorage(), RunLayout.of(f"file://{folder}/store", "r")),
        job_nonce="j",
    )


def test_a_plan_is_run_and_reported(tmp_path: Path) -> None:
    """The task's only answer to Spark is its report."""
    the_plan = plan(tmp_path)
    report = run(pickle.dumps(the_plan))
    assert (report.end, report.rows_in, report.problem) == ("complete", 3, None)
    (record,) = task_records(the_plan.ledger)
    assert (record.log, report.records, len(record.groups)) == (report.log, 1, 1)


def test_the_next_task_does_not_pay_for_what_is_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two tasks, Spark collects garbage, and reads the directories of zip files."""
    archive = tmp_path / "modules.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("found_in_a_zip_file.py", "NUMBER = 7")
    monkeypatch.syspath_prepend(str(archive))
    importlib.import_module("found_in_a_zip_file")
    assert str(archive) in sys.path_importer_cache
    gc.unfreeze()
    try:
        run(pickle.dumps(plan(tmp_path)))
        assert gc.get_freeze_count()
        assert str(archive) not in sys.path_importer_cache
        del sys.modules["found_in_a_zip_file"]
        assert importlib.import_module("found_in_a_zip_file").NUMBER == 7
    finally:
        gc.unfreeze()


def problem(report: TaskReport) -> dict[str, str]:
    """Return the facts of a set-up problem, which names the host and its Python."""
    assert report.problem is not None
    assert report.problem.kind == "setup"
    assert sys.executable in report.problem.host
    return report.problem.facts


def test_another_version_is_named_with_advice(tmp_path: Path) -> None:
    """A plan from another version is not even unpickled."""
    facts = problem(run(pickle.dumps(plan(tmp_path)) + b"x", version="9.9.9"))
    assert __version__ in facts["what"]
    assert "9.9.9" in facts["what"]
    assert "install holdfast 9.9.9 there" in facts["cure"]
    assert list(tmp_path.iterdir()) == []


def test_an_executor_without_holdfast_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The function that Spark runs must not need Holdfast to report that it is missing."""

    def missing(name: str) -> Any:  # noqa: ANN401 - a module, if it existed.
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(importlib, "import_module", missing)
    facts = problem(run(b""))
    assert "No module named 'holdfast'" in facts["what"]
    assert "install holdfast" in facts["cure"]


def test_a_transform_that_cannot_be_loaded_says_what_is_missing() -> None:
    """The executor lacks a package that the transform imports."""
    payload = b"cno_such_package\nTransform\n."
    facts = problem(run(payload))
    assert "no_such_package" in facts["what"]
    assert "install the packages" in facts["cure"]


def test_the_function_is_pickled_by_value() -> None:
    """Pickled by name, it could not even be loaded on an executor without Holdfast."""
    assert bootstrap(b"", "0").__module__ == "__main__"
