"""The simulated table for the sink contract."""

from __future__ import annotations

import threading

from holdfast.sinks.base import Change, Outcome, RunMark, TableView
from tests.contract.table_under_test import TableUnderTest
from tests.simulation.chance import Chance
from tests.simulation.table import SimTable
from tests.simulation.world import World

# Decisions of the simulation: see `SimTable`.
_WAYS_OF_A_POST = 6
NEVER_ARRIVES = 1
ANSWER_LOST = 3


class ChosenFault(Chance):
    """Injects no random fault, and into a post the fault that was chosen for it."""

    post_fault = 0

    def of(self, options: int, special: float = 1.0) -> int:  # noqa: ARG002 - nothing is drawn.
        """Decide: only a post has six outcomes."""
        return self.post_fault if options == _WAYS_OF_A_POST else 0


class SharedSimTable(SimTable):
    """A simulated table that threads may post to; the simulation itself has no threads."""

    def __init__(self, world: World, *, empty: bool) -> None:
        """Start with a snapshot of another writer's, or with none."""
        super().__init__(world, empty=empty, file_rows=None)
        self._lock = threading.Lock()

    def post(self, view: TableView, run_id: str, mark: RunMark, change: Change) -> Outcome:
        """Publish the groups, one caller after the other."""
        with self._lock:
            return super().post(view, run_id, mark, change)


class SimulatedTable(TableUnderTest):
    """The table of the simulation, whose one object is every driver's handle."""

    def __init__(self, *, empty: bool, kind: type[SharedSimTable] = SharedSimTable) -> None:
        """Start with a snapshot of another writer's, or with none.

        Args:
            empty: With none.
            kind: The table's class; a subclass may break a promise.
        """
        self._chance = ChosenFault(0)
        self._world = World(self._chance)  # No faults; outside calls do not pause.
        self._table = kind(self._world, empty=empty)

    def sink(self) -> SharedSimTable:
        """Return the one table that there is."""
        return self._table

    def rows(self) -> list[int]:
        """Return the ids in the newest snapshot's history."""
        return self._table.ids

    def foreign_append(self) -> None:
        """Add a snapshot without rows."""
        self._table.foreign_append()

    def change_schema(self) -> None:
        """Rename the column."""
        self._table.rename_column(1, "number")

    def drop_and_create(self) -> None:
        """Create it again, without the snapshot that the simulation puts into it."""
        table = self._table
        table.make_again()
        table.snapshots, table.head, table.last_sequence_number = {}, None, 0

    def drop(self) -> None:
        """Leave nothing under the name."""
        self._table.is_gone = True

    def remove_file(self, path: str) -> None:
        """Remove a file."""
        self._table.lost_files.append(path)

    def path_outside(self) -> str:
        """Return a path in another store."""
        return "memory://data/x.parquet"

    def roll_back(self, snapshot_id: int) -> None:
        """Move the head back."""
        self._table.roll_back(snapshot_id)

    def replace(self) -> None:
        """Start a new history."""
        self._table.replace()

    def expire_history(self) -> None:
        """Hide the history."""
        self._table.history_hidden = True

    def forget_marks(self) -> None:
        """Drop all marks."""
        self._table.drop_marks()

    def lose_next_answer(self, *, landed: bool) -> None:
        """Make the simulated world fail the next post."""
        self._chance.post_fault = ANSWER_LOST if landed else NEVER_ARRIVES
        self._world.faults.calls = 1
