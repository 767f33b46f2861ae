"""What a task tells the driver: one JSON text per task, through Spark's own result.

Errors that a retry cannot mend are reported, not raised: Spark would run the task four times
and pay for the same rows again. Errors of the moment (a lost connection) are raised, so that
Spark does retry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

ProblemKind = Literal["setup", "transform", "schema", "null key", "input"]
# "complete": all its input is durable. "left": another attempt has durable work there, the next
# pass does the rest. "fenced": the run has gone on without this job. "interrupted": the driver
# gives up. "stopped": see the problem.
ReportEnd = Literal["complete", "left", "fenced", "interrupted", "stopped"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProblem:
    """Why a task could not do its work."""

    kind: ProblemKind
    host: str
    # For "setup": what and cure; for "transform": where, error, traceback, and `lasts` unless it
    # may pass; for "schema": its facts; for "null key": rows.
    facts: dict[str, str]
    # Whether the job cannot end well, whatever its other tasks do.
    of_the_job: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """How one task ended."""

    place: int
    end: ReportEnd = "complete"
    rows_in: int = 0
    # The attempt's own log, and how many records stand in it: the driver must find as many.
    log: str = ""
    records: int = 0
    problem: TaskProblem | None = None
    # Records whose chunk could not be read back as it was written.
    damaged: tuple[str, ...] = ()
    # Rows that were set aside, and the first of them in words.
    failed_rows: int = 0
    failed_example: str = ""
    # Its traceback.
    failed_traceback: str = ""
    # Whether one of them failed in a way that may pass.
    failed_may_pass: bool = False
    # What the task has asked of storage: see `IoCounters`.
    io: Mapping[str, float] = field(default_factory=dict)

    def to_json(self) -> str:
        """Return the report as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> TaskReport:
        """Read back what `to_json`, or the bootstrap on an executor, gave."""
        value: dict[str, Any] = json.loads(text)
        problem = value.pop("problem", None)
        value["damaged"] = tuple(value.get("damaged", ()))
        if problem is not None:
            value = {"end": "stopped", **value, "problem": TaskProblem(**problem)}
        return cls(**value)


class WorkerTraceback(Exception):  # noqa: N818 - it is no error, but where one was raised.
    """The traceback of a worker, as text: frames do not travel between processes."""

    def __str__(self) -> str:
        """Return it so that Python prints it above the driver's own traceback."""
        return f'\n"""\n{self.args[0]}\n"""'

    @classmethod
    def of(cls, text: str) -> WorkerTraceback | None:
        """Return what to raise an error from; None if there is no traceback."""
        return cls(text) if text else None


def transform_example(problem: TaskProblem) -> str:
    """Return a transform's failure as one text."""
    facts = problem.facts
    example = f"{facts['error']} (at {facts['where']}; {facts['rows']}"
    return example + (f"; {facts['keys']})" if facts["keys"] else ")")
