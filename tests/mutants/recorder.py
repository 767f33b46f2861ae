"""A pytest plugin that records which test executes which lines: see `reach`.

Measuring begins when it is imported, because what a module executes at import counts too.
"""

from __future__ import annotations

import os
from collections.abc import Generator
from pathlib import Path

import coverage
import pytest

# The folder that each process writes its data into.
FOLDER_VARIABLE = "HOLDFAST_REACH"

_measured = coverage.Coverage(
    data_file=Path(os.environ[FOLDER_VARIABLE]) / f"{os.getpid()}.coverage",
    include=["*/src/holdfast/*"],
    concurrency=["greenlet", "thread"],
    config_file=False,
    messages=False,
)
_measured.start()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Count what is executed towards the test."""
    _measured.switch_context(item.nodeid)
    try:
        return (yield)
    finally:
        _measured.switch_context("")


def pytest_sessionfinish() -> None:
    """Write what was measured."""
    _measured.stop()
    _measured.save()
