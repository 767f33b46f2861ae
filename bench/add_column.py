"""Add a column of vectors to a Lance dataset: Holdfast over Lance alone, in two processes.

Both sides compute the same function of the same ids. Lance alone calls `merge_columns` of half of
the fragments in each process, and commits one merge: nothing of it can be resumed, and a fragment
belongs to one process. The same rows in a single fragment, and a run that failed after three
quarters of its rows and is started again, are measured against the whole run.

Sizes: make bench NAME=add-column ARGS="rows=400000 fragments=8 rounds=1".
"""

from __future__ import annotations

import json
import multiprocessing
import shutil
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa
from lance.fragment import FragmentMetadata

import holdfast as hf
from bench.rounds import alternate
from bench.session import open_session
from holdfast.errors import TransformError

ROWS, FRAGMENTS, SIZE = 4_000_000, 64, 128
_PROCESSES = 2
_GOALS = {"ratio": 1.20, "bytes": 1.05, "one_fragment": 1.25, "resume": 0.35}
_WEIGHTS = np.linspace(0.1, 1.0, SIZE, dtype=np.float32)
_VECTOR = pa.list_(pa.float32(), SIZE)


def vectors(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Compute a vector for each id."""
    ids = batch["id"].to_numpy().astype(np.float32)
    values = np.sin(np.multiply.outer(ids, _WEIGHTS)).ravel()
    column = pa.FixedSizeListArray.from_arrays(pa.array(values), SIZE)
    return pa.RecordBatch.from_arrays([column], names=["vector"])


class FailsAfter:
    """Computes vectors, and fails from an id on."""

    def __init__(self, first: int) -> None:
        """Take the id."""
        self._first = first

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Compute a vector for each id.

        Raises:
            ValueError: An id is too large.
        """
        if batch["id"][-1].as_py() >= self._first:
            raise ValueError("as planned")
        return vectors(batch)


def lance_alone(uri: str, numbers: list[int]) -> list[str]:
    """Compute the column for some fragments, and return them as JSON."""
    pa.set_cpu_count(1)
    dataset, found = lance.dataset(uri), []
    for number in numbers:
        (there,) = (part for part in dataset.get_fragments() if part.fragment_id == number)
        fragment, _ = there.merge_columns(vectors, columns=["id"])
        found.append(json.dumps(fragment.to_json()))
    return found


def bytes_in(folder: str) -> int:
    """Return the size of all files below a folder."""
    return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())


class _Bench:
    """Makes datasets, and lets each side add the column."""

    def __init__(self, folder: Path, pool: ProcessPoolExecutor, rows: int, fragments: int) -> None:
        self.folder, self.pool, self.rows, self.fragments = folder, pool, rows, fragments
        self.shares: dict[str, list[float]] = {}

    def prepare(self, name: str) -> str:
        """Make a dataset of ids."""
        uri = str(self.folder / f"{name}.lance")
        count = 1 if name.startswith("one") else self.fragments
        ids = pa.table({"id": pa.array(np.arange(self.rows))})
        lance.write_dataset(ids, uri, max_rows_per_file=-(-self.rows // count))
        return uri

    def alone(self, uri: str) -> None:
        """Add the column with Lance alone."""
        dataset = lance.dataset(uri)
        numbers = [fragment.fragment_id for fragment in dataset.get_fragments()]
        schema = dataset.schema.append(pa.field("vector", _VECTOR))
        halves = [numbers[::_PROCESSES], numbers[1::_PROCESSES]]
        parts = self.pool.map(lance_alone, [uri] * _PROCESSES, halves)
        made = [FragmentMetadata.from_json(text) for part in parts for text in part]
        operation = lance.LanceOperation.Merge(sorted(made, key=lambda part: part.id), schema)
        lance.LanceDataset.commit(uri, operation, read_version=dataset.version)

    def ours(self, uri: str, transform: Any = vectors) -> hf.Report:  # noqa: ANN401 - as for a user.
        """Add the column with Holdfast."""
        run = hf.Run(f"bench-{Path(uri).name}", store=f"{self.folder}/ledger")
        return run.add_columns(
            to=uri,
            transform=transform,
            read_columns=["id"],
            schema=pa.schema([("vector", _VECTOR)]),
        )

    def measured(self, uri: str) -> None:
        """Add the column with Holdfast, and note how many bytes are written for each of its own."""
        before = bytes_in(uri) + bytes_in(f"{self.folder}/ledger")
        self.ours(uri)
        written = bytes_in(uri) + bytes_in(f"{self.folder}/ledger") - before
        side = Path(uri).name.partition("_")[0]
        self.shares.setdefault(side, []).append(written / (self.rows * SIZE * 4))

    def checked(self, uri: str) -> None:
        """Look at the dataset, and remove it.

        Raises:
            SystemExit: A row has another vector than its own.
        """
        dataset = lance.dataset(uri)
        for batch in dataset.to_batches(batch_size=100_000):
            if not batch["vector"].equals(vectors(batch)["vector"]):
                raise SystemExit(f"{uri}: rows have other vectors than their own")
        if dataset.count_rows() != self.rows:
            raise SystemExit(f"{uri}: it has {dataset.count_rows():,} rows")
        shutil.rmtree(uri)

    def resume_share(self) -> float:
        """Fail after three quarters of the rows, start again, and compare with a whole run."""
        uri = self.prepare("whole")
        began = time.monotonic()
        self.ours(uri)
        whole_s = time.monotonic() - began
        self.checked(uri)
        uri = self.prepare("resumed")
        try:
            self.ours(uri, FailsAfter(self.rows * 3 // 4))
        except TransformError:
            began = time.monotonic()
        report = self.ours(uri)
        resumed_s = time.monotonic() - began
        self.checked(uri)
        print(f"  whole {whole_s:.2f} s; resumed {resumed_s:.2f} s, {report.kept_rows:,} rows kept")
        return resumed_s / whole_s


def run(rows: int = ROWS, fragments: int = FRAGMENTS, rounds: int = 3) -> dict[str, Any]:
    """Measure and return the figures."""
    session = open_session({})
    folder = Path(tempfile.mkdtemp(prefix="holdfast-columns-"))
    context = multiprocessing.get_context("spawn")  # Lance does not survive a fork.
    try:
        with ProcessPoolExecutor(_PROCESSES, mp_context=context) as pool:
            bench = _Bench(folder, pool, rows, fragments)
            sides = {"lance": bench.alone, "holdfast": bench.measured, "one": bench.measured}
            times = alternate(sides, bench.prepare, bench.checked, rounds=rounds)
        resume = bench.resume_share()
    finally:
        session.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "rows": rows,
        "fragments": fragments,
        "goals": _GOALS,
        "ratio": times.ratio("holdfast", "lance"),
        "bytes_per_byte": round(max(bench.shares["holdfast"]), 3),
        "one_fragment_ratio": times.ratio("one", "holdfast"),
        "one_fragment_bytes_per_byte": round(max(bench.shares["one"]), 3),
        "resume_share": round(resume, 3),
        **times.figures(),
    }
