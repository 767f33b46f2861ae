"""A driver's log messages: one line for each step, in the order of the protocol."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest

from holdfast.errors import TransformError
from tests.fakes.rig import Rig
from tests.fakes.watched_transform import WatchedTransform

CANARY = "canary-7f3a"


@pytest.fixture
def steps(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    """Capture the log at INFO."""
    caplog.set_level(logging.INFO, "holdfast")
    return caplog


def said(steps: pytest.LogCaptureFixture) -> list[str]:
    """Return the messages since the last call, without the run's id, which each of them has."""
    assert {vars(record)["holdfast_run"] for record in steps.records} == {"r"}
    assert {record.levelname for record in steps.records} == {"INFO"}
    found = [re.sub(r"snapshot \d+", "snapshot S", message) for message in steps.messages]
    assert all(message.startswith("run r: ") for message in found)
    steps.clear()
    return [message.removeprefix("run r: ") for message in found]


def test_a_run_in_one_start(steps: pytest.LogCaptureFixture) -> None:
    """From the claim to the landing."""
    rig = Rig()
    rig.start()
    assert said(steps) == [
        "claimed: start 1, 0 rows kept",
        "pass 1 (rows): 20 rows left; computes all rows",
        "sealed: 20 rows, 0 chunks, complete",
        "posted intent 4 (20 rows): landed",
        "landed: snapshot S, 20 rows",
    ]
    rig.start()
    assert said(steps) == ["already landed as snapshot S"]


def test_a_failure_and_a_resume(steps: pytest.LogCaptureFixture) -> None:
    """The log holds the error's name, never its text, which may contain values of a row."""
    rig, transform = Rig(), WatchedTransform()
    chunks: dict[str, Any] = {"batch_rows": 1, "checkpoint_every": 1e-9, "retries": 0}

    def fail() -> None:
        raise ValueError(CANARY)

    transform.at[15] = fail
    with pytest.raises(TransformError, match=CANARY):
        rig.start(transform=transform, **chunks)
    assert said(steps) == [
        "claimed: start 1, 0 rows kept",
        "pass 1 (rows): 20 rows left; computes all rows",
        "stopped: TransformError",
    ]
    rig.start(transform=transform, **chunks)
    assert said(steps) == [
        "claimed: start 2, 15 rows kept",
        "sealed: 15 rows, 5 chunks",
        "pass 1 (rows): 5 rows left; resumes where the last start ended",
        "sealed: 20 rows, 5 chunks",
        "pass 2 (replay): 0 rows left; writes chunks of ended tasks to table files",
        "sealed: 20 rows, 0 chunks, complete",
        "posted intent 11 (20 rows): landed",
        "landed: snapshot S, 20 rows",
    ]


def test_an_input_that_was_not_counted(steps: pytest.LogCaptureFixture) -> None:
    """The number of rows that are left is not known."""
    Rig().start(verify_input=False)
    assert "pass 1 (rows): unknown number of rows left; computes all rows" in said(steps)


def test_nothing_is_printed_by_default(capfd: pytest.CaptureFixture[str]) -> None:
    """We add no handler to the logger, and Python does not print INFO without one."""
    assert logging.getLogger("holdfast").handlers == []
    Rig().start()
    assert capfd.readouterr() == ("", "")
