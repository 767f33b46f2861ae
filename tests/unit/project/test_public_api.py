"""The public API is what its snapshot says, and a change of it is noticed."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path

import pytest

import holdfast
from dev import public_api
from tests.markdown_pages import ROOT


@cache
def api() -> str:
    """Return the public API; it takes seconds, so not while tests are collected."""
    return public_api.public_api()


def test_the_public_api_is_what_the_snapshot_says() -> None:
    """The difference is shown, with what to do about it."""
    assert public_api.difference() == ""


@pytest.mark.parametrize("name", holdfast.__all__)
def test_every_public_name_is_in_the_snapshot(name: str) -> None:
    """Also those that are imported on first use."""
    assert f"holdfast.{name}" in api()


@pytest.mark.parametrize(
    "line",
    [
        "class holdfast.errors.RunBusyError(RunError)",
        "    def sweep(self, *, to: str | Target | None = None) -> Swept",
        "extra iceberg",
        "holdfast runs: --help, --store, --option, --json, --state",
    ],
)
def test_each_kind_of_promise_is_in_the_snapshot(line: str) -> None:
    """Classes with their bases, functions with their arguments, extras, and options."""
    assert line in api().splitlines()


@pytest.mark.slow_unit
@pytest.mark.parametrize(
    ("file", "before", "after"),
    [
        ("run.py", "    def sweep(", "    def tidy("),
        ("run.py", 'takeover: Takeover = "wait"', 'takeover: Takeover = "now"'),
        ("errors.py", "class RunBusyError(RunError)", "class RunBusyError(JobError)"),
        ("sinks/targets.py", "    branch: str = field", "    ref: str = field"),
    ],
    ids=["a method's name", "a default", "an error's base", "a field"],
)
def test_a_change_of_the_api_changes_the_text(
    tmp_path: Path, file: str, before: str, after: str
) -> None:
    """What would break a user's script is seen in the sources, whether or not they can run."""
    shutil.copytree(ROOT / "src" / "holdfast", tmp_path / "holdfast")
    changed = tmp_path / "holdfast" / file
    text = changed.read_text()
    assert before in text
    changed.write_text(text.replace(before, after))
    assert public_api.public_api(tmp_path) != api()


@pytest.mark.slow_unit
def test_a_difference_says_how_to_accept_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A snapshot of an older API names the line that is new, and the command."""
    older = tmp_path / "api.txt"
    older.write_text(api().replace("extra cli\n", ""))
    monkeypatch.setattr(public_api, "SNAPSHOT", older)
    assert "+extra cli" in public_api.difference()
    assert "make public-api" in public_api.difference()
    public_api.main()
    assert public_api.difference() == ""
