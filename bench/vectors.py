"""Rows with embeddings: made once, kept in a cache outside the repository."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from bench.data import cache_folder

ROWS = 4_000_000
DIMENSIONS = 128
_FILES = 4
_GROUP_ROWS = 100_000
SCHEMA = pa.schema(
    [("id", pa.int64()), ("text", pa.string()), ("vector", pa.list_(pa.float32(), DIMENSIONS))]
)


def vector_files(rows: int = ROWS) -> list[str]:
    """Return Parquet files of ids, short texts and random vectors; make them if they are missing.

    Random floats do not compress: a row is about 540 bytes, in Parquet as in Lance.
    """
    folder = cache_folder() / f"vectors-{rows}"
    if not (folder / "_SUCCESS").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for number in range(_FILES):
            _write(folder / f"{number}.parquet", number * rows // _FILES, rows // _FILES)
        (folder / "_SUCCESS").touch()
    return sorted(str(path) for path in folder.glob("*.parquet"))


def _write(path: Path, first: int, rows: int) -> None:
    chance = np.random.default_rng(first)
    with pq.ParquetWriter(path, SCHEMA, compression="none", use_dictionary=False) as writer:
        for start in range(first, first + rows, _GROUP_ROWS):
            ids = np.arange(start, min(start + _GROUP_ROWS, first + rows))
            values = chance.random(len(ids) * DIMENSIONS, dtype=np.float32)
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(values), DIMENSIONS)
            texts = pa.array([f"a short text, number {id_}" for id_ in ids])
            batch = pa.record_batch([pa.array(ids), texts, vectors], schema=SCHEMA)
            writer.write_batch(batch, row_group_size=_GROUP_ROWS)
