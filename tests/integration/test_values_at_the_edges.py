"""Values at the edges of their types: Spark finds what we have written like its own."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

import holdfast as hf
from holdfast.errors import SchemaMismatchError
from tests.integration.wide_rows import differences

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

DDL = "id BIGINT, s STRING, at TIMESTAMP, day DATE, f64 DOUBLE, f32 FLOAT, n INT, d DECIMAL(9, 2)"
# U+D7FF, the character before the surrogates, and the last one of all.
BEFORE, LAST = "decode(unhex('ED9FBF'), 'utf-8')", "decode(unhex('F48FBFBF'), 'utf-8')"
ROWS = [
    (
        f"repeat({BEFORE}, 17), timestamp_micros(253402300800000000), DATE'9999-12-31', 0.1D, "
        "0.1F, 2147483647, 9999999.99"
    ),
    (
        f"concat(repeat('a', 15), repeat({LAST}, 3)), TIMESTAMP'9999-12-31 23:59:59.999999', "
        "date_add(DATE'9999-12-31', 1), -0.0D, -0.0F, -2147483600, -9999999.50"
    ),
    "repeat('x', 3000), timestamp_micros(-62135596800000001), DATE'0001-01-01', 0.0D, 0.0F, 0, 0",
    (
        "'', TIMESTAMP'1969-12-31 23:59:59.999999', DATE'1969-12-31', double('nan'), float('nan'), "
        "-1, -0.01"
    ),
    "'/../..', TIMESTAMP'1970-01-01 00:00:00', DATE'1970-01-01', 1.7e308D, float('inf'), 1, 1",
    "'a/b=c&d%20', NULL, NULL, 5e-324D, float('-inf'), NULL, NULL",
    "NULL, TIMESTAMP'1582-10-10 00:00:00', DATE'1582-10-10', double('-inf'), NULL, 7, 7",
]
LAYOUTS = {
    "unpartitioned": "",
    "text": "PARTITIONED BY (truncate(3, s))",
    "instants": "PARTITIONED BY (at)",
    "hours": "PARTITIONED BY (hours(at))",
    "days": "PARTITIONED BY (days(at), months(day))",
    "dates": "PARTITIONED BY (day)",
    "doubles": "PARTITIONED BY (f64)",
    "floats": "PARTITIONED BY (f32)",
    "numbers": "PARTITIONED BY (truncate(50, n), truncate(50, d))",
}


def edges(session: SparkSession) -> DataFrame:
    """Return the rows, with their numbers."""
    selects = (f"SELECT {i}, {row}" for i, row in enumerate(ROWS))
    schema = cast("StructType", StructType.fromDDL(DDL))
    return session.sql(" UNION ALL ".join(selects)).toDF(*schema.names).to(schema)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_spark_finds_every_value_in_what_we_have_written(
    lake: SparkSession, namespace: str, ledger: dict[str, Any], layout: str
) -> None:
    """Rows, partitions and bounds equal those of Spark's own table; a filter finds each row."""
    ours, theirs = f"lake.{namespace}.ours", f"lake.{namespace}.theirs"
    for name in (ours, theirs):
        lake.sql(f"CREATE TABLE {name} ({DDL}) USING iceberg {LAYOUTS[layout]}")
    df = edges(lake).coalesce(1)
    assert hf.Run(layout, **ledger).append(df, to=ours, key="id").rows == len(ROWS)
    df.writeTo(theirs).append()
    assert differences(lake.table(ours), lake.table(theirs)) == 0
    if LAYOUTS[layout]:
        partitions = [
            lake.table(f"{name}.partitions").select("partition", "record_count")
            for name in (ours, theirs)
        ]
        assert differences(*partitions) == 0
        summaries = [
            lake.sql(f"SELECT partition_summaries FROM {name}.manifests").collect()
            for name in (ours, theirs)
        ]
        assert summaries[0] == summaries[1]
    columns = re.findall(r"\w+", LAYOUTS[layout] or DDL)
    looked_up = [literal for literal in LITERALS if literal.split()[-1] in columns]
    for row in lake.table(theirs).sort("id").selectExpr(*looked_up).collect():
        for column, literal in row.asDict().items():
            where = f"{column} IS NULL" if literal is None else f"{column} = {literal}"
            found = [
                sorted(lake.sql(f"SELECT id FROM {name} WHERE {where}").collect())
                for name in (ours, theirs)
            ]
            assert found[0] == found[1], where


LITERALS = [
    "concat(\"decode(unhex('\", hex(encode(s, 'utf-8')), \"'), 'utf-8')\") AS s",
    "concat('timestamp_micros(', unix_micros(at), ')') AS at",
    "concat('date_from_unix_date(', unix_date(day), ')') AS day",
    'concat("double(\'", f64, "\')") AS f64',
    'concat("float(\'", f32, "\')") AS f32',
    "CAST(n AS STRING) AS n",
    "CAST(d AS STRING) AS d",
]


def test_a_number_without_a_partition_is_one_rows_failure(
    lake: SparkSession, namespace: str, ledger: dict[str, Any]
) -> None:
    """By default the error names it; in quarantine all other rows are committed."""
    ours = f"lake.{namespace}.ours"
    lake.sql(
        f"CREATE TABLE {ours} (id BIGINT, d DECIMAL(9, 2)) USING iceberg "
        "PARTITIONED BY (truncate(50, d))"
    )
    df = lake.sql(
        "SELECT id, CAST(IF(id = 7, -9999999.99, id) AS DECIMAL(9, 2)) AS d FROM range(20)"
    )
    with pytest.raises(SchemaMismatchError, match=r"-9999999\.99.*keys \(id="):
        hf.Run("strict", **ledger).append(df, to=ours, key="id")
    run = hf.Run("lenient", **ledger)
    report = run.append(df, to=ours, key="id", on_error="quarantine", max_errors=1)
    assert (report.rows, report.quarantined_rows) == (19, 1)
    assert lake.table(ours).count() == 19
    (failed,) = run.quarantined().select("key", "error").collect()
    assert failed["key"]["id"] == 7
    assert "no partition" in failed["error"]
