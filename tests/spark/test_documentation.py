"""The code in the documentation is run; what is not run is listed, with the reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.markdown_pages import ROOT, blocks, name_of
from tests.spark.documentation_scenes import BEFORE, NOT_RUN, PAGES, TUTORIALS, blocks_to_run

STAND_INS = Path(__file__).parent / "stand_ins"
TIMEOUT_S = 500.0


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Run all blocks, and return how each failed, by its place; empty if it did not.

    Method: a process of its own, so that no other test's Spark session is found.
    """
    folder = tmp_path_factory.mktemp("documentation")
    python_path = os.pathsep.join(map(str, (STAND_INS, ROOT / "src", ROOT)))
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.documentation_runner", str(folder)],
        cwd=ROOT,
        env={
            **os.environ,
            "PYTHONPATH": python_path,
            "PYSPARK_PYTHON": sys.executable,
            "SPARK_LOCAL_IP": "127.0.0.1",
        },
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads((folder / "outcomes.json").read_text())
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_each_block_is_valid_python(page: Path) -> None:
    """A reader can paste a block without a syntax error."""
    for block in blocks(page, "python"):
        compile(block.code, block.place, "exec")


@pytest.mark.parametrize(("page", "text"), NOT_RUN, ids=str)
def test_a_block_that_is_listed_as_not_run_is_there(page: str, text: str) -> None:
    """Exactly one block has the text: a block that was fixed or removed leaves no entry behind."""
    assert len([block for block in blocks(ROOT / page, "python") if text in block.code]) == 1
    assert NOT_RUN[page, text]  # It says why.


@pytest.mark.parametrize(
    ("page", "text"), [(page, text) for page in BEFORE for text in BEFORE[page]], ids=str
)
def test_a_block_that_is_prepared_for_is_there(page: str, text: str) -> None:
    """A preparation for a block that is not run would only seem useful."""
    assert any(text in block.code for block in blocks_to_run(ROOT / page))


@pytest.mark.spark
@pytest.mark.parametrize("page", [page for page in PAGES if blocks_to_run(page)], ids=name_of)
def test_the_blocks_of_a_page_work(page: Path, outcomes: dict[str, str]) -> None:
    """Each block does what it says, one after the other, without an error."""
    places = [block.place for block in blocks_to_run(page)]
    assert {place: outcomes[place] for place in places if outcomes[place]} == {}


@pytest.mark.spark
@pytest.mark.parametrize("page", TUTORIALS, ids=name_of)
def test_a_tutorial_works_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    """The blocks of a tutorial, as one script, do what the text says: its asserts hold.

    Method: a process of its own, so that no other test's Spark session is found.
    """
    found = blocks(page, "python")
    assert found  # There is something to run, so the test is not vacuous.
    script = tmp_path / "tutorial.py"
    script.write_text("\n".join(block.code for block in found))
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
