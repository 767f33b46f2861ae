"""A run that computes columns of a real Lance dataset, with its tasks in this process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import lance
import pyarrow as pa

from holdfast.engine.columns import ColumnRows
from holdfast.engine.drive import Driver
from holdfast.engine.options import WriteOptions
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.run_log import RunLog
from holdfast.model.coverage import Pins
from holdfast.model.records import Body, Receipt, Record
from holdfast.model.report import Report
from holdfast.sinks.base import Change, Outcome, RunMark, TableView
from holdfast.sinks.lance.columns import LanceColumnSink
from holdfast.sinks.lance.dataset import DatasetPlace
from holdfast.sources.lance_columns import PinnedColumnScan
from holdfast.sources.scans import LanceScan
from holdfast.worker.replay import ITEM_COLUMN
from holdfast.worker.reports import TaskReport
from holdfast.worker.task import ITEM_COLUMN as NUMBER
from holdfast.worker.task import ItemPlan, TaskPlan
from tests.fakes.manual_ports import ManualTime, manual_ports
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.rig import RUN_ID, STORE, Rig


class DriverDied(BaseException):
    """The driver's process is gone, at this line."""


class LocalJobs:
    """Runs tasks one after the other, in this process."""

    def __init__(self, slots: int = 2) -> None:
        """Count attempts from 1."""
        self.slots = slots
        self._attempts = itertools.count(1)
        # What runs before the next tasks of rows jobs, one before each.
        self.before_tasks: list[Callable[[], object]] = []
        # The number of the task, over all jobs, at which the driver dies.
        self.dies_at: int | None = None
        self.tasks = 0

    def run(self, plan: TaskPlan, items: int) -> list[TaskReport]:
        """Run a plan over numbered items."""
        batches = [pa.RecordBatch.from_pydict({NUMBER: [number]}) for number in range(items)]
        return [self._task(plan, batch, place) for place, batch in enumerate(batches)]

    def items(self, plan: ItemPlan, items: Sequence[str]) -> list[TaskReport]:
        """Run a plan over items that are texts."""
        batches = [pa.RecordBatch.from_pydict({ITEM_COLUMN: [item]}) for item in items]
        return [self._task(plan, batch, place) for place, batch in enumerate(batches)]

    def _task(self, plan: TaskPlan | ItemPlan, batch: pa.RecordBatch, place: int) -> TaskReport:
        if self.dies_at == self.tasks:
            raise DriverDied
        if isinstance(plan, TaskPlan):
            self.tasks += 1
            if self.before_tasks:
                self.before_tasks.pop(0)()
        return plan.run(iter([batch]), place=place, attempt=next(self._attempts))


