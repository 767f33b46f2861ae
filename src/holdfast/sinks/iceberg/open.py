"""Open a sink for the table that a user names; create the table if asked to."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, TableAlreadyExistsError
from pyiceberg.io.pyarrow import UnsupportedPyArrowTypeException
from pyiceberg.partitioning import PARTITION_FIELD_ID_START, PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import Table
from pyiceberg.transforms import parse_transform

from holdfast.errors import (
    CommitRefusedError,
    SettingsError,
    TableMissingError,
    UnsupportedTableError,
)
from holdfast.model.lasting import lasts
from holdfast.sinks.base import Sink
from holdfast.sinks.iceberg.catalog import open_catalog, pyiceberg_properties
from holdfast.sinks.iceberg.data_file import CODE_PROPERTIES
from holdfast.sinks.iceberg.loading import load_table
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.sinks.targets import Create, IcebergTable
from holdfast.text import reason_and_cause

# ---- Create a table from what the user describes

_WITH_ARGUMENT = re.compile(r"(bucket|truncate)\(\s*(\d+)\s*,\s*([^)]+?)\s*\)")
_PLAIN_TRANSFORM = re.compile(r"(year|month|day|hour)s?\(\s*([^)]+?)\s*\)")


def create_table(
    catalog: Catalog, identifier: str, create: Create, default_schema: pa.Schema
) -> None:
    """Create the table; if another start was faster, leave its table alone.

    Args:
        catalog: An open catalog.
        identifier: `namespace.table`.
        create: The user's request.
        default_schema: The schema to use if the user gave none.

    Raises:
        TableMissingError: The namespace does not exist.
        UnsupportedTableError: A format version other than 2 was requested.
        SettingsError: A partition names no column, a type does not exist in Iceberg, or a property
            names code.
        CommitRefusedError: The catalog did not create the table.
    """
    name = f"{catalog.name}.{identifier}"
    properties = dict(create.properties)
    if properties.setdefault("format-version", "2") != "2":
        raise UnsupportedTableError(
            table=name, what="only format v2 can be created", cure="leave out format-version"
        )
    if named := [name for name in CODE_PROPERTIES if name in properties]:
        # PyIceberg would import it to name the first metadata file, and Holdfast never again.
        raise SettingsError(
            what=f"Create(properties=) names code in {named[0]!r}, which Holdfast does not run",
            cure="leave it out, and set it with the client that will run it",
        )
    arrow = create.schema if create.schema is not None else default_schema
    if not isinstance(arrow, pa.Schema):
        raise SettingsError(
            what=f"Create(schema=) is a {type(arrow).__name__}", cure="pass a pyarrow.Schema"
        )
    try:
        # PyIceberg's conversion without ids is private; its catalogs create tables this way.
        converted: Any = Catalog._convert_schema_if_needed(arrow)  # noqa: SLF001
    except (TypeError, ValueError, UnsupportedPyArrowTypeException) as error:
        raise SettingsError(
            what=f"the schema has a type that Iceberg lacks: {error}", cure="cast the column"
        ) from error
    schema = assign_fresh_schema_ids(converted)
    spec = partition_spec(schema, create)
    try:
        catalog.create_table(
            identifier,
            schema=schema,
            partition_spec=spec,
            properties=properties,
        )
    except TableAlreadyExistsError:
        return
    except NoSuchNamespaceError as error:
        _, cause = reason_and_cause(error, catalog.properties)
        namespace = identifier.rpartition(".")[0]
        raise TableMissingError(
            table=name,
            what=f"its namespace {namespace!r} does not exist",
            cure=f"create the namespace: CREATE NAMESPACE {catalog.name}.{namespace} in Spark, or "
            f"catalog.create_namespace({namespace!r}) in PyIceberg",
        ) from cause
    except Exception as error:  # noqa: BLE001 - each kind of catalog has errors of its own.
        reason, cause = reason_and_cause(error, catalog.properties)
        raise CommitRefusedError(table=name, reason=reason, retry_safe=not lasts(error)) from cause


def partition_spec(schema: Schema, create: Create) -> PartitionSpec:
    """Return the spec for `partition_by`.

    Raises:
        SettingsError: An entry is not understood, or names no column.
    """
    if isinstance(create.partition_by, str):
        raise SettingsError(
            what=f"partition_by={create.partition_by!r} is a string", cure="pass a list of strings"
        )
    fields: list[PartitionField] = []
    for position, text in enumerate(create.partition_by):
        transform, column, suffix = _parse(text)
        try:
            source = schema.find_field(column)
        except ValueError as error:
            raise SettingsError(
                what=f"partition_by={text!r}: the schema has no column {column!r}",
                cure=f"choose one of {', '.join(schema.column_names)}",
            ) from error
        field = PartitionField(
            source_id=source.field_id,
            field_id=PARTITION_FIELD_ID_START + position,
            transform=parse_transform(transform),
            name=column + suffix,
        )
        if not field.transform.can_transform(source.field_type) or "[0]" in transform:
            raise SettingsError(
                what=f"partition_by={text!r} cannot be applied to a column of type "
                f"{source.field_type}",
                cure="choose another transform",
            )
        if field.name in {other.name for other in fields}:
            raise SettingsError(what=f"partition_by has {text!r} twice", cure="name it once")
        fields.append(field)
    return PartitionSpec(*fields)


def _parse(text: str) -> tuple[str, str, str]:
    """Return the transform, the column and the suffix that Spark gives the partition's name."""
    if match := _WITH_ARGUMENT.fullmatch(text):
        kind, number, column = match.groups()
        suffix = "_bucket" if kind == "bucket" else "_trunc"
        return f"{kind}[{number}]", column, suffix
    if match := _PLAIN_TRANSFORM.fullmatch(text):
        kind, column = match.groups()
        return kind, column, f"_{kind}"
    return "identity", text, ""


# ---- From the user's target to an open sink: find the catalog, create the table if asked to
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
        target: The user's target.
        settings_under: Returns the session's settings below a prefix.
        create: How to create the table if it does not exist.
        default_schema: Returns the new table's schema if the user gave none.
        before_create: Called if the table does not exist, before it is created; may refuse.

    Raises:
        SettingsError: The name or the catalog's settings cannot be used.
        TableMissingError: The table is to be created, but its namespace does not exist.
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
    """Return a table's display name, and a function that loads it for reading.

    Args:
        target: The user's target.
        settings_under: Returns the session's settings below a prefix.

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
        # SQL catalogs store their name in each row; "default" is PyIceberg's own default.
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
            what=f"{target.name!r} does not name a table",
            cure="pass catalog.namespace.table, or namespace.table with catalog={...}",
        )
    return open_catalog(catalog_name, properties), identifier
