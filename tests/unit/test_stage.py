"""Stage: the tasks' reports become staged groups, or the one error that fits."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.engine.stage import stage
from holdfast.errors import (
    ExecutorSetupError,
    JobError,
    JobFailedError,
    SchemaMismatchError,
    TransformError,
)
from holdfast.worker.reports import ProblemKind, TaskProblem, TaskReport
from holdfast.worker.task import TaskPlan
from tests.fakes.manual_ports import ScriptedSubmitter
from tests.fakes.memory_writer import MemoryWriterSpec, staged_group

PLAN = TaskPlan(
    transform=None,
    batch_rows=None,
    key=("id",),
    writer=MemoryWriterSpec(pa.schema([("id", pa.int64())])),
    job_nonce="j",
)
FACTS: dict[ProblemKind, dict[str, str]] = {
    "setup": {"what": "no holdfast here", "cure": "install it"},
    "schema": {"table": "t", "column": "a.b", "problem": "int64 does not fit int32"},
    "transform": {
        "error": "ValueError: bad",
        "where": "job.py:7",
        "rows": "rows 0 to 9 of the task",
        "keys": "keys (id=1) to (id=9)",
    },
}


def good(place: int) -> TaskReport:
    """Return the report of a task that ended well."""
    return TaskReport(place=place, rows_in=1, rows_out=1, groups=(staged_group(f"p{place}"),))


def bad(place: int, kind: ProblemKind, **facts: str) -> TaskReport:
    """Return the report of a task that had a problem."""
    problem = TaskProblem(kind=kind, host=f"host-{place}", facts={**FACTS[kind], **facts})
    return TaskReport(place=place, problem=problem)


def test_all_groups_of_all_tasks_are_staged() -> None:
    """Tasks without rows count as tasks and add no group."""
    staged = stage(ScriptedSubmitter([good(0), TaskReport(place=1), good(2)]), PLAN)
    assert [group.path for group in staged.groups] == [
        "mem://metadata/p0.avro",
        "mem://metadata/p2.avro",
    ]
    assert staged.tasks == 3


@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [
        ("setup", ExecutorSetupError, ["host-1", "no holdfast here", "install it"]),
        ("schema", SchemaMismatchError, ["'a.b'", "int64 does not fit int32"]),
        (
            "transform",
            TransformError,
            ["1 of 3 tasks", "ValueError: bad", "job.py:7", "rows 0 to 9", "(id=1) to (id=9)"],
        ),
    ],
)
def test_each_problem_becomes_its_error(
    kind: ProblemKind, error: type[JobError], said: list[str]
) -> None:
    """One task's problem is the job's error, with the task's facts in its message."""
    with pytest.raises(error) as caught:
        stage(ScriptedSubmitter([good(0), bad(1, kind), good(2)]), PLAN)
    assert [text for text in said if text not in str(caught.value)] == []


def test_a_transform_problem_without_keys_reads_well() -> None:
    """When the key columns are not in the batch, the message leaves them out."""
    with pytest.raises(TransformError, match=r"of the task\)") as caught:
        stage(ScriptedSubmitter([bad(0, "transform", keys="")]), PLAN)
    assert caught.value.example.count(";") == 1


def test_the_cause_that_must_be_mended_first_is_raised_first() -> None:
    """A wrong executor explains other problems, and a schema that never fits needs no retry."""
    reports = [bad(0, "transform"), bad(1, "schema"), bad(2, "setup")]
    with pytest.raises(ExecutorSetupError):
        stage(ScriptedSubmitter(reports), PLAN)
    with pytest.raises(SchemaMismatchError):
        stage(ScriptedSubmitter(reports[:2]), PLAN)


def test_all_failed_tasks_are_counted() -> None:
    """The message says how much of the job failed."""
    with pytest.raises(TransformError) as caught:
        stage(ScriptedSubmitter([bad(place, "transform") for place in range(4)]), PLAN)
    assert (caught.value.failed_tasks, caught.value.tasks) == (4, 4)


def test_a_place_reported_twice_is_an_error() -> None:
    """Both attempts of a task counted would put its rows into the table twice."""
    with pytest.raises(JobFailedError, match="reported twice"):
        stage(ScriptedSubmitter([good(0), good(1), good(1)]), PLAN)


def test_a_problem_of_an_unknown_kind_is_not_passed_over() -> None:
    """A task that says it failed has staged nothing: to go on would lose its rows in silence."""
    text = TaskReport(place=0, problem=TaskProblem(kind="setup", host="h", facts={})).to_json()
    report = TaskReport.from_json(text.replace('"setup"', '"later"'))
    with pytest.raises(JobError):
        stage(ScriptedSubmitter([report, good(1)]), PLAN)


@pytest.mark.parametrize("report", [good(3), TaskReport(place=1), bad(2, "schema")])
def test_a_report_survives_the_way_to_the_driver(report: TaskReport) -> None:
    """Reports travel as JSON text through Spark's own result."""
    assert TaskReport.from_json(report.to_json()) == report
