"""A driver's parts around an in-memory table and store, so that a test states only what differs."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from holdfast.engine.commit import Commit, Landed
from holdfast.engine.drive import Driver
from holdfast.engine.options import WriteOptions
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.ledger import Ledger, Ports
from holdfast.ledger.parts import read_work, write_work
from holdfast.ledger.row_files import read_keys
from holdfast.ledger.run_log import RunLog, open_run_file
from holdfast.model.coverage import Coverage
from holdfast.model.identity import Identity
from holdfast.model.records import PartReference
from holdfast.model.report import Report
from holdfast.model.work import TaskRecord, Work
from holdfast.sinks.base import Change, TableView
from holdfast.sources.base import PinnedScan
from tests.fakes.logs import CLAIM, job_ledger, task_records
from tests.fakes.manual_ports import ManualTime, manual_ports
from tests.fakes.memory_scan import MemoryScanInput
from tests.fakes.memory_storage import DriverDiedError, MemoryStorage
from tests.fakes.memory_submitter import MemorySubmitter, partition
from tests.fakes.memory_table import MemoryTable
from tests.fakes.memory_writer import staged_group
from tests.fakes.unpinned import Unpinned

STORE = "s3://store"
RUN_ID = "r"
LAYOUT = RunLayout.of(STORE, RUN_ID)
GROUPS = (staged_group("a", rows=3), staged_group("b", rows=4))


@dataclass
class Rig:
    """One store, one table, and as many drivers as a test starts."""

    table: MemoryTable = field(default_factory=MemoryTable)
    time: ManualTime = field(default_factory=ManualTime)
    mode: str = "append"
    storage: MemoryStorage = field(init=False)

    def __post_init__(self) -> None:
        """Give the store and the table the same clock."""
        self.storage = MemoryStorage(self.time.now)
        self.table.files.now = self.time.now

    def identity(self) -> Identity:
        """Return what a start wants the run to be."""
        return Identity(
            table=self.table.name,
            table_uuid="uuid-1",
            branch="main",
            mode=self.mode,
            key=("id",),
            session_time_zone="UTC",
            ansi_mode="true",
            version="",
        )

    def ledger(self, ports: Ports | None = None) -> Ledger:
        """Open the run's ledger as a new driver does."""
        return Ledger.open(RUN_ID, STORE, self.storage, ports or manual_ports(self.time))

    def commit_step(self) -> Commit:
        """Claim the run as a new driver does, and return its commit step."""
        ledger = self.ledger()
        run_file = open_run_file(
            self.storage,
            LAYOUT,
            run_id=RUN_ID,
            identity=self.identity(),
            nonce=ledger.ports.new_nonce(),
            sleep=ledger.ports.sleep,
        )
        ledger.log.belongs_to(run_file)
        ledger.log.claim(CLAIM)
        return Commit(ledger=ledger, run_file=run_file, sink=self.table)

    def part(self) -> PartReference:
        """Write the staged groups into the ledger."""
        coverage = Coverage(rows=7, low=1, high=1, keys_bytes=0)
        record = TaskRecord(name="1/rows/0/0/0", coverage=coverage, seconds=1.0, groups=GROUPS)
        return write_work(self.storage, LAYOUT, "work.parquet", Work(records=(record,)))

    def publish(self, commit: Commit | None = None) -> Landed:
        """Publish the staged groups, as a new driver or as the given one."""
        commit = commit or self.commit_step()
        return commit.publish(Change(adds=GROUPS), self.part(), [dict(MemoryTable().schema)])

    def start(
        self,
        submitter: MemorySubmitter | None = None,
        *,
        view: TableView | None = None,
        ports: Ports | None = None,
        **options: Any,  # noqa: ANN401 - any of `WriteOptions`.
    ) -> Report:
        """Start the whole job as a user's script does: it looks at the table first."""
        driver = Driver(
            ledger=self.ledger(ports),
            sink=self.table,
            input=Unpinned(submitter or two_partitions()),
        )
        return driver.write(view or self.table.load(), self.identity(), WriteOptions(**options))

    def scan(
        self,
        scan: PinnedScan,
        jobs: MemorySubmitter | None = None,
        **options: Any,  # noqa: ANN401 - any of `WriteOptions`.
    ) -> Report:
        """Start the whole job on a scan."""
        given = MemoryScanInput(scan, jobs or MemorySubmitter())
        driver = Driver(ledger=self.ledger(), sink=self.table, input=given)
        identity = replace(self.identity(), key=(), input=scan.identity)
        return driver.write(self.table.load(), identity, WriteOptions(**options))

    def start_and_die(self, submitter: MemorySubmitter | None = None, **arguments: Any) -> None:  # noqa: ANN401
        """Start the job in a process that is killed on the way."""
        with pytest.raises(DriverDiedError):
            self.start(submitter, **arguments)
        self.storage.revive()

    def log(self) -> RunLog:
        """Return the run log as it is now."""
        ledger = self.ledger()
        ledger.log.refresh()
        ledger.run_file()
        return ledger.log

    def kinds(self) -> list[str]:
        """Return the kinds of all records in the run log, in order."""
        return [type(record.body).__name__ for record in self.log().records]

    def sealed(self) -> Work:
        """Return the work that the last seal accepts."""
        seals = self.log().seals
        return read_work(self.storage, LAYOUT, seals[max(seals)].work)


def two_partitions() -> MemorySubmitter:
    """Return the input of most tests: ids 0 to 9, and 10 to 19."""
    return MemorySubmitter(range(10), range(10, 20))


def durable_ids(rig: Rig) -> set[int]:
    """Return the ids that task records cover, whether sealed or not."""
    ledger, schema = job_ledger(rig.storage), partition([]).schema
    return {
        id_
        for record in task_records(ledger)
        if record.coverage.rows
        for keys in read_keys(rig.storage, LAYOUT.keys(record.name), schema)
        for id_ in keys["id"].to_pylist()
    }
