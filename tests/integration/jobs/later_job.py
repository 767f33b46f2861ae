"""A user's scripts around a commit that comes later, in one file: HOLDFAST_JOB names the step.

`stage` computes the rows and looks at them; `commit` runs anywhere, without Spark.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

job: dict[str, Any] = json.loads(os.environ["HOLDFAST_JOB"])
if job["step"] == "commit":  # As where Spark is not installed.
    sys.modules["pyspark"] = None  # type: ignore[assignment]

import holdfast as hf  # noqa: E402 - after what it must do without.

run = hf.Run(job["run_id"], store=job["store"], store_options=job["store_options"])
table = hf.IcebergTable(job["to"], catalog=job["catalog"])
if job["step"] == "stage":
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder
    for name, value in job["spark"].items():
        builder = builder.config(name, value)
    session: SparkSession = builder.getOrCreate()
    rows = session.range(0, job["rows"], 1, job["tasks"])
    report = run.append(
        rows.selectExpr("id", "concat('row ', id) AS label"),
        to=table,
        key="id",
        transform=lambda batch: batch,
        missing_columns="null",
        commit=False,
    )
    staged = run.staged_rows()  # The object knows the table that it has written.
    looked = staged.selectExpr("count(*)", "sum(id)", "count_if(label IS NULL)").first()
    print("looked", json.dumps(list(looked or ())))
    session.stop()
else:
    report = run.commit(to=table)
print(report)
