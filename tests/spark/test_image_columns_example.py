"""The example that adds a column to a Lance dataset, as its README runs it: killed and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.spark.example_scripts import EXAMPLES, killed_half_way, number_in, output

SCRIPT = EXAMPLES / "image_columns" / "add_vectors.py"

pytestmark = [pytest.mark.example, pytest.mark.spark, pytest.mark.lance, pytest.mark.timeout(600)]


def test_the_example_keeps_vectors_over_a_kill(tmp_path: Path) -> None:
    """Each image has its vector, and a third start computes nothing.

    Method: SIGKILL of driver and JVM, by `holdfast drill`.
    """
    done = killed_half_way("vectors-1", SCRIPT, folder=tmp_path)
    assert 2000 <= done < 4000
    resumed = output(SCRIPT, folder=tmp_path)
    assert number_in(r"kept +([\d,]+) rows of earlier starts", resumed) >= done
    assert "4,000 images, 0 of them without a vector" in resumed
    assert "already committed" in output(SCRIPT, folder=tmp_path)
