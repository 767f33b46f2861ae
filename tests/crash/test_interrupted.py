"""Ctrl-C and SIGTERM while calls are being made: calls are finished, and their answers kept.

This does not depend on checkpoints: the interval is longer than the job.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from holdfast.model.records import Plan
from tests.crash.counted_calls import times_computed
from tests.crash.lance_crash_table import AnyCrashTable
from tests.crash.run_ledger import RunLedger
from tests.crash.started_jobs import LOCAL, Job, StartedJob, processes_of_session
from tests.s3_uploads import unfinished_uploads

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

ROWS, CONCURRENCY, EXIT_MAX_S = 300, 8, 10.0
WIDE_ROWS = 1_000


@pytest.mark.parametrize("table", ["iceberg", "lance"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_calls_in_flight_are_finished_and_kept(
    table: AnyCrashTable, tmp_path: Path, number: signal.Signals
) -> None:
    """The driver ends within ten seconds, and no call that was answered is made again.

    Method: send the signal once while calls of a second each are being made, to all processes of
    the terminal as Ctrl-C does, or to the driver alone; start again; count the calls.
    """
    job = asking_job(table, tmp_path, row_s=1.0)
    with job.start() as started:
        seconds = interrupted(started, number)
        assert started.process.returncode == -number, started.errors
        finished = times_computed(started.calls, ROWS)
    again = job.run_to_its_end()
    assert again.process.returncode == 0, again.errors
    table.check_landed_once(ROWS)
    repeated = times_computed(job.calls, ROWS) - 1
    print(
        f"  {number.name}: gone after {seconds:.1f} s, {int(finished.sum())} rows answered, "
        f"{int(repeated.sum())} asked again; {again.report['kept_rows']} kept"
    )
    assert seconds < EXIT_MAX_S
    # Calls that were being made when the signal came are among them.
    assert finished.sum() > 2 * CONCURRENCY
    assert repeated.max() == 0
    assert again.report["kept_rows"] == finished.sum()


@pytest.mark.parametrize("table", ["iceberg", "lance"], indirect=True)
def test_calls_longer_than_their_grace_do_not_keep_the_driver(
    table: AnyCrashTable, tmp_path: Path
) -> None:
    """Calls of a minute are given up: the driver still ends within ten seconds."""
    job = asking_job(table, tmp_path, row_s=60.0)
    with job.start() as started:
        ledger = RunLedger.of(table)
        started.wait_until(lambda: bool(ledger.log_of(Plan)))
        time.sleep(4.0)  # Spark starts its tasks.
        began = time.monotonic()
        started.process.send_signal(signal.SIGTERM)
        started.ended(timeout_s=60.0)
        seconds = time.monotonic() - began
    print(f"  gone after {seconds:.1f} s")
    assert started.process.returncode == -signal.SIGTERM
    assert seconds < EXIT_MAX_S


@pytest.mark.parametrize("table", ["iceberg", "lance"], indirect=True)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_no_half_upload_and_no_process_is_left(
    table: AnyCrashTable, tmp_path: Path, number: signal.Signals
) -> None:
    """Parts of data files had arrived: they are removed, and the next start resumes.

    Method: wide rows and small row groups, so that a file is sent while it grows; the server
    itself is asked which uploads it knows.
    """
    table.create(options="TBLPROPERTIES ('write.parquet.row-group-size-bytes'='4000000')")
    data = f"{table.location.split('/', 3)[3]}/data/"
    job = Job(
        settings=table.settings(
            spark=LOCAL,
            rows=WIDE_ROWS,
            tasks=2,
            transform=["tests.crash.counted_calls:Costly", {"row_s": 0.02}],
            upstream="tests.crash.wide_inputs:wide_payloads",
            options={"checkpoint_every": "10min", "batch_rows": 10},
        ),
        folder=tmp_path,
    )
    server = table.server
    with job.start() as started:
        started.wait_until(lambda: bool(unfinished_uploads(server, data)))
        begun = unfinished_uploads(server, data)
        if number == signal.SIGINT:
            os.killpg(started.process.pid, number)
        else:
            started.process.send_signal(number)
        started.ended(timeout_s=60.0)
        until = time.monotonic() + EXIT_MAX_S
        while processes_of_session(started.process.pid) and time.monotonic() < until:
            time.sleep(0.1)
        left = processes_of_session(started.process.pid)
    print(f"  {number.name}: {len(begun)} uploads were under way")
    assert left == {}
    assert unfinished_uploads(server, data) == []
    again = job.run_to_its_end()
    assert again.process.returncode == 0, again.errors
    assert again.report["kept_rows"] > 0
    assert table.count() == (WIDE_ROWS, WIDE_ROWS)
    assert unfinished_uploads(server, data) == []


def asking_job(table: AnyCrashTable, folder: Path, *, row_s: float) -> Job:
    """Return a job that asks for each row, and would make no checkpoint before its end."""
    table.create()
    return Job(
        settings=table.settings(
            spark=LOCAL,
            rows=ROWS,
            tasks=2,
            transform=[
                "tests.crash.counted_rows:asked",
                {"row_s": row_s, "concurrency": CONCURRENCY},
            ],
            options={"checkpoint_every": "10min"},
        ),
        folder=folder,
    )


def interrupted(started: StartedJob, number: signal.Signals) -> float:
    """Send the signal in the middle of calls; return how many seconds the driver takes to end."""
    started.wait_until(lambda: len(started.calls) > 2 * CONCURRENCY)
    began = time.monotonic()
    if number == signal.SIGINT:
        os.killpg(started.process.pid, number)
    else:
        started.process.send_signal(number)
    started.ended(timeout_s=60.0)
    return time.monotonic() - began
