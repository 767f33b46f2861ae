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
    pytest.mark.timeout(1800),
]

SEED_VARIABLE = "HOLDFAST_CRASH_SEED"
CELLS_IN_A_SAMPLE = 30


def test_runs_survive_a_sample_of_faults(desk: Desk) -> None:  # noqa: F811
    """Whatever happens at these steps, the rows land once."""
    seed = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1_000_000))
    print(f"\nagain with {SEED_VARIABLE}={seed}")
    wrong: list[tuple[Cell, str]] = []
    for cell in sampled(seed, CELLS_IN_A_SAMPLE):
        try:
            print(f"{cell.of} {cell.name}: {desk.play(cell)}", flush=True)
        except AssertionError as error:
            wrong.append((cell, str(error)))
    assert not wrong, f"with {SEED_VARIABLE}={seed}"
