"""The fuzzer itself: it calls everything, repeats a round by its seed, and finds what is broken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from holdfast.cli.main import COMMANDS
from tests.fuzz.calls import CALLS, STARTS
from tests.fuzz.jobs import BY_ID, make_lake
from tests.fuzz.mutations import KINDS, Damage
from tests.fuzz.picture import Picture

ROOT = Path(__file__).parents[3]
FOUND = "it says that the run has landed, and no row is in the table"


def fuzz(*words: str) -> subprocess.CompletedProcess[str]:
    """Run the fuzzer as `make fuzz` does."""
    command = [sys.executable, "-m", "tests.fuzz", *words]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )


def test_every_command_that_looks_at_a_store_is_called() -> None:
    """A command that is added later must be fuzzed too."""
    called = {name.split()[0] for name in CALLS}
    assert COMMANDS.keys() - {"completion", "drill"} <= called  # A drill starts processes.
    assert STARTS


@pytest.mark.slow_unit
@pytest.mark.filterwarnings("ignore")  # Starts warn about the damage.
def test_a_seed_draws_the_same_damage_again_and_a_lake_can_be_restored(tmp_path: Path) -> None:
    """Otherwise a violation could not be reproduced."""
    lake = make_lake(tmp_path)
    base = Picture.of(tmp_path)
    done = []
    for _ in range(2):
        damage = Damage(lake=lake, job=BY_ID["landed"], rng=Random(7), staged=set())
        done.append([damage.strike() for _ in KINDS])
        assert base.changed()
        base.put_back()
        assert base.changed() == {}
    assert done[0] == done[1]


@pytest.mark.slow_unit
def test_some_rounds_find_nothing() -> None:
    """`make fuzz` does more of them, with other seeds."""
    found = fuzz("--seed", "1", "--rounds", "25")
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.splitlines()[-1].endswith("0 violations, seed 1")


@pytest.mark.slow_unit
@pytest.mark.parametrize(
    ("only", "mends"),
    [
        ("foreign log", ["logs: a record of another run"]),
        ("foreign record that comes next", ["logs: a record", "logs: a receipt names an intent"]),
    ],
)
def test_a_receipt_of_another_run_is_found_again_without_its_fix(
    only: str, mends: list[str]
) -> None:
    """A search that finds nothing proves little unless it also finds a bug put back on purpose."""
    away = [word for mend in mends for word in ("--without", mend)]
    found = fuzz("--seed", "5", "--rounds", "15", "--only", only, *away)
    assert found.returncode == 1, found.stdout + found.stderr
    assert FOUND in found.stdout
