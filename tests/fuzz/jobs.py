"""Jobs: real tables in a folder, and runs on them that have ended in every possible way.

The tables are Iceberg's, on a SQLite catalog, and Lance datasets. Tasks run in this process, with
the code that executors run; Spark is not started.
"""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import lance
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.engine.claim import SettledInput, prepare
from holdfast.engine.cleanup import abort
from holdfast.engine.drive import Driver
from holdfast.engine.options import WriteOptions
from holdfast.ledger.ledger import Ledger, Ports, TaskPorts
from holdfast.ledger.run_log import RunLog
from holdfast.model.identity import Identity
from holdfast.model.records import Body, Intent, Receipt, Record
from holdfast.model.report import Report
from holdfast.opening import open_table
from holdfast.sinks.base import Sink
from holdfast.sinks.iceberg.catalog import open_catalog
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.sinks.targets import LanceTable
from holdfast.storage.objects import ObjectStorage
from tests.fakes.cli_lake import CliLake
from tests.fakes.memory_scan import MemoryScanInput
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.parquet_scans import on_disk
from tests.fakes.unpinned import Unpinned
from tests.ledgers.record import HERE as RECORDED
from tests.ledgers.record import moved

ROWS = 24
_FOREIGN_ROWS = (-1, -2, -3)
# The recorded run of format 1.
_OLD_ROWS = 20
# No process has this id.
_GONE = 2**30
_SCHEMA = pa.schema([("id", pa.int64()), ("text", pa.string())])
MAIN, NEIGHBOUR, DATASET, OLD = "db.t", "db.n", "t.lance", "old.lance"
Row = tuple[int, str]


class DriverDied(BaseException):
    """The driver's process is gone, at this line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One script: which run it starts, what it reads, and which table it appends to."""

    run_id: str
    table: str
    first: int
    is_scan: bool = False
    # Rows whose transform fails: they are set aside.
    fails: frozenset[int] = frozenset()

    @property
    def is_lance(self) -> bool:
        """Whether the table is a Lance dataset."""
        return self.table.endswith(".lance")

    @property
    def is_old(self) -> bool:
        """Whether its ledger was begun in format 1, whose records do not name their run."""
        return self.table == OLD

    @property
    def ids(self) -> list[int]:
        """The ids of its input."""
        return list(range(self.first, self.first + (_OLD_ROWS if self.is_old else ROWS)))

    @property
    def rows(self) -> set[Row]:
        """The rows that it appends."""
        return {(item, text_of(item)) for item in self.ids if item not in self.fails}


def text_of(id_: int) -> str:
    """Return the costly step's output for a row."""
    return f"made of {id_}"


JOBS = (
    Job(run_id="half", table=MAIN, first=1000),
    Job(run_id="filed", table=MAIN, first=2000),
    Job(run_id="landed", table=MAIN, first=3000, fails=frozenset({3003, 3015})),
    Job(run_id="lost", table=MAIN, first=4000),
    Job(run_id="gone", table=MAIN, first=5000),
    Job(run_id="gone-posted", table=MAIN, first=6000),
    Job(run_id="scan", table=MAIN, first=7000, is_scan=True),
    Job(run_id="scanned", table=MAIN, first=8000, is_scan=True),
    Job(run_id="forked", table=MAIN, first=8500),
    Job(run_id="doubt", table=MAIN, first=9000),
    Job(run_id="next-landed", table=NEIGHBOUR, first=1000),
    Job(run_id="next-filed", table=NEIGHBOUR, first=2000),
    Job(run_id="lance-half", table=DATASET, first=1000),
    Job(run_id="lance-filed", table=DATASET, first=2000),
    Job(run_id="lance-landed", table=DATASET, first=3000),
    Job(run_id="lance-lost", table=DATASET, first=4000),
    Job(run_id="lance-gone", table=DATASET, first=5000),
    Job(run_id="lance-forked", table=DATASET, first=8500),
    Job(run_id="lance-doubt", table=DATASET, first=9000),
    Job(run_id="old", table=OLD, first=0),
)
BY_ID = {job.run_id: job for job in JOBS}
# The rows of the table, now or later, when nothing is damaged.
LANDED = frozenset(
    {"landed", "lost", "scanned", "forked", "next-landed"}
    | {"lance-landed", "lance-lost", "lance-forked"}
)
GIVEN_UP = frozenset({"gone", "gone-posted", "lance-gone"})


