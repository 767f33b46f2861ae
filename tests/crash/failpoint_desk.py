"""The desk of the crash matrix: arms a step, lets drivers run into it, and checks what is left."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyspark.sql import SparkSession

from holdfast.storage.objects import ObjectStorage
from tests.crash.drivers import Driver, Nursery, until
from tests.crash.failpoint_cells import Cell, Deletes, Verb
from tests.crash.jobs.nursery import POISON
from tests.crash.lance_crash_table import run_of, versions_with_rows
from tests.stack_access import Stack

ROWS = 12
# A row in a partition that no new row is in.
_ELSEWHERE = (500, -1)
_STARTS_MAX = 4
# A row that is deleted before columns are computed.
_DELETED = 8
# A row's id and its value, which it may lack.
_Row = tuple[int, int | None]
# A snapshot or a version, and the run that it names.
_Landed = tuple[int, str | None]
_LANDED = {"committed", "already_committed"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What all cells share: one nursery of drivers, one warm Connect server."""

    stack: Stack
    lake: SparkSession
    namespace: str
    remote: str
    armed: Path
    nursery: Nursery

    def play(self, cell: Cell) -> str:
        """Play one cell, assert the result, and return how it went."""
        name = f"{cell.name} {uuid.uuid4().hex[:6]}"
        game = _Game(
            self,
            name,
            is_lance=cell.is_lance,
            verb=cell.verb,
            has_filter=cell.has_filter,
            by_position=cell.by_position,
            deletes=cell.deletes,
        )
        game.prepare(cell)
        act = cell.story if cell.story in {"abort", "sweep"} else "append"
        fails = cell.story == "mistake"
        if cell.story == "conflict":
            driver = game.start_into_conflict(cell)
        else:
            self.arm(cell.step, cell.fault)
            driver = game.start(act, fails=fails)
        rival = ""
        if cell.fault == "stop":
            stopped = self.taken(cell.step)
            rival = _in_short(game.start(act).wait())
            os.kill(stopped, signal.SIGCONT)
        ended = driver.wait()
        assert self.is_taken(cell.step), f"no process reached {cell.step}: {ended}"
        starts = game.finish(act)
        game.check(act)
        if cell.fault == "stop" and act == "append":
            game.finish("sweep")
            game.check(act)
        ways = [f"{_in_short(ended)}", f"rival {rival}" if rival else "", starts]
        return "; ".join(way for way in ways if way)

    def arm(self, step: str, fault: str) -> None:
        """Arm the step: the next process that reaches it takes the fault."""
        part = self.armed / f"{step}.part"
        part.write_text(fault, encoding="ascii")
        part.rename(self.armed / step)

    def is_taken(self, step: str) -> bool:
        """Whether some process has reached the step since it was armed."""
        return not (self.armed / step).exists()

    def taken(self, step: str) -> int:
        """Wait until a process has taken the fault and is stopped; return its id."""
        until(lambda: bool(self._takers(step)), f"a process reaches {step}")
        process_id = self._takers(step)[-1]
        state = Path(f"/proc/{process_id}/stat")
        until(lambda: state.read_text().rsplit(")", 1)[1].split()[0] == "T", f"{step} stops")
        return process_id

    def _takers(self, step: str) -> list[int]:
        found = [path for path in self.armed.iterdir() if path.name.startswith(f"{step}.")]
        found = [path for path in found if path.suffix[1:].isdigit()]
        return [int(p.suffix[1:]) for p in sorted(found, key=lambda path: path.stat().st_ctime)]


