"""Some cells of the crash matrix, different ones in each run; `make crash` runs them all."""

from __future__ import annotations

import os

import pytest

from tests.conftest import SEED_VARIABLE
from tests.crash.failpoint_cells import Cell, sampled
from tests.crash.failpoint_desk import Desk
from tests.crash.failpoint_fixtures import desk  # noqa: F401 - a fixture.

pytestmark = [
    pytest.mark.spark,
    pytest.mark.connect,
    pytest.mark.stack,
    pytest.mark.rest,
    pytest.mark.timeout(300),
]

SEED = int(os.environ[SEED_VARIABLE])


@pytest.mark.parametrize("cell", sampled(SEED, 10), ids=lambda cell: cell.name)
def test_a_run_survives(cell: Cell, desk: Desk) -> None:  # noqa: F811
    """Whatever happens at the step, the rows land once."""
    print(f"\n{cell.of} {cell.name}: {desk.play(cell)} (sampled with {SEED_VARIABLE}={SEED})")
