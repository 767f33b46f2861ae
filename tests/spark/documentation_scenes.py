"""What the documentation's blocks of code find when they are run: a lake, inputs, stand-ins.

A page's blocks are run in order, with the same names. What a page takes for granted (`df`,
`enrich`, a table) is made here. `s3://lake` and `s3://raw` are folders, and the catalog `lake` is
an SQLite file, so a page's locations need no server.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeAlias
from unittest import mock

import lance
import pyarrow as pa
import pyarrow.parquet as pq
from pyiceberg.catalog import load_catalog
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType
from pyspark.sql import SparkSession
from pyspark.sql import functions as sf

import holdfast as hf
from tests.markdown_pages import Block, blocks, name_of, pages

Names: TypeAlias = dict[str, Any]

PAGES = pages("README.md", "docs/**/*.md", "examples/**/*.md")
# Each tutorial is a script of its own, which `test_documentation.py` runs from top to bottom.
TUTORIALS = pages("docs/tutorial/*.md")

# Blocks that are not run, by page and a piece of their text, and why.
NOT_RUN = {
    ("README.md", "quickstart-1"): "tests/spark/test_quickstart.py runs it, and kills it half way",
    ("docs/explanation/comparison.md", "left_anti"): "it shows bare Spark, with Iceberg's own JAR",
    ("docs/how-to/name-catalog-and-store.md", "catalog.example"): "a catalog that does not exist",
    ("docs/how-to/run-from-cron.md", "EX_TEMPFAIL"): "a part of examples/cron, which is run",
    ("docs/how-to/run-under-airflow.md", "airflow.sdk"): "a part of examples/airflow",
    ("docs/how-to/run-under-airflow.md", "default_int_handler"): "it changes the process's signals",
    ("docs/how-to/run-under-dagster.md", "dg.asset"): "a part of examples/dagster",
    ("docs/how-to/run-under-dagster.md", "partition_key"): "a line of such an asset",
    ("docs/how-to/write-audit-publish.md", "branch="): "its branch needs Iceberg's own JAR",
    ("examples/keyed_join/README.md", "join(customers"): "a part of score.py, which is run",
    ("examples/keyed_join/README.md", "doubled.isEmpty"): "it continues the block before",
    ("examples/llm_enrich/README.md", "quarantined()"): "it continues the example's own run",
    ("examples/pdf_text/README.md", "quarantined()"): "it continues the example's own run",
}

ROWS = 20
_TABLES = (
    *("sales.orders", "ml.enriched", "ml.labels", "ml.answers", "ml.product_embeddings"),
    "raw.products",
)
_NUMBERS = ("id", "order_id", "tokens")
_TEXTS = ("text", "label", "answer")


def blocks_to_run(page: Path) -> list[Block]:
    """Return the blocks of a page that are run here, in order."""
    if page in TUTORIALS:
        return []
    left_out = [text for name, text in NOT_RUN if name == name_of(page)]
    found = blocks(page, "python")
    return [block for block in found if not any(text in block.code for text in left_out)]


class Embed:
    """A model that some pages assume."""

    def __init__(self, name: str = "") -> None:
        """Take a model's name."""
        self.name = name

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Keep what every table has."""
        return {"id": batch["id"], "text": batch["text"]}


class EmbedImage:
    """A model of images: the bytes, and a vector for each."""

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Return the columns that the page names."""
        vectors = pa.array([[0.5] * 512] * batch.num_rows, pa.list_(pa.float32(), 512))
        return {"path": batch["path"], "image": batch["bytes"], "vector": vectors}


class MyError(Exception):
    """An error of the reader's own."""


def enrich(batch: pa.RecordBatch) -> dict[str, Any]:
    """Act as the reader's costly step."""
    return {"order_id": batch["order_id"], "id": batch["id"], "label": batch["text"]}


def enrich_all_but_one(batch: pa.RecordBatch) -> dict[str, Any]:
    """Fail for one of the rows.

    Raises:
        ValueError: The row is in this batch.
    """
    if 7 in batch["id"].to_pylist():
        raise ValueError("a row that never works")
    return enrich(batch)


def ask(batch: pa.RecordBatch) -> dict[str, Any]:
    """Act as a model that answers."""
    return {"id": batch["id"], "answer": batch["text"]}


async def ask_model(row: dict[str, Any]) -> dict[str, Any]:
    """Act as a model that answers one row."""
    return {"id": row["id"], "label": row["text"], "tokens": 3}


def _to_wide_table(verb: Callable[..., hf.Report]) -> Callable[..., hf.Report]:
    def write(run: hf.Run, *rows: Any, **options: Any) -> hf.Report:  # noqa: ANN401
        return verb(run, *rows, **{"missing_columns": "null", **options})

    return write


