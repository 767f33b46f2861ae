"""A commit of very many fragments to Lance: how long it takes, and what the driver holds.

The fragments are copies of one small file. The steps are the driver's own, after the last task has
ended: it writes the list of what is staged and reads it back, looks for each file, and sends one
post. Bare Lance commits the same fragments by its own append.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import lance
import pyarrow as pa
from lance.fragment import FragmentMetadata

from holdfast.ledger.layout import RunLayout
from holdfast.ledger.parts import read_work, write_work
from holdfast.model.coverage import Coverage
from holdfast.model.work import StagedGroup, TaskRecord, Work
from holdfast.sinks.base import Change, Outcome, RunMark
from holdfast.sinks.lance.dataset import DatasetPlace
from holdfast.sinks.lance.sink import LanceSink

_FRAGMENTS = 100_000
_GROUPS_A_RECORD = 100
_SCHEMA = pa.schema([("id", pa.int64())])


def run() -> dict[str, Any]:
    """Measure and return the figures.

    Raises:
        SystemExit: Not all fragments are there.
    """
    folder = Path(tempfile.mkdtemp(prefix="holdfast-fragments-"))
    try:
        groups = _staged(folder / "ours.lance", _FRAGMENTS)
        before_mb = _peak_mb()
        times = _ours(folder, groups)
        driver_mb = _peak_mb()
        bare_s = _bare(folder / "bare.lance")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "ratio": round(times["post_s"] / bare_s, 3),
        "fragments": _FRAGMENTS,
        "driver_mb": round(driver_mb, 1),
        "driver_mb_before": round(before_mb, 1),
        "bare_append_s": round(bare_s, 2),
        **{name: round(value, 2) for name, value in times.items()},
    }


def _staged(path: Path, count: int) -> list[StagedGroup]:
    """Make a dataset, and files beside it that no version names."""
    lance.write_dataset(_SCHEMA.empty_table(), path)
    sink = LanceSink(
        DatasetPlace(uri=f"file://{path}", options={}), rows_per_file=10, bytes_per_file=10**9
    )
    writer = sink.writer_spec(sink.load()).open("bench")
    writer.write(writer.fit(pa.record_batch({"id": pa.array([1, 2, 3])})))
    (first,) = writer.cut()
    data = (path / "data" / Path(first.path).name).read_bytes()
    groups = []
    for number in range(count):
        name = f"{number:032d}.lance"
        (path / "data" / name).write_bytes(data)
        fragment = json.loads(json.dumps(first.detail["fragment"]))
        fragment["files"][0]["path"] = name
        uri = f"file://{path}/data/{name}"
        file = replace(first.files[0], path=uri)
        groups.append(replace(first, path=uri, files=(file,), detail={"fragment": fragment}))
    return groups


def _ours(folder: Path, groups: list[StagedGroup]) -> dict[str, float]:
    place = DatasetPlace(uri=f"file://{folder}/ours.lance", options={})
    sink = LanceSink(place, rows_per_file=10, bytes_per_file=10**9)
    times: dict[str, float] = {}
    started = time.monotonic()
    layout = RunLayout.of(f"file://{folder}/ledger", "bench")
    reference = write_work(place.storage, layout, "work.parquet", _work(groups))
    groups = list(read_work(place.storage, layout, reference).groups)
    times["ledger_s"], started = time.monotonic() - started, time.monotonic()
    view = sink.load()
    sink.check(view, [view.schema], groups)
    times["check_s"], started = time.monotonic() - started, time.monotonic()
    mark = RunMark(
        run_nonce="nonce",
        intent_number=1,
        snapshot_id=sink.new_snapshot_id(view),
        sequence_number=view.next_sequence_number,
    )
    outcome = sink.post(view, "bench", mark, Change(adds=groups))
    times["post_s"], started = time.monotonic() - started, time.monotonic()
    found = sink.find_mark(sink.load(), "bench", "nonce", {})
    times["look_s"] = time.monotonic() - started
    there = len(lance.dataset(place.uri).get_fragments())
    if outcome is not Outcome.LANDED or found is None or there != len(groups):
        raise SystemExit(f"{outcome}: {there} fragments are there of {len(groups)}")
    return times


def _work(groups: list[StagedGroup]) -> Work:
    coverage = Coverage(rows=3 * _GROUPS_A_RECORD, low=1, high=1, keys_bytes=0)
    return Work(
        records=tuple(
            TaskRecord(
                name=f"1/rows/{start}/0/0",
                coverage=coverage,
                seconds=1.0,
                groups=tuple(groups[start : start + _GROUPS_A_RECORD]),
            )
            for start in range(0, len(groups), _GROUPS_A_RECORD)
        )
    )


def _bare(path: Path) -> float:
    groups = _staged(path, _FRAGMENTS)
    fragments = [
        FragmentMetadata.from_json(json.dumps(group.detail["fragment"])) for group in groups
    ]
    started = time.monotonic()
    operation = lance.LanceOperation.Append(fragments)
    lance.LanceDataset.commit(str(path), operation, read_version=1)
    return time.monotonic() - started


def _peak_mb() -> float:
    """Return this process's peak memory so far, from the kernel."""
    (found,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found) / 1000
