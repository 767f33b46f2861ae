"""The driver dies again and again: each row lands once, and little is computed again."""

from __future__ import annotations

import random
import signal
import time
from pathlib import Path

import pytest

from tests.crash.counted_calls import Call, seconds_per_row, times_computed
from tests.crash.lance_crash_table import AnyCrashTable
from tests.crash.started_jobs import LOCAL, Job, StartedJob

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

TASKS_AT_ONCE = 2


@pytest.mark.parametrize("table", ["iceberg", "lance"], indirect=True)
@pytest.mark.timeout(600)  # Six starts of Spark, on a machine that may have other work.
def test_a_million_rows_land_once_though_the_driver_is_killed_five_times(
    table: AnyCrashTable, tmp_path: Path, chance: random.Random
) -> None:
    """Each row is in the table once, and a kill costs no more than the work since a checkpoint.

    Method: SIGKILL the driver, its JVM and its workers at random moments, four times while rows
    are computed and once counted from the start of the process; start once more; read with
    Spark SQL, or with Lance; count the transform's calls in files of its own.
    """
    rows, row_s, every_s = 1_000_000, 1e-4, 2.0
    # Together shorter than the work takes, so that no start ends before its kill.
    moments = [("first call", chance.uniform(0.0, 7.0)) for _ in range(4)]
    moments.append(("start", chance.uniform(0.5, 12.0)))
    chance.shuffle(moments)
    table.create()
    job = Job(
        settings=table.settings(
            spark=LOCAL,
            rows=rows,
            tasks=8,
            transform=["tests.crash.counted_calls:Costly", {"row_s": row_s}],
            options={"checkpoint_every": f"{every_s:.0f}s"},
        ),
        folder=tmp_path,
    )
    for since, delay_s in moments:
        killed_at(job, since, delay_s)
        assert table.snapshots_with_rows() == 0
    last = job.run_to_its_end()
    assert last.process.returncode == 0, last.errors
    table.check_landed_once(rows)

    calls, kills = job.calls, len(moments)
    repeated = times_computed(calls, rows) - 1
    assert repeated.min() == 0
    batch = max(call.rows for call in calls)
    at_risk = every_s / seconds_per_row(calls) + batch
    allowed = kills * TASKS_AT_ONCE * at_risk
    show(job, f"{int(repeated.sum()):,} rows computed again of {allowed:,.0f} allowed")
    print(f"  a row took {seconds_per_row(calls):.6f} s, the largest batch had {batch:,} rows")
    print(f"  report {last.report}")
    assert repeated.sum() <= allowed
    for started in job.starts[:-1]:
        assert lost_rows(job, started, rows) <= TASKS_AT_ONCE * at_risk
    assert last.report["kept_rows"] == rows - sum(call.rows for call in last.calls)


@pytest.mark.parametrize(
    "table", ["iceberg", "lance", "lance on minio", "lance on local files"], indirect=True
)
def test_rows_of_a_tenth_of_a_second_are_lost_for_at_most_ten_seconds(
    table: AnyCrashTable, tmp_path: Path, chance: random.Random
) -> None:
    """Where rows are expensive, a kill costs at most two checkpoints' work of each task.

    Method: SIGKILL the driver, its JVM and its workers twice at random moments while rows are
    computed; start once more; count the rows that each task computed in vain.
    """
    rows, row_s, lost_max = 400, 0.1, 100
    table.create()
    job = Job(
        settings=table.settings(
            spark=LOCAL,
            rows=rows,
            tasks=TASKS_AT_ONCE,
            transform=["tests.crash.counted_calls:Costly", {"row_s": row_s}],
            options={"checkpoint_every": "5s"},
        ),
        folder=tmp_path,
    )
    # Before the first checkpoint, and after it: the first start leaves nothing, the second some.
    for delay_s in (chance.uniform(0.0, 4.0), chance.uniform(7.0, 11.0)):
        killed_at(job, "first call", delay_s)
        assert table.snapshots_with_rows() == 0
    last = job.run_to_its_end()
    assert last.process.returncode == 0, last.errors
    table.check_landed_once(rows)

    repeated = times_computed(job.calls, rows) - 1
    assert repeated.min() == 0
    assert last.report["kept_rows"] == rows - sum(call.rows for call in last.calls) > 0
    show(job, f"{int(repeated.sum())} rows of {row_s} s computed again")
    for started in job.starts[:-1]:
        for place in range(TASKS_AT_ONCE):
            lost = lost_rows(job, started, rows, place=place)
            print(f"  {started.folder.name}, place {place}: {lost} rows of {lost_max} allowed")
            assert lost <= lost_max


def killed_at(job: Job, since: str, delay_s: float) -> None:
    """Start the job and kill all of it some time after it started, or started to compute."""
    with job.start() as started:
        if since == "first call":
            started.wait_for_first_call()
        time.sleep(delay_s)
        assert started.process.poll() is None, f"it ended before the kill:\n{started.errors}"
        killed = started.kill()
    print(f"  killed {delay_s:.2f} s after its {since}: {len(killed)} processes")
    # It did crash, with its JVM if there was one, so the test is not vacuous.
    assert started.process.returncode == -signal.SIGKILL
    assert started.process.pid in killed
    if since == "first call":
        assert any("org.apache.spark.deploy.SparkSubmit" in command for command in killed.values())
        assert any("pyspark.daemon" in command for command in killed.values())


def lost_rows(job: Job, started: StartedJob, rows: int, *, place: int | None = None) -> int:
    """Return how many rows one start, or one place of it, computed that others had to repeat."""
    later: list[Call] = []
    for other in job.starts[job.starts.index(started) + 1 :]:
        later += other.calls
    own = [call for call in started.calls if place in (None, call.place)]
    both = (times_computed(own, rows) > 0) & (times_computed(later, rows) > 0)
    return int(both.sum())


def show(job: Job, result: str) -> None:
    """Print what each start computed, and the result."""
    for started in job.starts:
        rows = sum(call.rows for call in started.calls)
        print(f"  {started.folder.name}: {rows:,} rows computed")
    print(f"  {result}")
