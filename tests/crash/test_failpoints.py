"""The crash matrix: every step where a process can die, with each fault, in real processes.

A process reaches the step and is killed, stopped until a rival has finished, or fails. Then the
same script is started until it is done, and Iceberg's own reader, or Lance, must find each row
once, in one snapshot. `make crash` writes what they found to docs/reference/failpoints.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.crash.failpoint_cells import CELLS, Cell
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

SOURCE = ROOT / "src" / "holdfast"


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_a_run_survives(
    cell: Cell,
    desk: Desk,  # noqa: F811
    record_property: Callable[[str, str], None],
) -> None:
    """Whatever happens at the step, the rows land once, and the script says so."""
    record_property(cell.name, "")  # For the page, which tests/crash/conftest.py writes.
    went = desk.play(cell)
    record_property(cell.name, went)
    print(f"\n{cell.of} {cell.name}: {went}")


def test_every_step_of_the_code_is_in_the_matrix() -> None:
    """A step without a cell would only seem to be safe."""
    known = {cell.step for cell in CELLS}
    tried = set()
    for path in SOURCE.rglob("*.py"):
        for step in re.findall(r'failpoint\(f?"([^"]+)"\)', path.read_text(encoding="utf-8")):
            pattern = re.compile(re.sub(r"\{.*?\}", "[a-z-]+", step))
            found = {cell_step for cell_step in known if pattern.fullmatch(cell_step)}
            assert found, (Path(path).name, step)
            tried |= found
    assert tried == known  # The matrix has no step that is gone from the code.
