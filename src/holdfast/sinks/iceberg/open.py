"""From what a user names to an open sink: find the catalog, create the table if asked to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table

from holdfast.errors import SettingsError, TableMissingError
from holdfast.sinks.base import Sink
from holdfast.sinks.iceberg.catalog import open_catalog
from holdfast.sinks.iceberg.create import create_table
from holdfast.sinks.iceberg.loading import load_table
from holdfast.sinks.iceberg.settings import pyiceberg_properties
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.sinks.targets import Create, IcebergTable


def open_sink(
    target: IcebergTable,
    *,
    settings_under: Callable[[str], Mapping[str, str]],
    create: Create | None,
    default_schema: Callable[[], pa.Schema],
    before_create: Callable[[Sink], object] = lambda _: None,
) -> IcebergSink:
    """Open the table's catalog and, if asked to, create the table.

    Args:
        target: What the user named.
        settings_under: Gives the session's settings below a prefix.
        create: How to create the table if there is none.
        default_schema: Gives the new table's schema when the user gave none.
        before_create: Called when there is no table, before one is created; may refuse it.

    Raises:
        SettingsError: The name or the catalog's settings cannot be used.
        TableMissingError: The table is to be created, and its namespace does not exist.
    """
    catalog, identifier = _find_catalog(target, settings_under)
    sink = IcebergSink(catalog, identifier, target.branch)
    if create is not None:
        try:
            sink.load()
        except TableMissingError:
            before_create(sink)
            schema = create.schema if create.schema is not None else default_schema()
            create_table(catalog, identifier, create, schema)
    return sink


def table_loader(
    target: IcebergTable, settings_under: Callable[[str], Mapping[str, str]]
) -> tuple[str, Callable[[], Table]]:
    """Return a table's name for people, and what looks at it afresh, for reading.

    Args:
        target: What the user named.
        settings_under: Gives the session's settings below a prefix.

    Raises:
        SettingsError: The name or the catalog's settings cannot be used.
    """
    catalog, identifier = _find_catalog(target, settings_under)
    name = f"{catalog.name}.{identifier}"
    return name, partial(load_table, catalog, identifier, name)


def _find_catalog(
    target: IcebergTable, settings_under: Callable[[str], Mapping[str, str]]
) -> tuple[Catalog, str]:
    """Open the catalog, and return the table's name within it.

    Raises:
        SettingsError: The name or the catalog's settings cannot be used.
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
                what=f"{target.name!r}: the session has no catalog {catalog_name!r}",
                cure=f"set {prefix}*, or pass hf.IcebergTable(name, catalog={{...}})",
            )
        properties = pyiceberg_properties(catalog_name, settings)
    if "." not in identifier:
        raise SettingsError(
            what=f"{target.name!r} names no table",
            cure="give catalog.namespace.table, or namespace.table with catalog={...}",
        )
    return open_catalog(catalog_name, properties), identifier