@dataclass
class _Game:
    """One run, from its first start to its check."""

    desk: Desk
    run_id: str
    is_lance: bool
    verb: Verb
    has_filter: bool
    by_position: bool
    deletes: Deletes = ""

    def __post_init__(self) -> None:
        stack = self.desk.stack
        name = uuid.uuid4().hex[:10]
        self.table = f"{self.desk.namespace}.t{name}"
        if self.is_lance:
            self.table = f"s3://{stack.s3.bucket}/lance-{name}/rows.lance"
        self.order: dict[str, Any] = {
            "run_id": self.run_id,
            "to": self.table,
            "store": f"s3://{stack.s3.bucket}/ledger-{name}",
            "store_options": stack.s3.store_options(),
            "catalog": stack.rest_catalog_properties(),
            "remote": self.desk.remote,
            "rows": ROWS,
            "places": 2,
            "row_s": 0.08,
            "verb": self.verb,
            "where": f"id < {ROWS}" if self.has_filter else "",
            "write_mode": "merge-on-read" if self.by_position else None,
            "deletes": {"": 0, "some": 3, "all": 1}[self.deletes],
        }
        # What is in the table when all is done, and what is there before.
        self.rows: list[_Row] = [(id_, 2 * id_ + 1) for id_ in range(ROWS)]
        self.before: list[_Row] = []
        if every := self.order["deletes"]:
            self.rows = [row for row in self.rows if row[0] % every]
        if self.verb == "append":
            self.rows.pop(POISON)
        elif self.verb == "add_columns":
            # In two fragments, each of which several tasks work on; one row is deleted.
            self.before = [(id_, None) for id_ in range(ROWS) if id_ != _DELETED]
            self.rows.pop(_DELETED)
            self.order["row_s"] = 0.25
        else:
            self.before = [*((id_, -1) for id_ in range(ROWS)), _ELSEWHERE]
        has_rest = self.has_filter or self.verb == "upsert"
        if has_rest:  # In the file of rows that go.
            self.before.insert(3, (50, -1))
            self.rows.append((50, -1))
        if self.verb == "overwrite_partitions" or has_rest:
            self.rows.append(_ELSEWHERE)

    def prepare(self, cell: Cell) -> None:
        """Bring the run to a state where the step can be reached."""
        self.order["is_old"] = cell.story == "renewal"
        self.order["is_merged"] = cell.story == "merge"
        self.order["is_large"] = cell.is_large
        self.order["is_staged"] = cell.is_staged
        self.order["budget"] = 10.0 * ROWS if cell.has_budget else None
        if cell.is_scan:
            self.order["scan"] = f"{self.order['store']}-input"
            # Its rows are spread over all slots: one row must be enough for a checkpoint.
            self.order["row_s"] = 0.25
            self._write_input()
        for left in self.desk.armed.iterdir():
            left.unlink()
        if self.before:
            self._fill()
        if cell.story == "replay":
            self.desk.arm("after-chunk-record", "kill")
        if cell.story == "abort":
            self._start_with("after-intent", "kill")
        if cell.story == "withdrawal":
            self._start_with("before-intent", "kill")
            self._remove_a_staged_file()
        if cell.story == "sweep":
            # Leaves a file to be swept.
            step = "after-files-are-closed" if self.is_lance else "after-manifest"
            # What has landed leaves files of keys.
            ended = self.start("append").wait() if self.deletes else self._start_with(step, "error")
            assert ended["outcome"] == "committed", ended

    def start(self, act: str, *, fails: bool = False) -> Driver:
        """Start a driver."""
        return self.desk.nursery.start({**self.order, "act": act, "fails": fails})

    def start_into_conflict(self, cell: Cell) -> Driver:
        """Start a driver, let another writer commit right before its post, and arm the step."""
        self.desk.arm("before-post", "stop")
        driver = self.start("append")
        stopped = self.desk.taken("before-post")
        if self.verb == "add_columns":
            self._dataset().optimize.compact_files()
        else:  # A row of others that comes before the post goes with the rest.
            self._write([(7, -7)] if self.before else [])
        self.desk.arm(cell.step, cell.fault)
        os.kill(stopped, signal.SIGCONT)
        return driver

    def finish(self, act: str) -> str:
        """Start the script again until it is done; return how often that was."""
        good = {"append": _LANDED, "abort": {"aborted"}, "sweep": {"swept"}}[act]
        ended: dict[str, Any] = {}
        for number in range(1, _STARTS_MAX + 1):
            ended = self.start(act).wait()
            if ended["outcome"] in good:
                return f"{ended['outcome']} at start {number + 1}"
        raise AssertionError(f"not done after {_STARTS_MAX} more starts: {ended}")

    def check(self, act: str) -> None:
        """Read the table with Iceberg's own reader, or with Lance."""
        rows, landed = self._lance_rows() if self.is_lance else self._iceberg_rows()
        if act == "abort":
            assert (rows, landed) == (sorted(self.before), [])
            again = self.start("append").wait()
            assert again["error"] == "RunAbortedError", again
            return
        assert rows == self.rows
        if act == "sweep" and self.deletes:
            assert not self._keys_left()
        assert [run for _, run in landed] == [self.run_id]
        if act == "append":
            report = self.start(act).wait()
            assert report["outcome"] == "already_committed", report
            assert report["snapshot_id"] == landed[0][0]
            assert report["quarantined_rows"] == (self.verb == "append"), report

    def _keys_left(self) -> list[str]:
        """Return the files of keys to delete that are there."""
        catalog = load_catalog("desk", **self.desk.stack.rest_catalog_properties())
        folder = catalog.load_table(self.table).location()
        found = ObjectStorage(self.order["store_options"]).list(f"{folder}/metadata")
        return [uri for uri in found if uri.endswith(".parquet")]

    def _iceberg_rows(self) -> tuple[list[_Row], list[_Landed]]:
        """Return all rows, and the snapshots of runs that have added some."""
        name = f"lake.{self.table}"
        rows = sorted(tuple(row) for row in self.desk.lake.table(name).collect())
        snapshots = self.desk.lake.table(f"{name}.snapshots").collect()
        made = [(snapshot["snapshot_id"], snapshot["summary"]) for snapshot in snapshots]
        return rows, [
            (snapshot_id, summary.get("holdfast.run"))
            for snapshot_id, summary in made
            if summary.get("added-records", "0") != "0"
            and ("holdfast.run" in summary or not self.before)
        ]

    def _dataset(self) -> Any:  # noqa: ANN401 - Lance ships no types.
        return lance.dataset(self.table, storage_options=self.desk.stack.s3.lance_options())

    def _lance_rows(self) -> tuple[list[_Row], list[_Landed]]:
        """Return all rows, and the versions that have added some."""
        dataset = self._dataset()
        rows = sorted((row["id"], row.get("y")) for row in dataset.to_table().to_pylist())
        versions = versions_with_rows(dataset)
        if self.before:  # A replace may leave fewer rows than there were.
            versions = [entry["version"] for entry in dataset.versions()]
            versions = [version for version in versions if run_of(dataset, version)]
        return rows, [(version, run_of(dataset, version)) for version in versions]

    def _start_with(self, step: str, fault: str) -> dict[str, Any]:
        self.desk.arm(step, fault)
        ended = self.start("append").wait()
        assert self.desk.is_taken(step), ended
        return ended

    def _fill(self) -> None:
        """Make the table, with rows in two partitions and two commits."""
        if not self.is_lance:
            kind = "USING iceberg PARTITIONED BY (truncate(100, id))"
            self.desk.lake.sql(f"CREATE TABLE lake.{self.table} (id BIGINT, y BIGINT) {kind}")
        if self.verb == "add_columns":
            options = self.desk.stack.s3.lance_options()
            ids = pa.table({"id": pa.array(range(ROWS), pa.int64())})
            how: dict[str, Any] = {"max_rows_per_file": ROWS // 2, "storage_options": options}
            lance.write_dataset(ids, self.table, **how)
            self._dataset().delete(f"id = {_DELETED}")
            return
        self._write(self.before[:5], mode="create")
        self._write(self.before[5:])

    def _write(self, rows: Sequence[_Row], mode: Any = "append") -> None:  # noqa: ANN401
        """Commit rows as another writer; a commit without any is one, too."""
        columns = {
            name: pa.array([row[at] for row in rows], pa.int64())
            for at, name in enumerate(("id", "y"))
        }
        if self.is_lance:
            options = self.desk.stack.s3.lance_options()
            lance.write_dataset(pa.table(columns), self.table, mode=mode, storage_options=options)
        else:
            catalog = load_catalog("desk", **self.desk.stack.rest_catalog_properties())
            catalog.load_table(self.table).append(pa.table(columns))

    def _write_input(self) -> None:
        """Write the rows as two files of two row groups each."""
        storage = ObjectStorage(self.order["store_options"])
        for number, first in enumerate(range(0, ROWS, ROWS // 2)):
            buffer = pa.BufferOutputStream()
            rows = pa.table({"id": range(first, first + ROWS // 2)})
            pq.write_table(rows, buffer, row_group_size=ROWS // 4)
            storage.put(f"{self.order['scan']}/{number}.parquet", buffer.getvalue().to_pybytes())

    def _remove_a_staged_file(self) -> None:
        folder = self.table
        if not self.is_lance:
            catalog = load_catalog("desk", **self.desk.stack.rest_catalog_properties())
            folder = catalog.load_table(self.table).location()
        storage = ObjectStorage(self.order["store_options"])
        storage.delete([min(storage.list(f"{folder}/data"))])


def _in_short(ended: dict[str, Any]) -> str:
    return str(ended["error"] or ended["outcome"])
