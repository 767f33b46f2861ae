"""A job with a budget is killed again and again: the bill stays below it, and the work is kept."""

from __future__ import annotations

import random
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.crash.lance_crash_table import AnyCrashTable
from tests.crash.priced_calls import COST_MAX, of_calls
from tests.crash.started_jobs import LOCAL, Job

pytestmark = [pytest.mark.crash, pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

ROWS, BUDGET, PLACES, AT_ONCE, CONCURRENCY = 3_000, 1_500.0, 20, 2, 8
# Calls that are in flight in each task, and how the job makes them.
JOBS: dict[str, tuple[int, list[Any], str]] = {
    "rows": (
        CONCURRENCY,
        ["tests.crash.counted_rows:asked", {"row_s": 0.03, "concurrency": CONCURRENCY}],
        "tests.crash.priced_calls:of_answer",
    ),
    "batches": (
        1,
        ["tests.crash.counted_calls:Costly", {"row_s": 0.004}],
        "tests.crash.priced_calls:of_batch",
    ),
}


@pytest.mark.parametrize("table", ["lance"], indirect=True)
@pytest.mark.parametrize("kind", JOBS)
@pytest.mark.parametrize("number", range(5))
@pytest.mark.timeout(600)  # Up to five starts of Spark, on a machine that may have other work.
def test_kills_do_not_exceed_the_budget(
    table: AnyCrashTable, tmp_path: Path, chance: random.Random, kind: str, number: int
) -> None:
    """What all starts have paid is at most the budget, beside the calls that a kill came with.

    Method: SIGKILL the driver, its JVM and its workers twice while calls are made whose cost is
    known only afterwards; start again until the budget is reached, then without one; count the
    calls in files of their own.
    """
    in_flight, transform, cost = JOBS[kind]
    table.create()
    options = {"checkpoint_every": "1s", "budget": BUDGET}
    job = Job(
        settings=table.settings(
            spark=LOCAL, rows=ROWS, tasks=PLACES, transform=transform, cost=cost, options=options
        ),
        folder=tmp_path,
    )
    for _ in range(2):
        with job.start() as started:
            started.wait_for_first_call()
            time.sleep(chance.uniform(0.0, 2.5))
            assert started.process.poll() is None, started.errors
            started.kill()
    stopped = job.run_to_its_end()
    assert "BudgetReachedError" in stopped.errors
    assert table.snapshots_with_rows() == 0
    paid = of_calls(job.calls)

    more = replace(job, settings={**job.settings, "options": {"checkpoint_every": "1s"}})
    last = more.run_to_its_end()
    assert last.process.returncode == 0, last.errors
    table.check_landed_once(ROWS)
    report, all_paid = last.report, of_calls(job.calls)
    recorded = sum(report["cost_by_epoch"].values()) + report["lost_cost"]
    known = recorded + report["held_cost"]
    print(f"  {kind} {number}: {paid:,.1f} of {BUDGET:,.0f} paid ({paid - BUDGET:+.1f})")
    print(
        f"  in all {all_paid:,.1f} paid, {recorded:,.1f} recorded, {report['held_cost']:,.1f} held"
    )
    assert recorded <= all_paid + 1e-6
    assert paid <= BUDGET + 2 * AT_ONCE * in_flight * COST_MAX
    assert paid >= 0.9 * BUDGET
    assert all_paid <= known + 2 * AT_ONCE * in_flight * COST_MAX
