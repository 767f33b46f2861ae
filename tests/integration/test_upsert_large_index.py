"""A large index, on real executors: the rows are those of Spark's MERGE, and counted exactly."""

from __future__ import annotations

from typing import Any

import pytest
from pyspark.sql import SparkSession

from holdfast.engine import base, large_index
from holdfast.sinks.iceberg.catalog import open_catalog
from tests.integration.test_replaced_files import Lake
from tests.integration.test_upsert_like_spark import KEYS, Merges
from tests.integration.wide_rows import table_ddl, wide_rows
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]


@pytest.fixture
def ours(lake: SparkSession, namespace: str, stack: Stack) -> Lake:
    """Return a fresh namespace."""
    return Lake(lake, namespace, open_catalog("lake", stack.rest_catalog_properties()))


def test_the_rows_of_a_large_index_are_those_of_sparks_merge(
    ours: Lake, ledger: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of every type, divided by hash over several files."""
    monkeypatch.setattr(base, "SMALL_ROWS", 0)
    monkeypatch.setattr(large_index, "_BUCKET_BYTES", 64)
    twins, rows = Merges(ours, ledger), wide_rows(ours.session)
    twins.sql(
        f"CREATE TABLE {{t}} ({table_ddl()}) USING iceberg TBLPROPERTIES ('format-version'='2')"
    )
    rows.where("id < 15").coalesce(1).writeTo(ours.name("t")).append()
    rows.where("id >= 15").coalesce(1).writeTo(ours.name("t")).append()
    source = wide_rows(ours.session, 60).where("id > 20 or id in (2, 3)")
    twins.merge(source, KEYS)
    twins.check_keys(KEYS)
    for report in twins.reports:
        counts = report.upserts
        assert counts is not None
        assert counts.matched + counts.doubled == report.replaced_rows > 5
        assert counts.matched + counts.inserted == report.rows