class Clock:
    """Time that passes by itself, and at once when a driver waits."""

    def __init__(self) -> None:
        """Start at the current time."""
        self._ahead_s = 0.0

    def now(self) -> float:
        """Return Unix seconds."""
        return time.time() + self._ahead_s

    def sleep(self, seconds: float) -> None:
        """Let time pass without waiting for it."""
        self._ahead_s += seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Transform:
    """The costly step; can be set to fail, or to kill the process."""

    job: Job
    dies_at: int | None = None

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Compute the rows."""
        ids = batch["id"].to_pylist()
        if self.dies_at in ids:
            raise DriverDied
        if bad := self.job.fails.intersection(ids):
            raise ValueError(f"rows {sorted(bad)} are bad")
        if self.job.is_old:
            return batch.select(["id"])
        return pa.record_batch({"id": batch["id"], "text": [text_of(item) for item in ids]})


@dataclass(frozen=True, slots=True)
class Lake:
    """A folder with a store, a catalog, tables and inputs."""

    folder: Path

    @property
    def store(self) -> str:
        """The store's URI."""
        return CliLake(self.folder).store

    @property
    def catalog(self) -> Mapping[str, str]:
        """What PyIceberg needs to open the catalog."""
        return CliLake(self.folder).properties

    def dataset(self, name: str) -> str:
        """Where a Lance dataset is."""
        return f"{self.folder}/{name}"

    def sink(self, job: Job) -> Sink:
        """Open the table that a job appends to."""
        if job.is_lance:
            return open_table(LanceTable(self.dataset(job.table)), None)
        return IcebergSink(open_catalog("lake", self.catalog), job.table, "main")

    def ledger(self, job: Job) -> Ledger:
        """Open a run's ledger as a driver does, in a process that looks dead to all others."""
        clock = Clock()
        tasks = TaskPorts(sleep=clock.sleep)
        ports = Ports(
            now=clock.now, sleep=clock.sleep, process_id=_GONE, machine="fuzz", tasks=tasks
        )
        return Ledger.open(job.run_id, self.store, ObjectStorage(), ports)

    def start(self, job: Job, *, dies_at: int | None = None, **options: Any) -> Report:  # noqa: ANN401
        """Start a job, as its script does."""
        sink, how = self.sink(job), self._options(job, dies_at, options)
        view = sink.load()
        driver = Driver(ledger=self.ledger(job), sink=sink, input=self._input(job))
        return driver.write(view, self._identity(job, sink.name, view.uuid), how)

    def start_remaining(self, job: Job) -> Report:
        """Start a job whose costly step is in the DataFrame: only the rows that are left."""
        ledger, how = self.ledger(job), self._options(job, None, {})
        whole = _partitions(job)
        prepared = prepare(ledger, whole, ("id",), how)
        sink = self.sink(job)
        view = sink.load()
        left = whole._left(whole.partitions, prepared.book.finished)  # noqa: SLF001 - as Spark does.
        driver = Driver(
            ledger=ledger, sink=sink, input=Unpinned(MemorySubmitter(*left)), prepared=prepared
        )
        return driver.write(view, self._identity(job, sink.name, view.uuid), how)

    def _options(self, job: Job, dies_at: int | None, given: dict[str, Any]) -> WriteOptions:
        usual: dict[str, Any] = {
            "transform": Transform(job=job, dies_at=dies_at),
            "batch_rows": 5,
            "checkpoint_every": 1e-9,
            "takeover": "now",
        }
        if job.fails:
            usual |= {"on_error": "quarantine", "max_errors": len(job.fails), "batch_rows": 1}
        return WriteOptions(**{**usual, **given})

    def _input(self, job: Job) -> SettledInput:
        if job.is_scan:
            scan = on_disk(f"{self.folder}/input/{job.run_id}/*.parquet")
            return MemoryScanInput(scan, MemorySubmitter())
        return Unpinned(_partitions(job))

    def _identity(self, job: Job, table: str, uuid: str) -> Identity:
        scan = on_disk(f"{self.folder}/input/{job.run_id}/*.parquet") if job.is_scan else None
        return Identity(
            table=table,
            table_uuid=uuid,
            branch="main",
            mode="append",
            key=() if job.is_scan else ("id",),
            session_time_zone="UTC",
            ansi_mode="true",
            version="",
            input=scan.identity if scan else "",
        )


def _partitions(job: Job) -> MemorySubmitter:
    half = len(job.ids) // 2
    return MemorySubmitter(job.ids[:half], job.ids[half:])


