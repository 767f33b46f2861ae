"""Transforms of the in-process tests. Workers import this module, so it does not need pytest."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa


def countries(batch: pa.RecordBatch) -> dict[str, Any]:
    """Return what fits the table: a required country for each id."""
    return {"id": batch.column("id"), "country": [f"c{n}" for n in batch.column("id").to_pylist()]}


class Raises:
    """Raises one error at each batch."""

    def __init__(self, error: Exception) -> None:
        """Take the error."""
        self.error = error

    def __call__(self, _batch: pa.RecordBatch) -> pa.RecordBatch:
        """Raise it."""
        raise self.error


class FailsAt:
    """Leaves a file for each call, and fails when it meets one id."""

    def __init__(self, number: int, calls: Path) -> None:
        """Take the id, and the folder for the files."""
        self.number = number
        self.calls = calls

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Return the countries, or fail."""
        (self.calls / uuid.uuid4().hex).touch()
        if self.number in batch.column("id").to_pylist():
            raise LookupError(f"no country for {self.number}")
        return countries(batch)


class Counted:
    """Leaves a file for each build, named by process and label; marks rows with both."""

    def __init__(self, builds: Path, *, label: str) -> None:
        """Take the folder for the files, and the label."""
        self.mark = f"{label} {os.getpid()}"
        (builds / f"{self.mark} {uuid.uuid4().hex}").touch()

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Return the rows, slowly enough that no worker can do all tasks alone."""
        time.sleep(0.05)
        return {"id": batch.column("id"), "country": [self.mark] * len(batch)}


def nothing(_batch: pa.RecordBatch) -> None:
    """Return None, as a function without a return statement does."""


def text(_batch: pa.RecordBatch) -> str:
    """Return something that has no rows."""
    return "done"


def series(batch: pa.RecordBatch) -> pd.Series[Any]:
    """Return one column without its name."""
    return pd.Series(batch["id"].to_pylist())


def extra_column(batch: pa.RecordBatch) -> dict[str, Any]:
    """Return a column that the table lacks."""
    return {**countries(batch), "planet": ["earth"] * len(batch)}


def missing_column(batch: pa.RecordBatch) -> dict[str, Any]:
    """Return no country, which is required."""
    return {"id": batch.column("id")}


def wrong_type(batch: pa.RecordBatch) -> dict[str, Any]:
    """Return numbers where text is wanted."""
    return {"id": batch.column("id"), "country": batch.column("id")}


def null_in_required(batch: pa.RecordBatch) -> dict[str, Any]:
    """Return a country for all rows but the first."""
    return {**countries(batch), "country": [None, *countries(batch)["country"][1:]]}
