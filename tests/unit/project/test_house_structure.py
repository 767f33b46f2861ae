"""The structure of the package: a moderate number of modules, each of a useful size.

The figures are those that a reader notices: how many files there are, how large they are, and how
many of them a row passes on its way from Spark to the ledger.
"""

from __future__ import annotations

import ast
import re
import statistics
import sys
import threading
import time
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from holdfast.ledger.layout import RunLayout
from holdfast.ledger.task_log import JobLedger
from holdfast.storage.objects import ObjectStorage
from holdfast.worker.task import TaskPlan
from tests.fakes.iceberg_tables import new_table

if TYPE_CHECKING:
    from types import FrameType

ROOT = Path(__file__).parents[3]
SOURCE = ROOT / "src" / "holdfast"
PAGE = ROOT / "docs" / "explanation" / "structure.md"

# 135 for an append; each further verb brought some, columns of Lance bring a few, and events three.
MODULES_MAX = 163
MEDIAN_MIN, MEDIAN_MAX = 150, 265
SMALL = 60
WAY_MAX = 18  # Including spark.bootstrap, which needs a Spark task.

# Why a module is small or has a single importer. An outdated entry fails the test, too.
ALONE = {
    "_version": "pyproject.toml reads it",
    "cli.completion": "a command: `cli.main` finds commands as modules",
    "cli.doctor_machine": "with `cli.doctor` it would be a file of 660 lines",
    "cli.main": "the entry point",
    "columns": "with `run` it would be a file of 800 lines, of which half are for users",
    "engine.columns": "a third kind of input, next to `engine.scan_input`",
    "engine.drive": "the engine's front",
    "failpoints": "every layer imports it, and it imports nothing",
    "model.usage": "with `work` it would be a file of 620 lines",
    "pages.page": "jinja2 is imported only here",
    "pages.plots": "what is drawn; how it becomes HTML is the subject of `pages.page`",
    "progress.lineage": "imported lazily, with its extra",
    "progress.telemetry": "imported lazily, with its extra",
    "progress.watching": "runs in its own thread",
    "reading.filter_text": "what a filter says, before there is a table; `iceberg_rows` applies it",
    "run": "the front door, imported lazily",
    "sinks.iceberg.deleted_keys": "rows that are never written have their own form and file",
    "sinks.iceberg.marks": "the protocol's own part of a table, with its own document",
    "sinks.iceberg.open": "finds a catalog before there is a sink",
    "sinks.iceberg.rows": "with `writer` it would be a file of 630 lines",
    "sinks.iceberg.sink": "the format behind the protocol",
    "sinks.iceberg.snapshots": "with `sink` it would be a file of 790 lines",
    "sinks.lance.column_files": "the executor's half of `sinks.lance.columns`",
    "sinks.lance.columns": "imports Lance: `opening` imports it when it is needed",
    "sinks.lance.loss": "as for Iceberg",
    "sinks.lance.namespaces": "loads slowly: `opening` imports it when a namespace is named",
    "sinks.lance.pages": "the format of Lance's files, as far as we read it",
    "sources.iceberg": "imports PyIceberg: `opening` imports it when it is needed",
    "sources.lance_columns": "imports Lance: `opening` imports it when it is needed",
    "spark.bootstrap": "pickled by value: nothing else may be in its module",
    "storage.joined": "bytes between objects, for whichever format needs them",
    "worker.checkpoints": "with `task` it would be a file of 730 lines",
    "worker.key_search": "how a large index is searched: on a disk, shared by processes",
    "engine.large_index": "with `base` it would be a file of 590 lines, on another subject",
    "worker.code_digest": "runs on the driver, unlike the rest of `worker`",
    "worker.quarantine": "failed rows have their own format",
}


def module_files() -> dict[str, Path]:
    """Return each module by its name inside the package, without `__init__`."""
    return {
        ".".join(file.relative_to(SOURCE).with_suffix("").parts): file
        for file in SOURCE.rglob("*.py")
        if file.name != "__init__.py"
    }


