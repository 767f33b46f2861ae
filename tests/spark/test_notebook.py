"""The notebook of a first run: its cells do what its text says, and it is kept without outputs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.spark.example_scripts import EXAMPLES, number_in, output

NOTEBOOK = EXAMPLES / "first_run.ipynb"


def code_cells() -> list[dict[str, Any]]:
    """Return the cells that hold code."""
    cells: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text())["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_the_notebook_is_kept_without_outputs() -> None:
    """What a run prints differs for each reader: in the repository it would only go stale."""
    assert code_cells()
    for cell in code_cells():
        assert cell["outputs"] == []
        assert cell["execution_count"] is None


@pytest.mark.spark
@pytest.mark.example
@pytest.mark.timeout(900)
def test_the_notebook_works_from_top_to_bottom(tmp_path: Path) -> None:
    """The first start fails half way, the second keeps its rows, the third writes nothing.

    Method: all cells in one namespace, in a process of its own, as a kernel has them.
    """
    script = tmp_path / "first_run.py"
    script.write_text("\n\n".join("".join(cell["source"]) for cell in code_cells()))
    printed = output(script, folder=tmp_path)
    assert "the service is down" in printed
    assert "0 rows in the table" in printed
    done = number_in(r"state +stopped\n(?:.*\n)*? +done +([\d,]+) of 2,000", printed)
    assert 1000 <= done < 2000
    assert number_in(r"kept +([\d,]+) rows of earlier starts", printed) == done
    assert "already committed" in printed
    assert "2000 rows, 2000 different ids" in printed
    assert "'name': 'PRODUCT 0'" in printed
