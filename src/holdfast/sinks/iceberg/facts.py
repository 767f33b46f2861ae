"""What a table says of itself that matters to somebody who sets a job up."""

from __future__ import annotations

from dataclasses import dataclass

from pyiceberg.table import Table

from holdfast.sinks.base import TableView


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """A few facts of an Iceberg table."""

    location: str
    format_version: int
    snapshots: int
    # Whether writers are asked to hold their snapshots back until somebody has looked at them.
    is_audited: bool


def table_facts(view: TableView) -> TableFacts:
    """Return the facts of a table that was loaded."""
    table: Table = view.handle
    return TableFacts(
        location=table.location(),
        format_version=table.metadata.format_version,
        snapshots=len(table.metadata.snapshots),
        is_audited=table.properties.get("write.wap.enabled", "false").lower() == "true",
    )
