"""The scans that a user can name: which table, columns and rows. Needs no engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow.compute as pc

from holdfast.errors import SettingsError
from holdfast.sources.base import checked_columns
from holdfast.sources.files import FilesScan
from holdfast.sources.filters import as_expression
from holdfast.sources.parquet import ParquetScan
from holdfast.storage.locations import normalise

# ---- Scan Iceberg: which table, snapshot, columns and rows. Does not need PyIceberg

# Triples such as `("price", ">", 3)`, which must all hold; or a list of such lists, of which one
# must hold.
Triples = Sequence[Any]


class NamedTable(Protocol):
    """The properties of `hf.IcebergTable` that a scan uses."""

    @property
    def name(self) -> str:
        """The table's name."""

    @property
    def catalog(self) -> Mapping[str, str] | None:
        """The catalog's properties, with credentials; None to use the session's."""

    @property
    def branch(self) -> str:
        """The branch that is read."""


@dataclass(frozen=True, kw_only=True)
class IcebergScan:
    """A snapshot that workers read directly; returned by `hf.scan_iceberg`."""

    table: str | NamedTable
    snapshot_id: int | None = None
    columns: tuple[str, ...] | None = None
    where: str | Triples | None = None


def scan_iceberg(
    table: str | NamedTable,
    *,
    snapshot_id: int | None = None,
    columns: Sequence[str] | None = None,
    where: str | Triples | None = None,
) -> IcebergScan:
    """Read a snapshot of an Iceberg table on the workers, without passing through the JVM.

    The snapshot is pinned when the run begins; no key is needed. Rows removed by position deletes
    are left out. A table with equality deletes or deletion vectors is refused: compact it first.

    Args:
        table: `catalog.namespace.table` through the session's settings, or `hf.IcebergTable`.
        snapshot_id: The snapshot to read; by default the newest when the run begins.
        columns: The columns to read; by default all.
        where: The rows to read: `"price > 3 and country = 'NL'"`, or triples such as
            `[("price", ">", 3)]`. Files that cannot match are not read.

    Raises:
        SettingsError: An argument cannot be used.
    """
    if where is not None and (isinstance(where, bytes) or not isinstance(where, str | Sequence)):
        raise SettingsError(
            what=f"where={where!r}",
            cure='pass a string ("price > 3") or a list of triples (("price", ">", 3))',
        )
    return IcebergScan(
        table=table, snapshot_id=snapshot_id, columns=checked_columns(columns), where=where
    )


# ---- Scan Lance: which dataset, version, columns and rows. Does not need Lance
@dataclass(frozen=True, kw_only=True)
class LanceScan:
    """A version of a dataset that workers read directly; returned by `hf.scan_lance`."""

    uri: str
    version: int | None = None
    columns: tuple[str, ...] | None = None
    where: pc.Expression | None = None
    # Storage options, with credentials: never shown, never stored.
    options: Mapping[str, str] | None = field(default=None, repr=False)


def names_of(scan: Scan) -> tuple[str, ...]:
    """Return what a scan reads, as the user named it: URIs, or a table's name."""
    if isinstance(scan, IcebergScan):
        return (scan.table if isinstance(scan.table, str) else scan.table.name,)
    return (scan.uri,) if isinstance(scan, LanceScan) else scan.paths


def scan_lance(
    uri: str,
    *,
    version: int | None = None,
    columns: Sequence[str] | None = None,
    where: pc.Expression | Sequence[object] | None = None,
    options: Mapping[str, str] | None = None,
) -> LanceScan:
    """Read a version of a Lance dataset on the workers, without passing through the JVM.

    The version is pinned when the run begins; no key is needed. Deleted rows are left out. Blob
    columns are read as bytes, dictionary columns as their values.

    Args:
        uri: The dataset's location: `s3://bucket/folder/name.lance`, or an absolute path.
        version: The version to read; by default the newest when the run begins. If the dataset has
            a newer version at a later start, that start is refused unless it names the version.
        columns: The columns to read; by default all.
        where: The rows to read: an expression (`pc.field("price") > 3`), or a list of triples such
            as `("price", ">", 3)`. Blobs of other rows are not read.
        options: Storage options in Lance's names (`aws_endpoint`, ...) or in Iceberg's
            (`s3.endpoint`, ...). By default the session's `spark.holdfast.scan.*`, else the
            environment's credential chain.

    Raises:
        SettingsError: An argument cannot be used.
    """
    if version is not None and (isinstance(version, bool) or not isinstance(version, int)):
        raise SettingsError(what=f"version={version!r}", cure="pass a version number")
    return LanceScan(
        uri=normalise(uri),
        version=version,
        columns=checked_columns(columns),
        where=as_expression(where),
        options=options,
    )


# ---- The scans that a user can name

Scan = FilesScan | IcebergScan | LanceScan | ParquetScan
