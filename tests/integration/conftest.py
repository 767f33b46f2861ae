"""Fixtures of the tests that watch which rows are computed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.integration.process_watched import WatchedTable


@pytest.fixture
def watched(
    lake: SparkSession, namespace: str, ledger: dict[str, Any], tmp_path: Path
) -> WatchedTable:
    """Return a table that is made at the first append, a fresh ledger, and no notes."""
    notes = tmp_path / "notes"
    notes.mkdir()
    return WatchedTable(lake=lake, namespace=namespace, ledger=ledger, notes=notes)
