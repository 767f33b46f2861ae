"""Jobs that cannot work: each error names the fault, nothing lands, and a fixed job lands."""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import (
    JobFailedError,
    SchemaMismatchError,
    SettingsError,
    StoreUnavailableError,
    TableMissingError,
    TransformError,
    TransformTooLargeError,
    UnsupportedTableError,
)
from holdfast.spark.jobs import spark_errors
from holdfast.worker.transforms import Transform
from tests.integration import process_transforms as transforms
from tests.integration.process_desk import COUNTRIES, Desk
from tests.integration.process_local_lake import LocalLake

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]


@pytest.fixture
def empty_desk(lake: SparkSession, namespace: str, ledger: dict[str, Any], tmp_path: Path) -> Desk:
    """Return a namespace without a table."""
    return Desk(lake=lake, namespace=namespace, ledger=ledger, folder=tmp_path)


@pytest.fixture
def desk(empty_desk: Desk) -> Desk:
    """Return an empty table with two required columns."""
    empty_desk.create_table()
    return empty_desk


def check_untouched(desk: Desk) -> None:
    """Assert that nothing has landed or is about to."""
    assert desk.snapshots() == 0
    assert desk.intents() == 0


def check_untouched_and_mend(desk: Desk) -> None:
    """Assert that nothing has landed or is about to, and that the run's id still works."""
    check_untouched(desk)
    with pytest.warns(UserWarning, match="the transform's code has changed"):
        report = desk.append(transform=transforms.countries)
    assert report.outcome == "committed"
    assert desk.rows() == COUNTRIES


def test_a_transform_that_raises_is_named_with_the_place_and_the_rows(desk: Desk) -> None:
    """The error has all that is needed to debug it: exception, file and line, rows, keys."""
    calls = desk.folder
    with pytest.raises(TransformError) as caught:
        desk.append(
            desk.ids(tasks=1), transform=transforms.FailsAt(3, calls), batch_rows=2, retries=0
        )
    assert caught.value.failed_tasks == caught.value.tasks == 1
    message = str(caught.value)
    assert "LookupError: no country for 3" in message
    assert "rows 2 to 3 of the task" in message
    assert "keys (id=2) to (id=3)" in message
    place = re.search(r"at (\S+process_transforms\.py):(\d+)", message)
    assert place is not None
    assert "raise LookupError" in linecache.getline(place[1], int(place[2]))
    # Rows 0 and 1, then rows 2 and 3: nothing was called again, nothing after the failure.
    assert len(list(calls.iterdir())) == 2
    check_untouched_and_mend(desk)


def test_a_transform_that_raises_is_tried_again_while_that_adds_something(desk: Desk) -> None:
    """By default up to two more passes run over what is left; one that adds nothing is the last."""
    calls = desk.folder
    with pytest.raises(TransformError, match=r"keys \(id=2\) to \(id=3\)"):
        desk.append(desk.ids(tasks=1), transform=transforms.FailsAt(3, calls), batch_rows=2)
    # Rows 0 and 1, then 2 and 3; in the second pass 2 and 3 again, and that is enough.
    assert len(list(calls.iterdir())) == 3
    check_untouched_and_mend(desk)


@pytest.mark.parametrize(
    ("error", "worth"), [(KeyError("country"), False), (ConnectionError("reset"), True)], ids=repr
)
def test_a_mistake_is_not_worth_a_retry_and_a_lost_connection_is(
    desk: Desk, error: Exception, *, worth: bool
) -> None:
    """A scheduler obeys `retry_safe`: it must not loop on a bug, or give up on an outage."""
    with pytest.raises(TransformError) as caught:
        desk.append(transform=transforms.Raises(error), retries=0)
    assert caught.value.retry_safe is worth
    check_untouched_and_mend(desk)


