"""The example that reads PDFs, as its README runs it: killed, resumed, asked."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.spark.example_scripts import EXAMPLES, killed_half_way, number_in, output

EXAMPLE = EXAMPLES / "pdf_text"
NEEDED = ("pypdf", "reportlab")
FILES = 120

pytestmark = [pytest.mark.example, pytest.mark.spark, pytest.mark.timeout(900)]


@pytest.fixture(autouse=True)
def _libraries() -> None:
    """Skip where the PDF packages are not installed: Holdfast itself does not need them."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        pytest.skip(f"not installed: {', '.join(missing)}; see examples/pdf_text/README.md")


def test_the_example_reads_each_file_once_over_a_kill(tmp_path: Path) -> None:
    """What can be read is in the table once, the broken file is named, a third start does nothing.

    Method: the kill comes when half of the files are in checkpoints, so there is work to keep.
    """
    made = output(EXAMPLE / "make_pdfs.py", f"--files={FILES}", folder=tmp_path)
    assert f"{FILES} files in" in made
    assert "1900/logbook-0040.pdf is broken" in made

    job = (EXAMPLE / "extract.py", "--checkpoint-every=200ms")
    done = killed_half_way("pdf-text-1", *job, folder=tmp_path)
    assert FILES / 2 <= done < FILES
    resumed = output(*job, folder=tmp_path)
    # The broken file may be among those that were done, but it is not a row that is kept.
    assert done - 1 <= number_in(r"kept +([\d,]+) rows of earlier starts", resumed) < FILES
    assert number_in(r"  rows +([\d,]+)", resumed) == FILES - 1
    assert "not read: logbook-0040.pdf: PdfStreamError: " in resumed
    assert "already committed" in output(*job, folder=tmp_path)

    asked = output(EXAMPLE / "query.py", "with tea", folder=tmp_path)
    assert f"{FILES - 1} rows, {FILES - 1} different files" in asked
    assert number_in(r"(\d+) of them mention 'with tea'", asked) == 16
    assert "logbook-0000.pdf, 6 pages: Log of the Marigold, bound for Lisbon with tea." in asked
