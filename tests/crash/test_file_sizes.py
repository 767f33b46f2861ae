"""Checkpoints are many, table files are few: neither time nor kills leave a tail of small files."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

import holdfast as hf
from tests.crash.counted_calls import times_computed
from tests.crash.crash_table import COLUMNS, RUN
from tests.crash.lance_crash_table import AnyCrashTable, LanceCrashTable
from tests.crash.run_ledger import RunLedger
from tests.crash.started_jobs import LOCAL, Job
from tests.crash.wide_rows import FILLER_COLUMN

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

# All tasks at once, and each sleeps for 48 seconds: over three minutes of work.
ROWS, TASKS, ROW_S, EVERY_S = 12_000, 4, 0.016, 5.0


def costly_job(table: AnyCrashTable, folder: Path) -> Job:
    """Return a job whose checkpoints come long before its table files are full."""
    table.create(f"{COLUMNS}, {FILLER_COLUMN}")
    return Job(
        settings=table.settings(
            spark={**LOCAL, "spark.master": f"local[{TASKS}]"},
            rows=ROWS,
            tasks=TASKS,
            transform=["tests.crash.wide_rows:CostlyWide", {"row_s": ROW_S}],
            options={"checkpoint_every": f"{EVERY_S:.0f}s"},
        ),
        folder=folder,
    )


@pytest.mark.parametrize("table", ["iceberg", "lance"], indirect=True)
def test_each_task_leaves_one_file_however_many_checkpoints_it_makes(
    table: AnyCrashTable, tmp_path: Path
) -> None:
    """A checkpoint does not mean a file: there are as many files as tasks, of even size.

    Method: nothing is killed; count the task records in the ledger and the files in the table.
    """
    job = costly_job(table, tmp_path)
    started = job.run_to_its_end()
    assert started.process.returncode == 0, started.errors
    check_rows(table)
    records = RunLedger.of(table).task_records()
    chunks = [record.chunk for record in records if record.chunk is not None]
    sizes = table.rows_by_file()
    print(f"\n  {len(records)} task records, {len(chunks)} of them with a chunk")
    print(f"  rows by file {sizes}\n  report {started.report}")
    # A checkpoint comes every five seconds, or a little later.
    assert len(records) >= 6 * TASKS
    assert sizes == [ROWS // TASKS] * TASKS
    assert started.report["files"] == TASKS
    assert started.report["passes"] == 1


@pytest.mark.parametrize("table", ["iceberg", "lance"], indirect=True)
@pytest.mark.timeout(600)  # Four starts of Spark, on a machine that may have other work.
def test_kills_leave_no_tail_of_small_files_and_a_sweep_leaves_almost_nothing(
    table: AnyCrashTable, tmp_path: Path
) -> None:
    """What dead tasks had done lands in few files; then a sweep removes what they left.

    Method: SIGKILL the driver, its JVM and its workers three times while rows are computed, each
    time after checkpoints; start once more; count files and checkpoints; sweep; read all again.
    """
    job, ledger = costly_job(table, tmp_path), RunLedger.of(table)
    for _ in range(3):
        with job.start() as started:
            started.wait_for_first_call()
            time.sleep(2.5 * EVERY_S)
            assert started.process.poll() is None, started.errors
            started.kill()
        assert started.process.returncode == -signal.SIGKILL  # It did crash.
        print(f"\n  killed; {len(ledger.task_records())} task records so far", end="")
        assert table.snapshots_with_rows() == 0
    last = job.run_to_its_end()
    assert last.process.returncode == 0, last.errors
    check_rows(table)

    records = ledger.task_records()
    chunks = [record.chunk.rows for record in records if record.chunk is not None]
    sizes = table.rows_by_file()
    again = int((times_computed(job.calls, ROWS) - 1).sum())
    print(f"\n  {len(records)} task records, {len(chunks)} chunks of at most {max(chunks)} rows")
    print(f"  rows by file {sizes}; {again} rows computed again\n  report {last.report}")
    assert last.report["kept_rows"] > ROWS // 4
    assert len(chunks) >= 6 * TASKS
    # The tasks of the last start, and one replay for all chunks of the tasks that died.
    assert len(sizes) <= min(last.report["tasks"], 2 * TASKS)
    assert sizes[0] > max(chunks)  # No file is as small as a checkpoint.
    check_sweep(table, ledger)


def check_sweep(table: AnyCrashTable, ledger: RunLedger) -> None:
    """Sweep the run; what the table's metadata refers to stays, and little else."""
    needed, before = table.referred_files(), ledger.objects()
    swept = hf.Run(RUN, **table.ledger).sweep(to=table.target)
    left = ledger.objects()
    below = set(ledger.storage.list(table.location))
    data = {uri for uri in below if uri.endswith((".parquet", ".lance"))}
    print(f"  {swept}; objects in the run's folder {len(before)}, then {left}")
    print(f"  {len(needed)} files referred to, {len(data - needed)} unneeded data files")
    assert len(left) < len(before)
    assert "run.json" in left
    others = [name for name in left if name != "run.json" and not name.startswith("log/")]
    assert len(others) <= 1
    assert all(name.startswith("parts/") for name in others)
    assert needed == table.referred_files()
    assert needed <= below
    if isinstance(table, LanceCrashTable):
        # Nothing was killed between a file and its record, so no unknown file is left.
        assert data == needed
        folders = {uri.removeprefix(f"{table.location}/").split("/")[0] for uri in below}
        assert folders == {"data", "_versions", "_transactions", "_holdfast"}
    check_rows(table)


def check_rows(table: AnyCrashTable) -> None:
    """Assert that every row is there once, with its own filler, in one snapshot."""
    table.check_landed_once(ROWS)
    assert table.right_fillers() == ROWS
