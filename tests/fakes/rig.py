"""A driver's parts around a table and a store in memory, so that a test says only what differs."""

from __future__ import annotations

from dataclasses import dataclass, field

from holdfast.engine.commit import Commit, Landed
from holdfast.engine.drive import Driven, Driver
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.parts import write_staged
from holdfast.ledger.run_file import open_run_file
from holdfast.ledger.run_log import RunLog
from holdfast.model.identity import Identity
from holdfast.model.records import Claim, PartReference
from holdfast.sinks.base import TableView
from holdfast.worker.task import RowCount
from tests.fakes.manual_ports import ManualTime, ScriptedSubmitter, manual_ports
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.memory_table import MemoryTable
from tests.fakes.memory_writer import staged_group

STORE = "s3://store"
RUN_ID = "r"
LAYOUT = RunLayout.of(STORE, RUN_ID)
CLAIM = Claim(holdfast_version="0", host="h", process_id=1)
GROUPS = [staged_group("a", rows=3), staged_group("b", rows=4)]


@dataclass
class Rig:
    """One store, one table, and as many drivers as a test starts."""

    table: MemoryTable = field(default_factory=MemoryTable)
    storage: MemoryStorage = field(default_factory=MemoryStorage)
    time: ManualTime = field(default_factory=ManualTime)

    def identity(self) -> Identity:
        """Return what a start wants the run to be."""
        return Identity(
            table=self.table.name,
            table_uuid="uuid-1",
            branch="main",
            mode="append",
            key=("id",),
            session_time_zone="UTC",
            ansi_mode="true",
            version="",
        )

    def commit_step(self) -> Commit:
        """Claim the run as a new driver does, and return its commit step."""
        ports = manual_ports(self.time)
        run_file = open_run_file(
            self.storage,
            LAYOUT,
            run_id=RUN_ID,
            identity=self.identity(),
            schema=dict(self.table.schema),
            nonce=ports.new_nonce(),
            sleep=ports.sleep,
        )
        log = RunLog(
            run_id=RUN_ID,
            layout=LAYOUT,
            storage=self.storage,
            new_nonce=ports.new_nonce,
            now=ports.now,
            sleep=ports.sleep,
        )
        log.claim(CLAIM)
        return Commit(run_id=RUN_ID, run_file=run_file, log=log, sink=self.table, ports=ports)

    def part(self) -> PartReference:
        """Write the staged groups into the ledger."""
        return write_staged(self.storage, LAYOUT, "staged.parquet", GROUPS, dict(self.table.schema))

    def publish(self, commit: Commit | None = None) -> Landed:
        """Publish the staged groups, as a new driver or as the given one."""
        commit = commit or self.commit_step()
        return commit.publish(GROUPS, self.part(), commit.run_file.schema)

    def start(
        self,
        submitter: ScriptedSubmitter | None = None,
        *,
        view: TableView | None = None,
        batch_rows: int | None = None,
        rows: RowCount = "same",
        compare: bool = True,
    ) -> Driven:
        """Start the whole job as a user's script does, which looks at the table first."""
        driver = Driver(
            run_id=RUN_ID,
            store=STORE,
            storage=self.storage,
            sink=self.table,
            submitter=submitter or ScriptedSubmitter(),
            ports=manual_ports(self.time),
        )
        return driver.append(
            view or self.table.load(),
            self.identity(),
            transform=None,
            batch_rows=batch_rows,
            rows=rows,
            compare=compare,
        )
