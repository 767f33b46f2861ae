"""Input that Spark reshuffles, and output that ends up in two files: nothing is lost or doubled."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash.counted_calls import read_calls, times_computed
from tests.crash.crash_table import COLUMNS, CrashTable
from tests.crash.own_cluster import OwnCluster
from tests.crash.spark_events import read_events
from tests.crash.started_jobs import LOCAL, Job, StartedJob, kill_process, session_of
from tests.crash.two_partitions import KILL_VARIABLE

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

PARTITIONED = "PARTITIONED BY (half)"
# Files are full after some hundred rows, so that a task makes several cuts.
PARTITIONED_SMALL = (
    f"{PARTITIONED} TBLPROPERTIES ('write.target-file-size-bytes'='6000', "
    "'write.parquet.row-group-limit'='200')"
)


def test_rows_that_spark_deals_anew_after_a_lost_executor_land_once(
    table: CrashTable, cluster: OwnCluster, tmp_path: Path, chance: random.Random
) -> None:
    """Spark itself would lose some rows and double others; they are computed again instead.

    Method: a Python step assigns rows to partitions at random; SIGKILL one of two executors when
    some places are done, so that Spark runs part of that step again, as its event log proves.
    """
    rows, tasks = 8_000, 8
    table.create()
    job = Job(
        settings=table.settings(
            spark=cluster.session_conf(),
            rows=rows,
            tasks=tasks,
            upstream="tests.crash.unstable_inputs:random_places",
            transform=["tests.crash.counted_calls:Costly", {"row_s": 2e-3}],
            options={"checkpoint_every": "1s"},
        ),
        folder=tmp_path,
    )
    done_first = chance.uniform(0.25, 0.5)
    with job.start() as started:
        started.wait_until(lambda: computed(started) >= done_first * rows)
        victim = chance.choice(cluster.executors())
        kill_process(victim)
        started.wait_until(lambda: session_of(victim) is None, timeout_s=10.0)
        done = computed(started)
        code = started.ended()
    again = [
        event["Stage Info"]["Stage ID"]
        for event in read_events(cluster.folder, "StageSubmitted")
        if event["Stage Info"]["Stage Attempt ID"] > 0
    ]
    counts = times_computed(started.calls, rows)
    print(f"  executor {victim} killed when {done:,} rows were computed; stages run again {again}")
    print(f"  {int((counts > 1).sum()):,} rows computed again, exit code {code}")
    assert len(again) >= 2  # Rows were reshuffled, and then read again.
    if code != 0:  # An error is allowed, a wrong commit is not; the next start then succeeds.
        assert "holdfast.errors." in started.errors, started.errors
        assert table.snapshots_with_rows() == 0
        started = job.run_to_its_end()
        assert started.process.returncode == 0, started.errors
    print(f"  report {started.report}")
    table.check_landed_once(rows)


@pytest.mark.parametrize(
    ("every", "cut", "master"),
    [
        pytest.param(None, 0, "local[2]", id="nothing durable"),
        pytest.param(None, 1, "local[2]", id="an earlier cut is durable"),
        pytest.param("1s", 0, "local[2]", id="chunks are durable"),
        pytest.param("1s", 0, "local[2,4]", id="chunks are durable, and Spark tries again"),
    ],
)
def test_a_worker_killed_between_the_files_of_one_row_loses_neither(
    table: CrashTable, tmp_path: Path, every: str | None, cut: int, master: str
) -> None:
    """A row that becomes rows in two table partitions is covered by both files or by none.

    Method: a worker kills itself after it has closed the first file of a cut and before it closes
    the second; the job goes on, by Spark's own retry or by another start; read with Spark SQL.
    """
    rows = 6_000
    table.create(f"{COLUMNS}, half STRING", options=PARTITIONED_SMALL if cut else PARTITIONED)
    job = Job(
        settings=table.settings(
            spark={**LOCAL, "spark.master": master},
            rows=rows,
            tasks=2,
            transform=["tests.crash.two_partitions:TwoHalves", {"row_s": 1e-3}],
            options={"checkpoint_every": every, "one_to_one": False, "batch_rows": 250},
        ),
        folder=tmp_path,
    )
    kill = tmp_path / "killed"
    first = job.run_to_its_end(**{KILL_VARIABLE: f"{cut} {kill}"})
    print(f"\n  killed: worker and closed file {kill.read_text()}")
    worker = int(kill.read_text().split()[0])
    assert worker in {call.worker for call in read_calls(first.folder / "calls")}
    assert "Python worker exited unexpectedly" in first.errors
    spark_tries_again = master != "local[2]"
    assert (first.process.returncode == 0) == spark_tries_again, first.errors
    last = first
    if not spark_tries_again:
        assert table.snapshots_with_rows() == 0
        last = job.run_to_its_end()
        assert last.process.returncode == 0, last.errors

    computed_rows = [sum(call.rows for call in started.calls) for started in job.starts]
    print(f"  rows computed by each start {computed_rows}")
    print(f"  report {last.report}")
    found = table.lake.table(f"lake.{table.name}").selectExpr(
        "count(*) AS rows",
        "count(DISTINCT id, half) AS different",
        "count_if(half = 'a') AS a",
        "count_if(y = id * 2 + 1 AND payload = concat('row ', id)) AS right",
        "max(id) AS last",
    )
    assert found.collect()[0].asDict() == {
        "rows": 2 * rows,
        "different": 2 * rows,
        "a": rows,
        "right": 2 * rows,
        "last": rows - 1,
    }
    assert table.snapshots_with_rows() == 1
    if every or cut:  # Something was durable, and was not computed again.
        assert sum(computed_rows) < 2 * rows


def computed(started: StartedJob) -> int:
    """Return how many rows were computed so far."""
    return sum(call.rows for call in started.calls)
