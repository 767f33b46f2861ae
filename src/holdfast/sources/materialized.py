"""Materialize: rows of a DataFrame become pinned Parquet files of the run's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.errors import ExecutorSetupError, JobFailedError
from holdfast.model.coverage import PinnedFile, Pins
from holdfast.sources.base import Tagging
from holdfast.sources.parquet import pinned_file
from holdfast.sources.parquet_reader import ByName, ParquetReader
from holdfast.storage.port import ObjectFacts, Storage
from holdfast.storage.upload import ArrowFile

# ---- Write a task's rows as Parquet files of the run. Runs on an executor, inside a Spark job

# The approximate size of a row group in memory; finished work is counted in rows either way.
_GROUP_BYTES = 16 << 20
_FILE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One task's report to the driver; files of a task that does not report are ignored."""

    place: int
    files: tuple[PinnedFile, ...]

    def to_json(self) -> str:
        """Return the report as JSON text."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Written:
        """Read back the output of `to_json` or of the bootstrap on an executor.

        Raises:
            ExecutorSetupError: The executor cannot run this job.
        """
        value: dict[str, Any] = json.loads(text)
        if problem := value.get("problem"):
            raise ExecutorSetupError(host=problem["host"], **problem["facts"])
        files = tuple(
            PinnedFile(
                uri=file["uri"],
                size_bytes=file["size_bytes"],
                tag=file["tag"],
                group_rows=tuple(file["group_rows"]),
                group_bytes=tuple(file["group_bytes"]),
            )
            for file in value["files"]
        )
        return cls(place=value["place"], files=files)


@dataclass(frozen=True, kw_only=True)
class WritePlan:
    """The work of every task of the job. Pickled on the driver, never stored."""

    storage: Storage
    folder: str

    def run(self, batches: Iterable[pa.RecordBatch], *, place: int, attempt: int) -> Written:
        """Write one task's rows.

        Args:
            batches: The task's input.
            place: Spark's partition id.
            attempt: Spark's task attempt id, so that no two attempts write to the same name.
        """
        writer = _Files(self.storage, f"{self.folder}/{place:06d}-{attempt}")
        try:
            for batch in batches:
                writer.add(batch)
            return Written(place=place, files=tuple(writer.finish()))
        except BaseException:
            writer.abandon()
            raise


class _Files:
    """Files that are written one after another, row group by row group."""

    def __init__(self, storage: Storage, name: str) -> None:
        self._storage = storage
        self._name = name
        self._held: list[pa.RecordBatch] = []
        self._held_bytes = 0
        self._open: tuple[str, ArrowFile, pq.ParquetWriter] | None = None
        self._done: list[PinnedFile] = []

    def add(self, batch: pa.RecordBatch) -> None:
        """Add rows."""
        if batch.num_rows:
            self._held.append(batch)
            self._held_bytes += batch.nbytes
        if self._held_bytes >= _GROUP_BYTES:
            self._flush()

    def finish(self) -> list[PinnedFile]:
        """Close the open file, and return all files."""
        self._flush()
        self._close()
        return self._done

    def abandon(self) -> None:
        """Discard the open file."""
        if self._open is not None:
            _, file, writer = self._open
            file.discard()
            writer.close()

    def _flush(self) -> None:
        """Write the buffered rows as one row group."""
        if not self._held:
            return
        rows = pa.Table.from_batches(self._held)
        self._held, self._held_bytes = [], 0
        if self._open is None:
            uri = f"{self._name}-{len(self._done)}.parquet"
            file = ArrowFile(self._storage.open_sink(uri))
            writer = pq.ParquetWriter(
                pa.PythonFile(file, mode="w"),
                rows.schema,
                compression="zstd",
                write_page_checksum=True,
            )
            self._open = uri, file, writer
        _, file, writer = self._open
        writer.write_table(rows, row_group_size=rows.num_rows)
        if file.size_bytes >= _FILE_BYTES:
            self._close()

    def _close(self) -> None:
        if self._open is None:
            return
        (uri, file, writer), self._open = self._open, None
        writer.close()
        file.finish()
        facts = ObjectFacts(uri=uri, size_bytes=file.size_bytes, tag="", modified=0.0)
        self._done.append(pinned_file(facts, writer.writer.metadata, {}))


# ---- Materialize: rows of a DataFrame become pinned files of the run's own
@dataclass(frozen=True)
class Materialized:
    """A DataFrame to be written once; returned by `hf.materialize`."""

    df: Any


def materialize(df: Any) -> Materialized:  # noqa: ANN401 - classic and Connect share no class.
    """Have a DataFrame written once as Parquet under the run, and always read from there.

    For rows that have no key, are costly to read twice, or differ between reads. No key is needed.
    The first start writes the rows into the run's store and names the files in one record; every
    later start reads those files and does not look at the DataFrame again, so a change in its rows
    goes unnoticed. Needs space for the rows until `run.sweep()`.

    Args:
        df: A Spark DataFrame, classic or Connect.
    """
    return Materialized(df)


def identity_of(schema: pa.Schema) -> str:
    """Return what is known of a materialized input without reading it, as a string."""
    columns = [f"{field.name} {field.type}" for field in schema]
    return json.dumps({"scan": "materialized", "columns": columns})


class MaterializedScan:
    """A DataFrame, and the folder its rows are written to."""

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
            write: Runs a plan over the DataFrame, and returns the reports of its tasks.
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
            JobFailedError: Spark gave up on the job, or a partition reported twice.
        """
        plan = WritePlan(storage=self._storage, folder=self._folder)
        found = sorted(map(Written.from_json, self._write(plan)), key=lambda written: written.place)
        places = [written.place for written in found]
        if len(set(places)) != len(places):
            raise JobFailedError(
                reason=f"{len(places) - len(set(places))} partitions reported twice"
            )
        files = tuple(file for written in found for file in written.files)
        return Pins(files=files, schema=self._schema)

    def compare(self, pins: Pins) -> str:  # noqa: ARG002 - whatever they are.
        """Return no difference: the DataFrame is not read again."""
        return ""

    def schema(self, pins: Pins) -> pa.Schema:
        """Return the columns that the transform gets."""
        return pins.schema

    def reader(self, pins: Pins) -> ParquetReader:
        """Return the reader that executors use for the files."""
        return ParquetReader(
            storage=self._storage,
            fit=ByName(schema=pins.schema),
            tagging=Tagging(columns=tuple(pins.schema.names)),
        )
