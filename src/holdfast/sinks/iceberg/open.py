"""From what a user names to an open sink: find the catalog, create the table if asked to."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa

from holdfast.errors import SettingsError, TableMissingError
from holdfast.sinks.iceberg.catalog import open_catalog
from holdfast.sinks.iceberg.create import create_table
from holdfast.sinks.iceberg.settings import pyiceberg_properties
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.sinks.targets import Create, IcebergTable


def open_sink(
    target: IcebergTable,
    *,
    settings_under: Callable[[str], Mapping[str, str]],
    create: Create | None,
    default_schema: pa.Schema,
) -> IcebergSink:
    """Open the table's catalog and, if asked to, create the table.

    Args:
        target: What the user named.
        settings_under: Gives the session's settings below a prefix.
        create: How to create the table if there is none.
        default_schema: The new table's schema when the user gave none.

    Raises:
        SettingsError: The name or the catalog's settings cannot be used.
        TableMissingError: The table is to be created, and its namespace does not exist.
    """
    if target.catalog is not None:
        properties, identifier = dict(target.catalog), target.name
        # SQL catalogs keep their name in each row; "default" is PyIceberg's own default.
        catalog_name = properties.pop("name", "default")
    else:
        catalog_name, _, identifier = target.name.partition(".")
        prefix = f"spark.sql.catalog.{catalog_name}."
        settings = settings_under(prefix)
        if not settings:
            raise SettingsError(
                what=f"to={target.name!r}: the session has no catalog {catalog_name!r}",
                cure=f"set {prefix}*, or pass hf.IcebergTable(name, catalog={{...}})",
            )
        properties = pyiceberg_properties(catalog_name, settings)
    if "." not in identifier:
        raise SettingsError(
            what=f"{target.name!r} names no table",
            cure="give catalog.namespace.table, or namespace.table with catalog={...}",
        )
    catalog = open_catalog(catalog_name, properties)
    sink = IcebergSink(catalog, identifier, target.branch)
    if create is not None:
        try:
            sink.load()
        except TableMissingError:
            create_table(catalog, identifier, create, default_schema)
    return sink
