"""A CI run that is out of time skips the tests that have not begun, and says so."""

from __future__ import annotations

import time

import pytest

from tests.conftest import UNTIL_VARIABLE, pytest_runtest_setup


def test_a_test_that_begins_too_late_is_skipped_with_the_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before the limit, and without one, no test is skipped."""
    monkeypatch.delenv(UNTIL_VARIABLE, raising=False)
    pytest_runtest_setup()
    monkeypatch.setenv(UNTIL_VARIABLE, str(time.time() + 60))
    pytest_runtest_setup()
    monkeypatch.setenv(UNTIL_VARIABLE, str(time.time() - 1))
    with pytest.raises(pytest.skip.Exception, match="the time for tests ended"):
        pytest_runtest_setup()
