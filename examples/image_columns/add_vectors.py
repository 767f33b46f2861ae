"""Add a vector to each image of a Lance dataset, and write nothing but the vectors.

Start it, kill it anywhere, and start it again: vectors that were computed are kept. README.md
walks through it.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import SparkSession

import holdfast as hf

SIDE, COLOURS, BINS = 16, 3, 8
SIZE = COLOURS * BINS


def make_images(folder: Path, rows: int) -> None:
    """Write the dataset, unless it is there: in one fragment, as a single writer does."""
    if folder.exists():
        return
    import lance  # noqa: PLC0415 - it warns about forks, and PySpark forks when it starts its JVM.

    pixels = np.random.default_rng(7).integers(0, 256, (rows, SIDE * SIDE * COLOURS), np.uint8)
    images = {"id": range(rows), "image": [image.tobytes() for image in pixels]}
    lance.write_dataset(pa.table(images), folder)


def histograms(batch: pa.RecordBatch) -> dict[str, Any]:
    """Return for each image how often each shade of each colour is in it: the costly step."""
    pixels = np.frombuffer(b"".join(batch["image"].to_pylist()), np.uint8)
    shades = pixels.reshape(batch.num_rows, -1, COLOURS) // (256 // BINS)
    counts = [(shades == shade).mean(axis=1) for shade in range(BINS)]
    vectors = np.stack(counts, axis=2).reshape(batch.num_rows, SIZE).astype(np.float32)
    time.sleep(0.005 * batch.num_rows)  # A model would take longer.
    return {"vector": pa.FixedSizeListArray.from_arrays(vectors.ravel(), SIZE)}


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument(
        "--run", default="vectors-1", help="the run's id: other columns, another id"
    )
    parser.add_argument("--lake", type=Path, default=Path("lake"), help="folder of all files")
    return parser.parse_args()


def main() -> None:
    """Run the job."""
    given = arguments()
    lake = given.lake.resolve()
    images = lake / "images.lance"
    # Otherwise Spark starts its workers with the first python3 on the path.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName("image-columns").master("local[2]")
    builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    make_images(images, given.rows)
    run = hf.Run(given.run, store=f"file://{lake}/ledger")
    report = run.add_columns(
        to=str(images),
        transform=histograms,
        read_columns=["image"],
        checkpoint_every="1s",
    )
    print(report)
    import lance  # noqa: PLC0415 - see above.

    dataset = lance.dataset(images)
    missing = dataset.count_rows("vector IS NULL")
    print(f"{dataset.count_rows():,} images, {missing:,} of them without a vector")
    nearest = {"column": "vector", "q": [1 / BINS] * SIZE, "k": 3}
    print("most even colours:", dataset.to_table(["id"], nearest=nearest)["id"].to_pylist())


if __name__ == "__main__":
    main()
