"""The catalogs for hostile tables, and what cannot be done to a table in which of them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.integration.hostile import HostileTable
from tests.stack_access import Stack

REST, SQL, NESSIE = "lake", "sqlcat", "nessie"
_IDS = {REST: "rest", SQL: "sql", NESSIE: "nessie"}
_MARKS = {REST: pytest.mark.rest, SQL: pytest.mark.postgres, NESSIE: pytest.mark.nessie}
# Why a thing cannot be done to a table in Nessie; test_nessie_limits.py shows that each holds.
_NESSIE = "Nessie 0.108.8"
NO_REFS = f"{_NESSIE} gives a table one ref, main: it refuses branches and tags"
NO_WAP = f"{_NESSIE} shows a snapshot that write-audit-publish stages at once, as the table's own"
NO_ROLL_BACK = f"{_NESSIE} shows the newest snapshot only: there is none to roll back to"
NO_UPGRADE = f"{_NESSIE} makes every table v2, and answers an upgrade with 500"
NO_EMPTYING = f"{_NESSIE} keeps the rows of a table that CREATE OR REPLACE without AS replaces"


def on_catalogs(**unless: str) -> list[Any]:
    """Return the catalogs as parameters; those in `unless` are skipped for the given reason.

    Args:
        unless: Why a thing does not apply, by `rest`, `sql` or `nessie`.
    """
    return [
        pytest.param(name, id=_IDS[name], marks=_marks(name, unless.get(_IDS[name], "")))
        for name in _IDS
    ]


def each_on_catalogs(
    things: Iterable[str], unless: Mapping[tuple[str, str], str] | None = None
) -> list[Any]:
    """Return each thing on each catalog as parameters.

    Args:
        things: The names of what is done to the table.
        unless: Why a thing does not apply to a catalog, by thing and `rest`, `sql` or `nessie`.
    """
    reasons = unless or {}
    return [
        pytest.param(
            name,
            thing,
            id=f"{_IDS[name]}-{thing}",
            marks=_marks(name, reasons.get((thing, _IDS[name]), "")),
        )
        for name in _IDS
        for thing in things
    ]


def left_out(items: Iterable[pytest.Item], seed: str) -> set[str]:
    """Return the ids of all tests but one of each thing, on a catalog drawn from those that apply.

    Args:
        items: All tests; those that are not on several catalogs are never left out.
        seed: The same seed draws the same tests, whatever other tests there are.
    """
    groups: dict[str, list[pytest.Item]] = {}
    for item in items:
        groups.setdefault(_thing(item), []).append(item)
    found: set[str] = set()
    for thing, group in groups.items():
        able = [test for test in group if test.get_closest_marker("skip") is None] or group
        kept = random.Random(f"{seed} {thing}").choice(able)
        found |= {test.nodeid for test in group} - {kept.nodeid}
    return found


def _thing(item: pytest.Item) -> str:
    """Name what a test does, without the catalog; a test without one is alone in its group."""
    if item.get_closest_marker("hostile") is None:
        return item.nodeid
    names = "|".join(_IDS.values())
    return re.sub(rf"(?<=[\[-])({names})(?=[]-])", "", item.nodeid)


def _marks(name: str, reason: str) -> list[Any]:
    marks: list[Any] = [_MARKS[name], pytest.mark.hostile]
    return [*marks, pytest.mark.skip(reason=f"does not apply: {reason}")] if reason else marks


def hostile_table(
    catalog: str, lake: SparkSession, stack: Stack, ledger: dict[str, Any]
) -> HostileTable:
    """Return a table with one foreign row in one of the catalogs."""
    if catalog == SQL:
        _name_sql_catalog(lake, stack)
    if catalog == NESSIE:
        stack.nessie_catalog_properties()  # Skips, or fails in CI, where Nessie does not run.
    table = HostileTable(spark=lake, catalog=catalog, ledger=ledger)
    table.create()
    if catalog == NESSIE:  # Nessie switches this off; a table's owner may switch it on.
        table.sql("ALTER TABLE {t} SET TBLPROPERTIES ('gc.enabled'='true')")
    return table


def _name_sql_catalog(lake: SparkSession, stack: Stack) -> None:
    """Let the session know the SQL catalog: for Spark it is Iceberg's JDBC catalog."""
    database = stack.postgres
    settings = {
        "type": "jdbc",
        "uri": f"jdbc:postgresql://{database.host}:{database.port}/{database.database}",
        "jdbc.user": database.user,
        "jdbc.password": database.password,
        "jdbc.schema-version": "V1",
        "warehouse": f"s3://{stack.s3.bucket}/sqlwh",
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "client.region": stack.s3.region,
        "cache-enabled": "false",
        **stack.s3.iceberg_properties(),
    }
    prefix = f"spark.sql.catalog.{SQL}"
    lake.conf.set(prefix, "org.apache.iceberg.spark.SparkCatalog")
    for name, value in settings.items():
        lake.conf.set(f"{prefix}.{name}", value)
