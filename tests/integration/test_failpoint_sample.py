"""Some cells of the crash matrix, others in each run: the whole is `make crash`."""

from __future__ import annotations

import os
import random

import pytest

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

SEED_VARIABLE = "HOLDFAST_CRASH_SEED"
SEED = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1_000_000))


@pytest.mark.parametrize("cell", sampled(SEED, 30), ids=lambda cell: cell.name)
def test_a_run_survives(cell: Cell, desk: Desk) -> None:  # noqa: F811
    """Whatever happens at the step, the rows land once."""
    print(f"\n{cell.of} {cell.name}: {desk.play(cell)} (sampled with {SEED_VARIABLE}={SEED})")
