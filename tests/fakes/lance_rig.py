"""A whole run onto a real Lance dataset, with the tasks in this process and the ledger in memory.

Other writers change the dataset at the two worst moments: when the intent is written and the post
is about to go out, and when the post has landed and the driver dies before its receipt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from unittest import mock

import lance
import pyarrow as pa

from holdfast.engine.drive import Driver
from holdfast.engine.options import WriteOptions
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.run_log import RunLog
from holdfast.model.records import Body, Receipt, Record
from holdfast.model.report import Report
from holdfast.sinks.base import Change, Outcome, RunMark, TableView
from holdfast.sinks.lance.dataset import DatasetPlace
from holdfast.sinks.lance.sink import LanceSink
from tests.fakes.manual_ports import ManualTime, manual_ports
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.rig import RUN_ID, STORE, Rig
from tests.fakes.unpinned import Unpinned

# What the run appends; others use negative ids.
IDS = list(range(20))


class DriverDied(BaseException):
    """The driver's process is gone, at this line."""


def labelled(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows with a label: the costly step of every job here."""
    labels = [f"l{id_}" for id_ in batch["id"].to_pylist()]
    return pa.record_batch({"id": batch["id"], "label": pa.array(labels)})


@dataclass
class LanceRig:
    """One dataset of (id, label) with a foreign row, and as many drivers as a test starts."""

    uri: str
    options: dict[str, str] = field(default_factory=dict)
    time: ManualTime = field(default_factory=ManualTime)
    storage: MemoryStorage = field(init=False)
    # What became of each post, in order.
    posts: list[Outcome] = field(default_factory=list)
    # Rows that were computed, over all starts.
    computed: int = 0
    # The ids that the script reads.
    partitions: list[list[int]] = field(default_factory=lambda: [IDS[:10], IDS[10:]])
    mode: str = "append"

    def __post_init__(self) -> None:
        """Make the dataset."""
        self.storage = MemoryStorage(self.time.now)
        self.make([-1])

    # ---- what others do ------------------------------------------------------------------------
    def make(self, ids: Sequence[int], mode: Any = "create") -> None:  # noqa: ANN401 - a literal.
        """Write foreign rows."""
        rows = {
            "id": pa.array(ids, pa.int64()),
            "label": pa.array(["foreign"] * len(ids), pa.string()),
        }
        lance.write_dataset(pa.table(rows), self.uri, mode=mode, storage_options=self.options)

    def dataset(self, version: int | None = None) -> Any:  # noqa: ANN401 - half of it is untyped.
        """Open the dataset as others do."""
        return lance.dataset(self.uri, version=version, storage_options=self.options)

    def drop(self) -> None:
        """Drop the dataset with its folder."""
        storage = self.place.storage
        storage.delete(storage.list(self.uri))

    @property
    def place(self) -> DatasetPlace:
        """The folder that holds the dataset."""
        return DatasetPlace(uri=self.uri, options=self.options)

    # ---- what our run does ---------------------------------------------------------------------
    def sink(self) -> LanceSink:
        """Open the dataset as a driver does."""
        return LanceSink(self.place, rows_per_file=1000, bytes_per_file=10**9)

    def ledger(self) -> Ledger:
        """Open the run's ledger as a driver does."""
        return Ledger.open(RUN_ID, STORE, self.storage, manual_ports(self.time))

    def start(self, **options: Any) -> Report:  # noqa: ANN401 - any of `WriteOptions`.
        """Start the script."""
        sink = self.sink()
        ledger = self.ledger()
        rows = MemorySubmitter(*self.partitions)
        driver = Driver(ledger=ledger, sink=sink, input=Unpinned(rows))
        view = sink.load()
        identity = replace(Rig().identity(), table=self.uri, table_uuid=view.uuid, mode=self.mode)
        return driver.write(view, identity, WriteOptions(transform=self._counted, **options))

    def start_while(self, *changes: Callable[[], object], **options: Any) -> Report:  # noqa: ANN401
        """Start the script; one of the changes is made before each of its first posts."""
        with self._before_posts(changes):
            return self.start(**options)

    def land_and_die(self, *changes: Callable[[], object]) -> int:
        """Start the script, which lands and dies before its receipt; return the version.

        Args:
            changes: Made before each of its first posts.
        """
        append = RunLog.append

        def die_at_receipt(log: RunLog, body: Body) -> Record:
            if isinstance(body, Receipt):
                raise DriverDied
            return append(log, body)

        with mock.patch.object(RunLog, "append", die_at_receipt):
            try:
                self.start_while(*changes)
            except DriverDied:
                self.time.sleep(1000.0)  # The dead driver no longer seems alive.
                return int(self.dataset().version)
        raise AssertionError("the driver did not die before its receipt")

    def _counted(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        self.computed += batch.num_rows
        return labelled(batch)

    @contextmanager
    def _before_posts(self, changes: Sequence[Callable[[], object]]) -> Iterator[None]:
        post, left = LanceSink.post, list(changes)

        def change_and_post(
            sink: LanceSink,
            view: TableView,
            run_id: str,
            mark: RunMark,
            change: Change,
        ) -> Outcome:
            if left:
                left.pop(0)()
            self.posts.append(post(sink, view, run_id, mark, change))
            return self.posts[-1]

        with mock.patch.object(LanceSink, "post", change_and_post):
            yield
        assert not left  # Each change was made, so the test was not empty.

    # ---- what is there -------------------------------------------------------------------------
    def ids(self) -> list[int]:
        """Return all ids, sorted; the columns may have been renamed."""
        found: list[int] = self.dataset().to_table().column(0).to_pylist()
        return sorted(found)

    def assert_each_row_once(self, *, foreign: Sequence[int] = (-1,)) -> None:
        """Read the whole dataset: it holds our rows once, and those of others."""
        assert self.ids() == sorted([*foreign, *IDS])
        rows = self.dataset().to_table(columns=["id", "label"]).to_pylist()
        labels = {row["id"]: row["label"] for row in rows if row["id"] >= 0}
        assert labels == {id_: f"l{id_}" for id_ in IDS}
