"""What the engine needs from Spark, as protocols that a simulation can implement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from holdfast.ledger.row_files import KeyFiles
from holdfast.model.coverage import InputSums, KeyExamples
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import ItemPlan, TaskPlan


class Jobs(Protocol):
    """Runs plans over numbered work items."""

    @property
    def slots(self) -> int:
        """How many tasks run at a time."""

    def run(self, plan: TaskPlan, items: int) -> list[TaskReport]:
        """Run a plan over `items` items; return one report per task.

        Raises:
            JobError: The job could not be run at all.
        """

    def items(self, plan: ItemPlan, items: Sequence[str]) -> list[TaskReport]:
        """Run a plan over work items that are texts; return one report per task.

        Raises:
            JobError: The job could not be run at all.
        """


class Submitter(Protocol):
    """Reads the input, and runs plans over it, one task per place."""

    @property
    def slots(self) -> int:
        """How many tasks run at a time.

        Raises:
            JobError: Spark does not report its parallelism.
        """

    def measure(self, finished: KeyFiles, *, whole_rows: bool = False) -> InputSums:
        """Read the input once and return the sums of the unfinished rows.

        Args:
            finished: The keys of rows to leave out.
            whole_rows: Also sum whole rows; otherwise only the key columns are read.

        Raises:
            JobError: The input could not be read.
        """

    def look(self, *, whole_rows: bool = False) -> tuple[InputSums, int]:
        """Return the sums of the whole input, and how many keys of a sample appear in two rows.

        Args:
            whole_rows: Also sum whole rows; otherwise only the key columns are read.

        Raises:
            JobError: The input could not be read.
        """

    def submit(self, plan: TaskPlan, finished: KeyFiles) -> list[TaskReport]:
        """Run the plan over the unfinished rows; return one report per task.

        Raises:
            JobError: The job could not be run at all.
        """

    def items(self, plan: ItemPlan, items: Sequence[str]) -> list[TaskReport]:
        """Run a plan over work items that are texts; return one report per task.

        Raises:
            JobError: The job could not be run at all.
        """

    def duplicates(self, *, beside: bool = False) -> KeyExamples:
        """Return the keys that appear in more than one input row.

        Args:
            beside: Whether another thread calls this while a plan runs.

        Raises:
            JobError: The input could not be read.
        """

    def cancel_beside(self) -> None:
        """Cancel what another thread has asked for and is still running."""

    def gone(self, finished: KeyFiles) -> KeyExamples:
        """Return the finished keys that the input no longer has."""

    def overlaps(self, finished: KeyFiles) -> Mapping[tuple[str, ...], int]:
        """Return which records share keys, and how many; a single name means a key twice in it."""
