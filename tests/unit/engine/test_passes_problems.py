"""Problems: the problems that tasks report become the one error that fits."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.engine.passes import raise_problems
from holdfast.errors import (
    ExecutorSetupError,
    JobError,
    JobFailedError,
    NullKeyError,
    SchemaMismatchError,
    TransformError,
)
from holdfast.worker.reports import (
    ProblemKind,
    TaskProblem,
    TaskReport,
    TransformFailedError,
    problem_of,
)

FACTS: dict[ProblemKind, dict[str, str]] = {
    "setup": {"what": "no holdfast here", "cure": "install it"},
    "schema": {"table": "t", "column": "a.b", "problem": "int64 does not fit int32"},
    "null key": {"rows": "3"},
    "transform": {
        "error": "ValueError: bad",
        "where": "job.py:7",
        "rows": "rows 0 to 9 of the task",
        "keys": "keys (id=1) to (id=9)",
    },
}


def good(place: int) -> TaskReport:
    """Return the report of a task that ended well."""
    return TaskReport(place=place, rows_in=1, log=f"1/rows/{place}/0", records=1)


def bad(place: int, kind: ProblemKind, **facts: str) -> TaskReport:
    """Return the report of a task that had a problem."""
    problem = TaskProblem(kind=kind, host=f"host-{place}", facts={**FACTS[kind], **facts})
    return TaskReport(place=place, end="stopped", problem=problem)


def test_successful_tasks_raise_nothing() -> None:
    """Neither a task without rows nor one that another attempt made unnecessary is a problem."""
    raise_problems([good(0), TaskReport(place=1), TaskReport(place=2, end="left")])
    raise_problems([])


@pytest.mark.parametrize(
    ("kind", "error", "said"),
    [
        ("setup", ExecutorSetupError, ["host-1", "no holdfast here", "install it"]),
        ("schema", SchemaMismatchError, ["'a.b'", "int64 does not fit int32"]),
        ("null key", NullKeyError, ["3 input rows have NULL"]),
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
        raise_problems([good(0), bad(1, kind), good(2)])
    assert [text for text in said if text not in str(caught.value)] == []


def test_a_transform_problem_without_keys_reads_well() -> None:
    """When the key columns are not in the batch, the message leaves them out."""
    with pytest.raises(TransformError, match=r"of the task\)") as caught:
        raise_problems([bad(0, "transform", keys="")])
    assert caught.value.example.count(";") == 1


def test_the_cause_that_must_be_fixed_first_is_raised_first() -> None:
    """A wrong executor explains other problems, and a schema that never fits needs no retry."""
    reports = [bad(0, "transform"), bad(1, "null key"), bad(2, "schema"), bad(3, "setup")]
    with pytest.raises(ExecutorSetupError):
        raise_problems(reports)
    with pytest.raises(SchemaMismatchError):
        raise_problems(reports[:3])
    with pytest.raises(NullKeyError):
        raise_problems(reports[:2])


def test_all_failed_tasks_are_counted() -> None:
    """The message says how much of the job failed."""
    with pytest.raises(TransformError) as caught:
        raise_problems([bad(place, "transform") for place in range(4)])
    assert (caught.value.failed_tasks, caught.value.tasks) == (4, 4)


def test_a_partition_reported_twice_is_an_error() -> None:
    """Counting both attempts of a task would put its rows into the table twice."""
    with pytest.raises(JobFailedError, match="reported twice"):
        raise_problems([good(0), good(1), good(1)])


def test_a_problem_of_an_unknown_kind_is_not_ignored() -> None:
    """A task that says it failed has staged nothing: continuing would lose its rows silently."""
    text = TaskReport(place=0, problem=TaskProblem(kind="setup", host="h", facts={})).to_json()
    report = TaskReport.from_json(text.replace('"setup"', '"later"'))
    with pytest.raises(JobError):
        raise_problems([report, good(1)])


@pytest.mark.parametrize("report", [good(3), TaskReport(place=1), bad(2, "schema")])
def test_a_report_survives_the_way_to_the_driver(report: TaskReport) -> None:
    """Reports travel as JSON text in Spark's own result."""
    assert TaskReport.from_json(report.to_json()) == report


def test_a_key_that_python_cannot_show_is_shown_as_its_number() -> None:
    """A date of the year 10000 as a key must not hide the error that it belongs to."""
    days = pa.array([0, 2_932_897], pa.int32()).view(pa.date32())
    batch = pa.RecordBatch.from_arrays([days], names=["day"])
    problem = problem_of(TransformFailedError(ValueError("bad")), ("day",), batch, 0)
    assert problem.facts["keys"] == "keys (day=datetime.date(1970, 1, 1)) to (day=2932897)"
