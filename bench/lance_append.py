"""Append vectors to Lance: Holdfast over Lance alone, in two processes without Spark.

Both sides read the same Parquet files and write fragments of a new dataset on the local file
system; then one commit. Holdfast checkpoints as it does by default, checks that every row is there
once, and could be killed at any moment; Lance alone does none of that. Its processes are warm, as
our session is.
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
import pyarrow.parquet as pq
from lance.fragment import FragmentMetadata, write_fragments

import holdfast as hf
from bench.rounds import alternate
from bench.session import open_session
from bench.vectors import ROWS, SCHEMA, vector_files

_PROCESSES = 2
_BATCH_ROWS = 8192
_WARM_UP_ROWS = 1000


def lance_alone(uri: str, files: list[str]) -> list[str]:
    """Write the rows of some files as fragments, and return them as JSON."""
    pa.set_cpu_count(1)
    reader = pa.RecordBatchReader.from_batches(SCHEMA, _batches(files))
    fragments = write_fragments(reader, uri, schema=SCHEMA, mode="append")
    return [json.dumps(fragment.to_json()) for fragment in fragments]


def _batches(files: list[str]) -> Iterator[pa.RecordBatch]:
    for name in files:
        with pq.ParquetFile(name) as source:
            yield from source.iter_batches(_BATCH_ROWS, use_threads=False)


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    session = open_session({})
    files, few = vector_files(), vector_files(_WARM_UP_ROWS)
    folder = Path(tempfile.mkdtemp(prefix="holdfast-lance-"))
    context = multiprocessing.get_context("spawn")  # Lance does not survive a fork.
    try:
        with ProcessPoolExecutor(_PROCESSES, mp_context=context) as pool:

            def alone(uri: str, given: list[str] = files) -> None:
                halves = [given[::2], given[1::2]]
                parts = pool.map(lance_alone, [uri] * _PROCESSES, halves)
                fragments = [FragmentMetadata.from_json(text) for part in parts for text in part]
                operation = lance.LanceOperation.Append(fragments)
                lance.LanceDataset.commit(uri, operation, read_version=1)

            def ours(uri: str, given: list[str] = files) -> None:
                run = hf.Run(f"bench-{Path(uri).name}", store=f"{folder}/ledger")
                run.append(hf.scan_parquet(given, options={}), to=hf.LanceTable(uri))

            def prepare(name: str) -> str:
                uri = str(folder / f"{name}.lance")
                lance.write_dataset(SCHEMA.empty_table(), uri)
                return uri

            def check_and_drop(uri: str) -> None:
                found = lance.dataset(uri).count_rows()
                if found != ROWS:
                    raise SystemExit(f"{found} rows arrived of {ROWS}")
                shutil.rmtree(uri)

            for number in range(_PROCESSES):  # Each process has imported what it needs.
                alone(prepare(f"warm_{number}"), few)
            ours(prepare("warm_ours"), few)
            times = alternate({"ours": ours, "alone": alone}, prepare, check_and_drop, is_warm=True)
    finally:
        session.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "ratio": times.ratio("ours", "alone"),
        "rows": ROWS,
        "input_mb": round(sum(Path(file).stat().st_size for file in files) / 1e6),
        **times.figures(),
    }
