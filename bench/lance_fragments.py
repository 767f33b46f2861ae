"""A commit of very many fragments to Lance: how long it takes, and what the driver holds.

The fragments are copies of one small file. The steps are the driver's own, after the last task has
ended: it writes the list of what is staged, looks for each file, sends one post and looks at the
dataset; a later start would read the list back. Then posts and appends of bare Lance take turns,
each to a new dataset: no commit looks at the files, so these have none.
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

from bench.rounds import Times
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.parts import read_work, write_work
from holdfast.model.coverage import Coverage
from holdfast.model.work import StagedGroup, TaskRecord, Work
from holdfast.sinks.base import Change, Outcome, RunMark, TableView
from holdfast.sinks.lance.dataset import DatasetPlace
from holdfast.sinks.lance.sink import LanceSink
from holdfast.storage.objects import ObjectStorage

_FRAGMENTS = 100_000
_GROUPS_A_RECORD = 100
_ROUNDS = 5
_SCHEMA = pa.schema([("id", pa.int64())])


def run() -> dict[str, Any]:
    """Measure and return the figures.

    Raises:
        SystemExit: Not all fragments are there.
    """
    folder = Path(tempfile.mkdtemp(prefix="holdfast-fragments-"))
    try:
        # Kept by nothing else: a driver has the staged work once.
        times = _ours(folder, _staged(folder / "ours.lance", _FRAGMENTS, has_files=True))
        turns = Times({"post": [], "bare_append": []})
        for number in range(_ROUNDS):
            turns.seconds["post"].append(_posted(folder / f"post-{number}.lance"))
            turns.seconds["bare_append"].append(_bare(folder / f"bare-{number}.lance"))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return {
        "ratio": turns.ratio("post", "bare_append"),
        "fragments": _FRAGMENTS,
        "driver_mb": round(times.pop("driver_mb"), 1),
        **{f"first_{name}": round(value, 2) for name, value in times.items()},
        **turns.figures(),
    }


def _staged(path: Path, count: int, *, has_files: bool = False) -> list[StagedGroup]:
    """Make a dataset, and what tasks have staged for it."""
    lance.write_dataset(_SCHEMA.empty_table(), path)
    sink = _sink(path)
    writer = sink.writer_spec(sink.load()).open("bench")
    writer.write(writer.fit(pa.record_batch({"id": pa.array([1, 2, 3])})))
    (first,) = writer.cut()
    data = (path / "data" / Path(first.path).name).read_bytes()
    groups = []
    for number in range(count):
        name = f"{number:032d}.lance"
        if has_files:
            (path / "data" / name).write_bytes(data)
        fragment = json.loads(first.detail["fragment"])
        fragment["files"][0]["path"] = name
        uri = f"file://{path}/data/{name}"
        file = replace(first.files[0], path=uri)
        detail = {"fragment": json.dumps(fragment)}
        groups.append(replace(first, path=uri, files=(file,), detail=detail))
    return groups


def _sink(path: Path) -> LanceSink:
    place = DatasetPlace(uri=f"file://{path}", options={})
    return LanceSink(place, rows_per_file=10, bytes_per_file=10**9)


def _ours(folder: Path, groups: list[StagedGroup]) -> dict[str, float]:
    sink, storage = _sink(folder / "ours.lance"), ObjectStorage({})
    times: dict[str, float] = {}
    started = time.monotonic()
    layout = RunLayout.of(f"file://{folder}/ledger", "bench")
    reference = write_work(storage, layout, "work.parquet", _work(groups))
    times["write_s"], started = time.monotonic() - started, time.monotonic()
    view = sink.load()
    sink.check(view, [view.schema], groups)
    sink.refuse_missing_files(view, groups)
    times["check_s"] = time.monotonic() - started
    times["post_s"] = _post(sink, view, groups)
    started = time.monotonic()
    found = sink.find_mark(sink.load(), "bench", "nonce", {})
    times["look_s"], times["driver_mb"] = time.monotonic() - started, _peak_mb()
    count, there = len(groups), len(lance.dataset(folder / "ours.lance").get_fragments())
    del groups
    started = time.monotonic()
    listed = len(read_work(storage, layout, reference).groups)
    times["read_s"] = time.monotonic() - started
    if found is None or there != count or listed != count:
        raise SystemExit(f"{there} fragments are there, and {listed} are listed, of {count}")
    return times


def _post(sink: LanceSink, view: TableView, groups: list[StagedGroup]) -> float:
    mark = RunMark(
        run_nonce="nonce",
        intent_number=1,
        snapshot_id=sink.new_snapshot_id(view),
        sequence_number=view.next_sequence_number,
    )
    started = time.monotonic()
    outcome = sink.post(view, "bench", mark, Change(adds=groups))
    if outcome is not Outcome.LANDED:
        raise SystemExit(f"the post: {outcome}")
    return time.monotonic() - started


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


def _posted(path: Path) -> float:
    groups, sink = _staged(path, _FRAGMENTS), _sink(path)
    return _post(sink, sink.load(), groups)


def _bare(path: Path) -> float:
    groups = _staged(path, _FRAGMENTS)
    fragments = [FragmentMetadata.from_json(group.detail["fragment"]) for group in groups]
    started = time.monotonic()
    operation = lance.LanceOperation.Append(fragments)
    lance.LanceDataset.commit(str(path), operation, read_version=1)
    return time.monotonic() - started


def _peak_mb() -> float:
    """Return this process's peak memory so far, from the kernel."""
    (found,) = re.findall(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found) / 1000
