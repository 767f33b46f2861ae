"""What a run has left in its store, and the files of its table, as they are now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.ledger.layout import RunLayout
from holdfast.ledger.task_log import read_task_records
from holdfast.model.records import Record, decode_record
from holdfast.model.work import TaskRecord
from holdfast.storage.objects import ObjectStorage
from tests.crash.crash_table import RUN
from tests.crash.lance_crash_table import AnyCrashTable


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLedger:
    """The ledger of the one run that crash jobs have."""

    storage: ObjectStorage
    layout: RunLayout

    @classmethod
    def of(cls, table: AnyCrashTable) -> RunLedger:
        """Return the ledger of the run that writes a table."""
        return cls(
            storage=ObjectStorage(table.ledger["store_options"]),
            layout=RunLayout.of(table.ledger["store"], RUN),
        )

    def task_records(self) -> list[TaskRecord]:
        """Return the records of all tasks of all starts."""
        return read_task_records(self.storage, self.layout, self.storage.list(self.layout.tasks))

    def log_of(self, kind: type[object]) -> Sequence[Record]:
        """Return the records of one kind in the run's log."""
        found = [decode_record(self.storage.get(uri)) for uri in self.storage.list(self.layout.log)]
        return [record for record in found if isinstance(record.body, kind)]

    def objects(self) -> list[str]:
        """Return the names of all objects, relative to the run's folder."""
        found = self.storage.list(self.layout.folder)
        return sorted(uri.removeprefix(f"{self.layout.folder}/") for uri in found)
