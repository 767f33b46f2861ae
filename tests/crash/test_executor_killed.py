"""An executor dies, or Spark doubts that one is alive: the same driver finishes the job.

The executors are processes of a standalone cluster that the test itself starts.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.crash.counted_calls import Call, seconds_per_row, times_computed
from tests.crash.lance_crash_table import AnyCrashTable
from tests.crash.own_cluster import OwnCluster
from tests.crash.spark_events import read_events
from tests.crash.started_jobs import Job, StartedJob, kill_process, session_of

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

# Spark soon starts a second attempt at a slow task.
SPECULATION = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.minTaskRuntime": "1s",
}


@pytest.mark.parametrize("table", ["iceberg", "lance"], indirect=True)
def test_an_executor_killed_in_mid_task_costs_one_checkpoint(
    table: AnyCrashTable, cluster: OwnCluster, tmp_path: Path, chance: random.Random
) -> None:
    """The driver continues without the executor, whose work up to a checkpoint is kept.

    Method: SIGKILL one of two executor processes at a random moment while it computes, after its
    task has had time for a checkpoint; read with Spark SQL, or with Lance; count the transform's
    calls.
    """
    rows, tasks, row_s, every_s = 300_000, 4, 1e-4, 1.0
    place_rows = rows // tasks
    table.create()
    job = Job(
        settings=table.settings(
            spark=cluster.session_conf(),
            rows=rows,
            tasks=tasks,
            transform=["tests.crash.counted_calls:Costly", {"row_s": row_s}],
            options={"checkpoint_every": f"{every_s:.0f}s"},
        ),
        folder=tmp_path,
    )
    with job.start() as started:
        started.wait_until(lambda: len({call.executor for call in started.calls}) == 2)
        victim = chance.choice(cluster.executors())
        share = chance.uniform(0.25, 0.75)
        place = calls_of(started, victim)[-1].place
        started.wait_until(lambda: rows_of(started, victim) >= share * place_rows)
        kill_process(victim)
        started.wait_until(lambda: session_of(victim) is None, timeout_s=10.0)
        done = rows_of(started, victim)
        assert started.ended() == 0, started.errors
    # It was killed in mid-task.
    removed = [event["Removed Reason"] for event in read_events(cluster.folder, "ExecutorRemoved")]
    print(f"  executor {victim} killed at {done:,} of {place_rows:,} rows of place {place}")
    assert any("code 137" in reason for reason in removed), removed
    assert 0 < done < place_rows
    table.check_landed_once(rows)

    repeated = times_computed(started.calls, rows) - 1
    at_risk = every_s / seconds_per_row(started.calls) + max(call.rows for call in started.calls)
    print(f"  {int(repeated.sum()):,} rows computed again of {at_risk:,.0f} allowed")
    print(f"  report {started.report}")
    assert repeated.min() == 0
    assert repeated.sum() <= at_risk
    assert started.report["passes"] > 1
    assert started.report["dropped_rows"] == 0


@pytest.mark.parametrize("table", ["iceberg", "lance"], indirect=True)
@pytest.mark.parametrize(
    ("every_s", "rows_first"),
    [pytest.param(1.0, 200, id="after a checkpoint"), pytest.param(8.0, 8, id="before one")],
)
def test_a_speculative_twin_waits_and_the_healthy_task_ends_its_work(
    table: AnyCrashTable, cluster: OwnCluster, tmp_path: Path, every_s: float, rows_first: int
) -> None:
    """Spark's second attempt at a slow place repeats little, and the first is not cut short.

    Method: speculation is on, and of four places the first is slow; the others end when the first
    has computed some rows. Spark's event log proves that a second attempt was then started,
    after or before a checkpoint of the first. Count the transform's calls by attempt.
    """
    rows, slow_row_s = 4_000, 0.02
    slow = {"row_s": slow_row_s, "slow_to": rows // 4, "others_after": rows_first}
    table.create()
    job = Job(
        settings=table.settings(
            spark={**cluster.session_conf(), **SPECULATION},
            rows=rows,
            tasks=4,
            transform=["tests.crash.counted_calls:SlowHead", slow],
            options={"checkpoint_every": f"{every_s:.0f}s"},
        ),
        folder=tmp_path,
    )
    started = job.run_to_its_end()
    assert started.process.returncode == 0, started.errors
    table.check_landed_once(rows)

    calls = [call for call in started.calls if call.place == 0]
    began, ended = min(call.began for call in calls), max(call.ended for call in calls)
    doubted = second_attempts(cluster, calls)
    assert doubted, "Spark has started no second attempt"
    repeated = times_computed(started.calls, rows) - 1
    at_risk = every_s / slow_row_s + max(call.rows for call in calls)
    print(f"  place 0 took {ended - began:.1f} s; {len(doubted)} more attempts, the first after")
    print(f"  {doubted[0] - began:.1f} s; rows by attempt {rows_by_attempt(calls)}")
    print(f"  {int(repeated.sum())} rows computed again of {at_risk:.0f} allowed")
    print(f"  report {started.report}")
    # It started long before the healthy attempt ended.
    assert ended - doubted[0] > 5.0
    assert (doubted[0] - began < every_s) == (rows_first * slow_row_s < every_s)
    assert repeated.min() == 0
    assert repeated.sum() <= at_risk
    assert max(rows_by_attempt(calls).values()) == rows // 4
    assert started.report["passes"] == 1


def second_attempts(cluster: OwnCluster, calls: list[Call]) -> list[float]:
    """Return when Spark started speculative attempts at the place of the calls."""
    tasks = read_events(cluster.folder, "TaskStart")
    known = {call.attempt for call in calls}
    stages = {task["Stage ID"] for task in tasks if task["Task Info"]["Task ID"] in known}
    return [
        task["Task Info"]["Launch Time"] / 1000
        for task in tasks
        if task["Stage ID"] in stages
        and task["Task Info"]["Speculative"]
        and task["Task Info"]["Index"] == calls[0].place
    ]


def calls_of(started: StartedJob, executor: int) -> list[Call]:
    """Return what the workers of one executor have computed so far."""
    found = [call for call in started.calls if call.executor == executor]
    assert found, "the executor has computed nothing"
    return found


def rows_of(started: StartedJob, executor: int) -> int:
    """Return how many rows the workers of one executor have computed so far."""
    return sum(call.rows for call in calls_of(started, executor))


def rows_by_attempt(calls: list[Call]) -> dict[int, int]:
    """Return how many rows each task attempt has computed."""
    found: dict[int, int] = {}
    for call in calls:
        found[call.attempt] = found.get(call.attempt, 0) + call.rows
    return found
