"""Random histories of a run that computes columns: see `tests.fakes.column_histories`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.conftest import SEED_VARIABLE
from tests.fakes.column_histories import History
from tests.fakes.column_rig import ColumnRig

# Each history takes about a second.
_HISTORIES = 8


@pytest.mark.slow_unit
@pytest.mark.parametrize("number", range(_HISTORIES))
def test_each_row_has_its_own_values_whatever_happens(number: int, tmp_path: Path) -> None:
    """Others write and compact, drivers die and are taken over, answers are lost or late."""
    first = os.environ[SEED_VARIABLE]
    print(f"history {number}: again with {SEED_VARIABLE}={first}")
    History(ColumnRig(str(tmp_path / "t.lance")), int(first) + number).play()
