"""The commit under rivals and lost answers, on real catalogs: the data lands once."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.sinks.iceberg import sink as iceberg_sink
from holdfast.sinks.iceberg.catalog import single_post
from tests.fault_proxy import Fault, fault_proxy
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack]

LOST = {
    "answer lost": Fault(lose_answer=True),
    "409 after landing": Fault(status=409),
    "500 after landing": Fault(status=500),
    "503 after landing": Fault(status=503),
}
NOT_LANDED = {
    "503 before landing": Fault(forward=False, status=503),
    "409 before landing": Fault(forward=False, status=409),
    "connection cut before landing": Fault(forward=False, lose_answer=True),
}
ROWS = 100


def snapshots_of_run(session: SparkSession, table: str, run_id: str) -> list[Any]:
    """Return the snapshots whose summary names the run."""
    found = session.sql(f"SELECT snapshot_id, summary FROM {table}.snapshots").collect()
    return [row for row in found if row["summary"].get("holdfast.run") == run_id]


def make_table(session: SparkSession, table: str, *, filled: bool = True) -> None:
    """Create a table of ids, with one row in it or with no snapshot at all."""
    session.sql(f"CREATE TABLE {table} (id bigint) USING iceberg")
    if filled:
        session.sql(f"INSERT INTO {table} VALUES (-1)")


@pytest.mark.rest
def test_twenty_foreign_appends_land_while_ours_commits(
    lake: SparkSession, stack: Stack, namespace: str, ledger: dict[str, Any]
) -> None:
    """Spark is faster than each of our first 20 posts; nothing is lost on either side.

    Method: the proxy lets a foreign append land just before it forwards our post.
    """
    table = f"lake.{namespace}.busy"
    make_table(lake, table)

    def append_one(number: int) -> None:
        lake.sql(f"INSERT INTO {table} VALUES ({-number})")

    with fault_proxy(stack.rest.uri) as proxy:
        proxy.faults = [Fault(before=partial(append_one, number)) for number in range(2, 22)]
        catalog = {**stack.rest_catalog_properties(), "uri": proxy.uri}
        report = hf.Run("busy", **ledger).append(
            lake.range(ROWS), to=hf.IcebergTable(f"{namespace}.busy", catalog=catalog), key="id"
        )
        assert proxy.commits == [409] * 20 + [200]  # They were faster, so the test is not vacuous.
    assert report.posts == 21
    ids = sorted(row["id"] for row in lake.table(table).collect())
    assert ids == list(range(-21, ROWS))
    assert len(snapshots_of_run(lake, table, "busy")) == 1
    total = lake.sql(f"SELECT summary FROM {table}.snapshots ORDER BY committed_at DESC").first()
    assert total["summary"]["total-records"] == str(len(ids))  # type: ignore[index]


@pytest.mark.rest
@pytest.mark.parametrize("filled", [True, False], ids=["filled table", "empty table"])
@pytest.mark.parametrize("fault", [*LOST, *NOT_LANDED])
def test_a_post_with_a_bad_answer_lands_once_on_the_rest_catalog(
    lake: SparkSession, stack: Stack, ledger: dict[str, Any], fault: str, *, filled: bool
) -> None:
    """Whatever answer the client gets, the rows are in the table exactly once."""
    namespace = f"s{ledger['store'].rpartition('-')[2]}"
    lake.sql(f"CREATE NAMESPACE lake.{namespace}")
    table = f"lake.{namespace}.t"
    make_table(lake, table, filled=filled)
    with fault_proxy(stack.rest.uri) as proxy:
        # The first commit to an empty table is the empty snapshot: spare it, hit the data.
        spared = [] if filled else [Fault()]
        proxy.faults = [*spared, {**LOST, **NOT_LANDED}[fault]]
        catalog = {**stack.rest_catalog_properties(), "uri": proxy.uri}
        target = hf.IcebergTable(f"{namespace}.t", catalog=catalog)
        report = hf.Run("r", **ledger).append(lake.range(ROWS), to=target, key="id")
        assert not proxy.faults  # The fault was injected, so the test is not vacuous.
    assert report.outcome == "committed"
    assert lake.table(table).where("id >= 0").count() == ROWS
    found = snapshots_of_run(lake, table, "r")
    assert [row["snapshot_id"] for row in found] == [report.snapshot_id]
    # A post that was lost after landing is found; one that never landed is repeated.
    assert report.posts == (1 if fault in LOST else 2)


@pytest.mark.nessie
@pytest.mark.parametrize("fault", LOST)
def test_a_lost_answer_is_found_by_its_mark_where_history_is_hidden(
    lake: SparkSession, stack: Stack, namespace: str, ledger: dict[str, Any], fault: str
) -> None:
    """Nessie shows the newest snapshot only: after a foreign append, only the mark is left.

    Method: a foreign append lands between our post and our next look.
    """
    properties = stack.nessie_catalog_properties()
    lake.sql(f"CREATE NAMESPACE nessie.{namespace}")
    table = f"nessie.{namespace}.t"
    make_table(lake, table)
    with fault_proxy(properties["uri"]) as proxy:
        proxy.faults = [LOST[fault]]
        catalog = {**properties, "uri": proxy.uri}
        target = hf.IcebergTable(f"{namespace}.t", catalog=catalog)
        report = hf.Run("r", **ledger).append(lake.range(ROWS), to=target, key="id")
        assert not proxy.faults
        lake.sql(f"INSERT INTO {table} VALUES (-2)")
        again = hf.Run("r", **ledger).append(lake.range(ROWS), to=target, key="id")
    assert report.posts == 1
    assert (again.outcome, again.snapshot_id) == ("already_committed", report.snapshot_id)
    assert again.still_in_table == "yes"
    assert sorted(row["id"] for row in lake.table(table).collect()) == list(range(-2, ROWS))
    shown = lake.sql(f"SELECT snapshot_id FROM {table}.snapshots").collect()
    assert report.snapshot_id not in [row["snapshot_id"] for row in shown]  # It is hidden.


@pytest.mark.postgres
def test_a_lost_answer_is_found_by_its_mark_on_the_sql_catalog(
    lake: SparkSession,
    stack: Stack,
    ledger: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A connection that breaks after the database's commit leaves the data there once.

    Method: PyIceberg's own commit runs to its end against PostgreSQL and then raises; a connection
        cannot be cut exactly between the commit and its answer.
    """
    database = stack.postgres
    login = f"{database.user}:{database.password}@{database.host}:{database.port}"
    properties = {
        "type": "sql",
        "name": "sqlcat",
        "uri": f"postgresql+psycopg2://{login}/{database.database}",
        "warehouse": "s3://lake/sqlwh",
        **{k: v for k, v in stack.rest_catalog_properties().items() if k.startswith("s3.")},
    }
    failures = [ConnectionError("server closed the connection")]

    def losing(catalog: Catalog) -> Callable[..., Any]:
        commit = single_post(catalog)

        def commit_then_lose(*args: Any) -> Any:  # noqa: ANN401 - PyIceberg's own arguments.
            answer = commit(*args)
            if failures and "holdfast.mark" in json.dumps([str(update) for update in args[2]]):
                raise failures.pop()
            return answer

        return commit_then_lose

    namespace = f"s{ledger['store'].rpartition('-')[2]}"
    catalog = SqlCatalog("sqlcat", **{k: v for k, v in properties.items() if k != "name"})
    catalog.create_namespace(namespace)
    monkeypatch.setattr(iceberg_sink, "single_post", losing)
    target = hf.IcebergTable(f"{namespace}.t", catalog=properties)
    report = hf.Run("r", **ledger).append(lake.range(ROWS), to=target, key="id", create=hf.Create())
    assert not failures
    assert report.posts == 1
    table = catalog.load_table(f"{namespace}.t")
    assert sorted(table.scan().to_arrow()["id"].to_pylist()) == list(range(ROWS))
    summaries = [
        snapshot.summary.additional_properties for snapshot in table.snapshots() if snapshot.summary
    ]
    assert [summary.get("holdfast.run") for summary in summaries] == [None, "r"]


@pytest.mark.rest
def test_a_session_with_iceberg_caching_sees_the_rows_at_once(
    lake: SparkSession, namespace: str, ledger: dict[str, Any]
) -> None:
    """Iceberg's Spark catalog caches tables for 30 s; after our commit the session forgets it."""
    table = f"cached.{namespace}.t"
    make_table(lake, table)
    assert lake.table(table).count() == 1  # Cached from here on.
    hf.Run("r", **ledger).append(lake.range(ROWS), to=table, key="id")
    assert lake.table(table).count() == ROWS + 1
