"""Lance schemas: as plain values, compared over time, and with a run's mark in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import lance
import msgspec

from holdfast.model.stored import Count, Id, typed
from holdfast.sinks.base import ColumnPath
from holdfast.sinks.conform import ELEMENT, KEY, VALUE
from holdfast.sinks.lance.history import GoneError, History

# How many versions are looked through for a column that was dropped and added again.
_LOOKED_THROUGH_MAX = 1000
# Transactions that leave the columns as they are. Of any other the schema is looked at.
_SAME_COLUMNS = frozenset(
    {
        "Append",
        "CreateIndex",
        "DataReplacement",
        "Delete",
        "ReserveFragments",
        "Rewrite",
        "Update",
        "UpdateConfig",
    }
)


class _FieldJson(msgspec.Struct):
    """A field as a ledger has it."""

    id: Id
    name: str
    type: str
    nullable: bool
    children: list[_FieldJson]


class _SchemaJson(msgspec.Struct):
    """A schema as a ledger has it; at first without the version."""

    fields: list[_FieldJson]
    version: Count = 0


def schema_json(dataset: lance.LanceDataset) -> dict[str, Any]:
    """Return the dataset's schema as plain JSON values, with the version that it was read from."""
    fields = [_field_json(field) for field in dataset.lance_schema.fields()]
    return {"fields": fields, "version": dataset.version}


def changes_since(
    history: History, schemas: Sequence[Mapping[str, Any]], now: Mapping[str, Any]
) -> list[str]:
    """Name every change since files were staged that they would not survive.

    Lance gives the number of a dropped column to the next one that is added, so the newest schema
    alone does not tell a column from its successor: name, number and type may all be the same.
    Every version in between that may have changed the columns is looked at too. Versions that were
    cleaned away, and all but the newest thousand, tell nothing: then name, number and type decide.

    Args:
        history: The dataset's versions.
        schemas: The schemas that files were staged for, as JSON.
        now: The dataset's schema now, as JSON.

    Raises:
        StoreUnavailableError: The store does not answer.
        RecordDamagedError: One of the schemas is none: they come from a ledger.
    """
    for schema in schemas:
        typed(schema, _SchemaJson)
    for schema in schemas:
        if found := schema_changes(schema, now):
            return found
    newest = int(now["version"])
    since = {schema.get("version", newest): schema for schema in schemas}
    first = max(min(since, default=newest), newest - _LOOKED_THROUGH_MAX)
    for version in range(first + 1, newest):
        try:
            if history.step(version).kind in _SAME_COLUMNS:
                continue
            between = schema_json(history.opened(version))
        except GoneError:
            continue
        for began, schema in since.items():
            if began < version and (found := schema_changes(schema, between)):
                return [f"in version {version}: {change}" for change in found]
    return []


def schema_changes(began: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name every change that files staged for the first schema would not survive.

    Added optional columns are fine: fragments without them read as NULL. So is a column that need
    no longer be filled.

    Args:
        began: The schema that files were staged for, as JSON.
        now: The dataset's schema now, as JSON.
    """
    old = {field["id"]: (path, field) for path, field in _flat(began["fields"])}
    new = {field["id"]: (path, field) for path, field in _flat(now["fields"])}
    found = []
    for number, (path, field) in old.items():
        if number not in new:
            found.append(f"column {path!r} was dropped, or its type was changed")
            continue
        path_now, field_now = new[number]
        if path_now != path:
            found.append(f"column {path!r} was renamed to {path_now!r}")
        if field_now["type"] != field["type"]:
            found.append(f"column {path!r} was {field['type']} and is {field_now['type']}")
        if field["nullable"] and not field_now["nullable"]:
            found.append(f"column {path!r} is now required")
    found.extend(
        f"required column {path!r} was added"
        for number, (path, field) in new.items()
        if number not in old and not field["nullable"] and "." not in path
    )
    return found


def added_columns(began: Mapping[str, Any], now: Mapping[str, Any]) -> frozenset[ColumnPath]:
    """Return the columns that have come since the first schema, whatever they are called.

    One that has got the number of a dropped column is not told from it, and not among them.

    Args:
        began: The schema of then, as JSON.
        now: The dataset's schema now, as JSON.

    Raises:
        RecordDamagedError: The first is no schema: it comes from a ledger.
    """
    typed(began, _SchemaJson)
    known = {field["id"] for _, field in _flat(began["fields"])}
    return frozenset(path for number, path in _paths(now["fields"]) if number not in known)


def with_metadata(
    schema: Any,  # noqa: ANN401 - LanceSchema, of which Lance exports no type.
    changes: Mapping[str, str | None],
) -> Any:  # noqa: ANN401
    """Return a Lance schema with other metadata, and the very same fields.

    By way of Arrow the fields would be numbered anew, and files read as other columns: the way
    that Lance itself copies a schema keeps them.

    Args:
        schema: The schema.
        changes: What to set; None to remove it.
    """
    rebuild, (text, *fields) = schema.__reduce__()
    metadata = json.loads(text)
    for name, value in changes.items():
        if value is None:
            metadata.pop(name, None)
        else:
            metadata[name] = list(value.encode())
    return rebuild(json.dumps(metadata), *fields)


def _field_json(field: Any) -> dict[str, Any]:  # noqa: ANN401 - LanceField.
    arrow, children = field.to_arrow(), field.children()
    return {
        "id": field.id(),
        "name": field.name(),
        # Of nested ones only the kind: their children follow.
        "type": str(arrow.type).partition("<")[0] if children else str(arrow.type),
        "nullable": arrow.nullable,
        "children": [_field_json(one) for one in children],
    }


def _paths(
    fields: Iterable[Mapping[str, Any]], above: ColumnPath = ()
) -> Iterator[tuple[int, ColumnPath]]:
    """Give the number and the path of each column, with our words for what lists and maps hold."""
    for field in fields:
        path = (*above, field["name"])
        yield field["id"], path
        below = field["children"]
        if field["type"].endswith("list"):
            below = [{**one, "name": ELEMENT} for one in below]
        elif field["type"] == "map":
            (entries,) = below
            named = zip((KEY, VALUE), entries["children"], strict=True)
            below = [{**one, "name": name} for name, one in named]
        yield from _paths(below, path)


def _flat(fields: Iterable[Mapping[str, Any]], above: str = "") -> Iterator[tuple[str, Any]]:
    for field in fields:
        yield above + field["name"], field
        yield from _flat(field["children"], f"{above}{field['name']}.")
