"""What it costs to find the rows left, with up to a hundred million finished keys.

Planning, as a resume does it, takes turns with a bare left anti-join of the same key columns, for
which Spark reads the same key files itself: integers with no order, and texts of 36 characters.
Then half of an input of wide rows is finished, in a small heap: which bytes are shuffled?

Each case is a process of its own with a fresh session. `HOLDFAST_BENCH_SCALE=0.01` makes all sizes
smaller; the heaps stay.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, SparkSession

from bench.data import cache_folder
from bench.process_tree import answer, start, watched
from bench.rounds import alternate
from bench.session import open_session
from holdfast.ledger.row_files import KeyFile, KeyFiles
from holdfast.spark.dataframe import DataFrameSubmitter
from holdfast.spark.keys import RowsLeft
from holdfast.storage.objects import ObjectStorage
from holdfast.worker.coverage import key_hashes

_KEYS_OF_A_FILE = 500_000
_PAYLOAD_BYTES = 200
_COLD_UP_TO = 20_000_000
_SUFFIX = "-e4b7c560c5d3f0e8a"
_DIGITS = 18


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One input, and how much of it is finished."""

    kind: str
    done: int
    left: int
    heap: str
    # Whether whole rows are read, or keys are planned.
    is_wide: bool = False
    rounds: int = 1


_CASES = {
    "integers": Case(kind="integer", done=100_000_000, left=1_000_000, heap="2g"),
    "texts": Case(kind="text", done=10_000_000, left=1_000_000, heap="2g"),
    "wide": Case(kind="integer", done=10_000_000, left=10_000_000, heap="1g", is_wide=True),
}


def run() -> dict[str, Any]:
    """Measure and return the figures."""
    scale = float(os.environ.get("HOLDFAST_BENCH_SCALE", "1"))
    found: dict[str, Any] = {"scale": scale}
    for name, case in _CASES.items():
        sized = asdict(case) | {
            "done": max(1000, int(case.done * scale)),
            "left": max(1000, int(case.left * scale)),
        }
        child = start("bench.resume_keys", sized)
        with watched(child) as peaks:
            figures = answer(child)
        found[name] = {**sized, **figures, "worker_mb": round(peaks.worker_mb, 1)}
        print(f"  {name:<10} {found[name]}", flush=True)
    return {"ratio": max(found[name]["ratio"] for name in ("integers", "texts")), **found}


def main(case: Case) -> dict[str, Any]:
    """Run one case in this process."""
    files = key_files(case)
    events = tempfile.mkdtemp(prefix="holdfast-events-")
    session = open_session(
        {
            "spark.driver.memory": case.heap,
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": Path(events).as_uri(),
            "spark.eventLog.compress": "false",
            "spark.eventLog.rolling.enabled": "false",
        }
    )
    before = _peak_mb()
    try:
        found = _wide(session, case, files) if case.is_wide else _planned(session, case, files)
    finally:
        session.stop()
    found |= {"driver_growth_mb": round(_peak_mb() - before, 1), **_spark_figures(Path(events))}
    shutil.rmtree(events)
    return found


def key_files(case: Case) -> KeyFiles:
    """Return the finished keys as tasks leave them; write the files if they are missing."""
    folder = cache_folder() / f"finished-{case.kind}-{case.done}"
    storage, numbers = ObjectStorage({}), range(0, case.done, _KEYS_OF_A_FILE)
    uris = {f"record {first:012d}": f"{folder.as_uri()}/{first:012d}.keys" for first in numbers}
    if not (folder / "_SUCCESS").exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for first, uri in zip(numbers, uris.values(), strict=True):
            file = KeyFile(storage, uri)
            stop = min(first + _KEYS_OF_A_FILE, case.done)
            file.add(["k"], [_keys(case.kind, np.arange(first, stop))])
            file.finish()
        (folder / "_SUCCESS").touch()
    return KeyFiles(storage=storage, uris=uris, rows=case.done)