@dataclass
class ColumnRig:
    """One dataset of (id, v), and as many drivers as a test starts."""

    uri: str
    time: ManualTime = field(default_factory=ManualTime)
    storage: MemoryStorage = field(init=False)
    jobs: LocalJobs = field(default_factory=LocalJobs)
    mode: str = "add_columns"
    run_id: str = RUN_ID
    # The transform, if it is not `doubled`.
    compute: Any = None
    # The ids that the transform was called with, over all starts.
    computed: list[int] = field(default_factory=list)
    posts: list[Outcome] = field(default_factory=list)
    # Rows that make a file full; the tests' files are small.
    bytes_per_file: int = 10**9

    def __post_init__(self) -> None:
        """Open a ledger in memory."""
        self.storage = MemoryStorage(self.time.now)

    def make(
        self,
        rows: int = 30,
        per_file: int = 10,
        **how: Any,  # noqa: ANN401 - of Lance's writer.
    ) -> Any:  # noqa: ANN401 - Lance ships no types.
        """Make the dataset."""
        lance.write_dataset(rows_of(range(rows)), self.uri, max_rows_per_file=per_file, **how)
        return self.dataset()

    def append(self, *ids: int) -> None:
        """Append rows, as another writer does."""
        table = rows_of(ids)
        lance.write_dataset(table.select(self.names(table.schema.names)), self.uri, mode="append")

    def compact(self) -> None:
        """Compact the dataset, as another writer does."""
        self.dataset().optimize.compact_files()

    def names(self, names: Sequence[str]) -> list[str]:
        """Return those of the names that the dataset has."""
        return [name for name in names if name in self.dataset().schema.names]

    def dataset(self, version: int | None = None) -> Any:  # noqa: ANN401 - Lance ships no types.
        """Open the dataset, as others do."""
        return lance.dataset(self.uri, version=version)

    def sink(self) -> LanceColumnSink:
        """Open the dataset as a driver does."""
        place = DatasetPlace(uri=self.uri, options={})
        return LanceColumnSink(place, rows_per_file=10**6, bytes_per_file=self.bytes_per_file)

    def ledger(self) -> Ledger:
        """Open the run's ledger as a driver does."""
        return Ledger.open(self.run_id, STORE, self.storage, manual_ports(self.time))

    def start(
        self,
        transform: Any = None,  # noqa: ANN401 - as for a user.
        *,
        schema: pa.Schema | None = None,
        columns: Sequence[str] = ("id",),
        where: Any = None,  # noqa: ANN401
        checkpoint_every: float | None = None,
        **options: Any,  # noqa: ANN401 - any of `WriteOptions`.
    ) -> Report:
        """Start the script."""
        sink, ledger = self.sink(), self.ledger()
        scan = PinnedColumnScan(
            LanceScan(uri=self.uri, columns=tuple(columns), where=where), sink.place
        )
        is_update = self.mode == "update_columns"
        chosen = WriteOptions(
            transform=transform or self.compute or self.doubled,
            checkpoint_every=checkpoint_every,
            **options,
        )

        def begin(columns: pa.Schema, pins: Pins) -> None:
            sink.begin(columns, pins, is_update=is_update)

        def fit(columns: pa.Schema | None) -> pa.Schema:
            return sink.fit(columns, is_update=is_update)

        rows = ColumnRows(scan, self.jobs, chosen, schema, fit, begin)
        driver = Driver(ledger=ledger, sink=sink, input=rows, moving=rows)
        view = sink.load()
        identity = replace(
            Rig().identity(),
            table=self.uri,
            table_uuid=view.uuid,
            mode=self.mode,
            key=(),
            input=scan.identity,
        )
        report = driver.write(view, identity, chosen)
        return replace(
            report,
            rows_again=rows.rows_again,
            rows_without_columns=sink.rows_without_columns(),
        )

    def doubled(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Compute a number and a list of each id."""
        ids = batch["id"].to_pylist()
        self.computed += ids
        return {
            "double": pa.array([2 * id_ for id_ in ids], pa.int64()),
            "pair": pa.array([[id_, id_ + 1] for id_ in ids], pa.list_(pa.int32(), 2)),
        }

    def start_and_die(self, at_task: int, **options: Any) -> None:  # noqa: ANN401
        """Start the script, whose driver dies before a task."""
        self.jobs.dies_at = self.jobs.tasks + at_task
        try:
            self.start(**options)
        except DriverDied:
            self.time.sleep(1000.0)  # The dead driver no longer seems alive.
        else:
            raise AssertionError("the driver did not die")
        finally:
            self.jobs.dies_at = None

    def land_and_die(self, *changes: Callable[[], object]) -> None:
        """Start the script, which lands and dies before its receipt."""
        append = RunLog.append

        def die_at_receipt(log: RunLog, body: Body) -> Record:
            if isinstance(body, Receipt):
                raise DriverDied
            return append(log, body)

        with mock.patch.object(RunLog, "append", die_at_receipt):
            try:
                self.start_while(*changes)
            except DriverDied:
                self.time.sleep(1000.0)
            else:
                raise AssertionError("the driver did not die before its receipt")

    def start_while(self, *changes: Callable[[], object], **options: Any) -> Report:  # noqa: ANN401
        """Start the script; one of the changes is made before each of its first posts."""
        with self._before_posts(changes):
            return self.start(**options)

    def start_with(
        self,
        changes: Sequence[Callable[[], object]],
        **options: Any,  # noqa: ANN401 - any of `WriteOptions`.
    ) -> Report:
        """Start the script; changes are made before posts, if there are as many."""
        with self._before_posts(changes, all_of_them=False):
            return self.start(**options)

    @contextmanager
    def _before_posts(
        self, changes: Sequence[Callable[[], object]], *, all_of_them: bool = True
    ) -> Iterator[None]:
        post, left = LanceColumnSink.post, list(changes)

        def change_and_post(
            sink: LanceColumnSink, view: TableView, run_id: str, mark: RunMark, change: Change
        ) -> Outcome:
            if left:
                left.pop(0)()
            self.posts.append(post(sink, view, run_id, mark, change))
            return self.posts[-1]

        with mock.patch.object(LanceColumnSink, "post", change_and_post):
            yield
        assert not (left and all_of_them)  # Each change was made, so the test was not empty.

    # ---- what is there -------------------------------------------------------------------------
    def rows(self) -> dict[int, dict[str, Any]]:
        """Return all rows by id; no id is there twice."""
        found = self.dataset().to_table().to_pylist()
        by_id = {row["id"]: row for row in found}
        assert len(by_id) == len(found)
        return by_id

    def assert_filled(self, *, without: Sequence[int] = (), rows: int | None = None) -> None:
        """Read the whole dataset: each row has its own values, except those that have none."""
        found = self.rows()
        for id_, row in found.items():
            values = (row["double"], row["pair"], row["v"])
            wanted = (None, None) if id_ in without else (2 * id_, [id_, id_ + 1])
            assert values == (*wanted, f"v{id_}"), row
        assert set(without) <= found.keys()
        if rows is not None:
            assert len(found) == rows


def rows_of(ids: Sequence[int] | range) -> pa.Table:
    """Return rows with these ids."""
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [f"v{id_}" for id_ in ids]})