def lines_of(file: Path) -> int:
    """Return how many lines a file has."""
    return len(file.read_text().splitlines())


def importers() -> dict[str, set[str]]:
    """Return which files import each module, anywhere in their code."""
    modules, found = module_files(), defaultdict[str, set[str]](set)
    for file in SOURCE.rglob("*.py"):
        own = ".".join(file.relative_to(SOURCE).with_suffix("").parts)
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").startswith(
                "holdfast"
            ):
                continue
            home = (node.module or "").removeprefix("holdfast").lstrip(".")
            for alias in node.names:
                inner = f"{home}.{alias.name}".lstrip(".")
                target = inner if inner in modules else home
                if target in modules and target != own:
                    found[target].add(own)
    return found


def test_the_number_and_the_size_of_modules_are_within_limits() -> None:
    """The number of files and their median size stay within limits."""
    sizes = [lines_of(file) for file in module_files().values()]
    assert 0 < len(sizes) <= MODULES_MAX
    assert MEDIAN_MIN <= statistics.median(sizes) <= MEDIAN_MAX


def test_a_small_or_lonely_module_says_why() -> None:
    """A reader would not look for a small module, or for one with a single importer."""
    files, by = module_files(), importers()
    small = {name for name, file in files.items() if lines_of(file) < SMALL}
    lonely = {name for name in files if len(by[name]) == 1}
    assert small | lonely == ALONE.keys()


def test_the_page_names_every_module() -> None:
    """The page that says where things are lists each module in its folder's table."""
    listed, folder = set(), ""
    for line in PAGE.read_text().splitlines():
        if heading := re.fullmatch(r"### (.+)", line):
            folder = (
                "" if heading[1] == "The package itself" else heading[1].replace("/", ".") + "."
            )
        if row := re.match(r"\| `(\w+)` \|", line):
            listed.add(folder + row[1])
    assert listed == module_files().keys()


ROWS = (
    pa.RecordBatch,
    pa.Table,
    pa.Array,
    pa.ChunkedArray,
    pa.Buffer,
    bytes,
    bytearray,
    memoryview,
)


def carries_rows(frame: FrameType) -> bool:
    """Whether a function was called with rows, in whatever form."""
    code = frame.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    given = [frame.f_locals.get(name) for name in names]
    parts = [part for value in given if isinstance(value, list | tuple) for part in value]
    return any(isinstance(value, ROWS) for value in [*given, *parts])


def test_a_row_passes_few_modules(tmp_path: Path) -> None:
    """From Spark's batch to the table's file and the ledger's record: short enough to follow."""
    schema = Schema(NestedField(1, "id", LongType()), NestedField(2, "text", StringType()))
    sink, _ = new_table(tmp_path, schema)
    ledger = JobLedger(
        storage=ObjectStorage({}),
        layout=RunLayout.of(f"file://{tmp_path}/store", "r"),
        claim=1,
        tasks="1-nonce",
        job="rows",
        next_number=3,
        planned_at=time.time(),
    )
    plan = TaskPlan(
        transform=lambda batch: batch,
        batch_rows=None,
        key=("id",),
        writer=sink.writer_spec(sink.load()),
        ledger=ledger,
        job_nonce="nonce",
        checkpoint_every_s=1e-9,
    )
    way: set[str] = set()

    def note(frame: FrameType, event: str, _: Any) -> None:  # noqa: ANN401 - Python's own signature.
        file = Path(frame.f_code.co_filename)
        if event == "call" and file.is_relative_to(SOURCE) and carries_rows(frame):
            way.add(".".join(file.relative_to(SOURCE).with_suffix("").parts))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        rows = pa.RecordBatch.from_pydict({"id": [1], "text": ["a"]})
        report = plan.run([rows], place=0, attempt=0)
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    assert (report.end, report.rows_in) == ("complete", 1)
    assert {"worker.task", "ledger.task_log", "sinks.iceberg.data_file"} <= way
    assert len(way) + 1 <= WAY_MAX, sorted(way)