def _keys(kind: str, numbers: np.ndarray) -> pa.Array:
    """Return the keys of rows; the same as those of `frame`."""
    if kind == "integer":  # The hash of an integer is another one, and no two share it.
        return pa.array(key_hashes([pa.array(numbers)]).view(np.int64))
    digits = pc.utf8_lpad(pc.cast(pa.array(numbers), pa.string()), _DIGITS, "0")
    return pc.binary_join_element_wise(digits, pa.scalar(_SUFFIX), "")


def frame(session: SparkSession, case: Case) -> DataFrame:
    """Return the input: finished rows and rows left, each with its key."""
    text = f"concat(lpad(cast(id AS string), {_DIGITS}, '0'), '{_SUFFIX}')"
    key = "xxhash64(id)" if case.kind == "integer" else text
    columns = [f"{key} AS k"]
    if case.is_wide:  # Digests do not compress, as real payloads rarely do.
        digests = "concat(sha2(cast(id AS string), 512), sha2(cast(id AS string), 256))"
        columns.append(f"rpad({digests}, {_PAYLOAD_BYTES}, 'x') AS payload")
    return session.range(0, case.done + case.left, 1, 16).selectExpr(*columns)


def _planned(session: SparkSession, case: Case, files: KeyFiles) -> dict[str, Any]:
    folder = next(iter(files.uris.values())).rpartition("/")[0]
    df = frame(session, case)

    def bare(_name: str) -> None:
        done = session.read.option("pathGlobFilter", "*.keys").parquet(folder)
        # By the size of the files Spark would broadcast them, and fail.
        check(df.join(done.hint("merge"), "k", "left_anti").count())

    def planning(_name: str) -> None:
        input_ = DataFrameSubmitter(df, ("k",))
        whole = input_.measure(KeyFiles(storage=files.storage))
        check(input_.measure(files).rows)
        check(whole.rows - case.done)

    def check(rows: int) -> None:
        if rows != case.left:
            raise SystemExit(f"{rows} rows are left, not {case.left}")

    sides: dict[str, Callable[[str], None]] = {"bare": bare, "planning": planning}
    session.range(1000).mapInArrow(_counted, "n long").count()
    times = alternate(
        sides,
        lambda name: name,
        lambda _name: None,
        # What a session needs to get warm is little beside minutes of work.
        is_warm=case.done > _COLD_UP_TO,
        rounds=case.rounds,
    )
    return {"ratio": times.ratio("planning", "bare"), **times.figures()}


def _wide(session: SparkSession, case: Case, files: KeyFiles) -> dict[str, Any]:
    left = RowsLeft(frame(session, case), ("k",), files)
    counted = left.rows().mapInArrow(_counted, "n long").groupBy().sum().collect()[0][0]
    left.release()
    if counted != case.left:
        raise SystemExit(f"{counted} rows are left, not {case.left}")
    rows = case.done + case.left
    return {"rows": counted, "payload_mb": round(rows * _PAYLOAD_BYTES / 1e6)}


def _counted(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        yield pa.RecordBatch.from_pydict({"n": [batch.num_rows]})


def _peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _spark_figures(events: Path) -> dict[str, Any]:
    """Return how much was shuffled, from Spark's own log of events."""
    written = spilled = 0
    for file in events.iterdir():
        for line in file.read_text(encoding="utf-8").splitlines():
            if '"SparkListenerTaskEnd"' in line:
                metrics = json.loads(line).get("Task Metrics") or {}
                written += metrics["Shuffle Write Metrics"]["Shuffle Bytes Written"]
                spilled += metrics["Disk Bytes Spilled"]
    return {"shuffled_mb": round(written / 1e6, 1), "spilled_mb": round(spilled / 1e6, 1)}


if __name__ == "__main__":
    print(json.dumps(main(Case(**json.loads(sys.argv[1])))))
