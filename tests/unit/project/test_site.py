"""The parts of the published site that `make docs` does not build."""

from __future__ import annotations

from pathlib import Path

import pytest

from dev.site import page_of, with_extra_pages
from tests.markdown_pages import ROOT


def test_a_notebook_becomes_a_page_with_what_its_cells_printed() -> None:
    """Cells that print nothing have no block for it; links to the repository are left out."""
    texts = ["# Title", "x = 1", "More.", "print(x)", "Next: [a file](file.py)."]
    page = page_of(texts, [False, True, False, True, False], ["\n", "\n1\n"])
    assert page == (
        "# Title\n\n```python\nx = 1\n```\n\nMore.\n\n```python\nprint(x)\n```\n\n```text\n1\n```\n"
    )


def test_the_settings_of_the_site_name_the_pages_that_are_added() -> None:
    """The rest is as `make docs` builds it."""
    settings = (ROOT / "mkdocs.yml").read_text()
    changed = with_extra_pages(settings, Path("copy")).splitlines()
    added = [line.strip() for line in changed if line not in settings.splitlines()]
    assert added[0] == "docs_dir: copy"
    assert any(line.endswith("tutorial/notebook.md") for line in added)
    assert any(line.endswith("tutorial/sample-report.md") for line in added)
    assert len(changed) == len(settings.splitlines()) + 2


def test_settings_that_were_reworded_are_an_error() -> None:
    """A page that is silently left out of the site would not be missed."""
    with pytest.raises(ValueError, match="has not one line"):
        with_extra_pages("docs_dir: docs\n", Path("copy"))
