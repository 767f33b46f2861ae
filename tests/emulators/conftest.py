"""The table of docs/versions.md that says what was run on which emulator, written by the run."""

from __future__ import annotations

import os
import re
from importlib.metadata import version
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "versions.md"
CLOUDS = {
    "fake-gcs-server": "Google Cloud Storage",
    "azurite": "Azure Blob Storage",
    "moto": "AWS Glue, with S3",
}
# By test: what it shows, in a word or two.
COLUMNS = {
    "test_an_object_is_created_once": "create if absent",
    "test_a_long_listing_has_each_name_once": "long listing",
    "test_a_killed_run_is_resumed_and_lands_once": "append, kill, resume",
    "test_a_sweep_deletes_what_is_not_needed_and_nothing_else": "abort, sweep",
    "test_of_two_drivers_at_once_both_land_or_one_is_told": "two writers at once",
}
_BLOCK = re.compile(r"(<!-- emulators: [^>]*-->\n).*?(<!-- end -->\n)", re.DOTALL)

_results: dict[tuple[str, str], dict[str, str]] = {}


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Keep how a test ended."""
    server = dict(report.user_properties).get("emulator")
    test = report.nodeid.rpartition("::")[2].partition("[")[0]
    if test in COLUMNS and isinstance(server, tuple) and report.when == "call":
        why = getattr(report, "wasxfail", "").removeprefix("reason: ")
        outcome = f"refused: {why}" if why else report.outcome
        _results.setdefault(server, {})[test] = outcome


def pytest_sessionfinish() -> None:
    """Write the table, if that was asked for: `make emulators` does."""
    if _results and os.environ.get("HOLDFAST_WRITE_VERSIONS"):
        PAGE.write_text(with_table(PAGE.read_text(), table()))


def table() -> str:
    """Return what was run, as a table."""
    lines = [
        f"| service | emulator | {' | '.join(COLUMNS.values())} |",
        "|---" * (2 + len(COLUMNS)) + "|",
    ]
    for (name, of), tests in sorted(_results.items()):
        cells = [CLOUDS[name], f"{name} {of}", *(tests.get(test, "not run") for test in COLUMNS)]
        lines.append(f"| {' | '.join(cells)} |")
    used = ", ".join(f"{name} {version(name)}" for name in ("obstore", "pyiceberg"))
    return "\n".join([*lines, "", f"With {used}.", ""])


def with_table(page: str, text: str) -> str:
    """Return the page with another table.

    Raises:
        ValueError: It has no place for one.
    """
    if len(_BLOCK.findall(page)) != 1:
        raise ValueError(f"{PAGE.name} has not one place for the table of emulators")
    return _BLOCK.sub(lambda found: f"{found[1]}\n{text}\n{found[2]}", page)
