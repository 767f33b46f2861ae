"""Scan Parquet: which files, and what is in them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.ledger.answers import answers
from holdfast.model.pins import Pins
from holdfast.sources.arguments import NewFiles, checked_columns, checked_paths
from holdfast.sources.filters import as_expression, text_of, with_needed
from holdfast.sources.found_files import compare_files, find_files
from holdfast.sources.parquet.pinning import pinned_files, with_left_out
from holdfast.sources.parquet.reader import ByName, ParquetReader
from holdfast.sources.parquet.schemas import chosen
from holdfast.sources.tagging import Tagging
from holdfast.storage.port import Storage

_SUFFIX = ".parquet"


@dataclass(frozen=True, kw_only=True)
class ParquetScan:
    """Parquet files that workers read themselves: what `hf.scan_parquet` returns."""

    paths: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    where: pc.Expression | None = None
    new_files: NewFiles = "refuse"
    # Storage options, with credentials: never shown, never stored.
    options: Mapping[str, str] | None = field(default=None, repr=False)

    def on(self, storage: Storage) -> PinnedParquetScan:
        """Return the scan with its storage at hand."""
        return PinnedParquetScan(self, storage)


def scan_parquet(
    paths: str | Sequence[str],
    *,
    columns: Sequence[str] | None = None,
    where: pc.Expression | Sequence[object] | None = None,
    new_files: NewFiles = "refuse",
    options: Mapping[str, str] | None = None,
) -> ParquetScan:
    """Read Parquet files on the workers, without a hop through the JVM. No key is needed.

    Files are pinned when the run begins: a file that is changed later is an error that names it.

    Args:
        paths: Files, folders or globs (`s3://raw/products/**/*.parquet`).
        columns: Which columns to read; columns of `day=…` folders count. By default all.
        where: Which rows: an expression (`pc.field("price") > 3`), or a list of such triples as
            `("price", ">", 3)`. Row groups that cannot match are not read.
        new_files: What to do about files that came since the run began: "refuse" to go on, or
            "leave" them to another run.
        options: Storage options in Iceberg's names (`s3.endpoint`, ...). By default the session's
            `spark.holdfast.scan.*`, else the environment's credential chain.

    Raises:
        SettingsError: An argument cannot be used.
    """
    return ParquetScan(
        paths=checked_paths("scan_parquet", paths, new_files),
        columns=checked_columns(columns),
        where=as_expression(where),
        new_files=new_files,
        options=options,
    )


class PinnedParquetScan:
    """A scan with its storage at hand."""

    def __init__(self, scan: ParquetScan, storage: Storage) -> None:
        """Keep both; nothing is read yet."""
        self._scan = scan
        self._storage = storage

    @property
    def identity(self) -> str:
        """What is read of the files, as one text."""
        scan = self._scan
        facts = {"scan": "parquet", "columns": scan.columns, "where": text_of(scan.where)}
        return json.dumps(facts)

    def pin(self) -> Pins:
        """Find the files, and what is in them.

        Raises:
            SettingsError: There are none, or they do not fit together.
            StoreUnavailableError: The storage does not answer.
        """
        scan = self._scan
        found = find_files(self._storage, scan.paths, suffix=_SUFFIX)
        with answers(scan.paths[0]):
            files, schema = pinned_files(self._storage, found)
            needed = with_needed(chosen(schema, scan.columns), scan.where, schema)
            if scan.where is not None:
                files = with_left_out(self._storage, files, scan.where, schema)
        return Pins(files=files, schema=needed)

    def compare(self, pins: Pins) -> str:
        """Say which files are new; empty if none is.

        Raises:
            InputChangedError: A pinned file was changed or deleted.
            StoreUnavailableError: The storage does not answer.
        """
        found = find_files(self._storage, self._scan.paths, suffix=_SUFFIX, must_exist=False)
        may_grow = self._scan.new_files == "leave"
        return compare_files(self._storage, found, pins, may_grow=may_grow)

    def reader(self, pins: Pins) -> ParquetReader:
        """Return what reads the pinned files on executors."""
        where = self._scan.where
        return ParquetReader(
            storage=self._storage,
            fit=ByName(schema=pins.schema),
            tagging=Tagging(
                columns=tuple(self.schema(pins).names),
                where=where,
                is_sparse=where is not None,
            ),
        )

    def schema(self, pins: Pins) -> pa.Schema:
        """Return the columns that are handed on."""
        return chosen(pins.schema, self._scan.columns)
