"""`holdfast report`: the file that it writes, and what it says when it cannot."""

from __future__ import annotations

import argparse
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli import main as command_line
from holdfast.cli import report
from tests.fakes.pages import killed_twice
from tests.fakes.rig import RUN_ID


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:  # noqa: ANN401 - a function.
    """Return the command, as a user types it, on the run of a rig."""
    rig = killed_twice()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "open_known_ledger", lambda _: rig.ledger())
    return lambda *words: command_line.main(["report", RUN_ID, *words])


def test_the_command_writes_a_file_and_prints_its_path(
    command: Any,  # noqa: ANN401 - a function.
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The file is named after the run, or as `--out` says."""
    assert command() == 0
    written = tmp_path / f"holdfast-{RUN_ID}.html"
    assert capsys.readouterr().out.strip() == str(written)
    assert written.read_text(encoding="utf-8").startswith("<!doctype html>")
    assert command("--out", "page.html") == 0
    assert (tmp_path / "page.html").exists()


def test_the_command_prints_facts_for_programs(
    command: Any,  # noqa: ANN401 - a function.
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It prints the facts of the page, and writes no file."""
    assert command("--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["head"]["word"] == "committed"
    assert [start["rows"] for start in found["starts"]] == [5, 10, 5]
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_cannot_be_written_is_named(
    command: Any,  # noqa: ANN401 - a function.
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It is an error with exit code 1, not a crash."""
    assert command("--out", "no/such/folder/page.html") == 1
    assert "no/such/folder/page.html" in capsys.readouterr().err


def test_the_name_of_the_file_is_safe_for_any_run_id(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An id may hold what a file name cannot."""
    rig = killed_twice()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(report, "open_known_ledger", lambda _: rig.ledger())
    given = argparse.Namespace(run="../a b/<script>", json=False, out=None)
    assert report.run(given) == 0
    (written,) = tmp_path.iterdir()
    assert re.fullmatch(r"holdfast-[A-Za-z0-9._=-]+\.html", written.name)


def test_a_run_that_does_not_exist_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A wrong id must not look like a run that has done nothing."""
    assert command_line.main(["report", "r", "--store", str(tmp_path)]) == 1
    assert "there is no run 'r'" in capsys.readouterr().err


def test_a_missing_package_is_named_with_the_cure(
    command: Any,  # noqa: ANN401 - a function.
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The page needs an extra; its facts as JSON do not."""
    for name in list(sys.modules):
        if name.startswith("holdfast.pages.") or name.split(".")[0] == "jinja2":
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "jinja2", None)
    assert command() == 1
    said = capsys.readouterr().err
    assert "jinja2" in said
    assert 'pip install ".[cli]"' in said
    assert command("--json") == 0
