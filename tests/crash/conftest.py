"""Fixtures of the crash tests, and the page of results of the crash matrix."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conftest import SEED_VARIABLE
from tests.crash.crash_table import CrashTable
from tests.crash.failpoint_cells import CELLS, FAULTS, Cell
from tests.crash.lance_crash_table import AnyCrashTable, LanceCrashTable
from tests.crash.own_cluster import OwnCluster
from tests.crash.started_jobs import ROOT
from tests.stack_access import Stack

PAGE = ROOT / "docs" / "reference" / "failpoints.md"
# What the cells of this session found, by name; nothing if they failed.
_FOUND: dict[str, str] = {}


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Return a source of random moments, different for each test; print how to repeat them."""
    seed, name = os.environ[SEED_VARIABLE], request.node.name
    print(f"\n{name}: again with {SEED_VARIABLE}={seed} make crash ARGS='-n 0 -s -k {name}'")
    return random.Random(f"{seed} {name}")


@pytest.fixture
def table(request: pytest.FixtureRequest, stack: Stack, tmp_path: Path) -> AnyCrashTable:
    """Return a table that does not exist yet, and a ledger of its own.

    An Iceberg table, unless a test asks for another by name, indirectly.
    """
    match getattr(request, "param", "iceberg"):
        case "lance":
            return LanceCrashTable.on(stack.s3)
        case "lance on minio":
            return LanceCrashTable.on(stack.wanted_minio())
        case "lance on local files":
            return LanceCrashTable.below(tmp_path)
    lake: SparkSession = request.getfixturevalue("lake")
    namespace: str = request.getfixturevalue("namespace")
    ledger: dict[str, Any] = request.getfixturevalue("ledger")
    return CrashTable(stack=stack, lake=lake, name=f"{namespace}.rows", ledger=ledger)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[OwnCluster]:
    """Start a standalone cluster whose executors a test may kill."""
    with OwnCluster.started(tmp_path / "cluster") as cluster:
        yield cluster


# ---- The page of the crash matrix, from what the cells of all processes have reported
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep the result that a cell reports."""
    if report.when == "call" and "test_failpoints.py" in report.nodeid:
        for name, value in report.user_properties:
            _FOUND[name] = str(value) if report.passed else ""


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Note on the page what cells have found, if crash tests were asked for."""
    is_asked = session.config.getoption("markexpr") == "crash"
    if _FOUND and is_asked and "PYTEST_XDIST_WORKER" not in os.environ:
        known = results_of(PAGE.read_text(encoding="utf-8"))
        found = {cell: _FOUND.get(cell.name, known.get(key(cell), "")) for cell in CELLS}
        PAGE.write_text(page(found), encoding="utf-8")


def key(cell: Cell) -> tuple[str, str, str]:
    """Return where a cell stands on the page: its row, whose step it is, and its column."""
    return cell.row, cell.of, cell.fault


def results_of(text: str) -> dict[tuple[str, str, str], str]:
    """Return what the page says of each cell, by its place."""
    rows = [line[2:-2].split(" | ") for line in text.splitlines() if line.startswith("| `")]
    return {
        (step.strip("`"), of, fault): went.strip()
        for step, of, *cells in rows
        for fault, went in zip(FAULTS, cells, strict=True)
    }


def page(found: dict[Cell, str]) -> str:
    """Return the page with the table of results."""
    lines = [
        "# Failpoints",
        "",
        "Named steps in drivers and tasks. They are off, and cost nothing, unless",
        "`HOLDFAST_FAILPOINTS` names a folder when a process starts. A file in that folder, named",
        "like the step and holding `kill`, `stop` or `error`, arms it for the first process there.",
        "",
        "Steps between two effects, where a process was killed, stopped or made to fail, in real",
        "processes: drivers are clients of a Spark Connect server, tasks run on its two executors,",
        "the ledger and the table are on S3, behind a REST catalog unless it is a Lance dataset.",
        '`make crash ARGS="-k test_failpoints"` writes what the cells found that it has run; those',
        "that failed, or were never run, are empty.",
        "",
        "A cell says how the process that met the fault ended, for *stop* how its rival ended",
        "meanwhile, and at which start the script was done. Then Iceberg's own reader, or Lance,",
        "found each row once, in one snapshot, and one more start said so. For a step of a *task*",
        "the cell says how the driver ended.",
        "",
        "| step | of a | " + " | ".join(FAULTS) + " |",
        "|---|---|" + "---|" * len(FAULTS),
    ]
    rows: dict[tuple[str, str], dict[str, str]] = {}
    for cell, went in found.items():
        rows.setdefault((cell.row, cell.of), {})[cell.fault] = went
    for (step, of), by_fault in rows.items():
        cells = " | ".join(by_fault.get(fault, "") for fault in FAULTS)
        lines.append(f"| `{step}` | {of} | {cells} |")
    passed = sum(went != "" for went in found.values())
    said = (
        f"{len(rows)} steps, {len(found)} cells; {passed} of them passed when they were last run."
    )
    return "\n".join([*lines, "", said, ""])