class Scene:
    """One page's lake, and the names that its blocks find."""

    def __init__(self, session: SparkSession, folder: Path, url: str) -> None:
        """Make the lake.

        Args:
            session: The session of all pages; its catalog `lake` becomes this page's.
            folder: Empty, and the page's own.
            url: Where the model that is asked over HTTP answers.
        """
        self.session = session
        self.folder = folder
        self._runs = 0
        self._make_tables()
        self._write_inputs()
        rows = [(number, number, f"text {number}") for number in range(ROWS)]
        self.names: Names = {
            "__name__": "__main__",  # So that workers get what a block defines by value.
            "hf": hf,
            "spark": session,
            "df": session.createDataFrame(rows, "id long, order_id long, text string"),
            "run": self.new_run(),
            "url": url,
            "catalog": {
                "name": "lake",
                "type": "sql",
                "uri": f"sqlite:///{folder}/catalog.db",
                "warehouse": f"file://{folder}/tables",
            },
            "enrich": enrich,
            "fixed": enrich,
            "ask": ask,
            "ask_model": ask_model,
            "model_udf": sf.udf(str.upper, "string"),
            "Embed": Embed,
            "EmbedImage": EmbedImage,
            "MyError": MyError,
            "vault": SimpleNamespace(read=lambda _: SimpleNamespace()),
            "question": [1.0] * 384,
            "texts": ["one", "two"],
        }

    @property
    def store(self) -> str:
        """Where the pages' `s3://lake/_holdfast` is."""
        return f"file://{self.folder}/lake/_holdfast"

    def new_run(self) -> hf.Run:
        """Return a run that was never started."""
        self._runs += 1
        return hf.Run(f"scene-{self._runs}", store=self.store)

    def play(self, block: Block) -> None:
        """Run a block as a reader would, on this scene's locations."""
        # A reader's table has the columns of one job; those of the scene have all that pages name.
        with (
            mock.patch.object(hf.Run, "append", _to_wide_table(hf.Run.append)),
            mock.patch.object(hf.Run, "overwrite", _to_wide_table(hf.Run.overwrite)),
            mock.patch.object(hf.Run, "upsert", _to_wide_table(hf.Run.upsert)),
        ):
            self._play(block)

    def _play(self, block: Block) -> None:
        for text, prepare in BEFORE.get(block.page, {}).items():
            if text in block.code:
                prepare(self, self.names)
        code = block.code
        for bucket in ("lake", "raw"):
            code = code.replace(f"s3://{bucket}/", f"file://{self.folder}/{bucket}/")
        exec(compile(code, block.place, "exec"), self.names)  # noqa: S102 - the pages' own code.

    def _make_tables(self) -> None:
        uri, warehouse = f"{self.folder}/catalog.db", f"file://{self.folder}/tables"
        catalog = load_catalog("lake", type="sql", uri=f"sqlite:///{uri}", warehouse=warehouse)
        fields = [
            NestedField(
                number, name, LongType() if name in _NUMBERS else StringType(), required=False
            )
            for number, name in enumerate((*_NUMBERS, *_TEXTS), start=1)
        ]
        for table in _TABLES:
            catalog.create_namespace_if_not_exists(table.partition(".")[0])
            catalog.create_table(table, Schema(*fields), properties={"format-version": "2"})
        settings = {"type": "jdbc", "uri": f"jdbc:sqlite:{uri}", "warehouse": warehouse}
        for name, value in settings.items():
            self.session.conf.set(f"spark.sql.catalog.lake.{name}", value)

    def _write_inputs(self) -> None:
        raw = self.folder / "raw"
        ids = list(range(ROWS))
        texts = pa.table({"id": ids, "text": [f"text {number}" for number in ids]})
        for place in ("products/day=15", "texts", "images/2026"):
            (raw / place).mkdir(parents=True)
        lance.write_dataset(texts, self.folder / "lake" / "captions.lance")
        pq.write_table(texts, raw / "products" / "day=15" / "0.parquet")
        pq.write_table(texts, raw / "texts" / "0.parquet")
        (raw / "images" / "2026" / "one.jpg").write_bytes(b"an image")


def _new_run(scene: Scene, names: Names) -> None:
    names["run"] = scene.new_run()


def _landed_run(scene: Scene, names: Names) -> None:
    run = names["run"] = scene.new_run()
    run.append(names["df"], to="lake.sales.orders", key="id", transform=enrich)


def _stopped_run(scene: Scene, names: Names) -> None:
    run = names["run"] = scene.new_run()
    with suppress(hf.errors.TransformError):
        run.append(
            names["df"],
            to="lake.sales.orders",
            key="id",
            transform=enrich_all_but_one,
            retries=0,
        )


def _poison(_: Scene, names: Names) -> None:
    names["enrich"] = enrich_all_but_one


def _model(_: Scene, names: Names) -> None:
    names["model"] = names["Embed"]("all-MiniLM-L6-v2").model


def _index(scene: Scene, names: Names) -> None:
    uri = f"file://{scene.folder}/lake/texts.lance"
    lance.dataset(uri).create_scalar_index("id", "BTREE")
    names["dataset"] = lance.dataset(uri)


# What happens before a block, by page and a piece of its text; the last that fits comes last.
BEFORE: dict[str, dict[str, Callable[[Scene, Names], None]]] = {
    "README.md": {"lake.ml.enriched": _new_run},
    "docs/explanation/faq.md": {"hf.runs(": _landed_run},
    "docs/how-to/resume-and-clean-up.md": {"run.sweep()": _landed_run, "run.abort(": _stopped_run},
    "docs/how-to/scans.md": {"hf.materialize(": _new_run},
    "docs/how-to/set-failing-rows-aside.md": {"on_error=": _poison},
    "docs/how-to/write-embeddings-to-lance.md": {
        "float16": _model,
        "hf.scan_files(": _new_run,
        "describe_indices": _index,
    },
}


class _Answers(BaseHTTPRequestHandler):
    """A model that knows one answer."""

    def do_POST(self) -> None:
        """Answer, whatever was asked."""
        self.rfile.read(int(self.headers["Content-Length"]))
        body = json.dumps({"label": "a good one", "tokens": 3}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextmanager
def model_server() -> Iterator[str]:
    """Serve a model on this machine, and give its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
