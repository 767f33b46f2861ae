"""Scan Iceberg: which table, snapshot, columns and rows. PyIceberg is not needed to say so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.errors import SettingsError
from holdfast.sources.arguments import checked_columns

# Triples as `("price", ">", 3)`: all must hold; or lists of such lists, of which one must.
Triples = Sequence[Any]


class NamedTable(Protocol):
    """What `hf.IcebergTable` says of a table."""

    @property
    def name(self) -> str:
        """Its name."""

    @property
    def catalog(self) -> Mapping[str, str] | None:
        """The properties of its catalog, with credentials; None for the session's."""

    @property
    def branch(self) -> str:
        """Which branch is read."""


@dataclass(frozen=True, kw_only=True)
class IcebergScan:
    """A snapshot that workers read themselves: what `hf.scan_iceberg` returns."""

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
    """Read a snapshot of an Iceberg table on the workers, without a hop through the JVM.

    The snapshot is pinned when the run begins; no key is needed. Rows that position deletes name
    are left out. A table with equality deletes or deletion vectors is refused: compact it first.

    Args:
        table: `catalog.namespace.table` through the session's settings, or `hf.IcebergTable`.
        snapshot_id: Which snapshot; by default the newest when the run begins.
        columns: Which columns to read. By default all.
        where: Which rows: `"price > 3 and country = 'NL'"`, or triples as
            `[("price", ">", 3)]`. Files that cannot match are not read.

    Raises:
        SettingsError: An argument cannot be used.
    """
    if where is not None and (isinstance(where, bytes) or not isinstance(where, str | Sequence)):
        raise SettingsError(
            what=f"where={where!r}",
            cure='give a text ("price > 3") or a list of triples (("price", ">", 3))',
        )
    return IcebergScan(
        table=table, snapshot_id=snapshot_id, columns=checked_columns(columns), where=where
    )
