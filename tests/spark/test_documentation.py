"""The code in the documentation is run, or at least compiled."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TUTORIALS = sorted((ROOT / "docs" / "tutorial").glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def page_name(page: Path) -> str:
    """Return the page's path in the repository, as the test's name."""
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_each_block_is_valid_python(page: Path) -> None:
    """A reader can paste a block without a syntax error."""
    for block in BLOCK.findall(page.read_text()):
        compile(block, str(page), "exec")


@pytest.mark.spark
@pytest.mark.parametrize("page", TUTORIALS, ids=page_name)
def test_a_tutorial_works_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    """The blocks of a tutorial, as one script, do what the text says: its asserts hold.

    Method: a process of its own, so that no other test's Spark session is found.
    """
    blocks = BLOCK.findall(page.read_text())
    assert blocks  # There is something to run: the test is not vacuous.
    script = tmp_path / "tutorial.py"
    script.write_text("\n".join(blocks))
    done = subprocess.run(
        [sys.executable, script],
        cwd=tmp_path,
        env={**os.environ, "PYSPARK_PYTHON": sys.executable},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