def test_what_spark_refuses_is_not_worth_a_retry(desk: Desk) -> None:
    """An impossible cast stays impossible, and a missing path stays missing."""
    words = desk.lake.range(3).selectExpr(
        "cast(concat('no ', id) AS bigint) AS id", "'x' AS country"
    )
    with pytest.raises(JobFailedError, match="CAST_INVALID_INPUT") as caught:
        desk.append(words)
    assert not caught.value.retry_safe
    with pytest.raises(JobFailedError, match="PATH_NOT_FOUND") as caught, spark_errors():
        desk.lake.read.parquet(f"{desk.folder}/missing")
    assert not caught.value.retry_safe
    check_untouched(desk)


def test_a_ledger_that_refuses_the_key_is_not_worth_a_retry(desk: Desk) -> None:
    """Spark was not asked for anything."""
    options = {**desk.ledger["store_options"], "s3.secret-access-key": "wrong"}
    run = hf.Run("nightly", store=desk.ledger["store"], store_options=options)
    with pytest.raises(StoreUnavailableError, match="SignatureDoesNotMatch") as caught:
        run.append(desk.ids(), to=desk.table, key="id", transform=transforms.countries)
    assert not caught.value.retry_safe


@pytest.mark.parametrize(
    ("transform", "returned"),
    [
        (transforms.nothing, "NoneType"),
        (transforms.text, "str"),
        (transforms.series, "Series"),
    ],
)
def test_a_transform_that_returns_no_rows_gets_an_error_with_what_it_returned(
    desk: Desk,
    transform: Transform,
    returned: str,
) -> None:
    """A forgotten return must not pass for a transform that drops all rows."""
    with pytest.raises(TransformError, match=f"it returned {returned}, not a pyarrow RecordBatch"):
        desk.append(transform=transform)
    check_untouched_and_mend(desk)


@pytest.mark.parametrize(
    ("transform", "column", "problem"),
    [
        (transforms.extra_column, "planet", "the table has no such column"),
        (transforms.missing_column, "country", "required, but missing from the output"),
        (transforms.wrong_type, "country", "int64 cannot be cast to string without loss"),
        (transforms.null_in_required, "country", "required, but NULL in row 0"),
    ],
)
def test_output_that_does_not_fit_is_reported_by_column(
    desk: Desk,
    transform: Transform,
    column: str,
    problem: str,
) -> None:
    """The error names the column and says what is wrong with it."""
    with pytest.raises(SchemaMismatchError, match=problem) as caught:
        desk.append(transform=transform)
    assert caught.value.column == column
    assert caught.value.table == desk.table
    check_untouched_and_mend(desk)


def test_a_dataframe_that_does_not_fit_fails_before_any_task(desk: Desk) -> None:
    """Without a transform the output is known beforehand: no job is started for it."""
    context = desk.lake.sparkContext
    fitting = desk.ids().selectExpr("id", "concat('c', id) AS country")
    context.setJobGroup("unfit", "")
    try:
        with pytest.raises(SchemaMismatchError, match="'planet'"):
            desk.append(fitting.selectExpr("*", "'earth' AS planet"))
        assert context.statusTracker().getJobIdsForGroup("unfit") == []
        assert desk.append(fitting).outcome == "committed"
        # Jobs of this group are counted, so the check above is not vacuous. Reading the keys is a
        # job too.
        assert len(context.statusTracker().getJobIdsForGroup("unfit")) > 1
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)  # type: ignore[arg-type]
    assert desk.rows() == COUNTRIES


def test_a_transform_that_carries_too_much_is_refused_with_advice(desk: Desk) -> None:
    """A model in a closure would be sent with every task."""
    model = bytes(51_000_000)
    with pytest.raises(TransformTooLargeError, match=r"hf\.per_worker") as caught:
        desk.append(transform=lambda batch: {**transforms.countries(batch), "note": model[:0]})
    assert (caught.value.size_mb, caught.value.limit_mb) == (51, 50)
    check_untouched_and_mend(desk)


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("ident", r"key='ident': the DataFrame has no such column[\s\S]*choose from id"),
        (["id", "ident"], "key='ident'"),
        ("price", "key='price' is a double"),
        ("weight", "key='weight' is a float"),
        ("name", "key='name' has a collation"),
        ("tags", "key='tags' is a array<int>"),
        ([], "needs key="),
    ],
)
def test_a_key_that_cannot_identify_rows_is_refused(
    desk: Desk,
    key: str | list[str],
    said: str,
) -> None:
    """The error names the key's column, and what to do about it."""
    columns = ["id", "id / 2D AS price", "cast(id AS float) AS weight", "array(1) AS tags"]
    df = desk.ids().selectExpr(*columns, "cast(id AS string) COLLATE UTF8_LCASE AS name")
    with pytest.raises(SettingsError, match=said):
        desk.append(df, key=key, transform=transforms.countries)
    check_untouched(desk)


