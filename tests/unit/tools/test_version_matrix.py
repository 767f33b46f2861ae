"""The table of PySparks and Pythons: what counts as tested, and which rows a run replaces."""

from __future__ import annotations

import pytest

from dev.version_matrix import PAGE, PASSED_MIN, PYTHONS, VERSIONS, outcome, with_rows

SKIPPED = """
SKIPPED [2] tests/spark/test_a.py:7: no model
SKIPPED [1] tests/spark/test_b.py:9: no model
SKIPPED [1] tests/spark/test_c.py:11: PySpark 3.5.9 comes without a Connect server
"""


def test_a_row_says_how_many_tests_passed_and_why_others_were_skipped() -> None:
    """Equal reasons are added up; tests that were not chosen are no part of it."""
    printed = f"....\n{SKIPPED}{PASSED_MIN} passed, 4 skipped, 900 deselected in 61.2s (0:01:01)\n"
    assert outcome(0, printed) == (
        f"{PASSED_MIN} passed, 4 skipped; "
        "1 skipped: PySpark 3.5.9 comes without a Connect server; 3 skipped: no model"
    )


@pytest.mark.parametrize(
    ("code", "printed", "found"),
    [
        (1, "2 failed, 99 passed, 3 deselected in 5s", "FAILED: 2 failed, 99 passed"),
        (5, "900 deselected in 5s", "FAILED: 900 deselected"),
        (4, "", "FAILED: it did not start"),
        (0, "3 passed in 5s", f"FAILED: fewer than {PASSED_MIN} tests passed: 3 passed"),
        (0, "9 skipped in 5s", f"FAILED: fewer than {PASSED_MIN} tests passed: 9 skipped"),
    ],
)
def test_what_failed_or_ran_too_little_does_not_count(code: int, printed: str, found: str) -> None:
    """A version on which three tests pass is not tested."""
    assert outcome(code, printed) == found


def test_the_page_has_a_row_for_each_pair() -> None:
    """Rows of pairs that are not run again stay as they are."""
    (spark, python), text = (next(iter(VERSIONS)), PYTHONS[1]), PAGE.read_text()
    page = with_rows(text, {(spark, python): "61 passed"})
    assert f"| {spark} | {python} | 61 passed |\n" in page
    assert with_rows(page, {}) == page
    before = [line for line in with_rows(text, {}).splitlines() if f"| {python} |" not in line]
    assert [line for line in page.splitlines() if f"| {python} |" not in line] == before
    with pytest.raises(ValueError, match="no table"):
        with_rows("# A page without one", {})
