"""What the command line says about a run, and runs in the states that it must distinguish."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.errors import HoldfastError
from tests.fakes.cli_lake import CliLake
from tests.fakes.memory_table import PostFault
from tests.fakes.rig import Rig, two_partitions
from tests.fakes.watched_transform import WatchedTransform

ALWAYS = 1e-9


def said(lake: CliLake, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run a command that ends well, and return what it printed, with blanks collapsed."""
    assert lake.call(*words) == 0
    return " ".join(capsys.readouterr().out.split())


def facts(lake: CliLake, capsys: pytest.CaptureFixture[str], *words: str) -> Any:  # noqa: ANN401
    """Run a command that ends well, and return its JSON."""
    assert lake.call(*words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def stopped() -> Rig:
    """Return a run that a failing row has stopped."""
    rig, transform = Rig(), WatchedTransform()
    transform.fails_at = {15}
    with pytest.raises(HoldfastError):
        rig.start(transform=transform, retries=0, batch_rows=1, checkpoint_every=ALWAYS)
    return rig


def unknown() -> Rig:
    """Return a run whose driver died while its post was on the way."""
    rig = Rig()
    rig.table.post_faults.append(PostFault.DIES_UNSENT)
    rig.start_and_die(two_partitions())
    return rig
