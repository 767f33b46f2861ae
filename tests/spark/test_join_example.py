"""The example that joins two DataFrames, as its README runs it: killed, resumed, keys doubled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.example_scripts import (
    EXAMPLES,
    killed_half_way,
    number_in,
    output,
    run_script,
)

EXAMPLE = EXAMPLES / "keyed_join"
ROWS = 1200

pytestmark = [pytest.mark.example, pytest.mark.spark, pytest.mark.timeout(900)]


def test_the_example_rates_again_only_what_was_not_done(tmp_path: Path) -> None:
    """The service's own count shows it: rows in checkpoints are not called for again.

    Method: the kill comes when half of the rows are in checkpoints, so there is work to keep.
    """
    job = (EXAMPLE / "score.py", f"--rows={ROWS}", "--checkpoint-every=500ms")
    done = killed_half_way("join-1", *job, folder=tmp_path)
    assert ROWS / 2 <= done < ROWS
    resumed = output(*job, folder=tmp_path)
    kept = number_in(r"kept +([\d,]+) rows of earlier starts", resumed)
    assert done <= kept < ROWS
    assert number_in(r"calls of earlier starts: ([\d,]+)", resumed) >= kept
    assert number_in(r"of this one: ([\d,]+)", resumed) == ROWS - kept
    assert number_in(r"([\d,]+) order lines were rated", resumed) == ROWS

    again = output(*job, folder=tmp_path)
    assert "already committed" in again
    assert "of this one: 0" in again
    asked = output(EXAMPLE / "query.py", folder=tmp_path)
    assert "1,200 rows in the table, 1,200 different keys" in asked


def test_the_example_shows_keys_that_the_join_has_doubled(tmp_path: Path) -> None:
    """A customer who appears twice doubles keys: nothing is written, and a fix is enough."""
    job = (EXAMPLE / "score.py", "--rows=600", "--run=join-2")
    refused = run_script(*job, "--doubled", folder=tmp_path)
    assert refused.returncode == 1
    assert "DuplicateKeyError: 3 keys appear in more than one input row" in refused.stderr
    assert "0 rows in the table" in output(EXAMPLE / "query.py", folder=tmp_path)

    mended = output(*job, folder=tmp_path)
    assert number_in(r"  rows +([\d,]+)", mended) == 600
    assert "600 rows in the table, 600 different keys" in output(
        EXAMPLE / "query.py", folder=tmp_path
    )
