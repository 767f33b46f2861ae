"""Turn texts into embeddings with a model, once each, and write them to a Lance dataset.

Start it, kill it anywhere, and start it again: vectors that were computed are kept. README.md
walks through it.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from text_models import SIZE, load

import holdfast as hf

INPUT_FILES = 4
OUTPUT = pa.schema(
    [
        ("id", pa.int64()),
        ("text", pa.string()),
        ("vector", pa.list_(pa.float32(), SIZE)),
    ]
)
# The lists' lengths have no common divisor, so the first 10,080 texts all differ.
THINGS = (
    *("tea kettle", "two-person tent", "crime novel", "acoustic guitar", "garden spade"),
    *("rain jacket", "football", "cordless drill", "wooden puzzle", "espresso machine"),
    *("sleeping bag", "cookery book", "drum kit", "lawn mower", "woollen scarf", "tennis racket"),
    *("hammer", "chess set", "frying pan", "hiking boots", "poetry collection", "violin"),
    *("watering can", "winter coat", "bicycle helmet", "set of screwdrivers", "teddy bear"),
    *("bread knife", "camping stove", "travel guide", "piano stool", "wheelbarrow"),
)
COLOURS = ("red", "blue", "green", "black", "white", "grey", "yellow", "brown", "orange")
MERITS = (
    *("light and strong", "easy to clean", "made to last", "good for beginners"),
    *("pleasant to hold", "repaired for free", "packed without plastic"),
)
CITIES = ("Utrecht", "Lisbon", "Osaka", "Montreal", "Nairobi")


class Embed:
    """The costly step. Built once in each worker process: only there is the model loaded."""

    def __init__(self, model: str) -> None:
        """Load the model."""
        self._encode = load(model)

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Return the texts with their vectors."""
        vectors = self._encode(batch["text"].to_pylist())
        column = pa.FixedSizeListArray.from_arrays(vectors.ravel(), SIZE)
        return {"id": batch["id"], "text": batch["text"], "vector": column}


def text_of(row_id: int) -> str:
    """Return what a shop says about a product; always the same for the same id."""
    thing, colour = THINGS[row_id % len(THINGS)], COLOURS[row_id % len(COLOURS)]
    merit, city = MERITS[row_id % len(MERITS)], CITIES[row_id % len(CITIES)]
    return f"{thing.capitalize()}, {colour}, {merit}, from a shop in {city}."


def make_texts(folder: Path, first: int, rows: int) -> None:
    """Write the input, unless it is there."""
    if folder.exists():
        return
    unfinished = folder.with_name(f"{folder.name}.unfinished")
    unfinished.mkdir(parents=True, exist_ok=True)
    for part in range(INPUT_FILES):
        ids = list(range(first + part, first + rows, INPUT_FILES))
        texts = pa.table({"id": ids, "text": [text_of(row_id) for row_id in ids]})
        pq.write_table(texts, unfinished / f"{part}.parquet")
    # In one step: a kill before it must not leave half an input.
    unfinished.rename(folder)


def open_session() -> None:
    """Start Spark on this machine, with two workers."""
    # Otherwise Spark starts its workers with the first python3 on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    # Workers import text_models.py. On a cluster: spark-submit --py-files text_models.py.
    paths = [str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(path for path in paths if path)
    # A worker has one core: a model that starts a thread for every core only gets in the way.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    builder = SparkSession.builder.appName("embed-to-lance").master("local[2]")
    builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--first", type=int, default=0, help="the first row's id")
    parser.add_argument("--model", default="minilm", help="minilm, its folder, or hashing")
    parser.add_argument("--checkpoint-every", default="2s", help="work a kill may cost, per task")
    parser.add_argument("--run", default="embed-1", help="the run's id: another input, another id")
    parser.add_argument("--lake", type=Path, default=Path("lake"), help="folder of all files")
    return parser.parse_args()


def main() -> None:
    """Run the job."""
    given = arguments()
    lake = given.lake.resolve()
    texts = lake / f"texts-{given.first}-{given.rows}"
    make_texts(texts, given.first, given.rows)
    open_session()
    # A version, because one run must not mix vectors of two models.
    run = hf.Run(given.run, store=f"file://{lake}/ledger", version=given.model)
    report = run.append(
        hf.scan_parquet(f"file://{texts}"),
        to=hf.LanceTable(f"{lake}/texts.lance"),
        transform=hf.per_worker(Embed, given.model),
        checkpoint_every=given.checkpoint_every,
        create=hf.Create(schema=OUTPUT),
    )
    print(report)
    # Not imported above: Lance warns about forks, and PySpark forks when it starts its JVM.
    import lance  # noqa: PLC0415

    ids = lance.dataset(f"{lake}/texts.lance").to_table(columns=["id"])["id"]
    print(f"{len(ids):,} rows in the dataset, {len(ids.unique()):,} different ids")


if __name__ == "__main__":
    main()
