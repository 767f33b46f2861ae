"""A Spark Connect client dies, and its job runs on without it: the next start ends that job."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from holdfast.model.records import Claim
from tests.crash.counted_calls import Call, times_computed
from tests.crash.crash_table import CrashTable
from tests.crash.own_connect import connect_server
from tests.crash.run_ledger import RunLedger
from tests.crash.started_jobs import Job

pytestmark = [
    pytest.mark.crash,
    pytest.mark.spark,
    pytest.mark.connect,
    pytest.mark.stack,
    pytest.mark.rest,
]

TASKS_AT_ONCE = 2
# Time for a request to the store, and for a machine that has other work.
SLACK_S = 1.5


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    """Start a Spark Connect server and return its address."""
    with connect_server(tmp_path / "server") as address:
        yield address


def test_the_job_of_a_killed_client_stops_soon_after_the_next_start_has_claimed_the_run(
    table: CrashTable, remote: str, tmp_path: Path
) -> None:
    """The server continues a dead client's job until the run is claimed again; rows land once.

    Method: SIGKILL the client after checkpoints; see its job compute more rows on the server;
    start the client again, which takes over at once; compare the times of the first job's calls
    with the time of the second claim; read with Spark SQL.
    """
    rows, tasks, row_s, every_s = 4_800, 4, 0.02, 2.0
    table.create()
    job = Job(
        settings=table.settings(
            spark={"spark.remote": remote, "spark.sql.session.timeZone": "UTC"},
            rows=rows,
            tasks=tasks,
            transform=["tests.crash.own_connect:CostlyOnServer", {"row_s": row_s}],
            options={"checkpoint_every": f"{every_s:.0f}s", "takeover": "now"},
        ),
        folder=tmp_path,
    )
    with job.start() as first:
        first.wait_for_first_call()
        time.sleep(1.5 * every_s)
        first.kill()
        killed_at = time.time()
    assert first.process.returncode == -signal.SIGKILL
    time.sleep(1.0)
    second = job.run_to_its_end()
    assert second.process.returncode == 0, second.errors
    table.check_landed_once(rows)

    claims = RunLedger.of(table).log_of(Claim)
    claimed_at = datetime.fromisoformat(claims[1].written_at).timestamp()
    old, batch_s = first.calls, max(call.ended - call.began for call in first.calls)
    stopped_at = max(call.ended for call in old)
    repeated = times_computed(job.calls, rows) - 1
    at_risk = rows_after(old, claimed_at - every_s - batch_s)
    print(f"\n  {rows_before(old, killed_at)} rows computed before the kill, then without a client")
    print(f"  {rows_after(old, killed_at)}, of these {rows_after(old, claimed_at)} after the claim")
    print(f"  claim {claimed_at - killed_at:.2f} s after the kill; last call ended")
    print(f"  {stopped_at - claimed_at:+.2f} s from it; a batch took at most {batch_s:.2f} s")
    print(f"  {int(repeated.sum())} rows computed again of {at_risk} allowed")
    print(f"  places of the first job {sorted({call.place for call in old})}")
    print(f"  report {second.report}")
    # The first job was at work until the claim, so the test is not vacuous.
    assert rows_after(old, killed_at) > 0
    assert stopped_at > claimed_at - batch_s - SLACK_S
    assert rows_before(old, claimed_at) < rows // 2
    assert stopped_at <= claimed_at + every_s + batch_s + SLACK_S
    # Tasks that had not begun when the run was claimed have computed nothing.
    assert {call.place for call in old} == set(range(TASKS_AT_ONCE))
    assert repeated.min() == 0
    assert repeated.sum() <= at_risk
    assert second.report["kept_rows"] == rows - sum(call.rows for call in second.calls) > 0


def rows_before(calls: list[Call], moment: float) -> int:
    """Return how many rows were done up to a moment."""
    return sum(call.rows for call in calls if call.ended <= moment)


def rows_after(calls: list[Call], moment: float) -> int:
    """Return how many rows were done after a moment."""
    return sum(call.rows for call in calls if call.ended > moment)
