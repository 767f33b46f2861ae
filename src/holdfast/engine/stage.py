"""Stage: run the job and turn the tasks' reports into staged groups, or into one error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.engine.ports import Submitter
from holdfast.errors import (
    ExecutorSetupError,
    JobFailedError,
    SchemaMismatchError,
    TransformError,
)
from holdfast.model.staged import StagedGroup
from holdfast.worker.reports import TaskProblem, TaskReport
from holdfast.worker.task import TaskPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What one job has written."""

    groups: tuple[StagedGroup, ...]
    tasks: int
    # How many input rows the tasks have seen.
    rows_in: int


def stage(submitter: Submitter, plan: TaskPlan) -> Staged:
    """Run the plan and return what it staged.

    Raises:
        ExecutorSetupError: An executor cannot run this job.
        SchemaMismatchError: The output does not fit the table.
        TransformError: The transform failed.
        JobFailedError: Spark gave the job up, or lost a task's report.
    """
    reports = submitter.submit(plan)
    _raise_problems(reports)
    places = [report.place for report in reports]
    if len(set(places)) != len(places):
        raise JobFailedError(reason=f"{len(places) - len(set(places))} places reported twice")
    return Staged(
        groups=tuple(group for report in reports for group in report.groups),
        tasks=len(reports),
        rows_in=sum(report.rows_in for report in reports),
    )


def _raise_problems(reports: Sequence[TaskReport]) -> None:
    problems = [report.problem for report in reports if report.problem is not None]
    by_kind: dict[str, list[TaskProblem]] = {}
    for problem in problems:
        by_kind.setdefault(problem.kind, []).append(problem)
    if setup := by_kind.get("setup"):
        raise ExecutorSetupError(host=setup[0].host, **setup[0].facts)
    if schema := by_kind.get("schema"):
        raise SchemaMismatchError(**schema[0].facts)
    if transform := by_kind.get("transform"):
        facts = transform[0].facts
        example = f"{facts['error']} (at {facts['where']}; {facts['rows']}"
        example += f"; {facts['keys']})" if facts["keys"] else ")"
        raise TransformError(failed_tasks=len(transform), tasks=len(reports), example=example)
    for problem in problems:
        # Whatever it is, its task has staged nothing: its rows must not be missed.
        raise JobFailedError(reason=f"a task reported {problem.kind!r}: {problem.facts}")
