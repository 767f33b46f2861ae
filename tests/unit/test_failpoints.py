"""Failpoints: when off they do nothing; when armed, exactly one process takes the fault."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import timeit
from pathlib import Path

import pytest

from holdfast import failpoints
from holdfast.failpoints import VARIABLE, FailpointError, failpoint

COME_TO = "from holdfast.failpoints import failpoint; failpoint('here'); failpoint('there')"


@pytest.fixture
def armed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which this process looks for armed steps."""
    monkeypatch.setattr(failpoints, "_FOLDER", str(tmp_path))
    return tmp_path


def come_to_steps(armed: Path) -> int:
    """Run a process that reaches two steps, and return its exit code."""
    environment = {**os.environ, VARIABLE: str(armed)}
    return subprocess.run([sys.executable, "-c", COME_TO], env=environment, check=False).returncode


def test_an_armed_step_fails_once(armed: Path) -> None:
    """Later calls continue."""
    (armed / "here").write_text("error")
    with pytest.raises(FailpointError, match="here"):
        failpoint("here")
    failpoint("here")
    assert [path.name for path in armed.iterdir()] == [f"here.{os.getpid()}"]


def test_other_steps_are_not_affected(armed: Path) -> None:
    """Only the armed step fails."""
    (armed / "there").write_text("error")
    failpoint("here")
    assert (armed / "there").exists()


def test_a_process_is_killed_at_the_armed_step(tmp_path: Path) -> None:
    """It does not reach the next step."""
    (tmp_path / "here").write_text("kill")
    (tmp_path / "there").write_text("error")
    assert come_to_steps(tmp_path) == -signal.SIGKILL
    assert (tmp_path / "there").exists()


def test_without_the_variable_nothing_is_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "here").write_text("error")
    failpoint("here")
    assert (tmp_path / "here").exists()


def test_a_step_costs_nothing_while_all_are_off() -> None:
    """Less than a microsecond each; a request to a store takes a thousand times as long."""
    best = min(timeit.repeat(lambda: failpoint("here"), number=10_000, repeat=5))
    assert best / 10_000 < 1e-6
