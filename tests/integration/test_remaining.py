"""`run.remaining`: the rows still to do, for jobs whose costly step is a UDF in the DataFrame."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as sf

import holdfast as hf
from holdfast.errors import (
    InputChangedError,
    JobFailedError,
    NullKeyError,
    RunAbortedError,
    RunMismatchError,
    TransformError,
)
from tests.integration.process_jobs import run_job
from tests.integration.process_watched import ROWS, Watched, WatchedTable
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

ALL = list(range(ROWS))
# More tasks than cores: when the last one fails the first ones are done.
TASKS = 5


def costly(notes: Path, fails_at: int = -1) -> Callable[[str], Column]:
    """Return a UDF that notes each number that it is called with, and fails at one of them."""
    folder = str(notes)

    def double(number: int) -> int:
        if number == fails_at:
            raise LookupError(f"no answer for {number}")
        (Path(folder) / f"{uuid.uuid4().hex}.json").write_text(json.dumps([number]))
        return 2 * number

    return sf.udf(double, "bigint", useArrow=False)


def append(watched: WatchedTable, fails_at: int = -1, **options: Any) -> hf.Report:  # noqa: ANN401
    """Append the UDF's output for the rows that are left; the run is a new object each time."""
    run = watched.run()
    left = run.remaining(watched.input(tasks=TASKS), key="n")
    done = left.select("n", costly(watched.notes, fails_at)("n").alias("twice"))
    return run.append(done, to=watched.name, key="n", create=hf.Create(), **options)


def check_exact(watched: WatchedTable) -> None:
    """Assert that each row is in the table once, with the UDF's result."""
    found = watched.lake.table(watched.name).collect()
    assert sorted((row["n"], row["twice"]) for row in found) == [(n, 2 * n) for n in ALL]
    assert len(watched.snapshots()) == 1


def test_a_udf_is_called_once_a_row_and_not_again_after_the_commit(watched: WatchedTable) -> None:
    """A first start has everything to do; after the commit nothing is left."""
    assert append(watched).outcome == "committed"
    assert watched.computed() == ALL
    check_exact(watched)
    run = watched.run()
    left = run.remaining(watched.input(), key="n")
    assert (left.columns, left.count()) == (["n"], 0)
    assert append(watched).outcome == "already_committed"
    assert watched.computed() == ALL
    check_exact(watched)


def test_a_udf_that_failed_goes_on_with_the_rows_that_are_left(watched: WatchedTable) -> None:
    """Spark gives up the whole job, but what its finished tasks have done is kept."""
    with pytest.raises(JobFailedError, match="no answer for 19"):
        append(watched, fails_at=ROWS - 1)
    paid = set(watched.computed())
    run = watched.run()
    left = {row["n"] for row in run.remaining(watched.input(), key="n").collect()}
    assert ROWS - 1 in left
    assert 0 < len(left) < ROWS  # Some are done, so the test is not vacuous.
    assert set(ALL) - left <= paid
    report = append(watched)
    assert (report.outcome, report.kept_rows) == ("committed", ROWS - len(left))
    # Only rows of a task that Spark killed are computed again.
    again = [n for n in ALL if watched.computed().count(n) > 1]
    assert set(again) <= left
    check_exact(watched)


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(lambda df: df.where("n != 7"), id="one row"),
        pytest.param(lambda df: df.where("n = 7"), id="all but one"),
        pytest.param(lambda df: df.where("false"), id="all rows"),
    ],
)
def test_rows_lost_after_remaining_are_an_error(
    watched: WatchedTable, step: Callable[[DataFrame], DataFrame]
) -> None:
    """A filter after `remaining` would lose rows for good: nothing lands, and the work is kept."""
    run = watched.run()
    left = run.remaining(watched.input(tasks=TASKS), key="n")
    done = step(left).select("n", costly(watched.notes)("n").alias("twice"))
    with pytest.raises(InputChangedError, match=r"some rows of run\.remaining\(\) are missing"):
        run.append(done, to=watched.name, key="n", create=hf.Create())
    assert watched.snapshots() == []
    kept = len(watched.computed())
    assert append(watched).kept_rows == kept
    assert watched.computed() == ALL
    check_exact(watched)