# ---- how runs reach each state -------------------------------------------------------
@contextlib.contextmanager
def _dies_after(kind: type[Body]) -> Iterator[None]:
    """Kill a driver: after its intent, which is not posted, or before its receipt."""
    append = RunLog.append

    def until(log: RunLog, body: Body) -> Record:
        if isinstance(body, Receipt):
            raise DriverDied
        record = append(log, body)
        if isinstance(body, kind):
            raise DriverDied
        return record

    with mock.patch.object(RunLog, "append", until), contextlib.suppress(DriverDied):
        yield


def make_lake(folder: Path) -> Lake:
    """Make the tables, and a run in each state."""
    lake = Lake(folder)
    _make_tables(lake)
    for job in JOBS:
        if not job.is_old and not job.run_id.endswith("doubt"):
            _MAKERS[job.run_id.rpartition("-")[2] if job.is_lance else job.run_id](lake, job)
    # Last: the table has not moved on since, and the post may still arrive.
    for name in ("doubt", "lance-doubt"):
        _doubt(lake, BY_ID[name])
    return lake


def _make_tables(lake: Lake) -> None:
    foreign = [{"id": item, "text": "foreign"} for item in _FOREIGN_ROWS]
    catalog = open_catalog("lake", lake.catalog)
    catalog.create_namespace("db")
    for name in (MAIN, NEIGHBOUR):
        catalog.create_table(name, schema=_SCHEMA)
        for row in foreign:  # Each makes its own snapshot.
            catalog.load_table(name).append(pa.Table.from_pylist([row], schema=_SCHEMA))
    for row in foreign:
        table = pa.Table.from_pylist([row], schema=_SCHEMA)
        mode = "append" if Path(lake.dataset(DATASET)).exists() else "create"
        lance.write_dataset(table, lake.dataset(DATASET), mode=mode)
    for job in JOBS:
        if job.is_scan:
            inputs = lake.folder / "input" / job.run_id
            inputs.mkdir(parents=True)
            for part in range(3):
                ids = job.ids[part * 8 : part * 8 + 8]
                pq.write_table(pa.table({"id": pa.array(ids)}), inputs / f"{part}.parquet")
    recorded = RECORDED / "format-1" / "on_lance"
    shutil.copytree(recorded / "t.lance", lake.dataset(OLD))
    shutil.copytree(recorded / "store" / "r", lake.folder / "store" / "old")
    moved(lake.folder / "store" / "old" / "run.json", f"file://{lake.dataset(OLD)}")


def _half(lake: Lake, job: Job) -> None:
    for place in (7, 17):
        with contextlib.suppress(DriverDied):
            lake.start(job, dies_at=job.ids[place])


def _filed(lake: Lake, job: Job) -> None:
    with contextlib.suppress(DriverDied):
        lake.start(job, dies_at=job.ids[ROWS // 2], checkpoint_every=None)


def _landed(lake: Lake, job: Job) -> None:
    lake.start(job)


def _lost(lake: Lake, job: Job) -> None:
    with _dies_after(Receipt):
        lake.start(job)


def _doubt(lake: Lake, job: Job) -> None:
    with _dies_after(Intent):
        lake.start(job)


def _given_up(before: Callable[[Lake, Job], None]) -> Callable[[Lake, Job], None]:
    def make(lake: Lake, job: Job) -> None:
        before(lake, job)
        abort(lake.ledger(job), lambda _identity: lake.sink(job), "no longer wanted")

    return make


def _forked(lake: Lake, job: Job) -> None:
    """Two copies of a ledger were used: one has landed, the one that is left was aborted."""
    folder = lake.folder / "store" / job.run_id
    _filed(lake, job)
    shutil.copytree(folder, lake.folder / "backup")
    abort(lake.ledger(job), lambda _identity: lake.sink(job), "no longer wanted")
    folder.rename(lake.folder / "left")
    (lake.folder / "backup").rename(folder)
    lake.start(job)
    shutil.rmtree(folder)
    (lake.folder / "left").rename(folder)


_MAKERS: dict[str, Callable[[Lake, Job], None]] = {
    "half": _half,
    "filed": _filed,
    "landed": _landed,
    "lost": _lost,
    "gone": _given_up(_filed),
    "gone-posted": _given_up(_doubt),
    "forked": _forked,
    "scan": _half,
    "scanned": _landed,
    "next-landed": _landed,
    "next-filed": _filed,
}
