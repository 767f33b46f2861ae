"""Materialize: rows of a DataFrame become pinned files of the run's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from holdfast.errors import JobFailedError
from holdfast.model.pins import Pins
from holdfast.sources.materialized.writing import WritePlan, Written
from holdfast.sources.parquet.reader import ByName, ParquetReader
from holdfast.sources.tagging import Tagging
from holdfast.storage.port import Storage


@dataclass(frozen=True)
class Materialized:
    """A DataFrame to be written once: what `hf.materialize` returns."""

    df: Any


def materialize(df: Any) -> Materialized:  # noqa: ANN401 - classic and Connect share no class.
    """Have a DataFrame written once as Parquet under the run, and read from there ever after.

    For rows without a key, costly to read twice, or not the same at each reading. No key is
    needed. The first start writes the rows into the run's store and names the files in one
    record; every later start reads those files, and does not look at the DataFrame again: nothing
    tells whether its rows are still the same. Needs room for the rows until `run.sweep()`.

    Args:
        df: A Spark DataFrame, classic or Connect.
    """
    return Materialized(df)


def identity_of(schema: pa.Schema) -> str:
    """Return what is known of a materialized input without reading it, as one text."""
    columns = [f"{field.name} {field.type}" for field in schema]
    return json.dumps({"scan": "materialized", "columns": columns})


class MaterializedScan:
    """A DataFrame, and where its rows are put."""

    def __init__(
        self,
        storage: Storage,
        folder: str,
        schema: pa.Schema,
        write: Callable[[WritePlan], list[str]],
    ) -> None:
        """Keep the parts; nothing is written yet.

        Args:
            storage: How the run's store is reached.
            folder: Where files are written; no other start uses it.
            schema: The DataFrame's columns.
            write: Runs a plan over the DataFrame, and returns what each of its tasks reported.
        """
        self._storage = storage
        self._folder = folder
        self._schema = schema
        self._write = write
        self.identity = identity_of(schema)

    def pin(self) -> Pins:
        """Write the rows. Files of attempts that did not report are not named.

        Raises:
            ExecutorSetupError: An executor cannot run this job.
            JobFailedError: Spark gave the job up, or a place has reported twice.
        """
        plan = WritePlan(storage=self._storage, folder=self._folder)
        found = sorted(map(Written.from_json, self._write(plan)), key=lambda one: one.place)
        places = [one.place for one in found]
        if len(set(places)) != len(places):
            raise JobFailedError(reason=f"{len(places) - len(set(places))} places reported twice")
        files = tuple(file for one in found for file in one.files)
        return Pins(files=files, schema=self._schema)

    def compare(self, pins: Pins) -> str:  # noqa: ARG002 - whatever they are.
        """Say nothing: the DataFrame is not read again."""
        return ""

    def schema(self, pins: Pins) -> pa.Schema:
        """Return the columns that are handed on."""
        return pins.schema

    def reader(self, pins: Pins) -> ParquetReader:
        """Return what reads the files on executors."""
        return ParquetReader(
            storage=self._storage,
            fit=ByName(schema=pins.schema),
            tagging=Tagging(columns=tuple(pins.schema.names)),
        )
