"""What pages name in the repository exists: tests, files, folders."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import holdfast
from tests.markdown_pages import ROOT, code_spans, name_of, pages

PAGES = pages("*.md", "docs/**/*.md", "examples/**/*.md", "tests/**/*.md")
TRUST = ROOT / "docs" / "explanation" / "trust.md"
PROMISES = ROOT / "docs" / "explanation" / "promises.md"
FOLDERS = ("bench", "dev", "docs", "examples", "requirements", "spec", "src", "tests")
# Pages name the results of a benchmark, which do not exist before it runs.
MADE_LATER = "bench/results/"


def named_paths(page: Path) -> list[str]:
    """Return the paths below the repository's root that a page has in backticks."""
    words = [span.split()[0] for span in code_spans(page.read_text()) if span.strip()]
    paths = [word for word in words if word.partition("/")[0] in FOLDERS and "/" in word]
    return [path for path in paths if not path.startswith(MADE_LATER)]


def is_there(path: str) -> bool:
    """Whether a path leads to something: a file, a folder, a pattern, or a test in a file."""
    file, _, test = path.partition("::")
    if not test:
        return any(ROOT.glob(file.rstrip("/")))
    return (ROOT / file).is_file() and test in functions(ROOT / file)


def functions(file: Path) -> set[str]:
    """Return the names of a module's functions."""
    defined = ast.walk(ast.parse(file.read_text()))
    return {
        node.name for node in defined if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_file_and_test_that_a_page_names_is_there(page: Path) -> None:
    """A proof that cannot be found proves nothing."""
    assert [path for path in named_paths(page) if not is_there(path)] == []


def test_the_reference_shows_every_public_name_once() -> None:
    """A new public name must also be documented."""
    page = (ROOT / "docs" / "reference" / "holdfast.md").read_text()
    assert sorted(re.findall(r"^::: holdfast\.(\w+)$", page, re.MULTILINE)) == sorted(
        name for name in holdfast.__all__ if not name.startswith("__")
    )


def test_every_promise_names_a_test_by_its_name() -> None:
    """Each paragraph of the promises is followed by a list of tests with their full names."""
    promised, _, _ = PROMISES.read_text().partition("## What is not promised")
    sections = re.split(r"^## .*$", promised, flags=re.MULTILINE)[1:]
    claims = [claim for section in sections for claim in re.split(r"\n(?=\*\*)", section.strip())]
    assert len(claims) > 20  # They are found: the test is not vacuous.
    assert [claim for claim in claims if "\n- `tests/" not in claim or "::test_" not in claim] == []


def test_each_row_of_the_trust_table_names_its_test() -> None:
    """Each row of the table in trust.md ends with tests, in their own column."""
    rows = [line for line in TRUST.read_text().splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows[1:]]
    assert len(cells) > 10  # They are found: the test is not vacuous.
    assert [row for row in cells if len(row) != 4 or not row[3].startswith("`tests/")] == []


@pytest.mark.parametrize(
    ("path", "there"),
    [
        ("tests/unit/project/test_documentation_names.py", True),
        (
            "tests/unit/project/test_house_rules.py::test_the_rules_look_at_files",
            True,
        ),
        ("tests/unit/project/test_documentation_names.py::test_of_nothing", False),
        ("tests/unit/no_such_file.py::test_of_nothing", False),
        ("tests/unit/project/test_documentation_*.py", True),
        ("tests/crash/", True),
        ("tests/no_such_folder/", False),
    ],
)
def test_a_name_of_something_missing_is_found(path: str, *, there: bool) -> None:
    """Files, tests in files, patterns and folders, existing and missing."""
    assert is_there(path) == there