def test_rows_doubled_after_remaining_are_an_error(watched: WatchedTable) -> None:
    """An explode after `remaining` would make two rows with one key."""
    run = watched.run()
    left = run.remaining(watched.input(tasks=TASKS), key="n")
    doubled = left.select("n", sf.explode(sf.array(sf.lit(1), sf.lit(2))).alias("twice"))
    with pytest.raises(hf.HoldfastError) as caught:
        run.append(doubled, to=watched.name, key="n", create=hf.Create())
    assert type(caught.value).__name__ in {"DuplicateKeyError", "InputChangedError"}
    assert watched.snapshots() == []


def test_a_write_without_remaining_goes_on_where_one_with_it_stopped(
    watched: WatchedTable,
) -> None:
    """The ledger is the same: a transform may take over from a UDF."""
    with pytest.raises(JobFailedError):
        append(watched, fails_at=ROWS - 1)
    kept = watched.run().status().done_rows
    df = watched.input(tasks=TASKS).selectExpr("n", "2 * n AS twice")
    assert watched.append(df, transform=None).kept_rows == kept > 0
    check_exact(watched)


def test_remaining_stops_where_append_would(watched: WatchedTable) -> None:
    """NULL keys, another key, and an aborted run are found before a row is computed."""
    nulls = watched.input("if(n = 3, NULL, n) AS k")
    with pytest.raises(NullKeyError, match="1 input rows"):
        watched.run("nulls").remaining(nulls, key="k")
    watched.append(run_id="landed")
    with pytest.raises(RunMismatchError, match=r"key was \(n\), and is now \(k\)"):
        watched.run("landed").remaining(watched.input("n AS k"), key="k")
    watched.run("aborted").remaining(watched.input(), key="n")
    watched.run("aborted").abort(reason="a test")
    with pytest.raises(RunAbortedError, match="a test"):
        watched.run("aborted").remaining(watched.input(), key="n")


def test_a_transform_behind_remaining_has_its_own_code(watched: WatchedTable) -> None:
    """Changed code is noticed as in a write without `remaining`."""
    run = watched.run()
    left = run.remaining(watched.input(tasks=TASKS), key="n")
    failing = Watched(watched.notes, fails_at=[ROWS - 1])
    with pytest.raises(TransformError):
        run.append(left, to=watched.name, key="n", transform=failing, create=hf.Create())
    run = watched.run(strict_code=True)
    left = run.remaining(watched.input(tasks=TASKS), key="n")
    with pytest.raises(RunMismatchError, match="the transform's code has changed"):
        run.append(left, to=watched.name, key="n", transform=None)


@pytest.mark.connect
@pytest.mark.parametrize("room", [None, 200], ids=["small", "large"])
def test_under_connect_remaining_does_the_same(
    watched: WatchedTable, stack: Stack, tmp_path: Path, room: int | None
) -> None:
    """Fail, resume, lose rows, land, start again: all steps as a client of Spark Connect.

    Both with finished keys that fit into the heap, and with too many.
    """
    settings = {
        "spark": {"spark.remote": stack.connect_remote, "spark.sql.session.timeZone": "UTC"},
        "run_id": "nightly",
        **watched.ledger,
        "to": f"{watched.namespace}.rows",
        "catalog": stack.rest_catalog_properties(),
        "rows": ROWS,
        "tasks": TASKS,
        "notes": str(watched.notes),
        "broadcast_bytes": room,
    }
    ended = run_job(settings, folder=tmp_path, script="remaining_job.py")
    assert ended.code == 0, ended.errors
    steps = {step["step"]: step for step in map(json.loads, ended.output.splitlines())}
    assert steps["fails"]["error"] == "JobFailedError"
    assert 0 < steps["left"]["rows"] < ROWS
    assert steps["filtered"]["error"] == "InputChangedError"
    assert steps["lands"]["outcome"] == "committed"
    assert steps["again"] == {"step": "again", "outcome": "already_committed", "left": 0}
    check_exact(watched)
