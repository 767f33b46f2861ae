"""Fixtures of the crash tests: an empty table, and the seed of what happens at random."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.crash.crash_table import CrashTable
from tests.crash.own_cluster import OwnCluster
from tests.stack_access import Stack

SEED_VARIABLE = "HOLDFAST_CRASH_SEED"


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Return a source of random moments; print its seed, and take it back from the environment."""
    seed = int(os.environ.get(SEED_VARIABLE) or random.SystemRandom().randrange(1_000_000))
    name = request.node.name
    print(f"\n{name}: again with {SEED_VARIABLE}={seed} make crash ARGS='-s -k {name}'")
    return random.Random(seed)


@pytest.fixture
def table(stack: Stack, lake: SparkSession, namespace: str, ledger: dict[str, Any]) -> CrashTable:
    """Return a table that does not exist yet, and a ledger of its own."""
    return CrashTable(stack=stack, lake=lake, name=f"{namespace}.rows", ledger=ledger)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[OwnCluster]:
    """Start a standalone cluster whose executors a test may kill."""
    with OwnCluster.started(tmp_path / "cluster") as cluster:
        yield cluster
