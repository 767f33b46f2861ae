"""Fixtures for tests that watch which rows are computed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.conftest import SEED_VARIABLE
from tests.integration.hostile_catalogs import left_out
from tests.integration.lance_desk import LanceDesk
from tests.integration.process_watched import WatchedTable


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep one of the chosen catalogs for each thing that is done to a hostile table.

    `make hostile` runs them all.
    """
    if os.environ.get("HOLDFAST_CATALOGS") != "all":
        others = left_out(items, os.environ[SEED_VARIABLE])
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in others])
        items[:] = [item for item in items if item.nodeid not in others]


@pytest.fixture(params=[pytest.param("versitygw", marks=pytest.mark.stack), "local files"])
def lance_desk(request: pytest.FixtureRequest, session: SparkSession, tmp_path: Path) -> LanceDesk:
    """Return a place without a Lance dataset, on each kind of storage."""
    if request.param == "versitygw":
        return LanceDesk.on(session, request.getfixturevalue("stack").s3)
    return LanceDesk.below(session, tmp_path)


@pytest.fixture
def watched(
    lake: SparkSession, namespace: str, ledger: dict[str, Any], tmp_path: Path
) -> WatchedTable:
    """Return a table that is made at the first append, a fresh ledger, and no notes."""
    notes = tmp_path / "notes"
    notes.mkdir()
    return WatchedTable(lake=lake, namespace=namespace, ledger=ledger, notes=notes)
