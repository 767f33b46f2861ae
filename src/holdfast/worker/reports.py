"""What a task tells the driver: one JSON text per task, through Spark's own result.

Errors that a retry cannot mend are reported, not raised: Spark would run the task four times
and pay for the same rows again. Errors of the moment (a lost connection) are raised, so that
Spark does retry.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from holdfast.model.staged import StagedGroup

ProblemKind = Literal["setup", "transform", "schema"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskProblem:
    """Why a task could not do its work."""

    kind: ProblemKind
    host: str
    # For "setup": what and cure; for "transform": where and error; for "schema": its facts.
    facts: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskReport:
    """How one task ended."""

    place: int
    rows_in: int = 0
    rows_out: int = 0
    groups: tuple[StagedGroup, ...] = ()
    problem: TaskProblem | None = None

    def to_json(self) -> str:
        """Return the report as JSON text."""
        problem = self.problem
        return json.dumps(
            {
                "place": self.place,
                "rows_in": self.rows_in,
                "rows_out": self.rows_out,
                "groups": [group.to_json() for group in self.groups],
                "problem": None
                if problem is None
                else {"kind": problem.kind, "host": problem.host, "facts": problem.facts},
            }
        )

    @classmethod
    def from_json(cls, text: str) -> TaskReport:
        """Read back what `to_json`, or the bootstrap on an executor, gave."""
        value: dict[str, Any] = json.loads(text)
        problem = value.get("problem")
        return cls(
            place=value["place"],
            rows_in=value.get("rows_in", 0),
            rows_out=value.get("rows_out", 0),
            groups=tuple(StagedGroup.from_json(group) for group in value.get("groups", ())),
            problem=None if problem is None else TaskProblem(**problem),
        )
