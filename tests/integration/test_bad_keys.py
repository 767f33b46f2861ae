"""Keys that do not identify rows: each is an error with examples, and fixed input lands."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from holdfast.engine.options import VerifyInput
from holdfast.errors import (
    DuplicateKeyError,
    InputChangedError,
    NullKeyError,
    SettingsError,
    TransformError,
)
from tests.integration.process_jobs import QUIET, end_of, started_job
from tests.integration.process_watched import ROWS, RUN, WatchedTable
from tests.integration.test_take_over import wait_until
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

ALL = list(range(ROWS))


def check_nothing_landed(watched: WatchedTable) -> None:
    """Assert that the run has made no snapshot and is not about to."""
    assert watched.snapshots() == []
    assert "Intent" not in watched.kinds()


def test_null_keys_are_counted_before_a_row_is_computed(watched: WatchedTable) -> None:
    """Half a run is kept while the input is fixed."""
    df = watched.input("if(n IN (3, 17), NULL, n) AS k")
    with pytest.raises(NullKeyError, match="2 input rows have NULL in a key column"):
        watched.append(df, key="k")
    assert watched.computed() == []
    check_nothing_landed(watched)
    assert watched.append(df.where("k IS NOT NULL"), key="k").rows == ROWS - 2


def test_null_in_the_second_column_of_a_key_counts(watched: WatchedTable) -> None:
    """A key with a NULL part is not a key; a start without verification finds that in a task."""
    df = watched.input("'a' AS k", "if(n = 3, NULL, n) AS l")
    with pytest.raises(NullKeyError, match="1 input rows"):
        watched.append(df, key=["k", "l"])
    with pytest.raises(NullKeyError, match="1 input rows"):
        watched.append(df, key=["k", "l"], verify_input=False)
    check_nothing_landed(watched)
    report = watched.append(df.where("n != 3"), key=["k", "l"])
    assert report.rows == ROWS - 1
    assert watched.numbers() == watched.computed() == [n for n in ALL if n != 3]


def test_null_keys_that_turn_up_later_keep_what_is_done(watched: WatchedTable) -> None:
    """The second start finds NULLs that the first did not have: an error, and nothing is lost."""
    df = watched.input()
    with pytest.raises(TransformError):
        watched.append(df, fails_at=[ROWS - 1])
    done = len(watched.computed())
    worse = df.union(watched.lake.sql("SELECT cast(NULL AS bigint) AS n"))
    with pytest.raises(NullKeyError, match="1 input rows"):
        watched.append(worse)
    check_nothing_landed(watched)
    assert watched.append(df).kept_rows == done
    assert watched.numbers() == watched.computed() == ALL


@pytest.mark.parametrize("verify_input", ["keys", False], ids=["verified", "not verified"])
@pytest.mark.parametrize("other", [3, 16], ids=["inside one partition", "across partitions"])
@pytest.mark.parametrize(
    ("key", "shown"),
    [("m", "k=1"), ("concat('k', m)", "k='k1'"), ("cast(m AS decimal(38,0))", "k=Decimal")],
    ids=["integer", "text", "long decimal"],
)
@pytest.mark.filterwarnings("ignore:.*was not compared:UserWarning")
@pytest.mark.usefixtures("many_rows")
def test_a_key_in_two_rows_is_shown_and_nothing_lands(
    watched: WatchedTable, key: str, shown: str, other: int, *, verify_input: VerifyInput
) -> None:
    """The row with number `other` has the key of row 1; after the fix the run lands."""
    good = watched.input("n AS m", tasks=4).selectExpr(f"{key} AS k", "n")
    bad = watched.input(f"if(n = {other}, 1, n) AS m", tasks=4).selectExpr(f"{key} AS k", "n")
    with pytest.raises(DuplicateKeyError, match=rf"1 keys appear in .* example \({shown}"):
        watched.append(bad, key="k", verify_input=verify_input)
    check_nothing_landed(watched)
    before = Counter(watched.computed())
    assert watched.append(good, key="k", verify_input=verify_input).rows == ROWS
    assert watched.numbers() == ALL
    # What shares the key is computed again; that is at most one record: a task's five rows.
    assert (Counter(watched.computed()) - before).total() <= 5


def test_where_rows_have_a_price_a_doubled_key_is_shown_before_the_first(
    watched: WatchedTable,
) -> None:
    """Nothing is computed, and after the fix nothing is left to drop."""
    df = watched.input("if(n = 3, 1, n) AS k")
    with pytest.raises(DuplicateKeyError, match=r"1 keys .* example \(k=1\)"):
        watched.append(df, key="k", cost=0.01)
    assert watched.computed() == []
    check_nothing_landed(watched)
    assert watched.append(df.where("n != 3"), key="k", cost=0.01).rows == ROWS - 1


def test_a_few_doubled_keys_are_shown_before_the_first_row_whatever_it_costs(
    watched: WatchedTable,
) -> None:
    """Many rows for ten keys, without a price: nothing is computed, and nothing is left over."""
    df = watched.input("n % 10 AS k", rows=400)
    with pytest.raises(DuplicateKeyError, match=r"10 keys .* more than one"):
        watched.append(df, key="k")
    assert watched.computed() == []
    check_nothing_landed(watched)


@pytest.mark.usefixtures("many_rows")
def test_many_keys_are_sampled_before_the_first_row(watched: WatchedTable) -> None:
    """One of 256 keys is in the sample: of a thousand doubled ones, some are."""
    df = watched.input("n % 1000 AS k", rows=2000)
    with pytest.raises(DuplicateKeyError, match=r"1000 keys .* more than one"):
        watched.append(df, key="k")
    assert watched.computed() == []


@pytest.mark.connect
@pytest.mark.filterwarnings("ignore:.*code has changed:UserWarning")
@pytest.mark.parametrize("spark", ["classic", "connect"])
def test_a_single_doubled_key_ends_a_long_job_early(
    watched: WatchedTable, stack: Stack, tmp_path: Path, spark: str
) -> None:
    """All keys are compared while the job runs; it stops cleanly and keeps what is done."""
    # The sample must miss the doubled key, so that only the check beside the job finds it.
    outside = watched.lake.sql("SELECT xxhash64(1L) & 255").collect()[0][0]
    assert outside != 0
    folder = tmp_path / "held"
    folder.mkdir()
    session = (
        {"spark.remote": stack.connect_remote, "spark.sql.session.timeZone": "UTC"}
        if spark == "connect"
        else {"spark.master": "local[2]", **QUIET}
    )
    settings = {
        "spark": session,
        "run_id": RUN,
        **watched.ledger,
        "to": f"{watched.namespace}.rows",
        "catalog": {**stack.rest_catalog_properties(), "name": "lake"},
        "rows": ROWS,
        "tasks": 1,
        "folder": str(folder),
        "call_s": 1.0,  # A task looks for the Stop at its checkpoints: rows must take as long.
        "key": "if(n = 17, 1, n)",
        "options": {"batch_rows": 2, "checkpoint_every": 1.0},
    }
    with started_job(settings, folder=tmp_path, script="held_job.py") as process:
        wait_until(lambda: "Stop" in watched.kinds() or process.poll() is not None)
        (folder / "release").touch()
        ended = end_of(process)
    assert json.loads(ended.output) == {"outcome": "", "error": "DuplicateKeyError"}, ended.errors
    calls = len(list(folder.glob("called-*")))
    assert calls < ROWS / 2
    check_nothing_landed(watched)
    report = watched.append(watched.input(), key="n")
    assert (report.rows, report.kept_rows) == (ROWS, 2 * calls)


def test_a_doubled_key_is_shown_whatever_its_column_is_called(watched: WatchedTable) -> None:
    """The count of a key's rows is a column of ours, and a user's column may be called count."""
    df = watched.input("if(n = 3, 1, n) AS count")
    with pytest.raises(DuplicateKeyError, match=r"1 keys .* example \(count=1\)"):
        watched.append(df, key="count")
    check_nothing_landed(watched)


@pytest.mark.usefixtures("many_rows")
def test_a_key_that_straddles_a_failed_start_is_shown(watched: WatchedTable) -> None:
    """One of its rows is done, the other is not: the anti-join alone would drop it."""
    df = watched.input("n AS k")
    # Row 15 comes after the failure, and has the key of row 0, which is done.
    doubled = watched.input("if(n = 15, 0, n) AS k")
    with pytest.raises(TransformError):
        watched.append(doubled, key="k", fails_at=[12])
    done = watched.computed()
    assert 0 in done
    assert 15 not in done
    with pytest.raises(DuplicateKeyError, match=r"1 keys .* for example \(k=0\)"):
        watched.append(doubled, key="k")
    assert watched.computed() == done  # It was found before another row was computed.
    check_nothing_landed(watched)
    report = watched.append(df, key="k")
    assert report.kept_rows == len(done)
    assert watched.numbers() == watched.computed() == ALL


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ("cast(n AS double)", "is a double: 0.0 and -0.0 are equal in Spark"),
        ("cast(n AS float)", "is a float"),
        ("cast(n AS string) COLLATE UTF8_LCASE", "has a collation"),
        ("struct(n)", "is a struct<n:bigint>"),
    ],
)
def test_a_key_of_an_unfit_type_is_refused_before_anything(
    watched: WatchedTable, how: str, told: str
) -> None:
    """The fix in the message is enough: cast, and the same run lands."""
    df = watched.input(f"{how} AS k")
    with pytest.raises(SettingsError, match=told):
        watched.append(df, key="k")
    with pytest.raises(SettingsError, match=told):
        watched.append(df, key=["n", "k"])
    assert watched.kinds() == []
    assert watched.append(df.selectExpr("cast(n AS string) AS k", "n"), key="k").rows == ROWS
    assert watched.numbers() == watched.computed() == ALL


def test_keys_that_are_gone_between_two_starts_are_shown(watched: WatchedTable) -> None:
    """Their rows are done and paid for; landing without them, or with them, would be wrong."""
    df = watched.input("concat('k', n) AS k")
    with pytest.raises(TransformError):
        watched.append(df, key="k", fails_at=[ROWS - 1])
    done = watched.computed()
    with pytest.raises(InputChangedError, match=rf"2 of {len(done)} finished keys .*k='k[01]'"):
        watched.append(df.where("n > 1"), key="k")
    assert watched.computed() == done
    check_nothing_landed(watched)
    assert watched.append(df, key="k").kept_rows == len(done)
    assert watched.numbers() == watched.computed() == ALL


@pytest.mark.parametrize(("then", "now"), [("int", "bigint"), ("decimal(10,0)", "decimal(38,0)")])
def test_a_key_whose_type_has_changed_meanwhile_is_an_error(
    watched: WatchedTable, then: str, now: str
) -> None:
    """Keys of two types have different hashes: the run continues with the type it began with."""
    df = watched.input(f"cast(cast(n AS string) AS {then}) AS k")
    with pytest.raises(TransformError):
        watched.append(df, key="k", fails_at=[ROWS - 1])
    done = watched.computed()
    with pytest.raises(InputChangedError):
        watched.append(watched.input(f"cast(cast(n AS string) AS {now}) AS k"), key="k")
    check_nothing_landed(watched)
    assert watched.computed() == done
    assert watched.append(df, key="k").kept_rows == len(done)
    assert watched.numbers() == watched.computed() == ALL


def test_keys_that_are_new_in_the_second_start_are_done_as_well(watched: WatchedTable) -> None:
    """Before the commit an input may grow, as long as it still holds what is done."""
    with pytest.raises(TransformError):
        watched.append(fails_at=[ROWS - 1])
    report = watched.append(watched.input(rows=ROWS + 5))
    assert report.rows == ROWS + 5
    assert watched.numbers() == watched.computed() == list(range(ROWS + 5))
