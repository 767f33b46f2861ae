"""Ask a model about each of many products, once, and write the answers to an Iceberg table.

Start it, kill it anywhere, and start it again: answers that were paid for are kept. README.md
walks through it. Without --stack it needs only pip packages and model_server.py.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf

PRICE_PER_TOKEN = 0.000_002
INPUT_FILES = 4
TIMEOUT_S = 10
OUTPUT = pa.schema(
    [
        ("id", pa.int64()),
        ("category", pa.string()),
        ("summary", pa.string()),
        ("tokens", pa.int64()),
    ]
)
ASK = "Answer in JSON: the category of the product, and a summary of at most eight words."
COLOURS = ("red", "blue", "green", "black", "white", "grey", "yellow")
THINGS = ("kettle", "tent", "novel", "guitar", "spade", "jacket", "football", "drill", "puzzle")
MERITS = ("light and strong", "easy to clean", "made to last", "good for beginners", "quiet")

Row = dict[str, Any]


def _client(url: str, concurrency: int, headers: dict[str, str] | None = None) -> httpx.AsyncClient:
    """Return a client with a connection for every row in flight."""
    return httpx.AsyncClient(
        base_url=url,
        headers=headers,
        timeout=httpx.Timeout(TIMEOUT_S, connect=5),
        limits=httpx.Limits(max_connections=concurrency, max_keepalive_connections=concurrency),
    )


class Enrich:
    """Asks the model server. Built once in each worker process, so connections are reused."""

    def __init__(self, url: str, concurrency: int) -> None:
        """Make the client."""
        self._client = _client(url, concurrency)

    async def __call__(self, row: Row) -> Row:
        """Return the output row for one product.

        Raises:
            httpx.HTTPError: There was no answer, or it was an error.
        """
        asked = {"id": row["id"], "text": row["text"]}
        response = await self._client.post("/enrich", json=asked)
        response.raise_for_status()
        return {"id": row["id"], **response.json()}


class OpenAiEnrich:
    """Asks an OpenAI-compatible endpoint."""

    def __init__(self, url: str, concurrency: int, model: str) -> None:
        """Make the client.

        The key is read here, on the worker. It is not an argument: arguments are sent with the job.
        """
        key = os.environ.get("OPENAI_API_KEY")
        headers = {"Authorization": f"Bearer {key}"} if key else None
        self._client = _client(url, concurrency, headers)
        self._model = model

    async def __call__(self, row: Row) -> Row:
        """Return the output row for one product.

        Raises:
            httpx.HTTPError: There was no answer, or it was an error.
            ValueError: The model did not answer in JSON.
            KeyError: Its answer lacks a field.
        """
        messages = [
            {"role": "system", "content": ASK},
            {"role": "user", "content": row["text"]},
        ]
        asked = {
            "model": self._model,
            "messages": messages,
            "response_format": {"type": "json_object"},
        }
        response = await self._client.post("/chat/completions", json=asked)
        response.raise_for_status()
        reply = response.json()
        said = json.loads(reply["choices"][0]["message"]["content"])
        return {
            "id": row["id"],
            "category": said["category"],
            "summary": said["summary"],
            "tokens": reply["usage"]["total_tokens"],
        }


def product_text(row_id: int) -> str:
    """Return what a shop says about a product; always the same for the same id."""
    colour, thing = COLOURS[row_id % len(COLOURS)], THINGS[row_id % len(THINGS)]
    merit = MERITS[row_id % len(MERITS)]
    return f"Product {row_id}: a {colour} {thing}, {merit}, delivered in {row_id % 9 + 1} days."


def make_products(folder: Path, rows: int) -> None:
    """Write the input, unless it is there."""
    if folder.exists():
        return
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    for part in range(INPUT_FILES):
        ids = list(range(part, rows, INPUT_FILES))
        products = pa.table({"id": ids, "text": [product_text(row_id) for row_id in ids]})
        pq.write_table(products, unfinished / f"{part}.parquet")
    # In one step: a kill before it must not leave half an input.
    unfinished.rename(folder)


def open_session(master: str | None) -> SparkSession:
    """Return a session; without a master, on the environment's."""
    # Otherwise Spark starts its workers with the first python3 on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("llm-enrich")
    if master is not None:
        builder = builder.master(master)
    # Otherwise Spark puts several small files into one task.
    builder = builder.config("spark.sql.files.minPartitionNum", INPUT_FILES)
    return builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def places(lake: Path, *, stack: bool) -> tuple[dict[str, str], str, dict[str, str]]:
    """Return the catalog's properties, the store, and the store's options."""
    if not stack:
        catalog = {
            "type": "sql",
            "uri": f"sqlite:///{lake}/catalog.db",
            "warehouse": f"file://{lake}/tables",
        }
        return catalog, f"file://{lake}/ledger", {}
    s3 = {
        "s3.endpoint": os.environ["EXAMPLE_S3_ENDPOINT"],
        "s3.access-key-id": os.environ["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": os.environ["AWS_SECRET_ACCESS_KEY"],
        "s3.region": os.environ.get("AWS_REGION", "us-east-1"),
        "s3.path-style-access": "true",
    }
    catalog = {"type": "rest", "uri": os.environ["EXAMPLE_CATALOG"], **s3}
    return catalog, os.environ["EXAMPLE_STORE"], s3


def costly_step(given: argparse.Namespace) -> Any:  # noqa: ANN401 - its class has no public name.
    """Return the transform."""
    if given.openai:
        asker = hf.per_worker(OpenAiEnrich, given.server, given.concurrency, given.model)
    else:
        asker = hf.per_worker(Enrich, given.server, given.concurrency)
    return hf.per_row(
        asker,
        concurrency=given.concurrency,
        # Only temporary errors: 422 is not among them, so such a row fails at its first call.
        retry=hf.Retry(attempts=6, first_wait="200ms", longest_wait="10s"),
        timeout=TIMEOUT_S,
    )


def show_failed(failed: DataFrame) -> None:
    """Print the first of the failed rows."""
    failed.select("key.id", "error", "attempts").orderBy("id").show(5, truncate=60)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--server", required=True, help="the model's address")
    parser.add_argument("--openai", action="store_true", help="it is OpenAI-compatible")
    parser.add_argument("--model", default="local", help="its model, with --openai")
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--concurrency", type=int, default=64, help="rows at a time, per task")
    parser.add_argument("--checkpoint-every", default="5s", help="work a kill may cost, per task")
    parser.add_argument("--run", default="enrich-1", help="the run's id: another input, another id")
    parser.add_argument("--retry-failed", action="store_true", help="only the rows that failed")
    parser.add_argument("--master", help="Spark's master; local[2] without --stack")
    parser.add_argument("--lake", type=Path, default=Path("lake"), help="folder of the input")
    parser.add_argument("--table", default="demo.enriched")
    parser.add_argument("--stack", action="store_true", help="see stack_environment.py")
    return parser.parse_args()


def main() -> None:
    """Run the job."""
    given = arguments()
    lake = given.lake.resolve()
    products = lake / f"products-{given.rows}"
    make_products(products, given.rows)
    catalog, store, store_options = places(lake, stack=given.stack)
    tables = load_catalog(**catalog)
    tables.create_namespace_if_not_exists(given.table.rpartition(".")[0])
    spark = open_session(given.master or (None if given.stack else "local[2]"))
    run = hf.Run(given.run, store=store, store_options=store_options)
    options: dict[str, Any] = {
        "to": hf.IcebergTable(given.table, catalog=catalog),
        "transform": costly_step(given),
        "checkpoint_every": given.checkpoint_every,
        "on_error": "quarantine",
        "cost": lambda answer: answer["tokens"] * PRICE_PER_TOKEN,
    }
    if given.retry_failed:
        # None may fail: a retry that lands without some rows is over, and leaves them behind.
        report = run.retry_quarantined(max_errors=0, **options)
        run = hf.Run(report.run_id, store=store, store_options=store_options)
    else:
        report = run.append(
            spark.read.parquet(f"file://{products}"),
            key="id",
            max_errors=0.02,
            create=hf.Create(schema=OUTPUT),
            **options,
        )
    print(report)
    if report.quarantined_rows:
        show_failed(run.quarantined())
    ids = tables.load_table(given.table).scan(selected_fields=("id",)).to_arrow()["id"]
    print(f"{len(ids):,} rows in the table, {len(ids.unique()):,} different ids")


if __name__ == "__main__":
    main()