@pytest.mark.parametrize("name", ["spark.wap.id", "spark.wap.branch"])
def test_a_session_in_write_audit_publish_is_refused(desk: Desk, name: str) -> None:
    """Holdfast does not support it: rows meant for an audit would be live at once."""
    session = desk.lake.newSession()
    session.conf.set(name, "audit")
    with pytest.raises(SettingsError, match=f"the session sets {name}"):
        desk.append(session.range(6), transform=transforms.countries)
    check_untouched(desk)


@pytest.mark.parametrize("kind", ["hive", "hadoop"])
def test_a_catalog_without_a_true_compare_and_set_is_refused(desk: Desk, kind: str) -> None:
    """It is refused, whether set in the session or as an argument, before it gets a request."""
    session = desk.lake.newSession()
    session.conf.set("spark.sql.catalog.other.type", kind)
    said = f"a catalog of kind '{kind}' is not supported"
    with pytest.raises(UnsupportedTableError, match=said):
        desk.append(session.range(6), to="other.sales.rows")
    target = hf.IcebergTable("sales.rows", catalog={"type": kind, "uri": "thrift://127.0.0.1:1"})
    with pytest.raises(UnsupportedTableError, match=said):
        desk.append(to=target)


def test_a_table_that_is_not_there_is_named(empty_desk: Desk) -> None:
    """A missing catalog, table and namespace each have their own error."""
    desk = empty_desk
    with pytest.raises(SettingsError, match="the session has no catalog 'nowhere'"):
        desk.append(to="nowhere.sales.rows")
    with pytest.raises(TableMissingError, match=rf"{desk.table}: there is no such table"):
        desk.append()
    # The stack's REST catalog creates namespaces on demand; an SQL catalog does not.
    local = LocalLake(folder=desk.folder)
    target = hf.IcebergTable("nowhere.rows", catalog=local.catalog)
    with pytest.raises(
        TableMissingError, match=r"nowhere\.rows: its namespace 'nowhere' does not exist"
    ) as no:
        desk.append(to=target, create=hf.Create())
    assert "catalog.create_namespace('nowhere')" in str(no.value)


@pytest.mark.parametrize(
    ("properties", "said"),
    [
        ("'format-version'='1'", "it has format v1"),
        ("'format-version'='3'", "it has format v3"),
        ("'write.format.default'='orc'", "its files are written as orc"),
    ],
)
def test_a_table_that_cannot_be_written_safely_is_refused(
    empty_desk: Desk, properties: str, said: str
) -> None:
    """Only format v2 and Parquet are written; anything else stops the run before its job."""
    empty_desk.create_table(properties=properties)
    with pytest.raises(UnsupportedTableError, match=said):
        empty_desk.append(transform=transforms.countries)
    check_untouched(empty_desk)


def test_a_branch_must_exist_and_is_written_without_touching_main(desk: Desk) -> None:
    """What lands on a branch is visible on that branch only."""
    desk.lake.sql(f"INSERT INTO {desk.table} VALUES (100, 'old')")
    audit = hf.IcebergTable(desk.table, branch="audit")
    with pytest.raises(TableMissingError, match="it has no branch 'audit'"):
        desk.append(to=audit, transform=transforms.countries)
    desk.lake.sql(f"ALTER TABLE {desk.table} CREATE BRANCH audit")
    assert desk.append(to=audit, transform=transforms.countries).outcome == "committed"
    assert desk.rows() == [(100, "old")]
    assert desk.rows("audit") == [*COUNTRIES, (100, "old")]
