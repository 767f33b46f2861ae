"""A key index in memory over one on disk: CPU time and memory to build it and to search with it.

Each case is a process of its own, on local files: no Spark, no server. Rows of a table are searched
for keys, of which half are found, as a task does: 64,000 rows at a time.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from holdfast.engine.large_index import slot_bits
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.parts import IndexFile, KeyPiece
from holdfast.storage.objects import ObjectStorage
from holdfast.worker import key_index
from holdfast.worker.key_index import (
    BucketPlan,
    Built,
    IndexPlan,
    KeyIndex,
    PiecePlan,
    bucket_items,
)
from holdfast.worker.reports import TaskReport

_SIZES = (500_000, 2_000_000, 5_000_000, 20_000_000)
_SEARCHED = 8_000_000
_BATCH = 64 * 1024
_PRIME = 2_654_435_761


@dataclass(frozen=True)
class Keys:
    """Makes the keys of rows: even numbers, spread by a prime, or texts of them."""

    kind: str

    def open(self) -> Keys:
        """Return itself."""
        return self

    @property
    def schema(self) -> pa.Schema:
        """One column."""
        kind = pa.int64() if self.kind == "int" else pa.large_string()
        return pa.schema([pa.field("id", kind)])

    def rows(self, item: str) -> Iterator[pa.RecordBatch]:
        """Yield the keys of rows from one number to another."""
        start, stop = json.loads(item)
        for first in range(start, stop, _BATCH):
            ids = np.arange(first, min(stop, first + _BATCH), dtype=np.int64)
            yield pa.RecordBatch.from_arrays([self.array(ids)], schema=self.schema)

    def array(self, ids: np.ndarray[Any, Any]) -> pa.Array:
        """Return the keys of numbers."""
        mixed = (ids.astype(np.uint64) * np.uint64(_PRIME)) & np.uint64((1 << 40) - 1)
        if self.kind == "int":
            return pa.array(mixed.astype(np.int64))
        digits = b"0123456789abcdef"
        shifts = np.arange(36, dtype=np.uint64) % np.uint64(16) * np.uint64(4)
        turned = mixed * np.uint64(0x9E3779B97F4A7C15)
        text = np.frombuffer(digits, np.uint8)[(turned[:, None] >> shifts) & np.uint64(15)]
        text[:, :10] = np.frombuffer(digits, np.uint8)[
            (mixed[:, None] >> (np.arange(10, dtype=np.uint64) * np.uint64(4))) & np.uint64(15)
        ]
        ends = np.arange(len(ids) + 1, dtype=np.int64) * 36
        buffers = [None, pa.py_buffer(ends), pa.py_buffer(np.ascontiguousarray(text))]
        return pa.Array.from_buffers(pa.large_string(), len(ids), buffers)


def _run(plan: IndexPlan | PiecePlan | BucketPlan, item: str) -> TaskReport:
    return plan.run(
        [pa.RecordBatch.from_pydict({"chunks": [item]})], place=0, attempt=hash(item) % 10**9
    )


def child(kind: str, keys: int, way: str) -> None:
    """Build an index of one kind, and search with it."""
    folder = tempfile.mkdtemp()
    storage = ObjectStorage({})
    layout = RunLayout.of(f"file://{folder}", "r")
    Path(folder, "r", "parts").mkdir(parents=True)
    reader = Keys(kind)
    began = time.process_time()
    if way == "memory":
        key_index.SMALL_BYTES = 1 << 40
        whole = IndexPlan(reader=reader, storage=storage, layout=layout, name="index")
        report = _run(whole, json.dumps([0, keys]))
        files = [Built.from_json(text).file for text in report.results]
    else:
        pieces = []
        for start in range(0, keys, 2_000_000):
            item = json.dumps([start, min(keys, start + 2_000_000)])
            divide = PiecePlan(
                reader=reader,
                storage=storage,
                layout=layout,
                name="index",
                slot_bits=slot_bits(keys),
            )
            pieces += [KeyPiece.from_json(text) for text in _run(divide, item).results]
        merge = BucketPlan(storage=storage, layout=layout, name="index", schema=reader.schema)
        files = []
        for item in bucket_items(pieces, 8 * 1024 * 1024):
            (text,) = _run(merge, item).results
            files.append(Built.from_json(json.loads(text)[1]).file)
    built_s = time.process_time() - began
    built_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    found = [[file.to_json() for file in files if file], built_s, built_mb, folder]
    sys.stdout.write(json.dumps(found))


def search(kind: str, folder: str, files: list[str]) -> None:
    """Search with an index that another process has built."""
    storage = ObjectStorage({})
    index = KeyIndex(
        on=("id",),
        name="index",
        files=tuple(IndexFile.from_json(text) for text in files),
        storage=storage,
        layout=RunLayout.of(f"file://{folder}", "r"),
    )
    keys, rows = Keys(kind), index.rows
    began, hits, generated = time.process_time(), 0, 0.0

    def batches() -> Iterator[list[pa.Array]]:
        nonlocal generated
        random = np.random.default_rng(7)
        for _ in range(0, _SEARCHED, _BATCH):
            at = time.process_time()
            made = [keys.array(random.integers(0, 2 * rows, _BATCH))]
            generated += time.process_time() - at
            yield made

    for numbers in index.search(batches()):
        hits += int((numbers >= 0).sum())
    cpu = time.process_time() - began - generated
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    sys.stdout.write(json.dumps([cpu, peak, hits]))


def _answer(*words: str) -> list[Any]:
    done = subprocess.run(
        [sys.executable, "-m", "bench.key_search", *words], stdout=subprocess.PIPE, check=True
    )
    found: list[Any] = json.loads(done.stdout)
    return found


def run(
    sizes: tuple[int, ...] = _SIZES, kinds: tuple[str, ...] = ("int", "text")
) -> dict[str, Any]:
    """Measure and return the figures."""
    figures: dict[str, Any] = {}
    for kind in kinds:
        for keys in sizes:
            for way in ("memory", "disk"):
                files, built_s, built_mb, folder = _answer("build", kind, str(keys), way)
                Path(folder, "files.json").write_text(json.dumps(files))
                searched_s, searched_mb, hits = _answer("search", kind, folder)
                found = {
                    "build_cpu_s": round(built_s, 2),
                    "build_mb": round(built_mb),
                    "search_cpu_s": round(searched_s, 2),
                    "search_mb": round(searched_mb),
                    "hits": hits,
                    "files": len(files),
                }
                figures[f"{kind}_{keys}_{way}"] = found
                print(f"  {kind} {keys:>11,} {way:<7} {found}", flush=True)
                shutil.rmtree(folder)
    return figures


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("words", nargs="*")
    words = parser.parse_args().words
    if words[:1] == ["build"]:
        child(words[1], int(words[2]), words[3])
    elif words[:1] == ["search"]:
        search(words[1], words[2], json.loads(Path(words[2], "files.json").read_text()))
    else:
        run()
