"""Extract the text of many PDFs, once each, and write it to an Iceberg table.

Start it, kill it anywhere, and start it again: files that were read are not read again.
README.md walks through it.
"""

from __future__ import annotations

import argparse
import io
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import load_catalog
from pypdf import PdfReader
from pyspark.sql import SparkSession

import holdfast as hf

TABLE = "demo.logbooks"
OUTPUT = pa.schema([("path", pa.string()), ("pages", pa.int64()), ("text", pa.string())])


def extract(row: dict[str, Any]) -> dict[str, Any]:
    """Return the text of one PDF. Runs on a worker, which has fetched the file's bytes."""
    reader = PdfReader(io.BytesIO(row["bytes"]))
    pages = [page.extract_text() for page in reader.pages]
    return {"path": row["path"], "pages": len(pages), "text": "\n".join(pages)}


def open_session() -> None:
    """Start Spark on this machine, with two workers."""
    # Otherwise Spark starts its workers with the first python3 on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("pdf-text").master("local[2]")
    builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--checkpoint-every", default="1s", help="work a kill may cost, per task")
    parser.add_argument("--run", default="pdf-text-1", help="the run's id: other files, another id")
    parser.add_argument("--lake", type=Path, default=Path("lake"), help="folder of all files")
    return parser.parse_args()


def main() -> None:
    """Run the job."""
    given = arguments()
    lake = given.lake.resolve()
    catalog = {
        "type": "sql",
        "uri": f"sqlite:///{lake}/catalog.db",
        "warehouse": f"file://{lake}/tables",
    }
    load_catalog(**catalog).create_namespace_if_not_exists("demo")
    open_session()
    run = hf.Run(given.run, store=f"file://{lake}/ledger")
    report = run.append(
        hf.scan_files(f"file://{lake}/pdfs/**/*.pdf"),
        to=hf.IcebergTable(TABLE, catalog=catalog),
        # One at a time in each task: this is CPU work, and threads share one core.
        transform=hf.per_row(extract, concurrency=1),
        checkpoint_every=given.checkpoint_every,
        create=hf.Create(schema=OUTPUT),
        on_error="quarantine",
        max_errors=5,  # More broken files than that mean a bug of ours, and nothing is written.
    )
    print(report)
    if report.quarantined_rows:
        for row in run.quarantined().select("input.path", "error").collect():
            print(f"not read: {Path(row.path).name}: {row.error}")


if __name__ == "__main__":
    main()
