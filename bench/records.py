"""Runs of 1,000, 10,000 and 100,000 tasks after hours of checkpoints: what a driver does with them.

Each task has written a record when it began, ten checkpoints and the cut that ended it, as the
tasks of a ten-hour job do. The ledger is in a local folder (set TMPDIR to one in memory, if the
disk is slow); records that the cut has replaced are there in name only. Its driver died before it
sealed any. The status is read; a new driver takes the records over, proves that no key is covered
twice, looks for objects that are gone, and seals; another one resumes from the seal; and after the
commit a sweep deletes everything. Each size runs in a process of its own, whose memory is measured
from before the first step. A call to the store is one object or one page of a listing.

The ratio is the CPU time per task with 100,000 tasks over that with 10,000, all steps together; the
elapsed time is reported beside it, and depends on what else the machine does.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.engine.cleanup import carry_out, plan_sweep
from holdfast.engine.input_check import all_differ
from holdfast.engine.watch import status
from holdfast.engine.workbook import Workbook, without_lost_objects
from holdfast.ledger.layout import RunLayout, task_log_name, tasks_name
from holdfast.ledger.ledger import Ledger, Ports
from holdfast.ledger.run_log import open_run_file
from holdfast.model.coverage import Coverage
from holdfast.model.identity import Identity
from holdfast.model.records import Claim, Intent, Plan, Receipt, seal_json
from holdfast.model.work import StagedFile, StagedGroup, TaskRecord
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.runtime import io_runtime
from tests.fakes.memory_table import MemoryTable

_SIZES = (1_000, 10_000, 100_000)
_CHECKPOINTS = 10
_ROWS = 10
_LINKS_MAX = 50_000
_RUN, _NONCE = "records", "0123456789abcdef0123456789abcdef"
_CHILD_S = 1800


class _Writer:
    """Writes the objects of some tasks."""

    def __init__(self, folder: Path, layout: RunLayout, tasks: str) -> None:
        self._folder = folder
        self._layout = layout
        self._tasks = tasks
        self._links = 0
        self._template = Path()

    def write(self, place: int) -> None:
        """Write all that one task leaves."""
        log = task_log_name(self._tasks, "rows", place, place)
        folder = self._folder / "tasks" / log
        folder.mkdir(parents=True)
        # Replaced records and what they name are listed and deleted, but never read.
        self._link(folder / "0000.json")
        for number in range(1, _CHECKPOINTS + 1):
            for kind in ("chunk", "keys", "json"):
                self._link(folder / f"{number:04d}.{kind}")
        last, rows = _CHECKPOINTS + 1, _CHECKPOINTS * _ROWS
        keys = np.arange(place * rows, (place + 1) * rows, dtype=np.int64) * 2654435761 % 2**61
        path = folder / f"{last:04d}.keys"
        pq.write_table(pa.table({"id": keys}), path, compression="zstd", write_page_checksum=True)
        file = f"s3://lake/db.db/t/data/day=2026-11-{place % 30:02d}/{place:032x}-00001-0.parquet"
        group = StagedGroup(
            path=f"s3://lake/db.db/t/metadata/{_NONCE}-{place:032x}-m0.avro",
            size_bytes=7000,
            files=(StagedFile(path=file, size_bytes=128_000_000, rows=rows),),
            detail={"spec_id": 0, "partitions": []},
        )
        size = path.stat().st_size
        record = TaskRecord(
            name=f"{log}/{last:04d}",
            coverage=Coverage(rows=rows, low=1, high=1, keys_bytes=size),
            seconds=300.0,
            groups=(group,),
            end="complete",
            replaces=tuple(range(last)),
            beside=(),
        )
        self._record(folder, record)

    def _record(self, folder: Path, record: TaskRecord) -> None:
        named = {"run": _NONCE, "nonce": "x", "format": 3}
        data = seal_json({**record.to_json(), **named})
        (folder / f"{record.number:04d}.json").write_bytes(data)

    def _link(self, path: Path) -> None:
        """Make an object that nothing reads: a link costs no space."""
        if self._links % _LINKS_MAX == 0:
            path.write_bytes(b"0" * 100)
            self._template = path
        else:
            os.link(self._template, path)
        self._links += 1


def _write_tasks(folder: str, first: int, stop: int) -> None:
    layout = RunLayout.of(f"file://{folder}", _RUN)
    writer = _Writer(Path(folder) / _RUN, layout, tasks_name(1, _NONCE))
    for place in range(first, stop):
        writer.write(place)


def _ledger(folder: str) -> Ledger:
    return Ledger.open(_RUN, f"file://{folder}", ObjectStorage(), Ports())


def _write(folder: str, tasks: int) -> None:
    """Write a run whose driver died when all its tasks had ended."""
    ledger = _ledger(folder)
    identity = Identity(
        table="lake.db.t",
        table_uuid="u",
        branch="main",
        mode="append",
        key=("id",),
        session_time_zone="UTC",
        ansi_mode="true",
        version="",
    )
    run_file = open_run_file(
        ledger.storage,
        ledger.layout,
        run_id=_RUN,
        identity=identity,
        nonce=_NONCE,
        sleep=time.sleep,
    )
    ledger.log.belongs_to(run_file)
    _claim(ledger)
    plan = Plan(
        job="rows",
        input=None,
        remaining_rows=None,
        chunks=0,
        schema={"columns": ["id"]},
        tasks=tasks_name(1, _NONCE),
    )
    ledger.log.append(plan)
    share = -(-tasks // 8)
    with ProcessPoolExecutor(2) as pool:
        portions = [
            pool.submit(_write_tasks, folder, first, min(tasks, first + share))
            for first in range(0, tasks, share)
        ]
        for portion in portions:
            portion.result()


def _claim(ledger: Ledger) -> None:
    ledger.log.claim(
        Claim(
            holdfast_version="0",
            host="h",
            process_id=1,
            machine="m",
            code="c",
            checkpoint_every_s=30.0,
        )
    )


class _Meter:
    """Measures steps: time, calls to the store, and how far memory rose above that at the start."""

    def __init__(self) -> None:
        self.steps: dict[str, dict[str, float]] = {}
        gc.collect()
        self._base_mb = _memory_mb("VmRSS")

    @contextlib.contextmanager
    def step(self, name: str) -> Iterator[None]:
        """Measure one step."""
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
        before = io_runtime().counters
        began = time.monotonic(), time.process_time()
        yield
        used = io_runtime().counters.since(before)
        self.steps[name] = {
            "seconds": round(time.monotonic() - began[0], 3),
            "cpu_s": round(time.process_time() - began[1], 3),
            "more_mb": round(_memory_mb("VmHWM") - self._base_mb, 1),
            "calls": used.requests,
            "bytes_read": used.bytes_read,
            "bytes_written": used.bytes_written,
        }
        print(f"  {name:<16} {self.steps[name]}", file=sys.stderr, flush=True)


def _memory_mb(field: str) -> float:
    """Return a figure of this process's memory from the kernel.

    Raises:
        SystemExit: The kernel does not report it.
    """
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) / 1024
    raise SystemExit(f"/proc/self/status has no {field}")


def _child(folder: str, tasks: int) -> dict[str, dict[str, float]]:
    """Do what a driver does with the run, and return what each step took.

    Raises:
        SystemExit: A step did not find what the tasks have written.
    """
    rows, meter = tasks * _CHECKPOINTS * _ROWS, _Meter()
    with meter.step("status"):
        found = status(_ledger(folder))
    if (found.state, found.done_rows) != ("started", rows):
        raise SystemExit(f"{found}")
    ledger = _ledger(folder)
    ledger.log.refresh()
    ledger.run_file()
    _claim(ledger)
    book = Workbook(ledger)
    with meter.step("take over"):
        book.inherit()
    with meter.step("duplicate check"):
        differ = all_differ(book.work, book.finished)
    with meter.step("lost objects"):
        kept = without_lost_objects(ledger, book.work)
    if not differ or kept is not book.work or book.work.sums.rows != rows:
        raise SystemExit(f"{differ}, {len(kept.records)} records, {book.work.sums.rows} rows")
    with meter.step("seal"):
        part = book.complete()
    del book, kept
    with meter.step("resume"):
        again = Workbook(ledger)
        again.inherit()
    if not again.is_complete or again.work.sums.rows != rows:
        raise SystemExit("the seal is not what was sealed")
    del again
    amounts = {"staged": part, "rows": rows, "files": tasks, "size_bytes": 1}
    intent = Intent(
        table_uuid="u",
        branch="main",
        parent_snapshot_id=1,
        snapshot_id=2,
        sequence_number=3,
        **amounts,  # type: ignore[arg-type]
    )
    number = ledger.log.append(intent).number
    landed: Any = {"intent_number": number, "snapshot_id": 2, "sequence_number": 3, **amounts}
    ledger.log.append(Receipt(**landed))
    with meter.step("sweep"):
        plan = plan_sweep(ledger, lambda _: MemoryTable())
        swept = carry_out(ledger, lambda _: MemoryTable(), plan)
    left = ObjectStorage().list(ledger.layout.tasks)
    if left or plan.data_files or swept.ledger_objects < tasks * (3 * _CHECKPOINTS + 3):
        raise SystemExit(f"{len(left)} objects are left; {swept}")
    return meter.steps


def _measured(tasks: int) -> dict[str, dict[str, float]]:
    """Measure one size in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        _write(folder, tasks)
        print(f"{tasks:,} tasks, written in {time.monotonic() - began:.0f} s", flush=True)
        command = [sys.executable, "-m", "bench.records", folder, str(tasks)]
        done = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, timeout=_CHILD_S, check=True
        )
    found: dict[str, dict[str, float]] = json.loads(done.stdout)
    return found


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    steps = {tasks: _measured(tasks) for tasks in _SIZES}
    _, middle, largest = _SIZES
    cpu_ms, ms = (
        {
            tasks: round(1000 * sum(step[unit] for step in of.values()) / tasks, 4)
            for tasks, of in steps.items()
        }
        for unit in ("cpu_s", "seconds")
    )
    return {
        "ratio": round(cpu_ms[largest] / cpu_ms[middle], 3),
        "ratio_elapsed": round(ms[largest] / ms[middle], 3),
        "records": {str(tasks): tasks * (_CHECKPOINTS + 2) for tasks in _SIZES},
        "cpu_ms_per_task": {str(tasks): each for tasks, each in cpu_ms.items()},
        "ms_per_task": {str(tasks): each for tasks, each in ms.items()},
        "driver_growth_mb": max(step["more_mb"] for step in steps[largest].values()),
        "by_step": {
            name: round(
                steps[largest][name]["cpu_s"] / largest / (steps[middle][name]["cpu_s"] / middle),
                3,
            )
            for name in steps[largest]
        },
        "steps": {str(tasks): of for tasks, of in steps.items()},
    }


if __name__ == "__main__":
    print(json.dumps(_child(sys.argv[1], int(sys.argv[2]))))
