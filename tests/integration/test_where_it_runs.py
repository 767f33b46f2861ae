"""One script, four places: Spark Connect, Connect without the secrets, a cluster, one machine."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.integration.process_jobs import COLUMNS, EXPECTED, QUIET, ROWS, TASKS, run_job
from tests.integration.process_local_lake import LocalLake
from tests.stack_access import Stack

# Long enough that the first worker cannot do all tasks before the second is up.
PAUSE_S = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """A fresh, empty table of the stack's REST catalog, as Iceberg's own Spark reader sees it."""

    stack: Stack
    lake: SparkSession
    table: str
    ledger: dict[str, Any]

    def rows(self) -> list[tuple[Any, ...]]:
        """Return all rows, sorted by id."""
        found = self.lake.table(f"lake.{self.table}").orderBy("id")
        return [tuple(row) for row in found.collect()]

    def snapshots(self) -> int:
        """Return how many snapshots the table has."""
        return self.lake.table(f"lake.{self.table}.snapshots").count()

    def connect_job(self) -> dict[str, Any]:
        """Return the settings of a Spark Connect job that gets everything as arguments."""
        return {
            "spark": {"spark.remote": self.stack.connect_remote},
            "run_id": "nightly",
            "to": self.table,
            "catalog": self.stack.rest_catalog_properties(),
            **self.ledger,
        }


@pytest.fixture
def site(stack: Stack, lake: SparkSession, namespace: str, ledger: dict[str, Any]) -> Site:
    """Return a site where nothing has run."""
    lake.sql(f"CREATE TABLE lake.{namespace}.rows ({COLUMNS}) USING iceberg")
    return Site(stack=stack, lake=lake, table=f"{namespace}.rows", ledger=ledger)


@pytest.mark.connect
@pytest.mark.stack
@pytest.mark.rest
@pytest.mark.spark
def test_under_connect_with_secrets_as_arguments_the_rows_land_once(
    site: Site, tmp_path: Path
) -> None:
    """No JVM is reachable, the server gives out no secret, and none is needed from it."""
    job = site.connect_job()
    first = run_job(job, folder=tmp_path)
    assert (first.code, first.report.get("outcome")) == (0, "committed"), first.errors
    assert first.report["tasks"] == str(TASKS)
    assert [row[:2] for row in site.rows()] == EXPECTED
    before = site.snapshots()
    again = run_job(job, folder=tmp_path)
    assert (again.code, again.report.get("outcome")) == (0, "already committed"), again.errors
    assert again.report["snapshot"] == first.report["snapshot"]
    assert site.snapshots() == before
    assert len(site.rows()) == ROWS


@pytest.mark.connect
@pytest.mark.stack
@pytest.mark.rest
@pytest.mark.spark
@pytest.mark.parametrize(
    ("hidden", "changes"),
    [
        # The server's own catalog, by its name in Spark.
        ("spark.sql.catalog.lake.s3.secret-access-key", {"catalog": None}),
        ("spark.holdfast.store.s3.secret-access-key", {"store_options": None}),
        # Hidden because of its value. If it went unseen, rows meant for an audit would be live.
        ("spark.wap.id", {}),
    ],
)
def test_under_connect_a_setting_that_is_hidden_is_named(
    site: Site, tmp_path: Path, hidden: str, changes: dict[str, None]
) -> None:
    """Connect says that there is no such setting; the job must not believe it."""
    job = {**site.connect_job(), **changes}
    if "catalog" in changes:
        job["to"] = f"lake.{site.table}"
    else:
        job["spark"][hidden] = "a secret of the session"
    ended = run_job(job, folder=tmp_path)
    assert ended.code == 1
    assert "HiddenSettingError" in ended.errors
    assert f"the session does not reveal the setting '{hidden}'" in ended.errors
    assert site.stack.s3.secret_key not in ended.errors
    assert site.snapshots() == 0


@pytest.mark.stack
@pytest.mark.rest
@pytest.mark.spark
def test_on_a_cluster_two_executors_write_and_the_rows_land_once(
    site: Site, tmp_path: Path
) -> None:
    """All settings come from the session, which on a cluster gives out secrets; no jar is used."""
    catalog = site.stack.spark_catalog_conf("lake")
    store_options = site.ledger["store_options"]
    spark = {
        **QUIET,
        **site.stack.spark.session_conf(),
        **{name: catalog[name] for name in catalog if name.startswith("spark.sql.catalog.")},
        "spark.executor.memory": "1g",
        "spark.holdfast.store": site.ledger["store"],
        **{f"spark.holdfast.store.{name}": value for name, value in store_options.items()},
        # No task starts before both executors are there.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.scheduler.maxRegisteredResourcesWaitingTime": "60s",
    }
    job = {"spark": spark, "run_id": "nightly", "to": f"lake.{site.table}", "pause_s": PAUSE_S}
    environment = site.stack.spark.session_env()
    first = run_job(job, folder=tmp_path, environment=environment)
    assert (first.code, first.report.get("outcome")) == (0, "committed"), first.errors
    rows = site.rows()
    assert [row[:2] for row in rows] == EXPECTED
    assert len({row[3] for row in rows}) == 2  # Processes of two executors.
    assert len({row[2] for row in rows}) == 2  # Each built its transform once.
    before = site.snapshots()
    again = run_job(job, folder=tmp_path, environment=environment)
    assert (again.code, again.report.get("outcome")) == (0, "already committed"), again.errors
    assert site.snapshots() == before
    assert len(site.rows()) == ROWS


@pytest.mark.spark
def test_on_one_machine_pip_packages_are_enough(tmp_path: Path) -> None:
    """No jar, no server, no object store; the ledger's place comes from the environment."""
    here = LocalLake(folder=tmp_path / "lake")
    here.folder.mkdir()
    here.create_table()
    job = {
        "spark": {**QUIET, "spark.master": "local[2]"},
        "run_id": "nightly",
        "to": "here.rows",
        "catalog": here.catalog,
        "pause_s": PAUSE_S,
    }
    environment = {"HOLDFAST_STORE": here.store}
    first = run_job(job, folder=tmp_path, environment=environment)
    assert (first.code, first.report.get("outcome")) == (0, "committed"), first.errors
    rows = here.rows()
    assert [(row["id"], row["label"]) for row in rows] == EXPECTED
    assert len({row["build"] for row in rows}) == 2  # Two workers, one build each.
    before = here.snapshots()
    again = run_job(job, folder=tmp_path, environment=environment)
    assert (again.code, again.report.get("outcome")) == (0, "already committed"), again.errors
    assert "not compared" not in again.errors  # The input was read again, and is the same.
    assert here.snapshots() == before
    assert len(here.rows()) == ROWS
