"""Lance schemas: as plain values, compared over time, and with a run's mark in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import lance


def schema_json(dataset: lance.LanceDataset) -> dict[str, Any]:
    """Return the dataset's schema as plain JSON values."""
    return {"fields": [_field_json(one) for one in dataset.lance_schema.fields()]}


def schema_changes(began: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Name every change that files staged for the first schema would not survive.

    Added optional columns are fine: fragments without them read as NULL.

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
        if field_now["nullable"] != field["nullable"]:
            word = "no longer" if field_now["nullable"] else "now"
            found.append(f"column {path!r} is {word} required")
    found.extend(
        f"required column {path!r} was added"
        for number, (path, field) in new.items()
        if number not in old and not field["nullable"] and "." not in path
    )
    return found


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


def _flat(fields: Iterable[Mapping[str, Any]], above: str = "") -> Iterator[tuple[str, Any]]:
    for field in fields:
        yield above + field["name"], field
        yield from _flat(field["children"], f"{above}{field['name']}.")
