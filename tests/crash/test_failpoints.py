"""The crash matrix: every step where a process can die, with each fault, in real processes.

A process comes to the step and is killed, stopped until a rival has finished, or fails. Then the
same script is started until it is done, and Iceberg's own reader, or Lance, must find each row
once, in one snapshot. The results are written to docs/reference/failpoints.md when all cells have
passed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.crash.failpoint_cells import CELLS, FAULTS, Cell
from tests.crash.failpoint_desk import Desk
from tests.crash.failpoint_fixtures import desk  # noqa: F401 - a fixture.
from tests.crash.started_jobs import ROOT

pytestmark = [
    pytest.mark.crash,
    pytest.mark.spark,
    pytest.mark.connect,
    pytest.mark.stack,
    pytest.mark.rest,
    pytest.mark.timeout(300),
]

PAGE = ROOT / "docs" / "reference" / "failpoints.md"
SOURCE = ROOT / "src" / "holdfast"


@pytest.fixture(scope="module")
def results() -> Iterator[dict[Cell, str]]:
    """Collect how the cells went, and write the page if all of them did."""
    found: dict[Cell, str] = {}
    yield found
    if len(found) == len(CELLS):
        PAGE.write_text(page(found), encoding="utf-8")


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_a_run_survives(cell: Cell, desk: Desk, results: dict[Cell, str]) -> None:  # noqa: F811
    """Whatever happens at the step, the rows land once, and the script says so."""
    results[cell] = desk.play(cell)
    print(f"\n{cell.of} {cell.name}: {results[cell]}")


def test_every_step_of_the_code_is_in_the_matrix() -> None:
    """A step that nobody tries would only seem to be safe."""
    known = {cell.step for cell in CELLS}
    tried = set()
    for path in SOURCE.rglob("*.py"):
        for step in re.findall(r'failpoint\(f?"([^"]+)"\)', path.read_text(encoding="utf-8")):
            pattern = re.compile(re.sub(r"\{.*?\}", "[a-z-]+", step))
            found = {one for one in known if pattern.fullmatch(one)}
            assert found, (Path(path).name, step)
            tried |= found
    assert tried == known  # And the matrix tries no step that the code has no more.


def page(found: dict[Cell, str]) -> str:
    """Return the page with the table of results."""
    lines = [
        "# Failpoints",
        "",
        "Named steps in drivers and tasks. They are off unless `HOLDFAST_FAILPOINTS` names a",
        "folder when a process starts, and cost nothing then. A file in that folder, called as a",
        "step is and holding `kill`, `stop` or `error`, arms it for the first process that comes.",
        "",
        "Steps between two effects, where a process was killed, stopped or made to fail, in real",
        "processes: drivers are clients of a Spark Connect server, tasks run on its two executors,",
        "the ledger and the table are on S3, behind a REST catalog if it is not one of Lance's.",
        "This page is written by",
        '`make crash ARGS="-k test_failpoints"` when every cell has passed.',
        "",
        "A cell says how the process that met the fault ended, for *stop* how its rival ended",
        "meanwhile, and at which start the script was done. Then Iceberg's own reader, or Lance,",
        "found each row once, in one snapshot, and one more start said so. Of a step of a *task*",
        "the driver's end is told.",
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
    return "\n".join([*lines, "", f"{len(rows)} steps, {len(found)} cells.", ""])
