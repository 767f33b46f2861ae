"""Write rows with timestamps to a local Iceberg table, and return what is in it.

Usage: python -m tests.spark.timestamp_rows FOLDER. It does so in a Connect session, once for each
source, and writes what was found to `rows.json`.
"""

from __future__ import annotations

import datetime as dt
import json
import sys
from pathlib import Path
from typing import Any

from pyiceberg.catalog import load_catalog
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf

SOURCES = ("a key", "a timestamp as the key", "materialized")
ZONE = "America/New_York"
_MOMENT, _LOCAL = "TIMESTAMP '2026-01-01 00:00:00'", "TIMESTAMP_NTZ '2026-01-01 00:00:00'"


def frame(session: SparkSession) -> DataFrame:
    """Return rows with timestamps in columns, lists, maps and structs."""
    return session.range(0, 6, 1, 2).selectExpr(
        "id",
        f"timestampadd(SECOND, id, {_MOMENT}) AS at",
        f"array({_MOMENT}, NULL) AS listed",
        f"map('a', {_MOMENT}) AS mapped",
        f"named_struct('at', {_MOMENT}, 'local', {_LOCAL}, "
        f"'deeper', array(named_struct('at', {_MOMENT}))) AS inside",
        f"{_LOCAL} AS local",
    )


def written(session: SparkSession, folder: Path, source: str) -> list[dict[str, Any]]:
    """Stage the rows, compare them as Spark reads them, commit, and return those of the table."""
    session.conf.set("spark.sql.session.timeZone", ZONE)
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{folder}/catalog.db",
        "warehouse": f"file://{folder}/tables",
    }
    iceberg = load_catalog("default", **catalog)
    iceberg.create_namespace("here")
    df = frame(session)
    run = hf.Run("timestamps", store=f"file://{folder}/ledger", verify_input="rows")
    rows: dict[str, Any] = {"to": hf.IcebergTable("here.rows", catalog=catalog)}
    if source == "materialized":
        run.append(hf.materialize(df), create=hf.Create(), commit=False, **rows)
    else:
        key = "at" if source == "a timestamp as the key" else "id"
        run.append(df, key=key, create=hf.Create(), commit=False, **rows)
    assert run.staged_rows().orderBy("id").collect() == df.orderBy("id").collect()
    assert run.commit().outcome == "committed"
    found = iceberg.load_table("here.rows").scan().to_arrow()
    iceberg.close()
    return sorted(found.to_pylist(), key=lambda row: int(row["id"]))


def as_text(rows: list[dict[str, Any]]) -> str:
    """Return rows as text that does not depend on how their moments name UTC."""
    return json.dumps(rows, default=dt.datetime.isoformat)


def main(folder: Path) -> None:
    """Write the rows in a session of a Connect server that PySpark starts."""
    builder: Any = SparkSession.builder
    # By default the server listens on all addresses of the machine.
    builder = builder.config("spark.connect.grpc.binding.address", "127.0.0.1")
    session: SparkSession = builder.remote("local[2]").getOrCreate()
    found = {}
    for source in SOURCES:
        place = folder / source.replace(" ", "-")
        place.mkdir()
        found[source] = as_text(written(session, place, source))
    (folder / "rows.json").write_text(json.dumps(found))
    session.stop()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
