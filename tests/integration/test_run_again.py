"""A run that is started again: nothing is done twice, and nothing is dropped silently."""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import JobFailedError, RunMismatchError, TransformError
from tests.integration.process_watched import ROWS, TASKS, Watched, WatchedTable

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

ALL = list(range(ROWS))


class Rewritten(Watched):
    """The same transform after its code was changed."""

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as they are, by other code."""
        rows: pa.RecordBatch = super().__call__(batch)
        return rows.slice(0)


def test_the_same_input_again_computes_nothing_and_gives_the_receipt(watched: WatchedTable) -> None:
    """A finished run is a no-op: no transform call, no snapshot, the same snapshot id."""
    first = watched.append()
    assert (first.outcome, watched.computed()) == ("committed", ALL)
    again = watched.append()
    assert (again.outcome, again.snapshot_id) == ("already_committed", first.snapshot_id)
    assert (again.rows, again.files, again.input_compared) == (ROWS, first.files, "keys")
    assert watched.computed() == ALL  # The transform was not called again.
    assert watched.numbers() == ALL
    assert watched.snapshots() == [first.snapshot_id]


def test_return_reads_no_input_and_is_quick(watched: WatchedTable, tmp_path: Path) -> None:
    """With if_committed="return" the receipt comes without reading the input, in seconds.

    Method: the input's files are removed, so that any read of them fails.
    """
    folder = tmp_path / "input"
    watched.input().write.parquet(str(folder))
    df = watched.lake.read.parquet(str(folder))
    first = watched.append(df)
    for file in folder.glob("*.parquet"):
        file.unlink()
    with pytest.raises(JobFailedError):  # A read does fail, so the test is not vacuous.
        watched.append(df)
    started = time.monotonic()
    with pytest.warns(UserWarning, match="was not compared"):
        again = watched.append(df, if_committed="return")
    assert time.monotonic() - started < 3.0
    assert (again.outcome, again.snapshot_id) == ("already_committed", first.snapshot_id)
    assert again.input_compared is None
    shutil.rmtree(folder)


@pytest.mark.parametrize("landed", [False, True], ids=["half done", "landed"])
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"key": ["n", "name"]}, r"key was \(n\), and is now \(n, name\)"),
        ({"version": "2"}, "version= was '', and is now '2'"),
        (
            {"to": "other"},
            r"it writes the table lake\.\w+\.rows, but this start writes lake\.\w+\.other",
        ),
        ({"zone": "Asia/Tokyo"}, r"time zone \(.*\) was 'UTC', and is now 'Asia/Tokyo'"),
        ({"ansi": "false"}, r"ANSI mode \(.*\) was .*, and is now 'false'"),
    ],
    ids=["key", "version", "table", "time zone", "ansi mode"],
)
def test_the_same_id_for_another_job_is_refused(
    watched: WatchedTable, changes: dict[str, Any], told: str, *, landed: bool
) -> None:
    """The error names what differs, nothing is computed, and the run itself continues unharmed."""
    columns = ["concat('row ', n) AS name"]
    if landed:
        watched.append(watched.input(*columns))
    else:
        with pytest.raises(TransformError):
            watched.append(watched.input(*columns), fails_at=[ROWS - 1])
    done = watched.computed()
    session = watched.lake.newSession()
    session.conf.set("spark.sql.session.timeZone", changes.get("zone", "UTC"))
    session.conf.set("spark.sql.ansi.enabled", changes.get("ansi", "true"))
    options: dict[str, Any] = {
        name: changes[name] for name in ("key", "version") if name in changes
    }
    if "to" in changes:
        options["to"] = f"lake.{watched.namespace}.other"
    other = session.range(0, ROWS, 1, TASKS).withColumnRenamed("id", "n")
    with pytest.raises(RunMismatchError, match=told):
        watched.append(other.selectExpr(*columns, "n"), **options)
    assert watched.computed() == done
    # Each start has create=: a refused one must not leave a table behind.
    assert watched.tables() == ["rows"]
    watched.append(watched.input(*columns))
    assert watched.numbers() == watched.computed() == ALL


def test_a_run_whose_table_was_dropped_does_not_create_it_again(watched: WatchedTable) -> None:
    """A new table would not be the run's: the start is refused before it creates one."""
    watched.append()
    watched.lake.sql(f"DROP TABLE {watched.name} PURGE")
    with pytest.raises(RunMismatchError, match=rf"table {watched.name} has since been dropped"):
        watched.append()
    assert watched.tables() == []


@pytest.mark.parametrize("name", ["spark.sql.session.timeZone", "spark.sql.ansi.enabled"])
def test_a_setting_that_spells_out_its_default_is_the_same_job(
    watched: WatchedTable, name: str
) -> None:
    """What counts is the effective value, whether it was set or not."""
    usual, spelled = watched.lake.newSession(), watched.lake.newSession()
    usual.conf.unset(name)
    spelled.conf.set(name, str(usual.conf.get(name)))
    outcomes = [
        watched.append(session.range(ROWS).withColumnRenamed("id", "n")).outcome
        for session in (usual, spelled)
    ]
    assert outcomes == ["committed", "already_committed"]


def test_changed_code_is_reported_and_rows_are_counted_by_version(
    watched: WatchedTable,
) -> None:
    """What is done is kept; the new code computes the rest, and the report counts both."""
    with pytest.raises(TransformError):
        watched.append(fails_at=[ROWS - 1])
    done = len(watched.computed())
    assert 0 < done < ROWS  # Both versions have rows, so the test is not vacuous.
    with pytest.warns(UserWarning, match="the transform's code has changed"):
        report = watched.append(transform=Rewritten(watched.notes))
    assert sorted(report.rows_by_code.values()) == sorted([done, ROWS - done])
    assert report.kept_rows == done
    assert watched.numbers() == watched.computed() == ALL


def test_strict_code_refuses_changed_code_and_goes_on_with_the_old(watched: WatchedTable) -> None:
    """Nothing is computed by the new code; the old one finishes the run without a warning."""
    with pytest.raises(TransformError):
        watched.append(fails_at=[ROWS - 1])
    done = watched.computed()
    with pytest.raises(RunMismatchError, match="the transform's code has changed"):
        watched.append(transform=Rewritten(watched.notes), strict_code=True)
    assert watched.computed() == done
    report = watched.append(strict_code=True)
    assert list(report.rows_by_code.values()) == [ROWS]
    assert watched.numbers() == watched.computed() == ALL
