"""What a user names as the target of a write. Plain values: no catalog is asked here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.errors import SettingsError
from holdfast.model.limits import refuse_below
from holdfast.text import without_passwords


@dataclass(frozen=True, kw_only=True)
class Create:
    """How to create the table if there is none.

    Args:
        schema: A pyarrow schema; by default the DataFrame's own.
        partition_by: Columns or transforms: `"country"`, `"day(ts)"`, `"bucket(16, id)"`,
            `"truncate(4, name)"`, `"hour(ts)"`, `"month(ts)"`, `"year(ts)"`.
        properties: Table properties.
    """

    schema: Any = None
    partition_by: Sequence[str] = ()
    properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class IcebergTable:
    """An Iceberg table, by name and catalog.

    Args:
        name: `catalog.namespace.table` when the catalog comes from the Spark session's
            `spark.sql.catalog.<catalog>.*`, `namespace.table` when `catalog` is given.
        catalog: PyIceberg catalog properties (`type`, `uri`, `warehouse`, `s3.endpoint`, ...),
            and the catalog's `name` where it is not "default": an SQL catalog keeps it in
            each row.
        branch: The branch to write; it must exist, unless it is `main`.
    """

    name: str
    # Credentials stand in these properties: never in a repr, a log or an error.
    catalog: Mapping[str, Any] | None = field(default=None, repr=False, kw_only=True)
    branch: str = field(default="main", kw_only=True)


@dataclass(frozen=True)
class LanceTable:
    """A Lance dataset, by place.

    Args:
        uri: Where it stands: `s3://bucket/folder/name.lance`, or an absolute path.
        storage_options: As Lance takes them (`aws_endpoint`, `aws_access_key_id`, ...), or in
            Iceberg's names (`s3.endpoint`, ...). By default the session's
            `spark.holdfast.lance.*`, else the environment's credential chain.
        max_rows_per_file: How many rows make a fragment.
        max_bytes_per_file: How many bytes make one, if that is fewer rows.

    Raises:
        SettingsError: A size is no whole number, or none at all.
    """

    uri: str
    # Credentials stand in these options: never in a repr, a log or an error.
    storage_options: Mapping[str, str] | None = field(default=None, repr=False, kw_only=True)
    max_rows_per_file: int = field(default=1024 * 1024, kw_only=True)
    max_bytes_per_file: int = field(default=1024**3, kw_only=True)

    def __post_init__(self) -> None:
        """Refuse sizes that make no file.

        Raises:
            SettingsError: A size is no whole number, or none at all.
        """
        refuse_below(
            1,
            "LanceTable",
            max_rows_per_file=self.max_rows_per_file,
            max_bytes_per_file=self.max_bytes_per_file,
        )

    def __repr__(self) -> str:
        """Show the place; a password in it is refused only where it is opened."""
        return f"LanceTable({without_passwords(self.uri)!r})"

    @property
    def branch(self) -> str:
        """The only one that is written."""
        return "main"


Target = IcebergTable | LanceTable


def target_of(table: object, branch: str = "main") -> Target:
    """Return the table that the user means: a URI or a path is a Lance dataset.

    Args:
        table: A target, which is returned as it is; a URI or an absolute path; or
            `catalog.namespace.table`. Whatever else a user passes arrives here too.
        branch: Of an Iceberg table that is given by its name.

    Raises:
        SettingsError: It is none of these, or a relative path.
    """
    if isinstance(table, IcebergTable | LanceTable):
        return table
    if not isinstance(table, str):
        kind = type(table)
        raise SettingsError(
            what=f"to= is a {kind.__module__}.{kind.__qualname__}, not a table's name",
            cure='pass "catalog.namespace.table", an hf.IcebergTable(name, catalog={...}), '
            "a Lance dataset's URI or an hf.LanceTable",
        )
    if "://" in table or table.startswith("/"):
        return LanceTable(table)
    if "/" in table or table.endswith(".lance"):
        raise SettingsError(
            what=f"to={table!r} is a relative path",
            cure=f'give the whole path ("{Path(table).absolute()}") or a URI; executors may run in '
            "other folders. For an Iceberg table of that name, pass hf.IcebergTable",
        )
    return IcebergTable(table, branch=branch)
