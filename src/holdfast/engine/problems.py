"""Problems: turn what tasks reported into the one error that the user sees."""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.errors import (
    ExecutorSetupError,
    InputChangedError,
    JobFailedError,
    NullKeyError,
    SchemaMismatchError,
    TransformError,
)
from holdfast.worker.reports import TaskProblem, TaskReport, WorkerTraceback, transform_example


def raise_problems(reports: Sequence[TaskReport]) -> None:
    """Raise the gravest problem of all tasks, if there is one.

    Raises:
        ExecutorSetupError: An executor cannot run this job.
        InputChangedError: A file is not the one that was pinned.
        SchemaMismatchError: The output does not fit the table.
        NullKeyError: Rows have no key.
        TransformError: The transform failed.
        JobFailedError: Spark lost or doubled a task's report.
    """
    places = [report.place for report in reports]
    problems = [report.problem for report in reports if report.problem is not None]
    by_kind: dict[str, list[TaskProblem]] = {}
    for problem in problems:
        by_kind.setdefault(problem.kind, []).append(problem)
    if setup := by_kind.get("setup"):
        raise ExecutorSetupError(host=setup[0].host, **setup[0].facts)
    if changed := by_kind.get("input"):
        raise InputChangedError(**changed[0].facts)
    if schema := by_kind.get("schema"):
        raise SchemaMismatchError(**schema[0].facts)
    if null_keys := by_kind.get("null key"):
        raise NullKeyError(rows=sum(int(problem.facts["rows"]) for problem in null_keys))
    if transform := by_kind.get("transform"):
        # What lasts has to be mended before the job can end well: it is the one to show.
        first = next((one for one in transform if one.facts.get("lasts")), transform[0])
        raise TransformError(
            failed_tasks=len(transform),
            tasks=len(reports),
            example=transform_example(first),
            retry_safe=not first.facts.get("lasts"),
        ) from WorkerTraceback.of(first.facts.get("traceback", ""))
    for problem in problems:
        # Whatever it is, its task has not done its rows: they must not be missed.
        raise JobFailedError(reason=f"a task reported {problem.kind!r}: {problem.facts}")
    if len(set(places)) != len(places):
        raise JobFailedError(reason=f"{len(places) - len(set(places))} places reported twice")
