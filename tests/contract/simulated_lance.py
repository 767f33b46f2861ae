"""The simulated Lance dataset for the sink contract."""

from __future__ import annotations

import threading

from holdfast.sinks.base import Change, Outcome, RunMark, TableView
from tests.contract.simulated_table import ANSWER_LOST, NEVER_ARRIVES, ChosenFault
from tests.contract.table_under_test import TableUnderTest
from tests.simulation.lance_table import LanceSimTable
from tests.simulation.world import World


class SharedLanceSimTable(LanceSimTable):
    """A simulated dataset that threads may post to; the simulation itself has no threads."""

    def __init__(self, world: World, *, empty: bool) -> None:
        """Start with a version of another writer's rows, or with one without rows."""
        super().__init__(world, empty=empty, file_rows=None)
        self._lock = threading.Lock()

    def post(self, view: TableView, run_id: str, mark: RunMark, change: Change) -> Outcome:
        """Publish the groups, one caller after the other."""
        with self._lock:
            return super().post(view, run_id, mark, change)


class SimulatedLance(TableUnderTest):
    """The dataset of the simulation, whose one object is every driver's handle."""

    counts_versions = True

    def __init__(self, *, empty: bool) -> None:
        """Start with a version of another writer's rows, or with one without rows."""
        self._chance = ChosenFault(0)
        self._world = World(self._chance)  # No faults; outside calls do not pause.
        self.table = SharedLanceSimTable(self._world, empty=empty)

    def sink(self) -> SharedLanceSimTable:
        """Return the one table that there is."""
        return self.table

    def rows(self) -> list[int]:
        """Return the ids in the newest version."""
        return self.table.ids

    def foreign_append(self) -> None:
        """Add a version; its rows do not matter."""
        self.table.foreign_append()

    def change_schema(self) -> None:
        """Rename the column."""
        self.table.rename_column(0, "number")

    def drop_and_create(self) -> None:
        """Create it again, without the version that the simulation puts on top."""
        self.table.make_again()
        self.table.folder.create()

    def drop(self) -> None:
        """Leave nothing under the name."""
        self.table.is_gone = True

    def remove_file(self, path: str) -> None:
        """Remove a file."""
        self.table.lost_files.append(path)

    def path_outside(self) -> str:
        """Return a path in another store."""
        return "memory://data/x.lance"

    def roll_back(self, snapshot_id: int) -> None:
        """Restore an older version."""
        self.table.roll_back(snapshot_id)

    def replace(self) -> None:
        """Overwrite the dataset."""
        self.table.replace()

    def expire_history(self) -> None:
        """Clean up all versions but the newest."""
        self.table.folder.clean_up(self.table.folder.newest)

    def forget_marks(self) -> None:
        """Remove the schema's metadata."""
        self.table.drop_marks()

    def lose_next_answer(self, *, landed: bool) -> None:
        """Make the simulated world fail the next post."""
        self._chance.post_fault = ANSWER_LOST if landed else NEVER_ARRIVES
        self._world.faults.calls = 1
