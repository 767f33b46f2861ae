"""Fixtures of the crash tests: an empty table, and the seed of what happens at random."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conftest import SEED_VARIABLE
from tests.crash.crash_table import CrashTable
from tests.crash.lance_crash_table import AnyCrashTable, LanceCrashTable
from tests.crash.own_cluster import OwnCluster
from tests.stack_access import Stack


@pytest.fixture
def chance(request: pytest.FixtureRequest) -> random.Random:
    """Return a source of random moments, others for each test; print how to have them again."""
    seed, name = os.environ[SEED_VARIABLE], request.node.name
    print(f"\n{name}: again with {SEED_VARIABLE}={seed} make crash ARGS='-s -k {name}'")
    return random.Random(f"{seed} {name}")


@pytest.fixture
def table(request: pytest.FixtureRequest, stack: Stack, tmp_path: Path) -> AnyCrashTable:
    """Return a table that does not exist yet, and a ledger of its own.

    Of Iceberg, unless a test asks for others by name, indirectly.
    """
    match getattr(request, "param", "iceberg"):
        case "lance":
            return LanceCrashTable.on(stack.s3)
        case "lance on minio":
            return LanceCrashTable.on(stack.wanted_minio())
        case "lance on local files":
            return LanceCrashTable.below(tmp_path)
    lake: SparkSession = request.getfixturevalue("lake")
    namespace: str = request.getfixturevalue("namespace")
    ledger: dict[str, Any] = request.getfixturevalue("ledger")
    return CrashTable(stack=stack, lake=lake, name=f"{namespace}.rows", ledger=ledger)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[OwnCluster]:
    """Start a standalone cluster whose executors a test may kill."""
    with OwnCluster.started(tmp_path / "cluster") as cluster:
        yield cluster
