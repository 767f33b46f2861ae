"""The post: one conditional commit to a Lance dataset, and the schemas it compares.

Lance's own append is not a compare-and-set: it lands on whatever the newest version is, and a post
that is sent twice can land twice. A merge, which names all fragments of the new version, lands only
if nothing but indices and settings has changed since the version that it was built on.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import lance
import msgspec
from lance import LanceDataset, LanceOperation, Transaction
from lance.commit import CommitConflictError
from lance.fragment import FragmentMetadata

from holdfast.errors import (
    CommitRefusedError,
    StoreUnavailableError,
    TableChangedError,
    TableMissingError,
)
from holdfast.failpoints import failpoint
from holdfast.model.stored import Count, Id, typed
from holdfast.sinks.base import ColumnPath, Outcome, TableView
from holdfast.sinks.conform import ELEMENT, KEY, VALUE
from holdfast.sinks.lance.dataset import DatasetPlace, is_gone, read_identity
from holdfast.sinks.lance.history import GoneError, History
from holdfast.text import reason_and_cause

# ---- Lance schemas: as plain values, compared over time, and with a run's mark in them

# How many versions are searched for a column that was dropped and added again.
_LOOKED_THROUGH_MAX = 1000
# Transactions that leave the columns unchanged. For any other the schema is examined.
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
    """A field as stored in a ledger."""

    id: Id
    name: str
    type: str
    nullable: bool
    children: list[_FieldJson]


class _SchemaJson(msgspec.Struct):
    """A schema as stored in a ledger; early ones lack the version."""

    fields: list[_FieldJson]
    version: Count = 0


def schema_json(dataset: lance.LanceDataset) -> dict[str, Any]:
    """Return the dataset's schema as plain JSON values, with the version that it was read from."""
    fields = [_field_json(column) for column in dataset.lance_schema.fields()]
    return {"fields": fields, "version": dataset.version}


def changes_since(
    history: History, schemas: Sequence[Mapping[str, Any]], now: Mapping[str, Any]
) -> list[str]:
    """Name every change since files were staged that makes them unusable.

    Lance gives the number of a dropped column to the next one that is added, so the newest schema
    alone does not distinguish a column from its successor: name, number and type may all be the
    same. Every version in between that may have changed the columns is examined too. Versions that
    were cleaned up, and all but the newest thousand, are skipped: then name, number and type
    decide.

    Args:
        history: The dataset's versions.
        schemas: The schemas that files were staged for, as JSON.
        now: The dataset's current schema, as JSON.

    Raises:
        StoreUnavailableError: The store does not answer.
        RecordDamagedError: One of the schemas, which come from a ledger, is not a schema.
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
    """Name every change that makes files staged for the first schema unusable.

    Added optional columns are fine: fragments without them read as NULL. So is a column that has
    become optional.

    Args:
        began: The schema that files were staged for, as JSON.
        now: The dataset's current schema, as JSON.
    """
    old = {column["id"]: (path, column) for path, column in _flat(began["fields"])}
    new = {column["id"]: (path, column) for path, column in _flat(now["fields"])}
    found = []
    for number, (path, column) in old.items():
        if number not in new:
            found.append(f"column {path!r} was dropped, or its type was changed")
            continue
        path_now, field_now = new[number]
        if path_now != path:
            found.append(f"column {path!r} was renamed to {path_now!r}")
        if field_now["type"] != column["type"]:
            found.append(f"column {path!r} was {column['type']} and is now {field_now['type']}")
        if column["nullable"] and not field_now["nullable"]:
            found.append(f"column {path!r} is now required")
    found.extend(
        f"required column {path!r} was added"
        for number, (path, column) in new.items()
        if number not in old and not column["nullable"] and "." not in path
    )
    return found


def added_columns(began: Mapping[str, Any], now: Mapping[str, Any]) -> frozenset[ColumnPath]:
    """Return the columns that were added since the first schema, whatever their names.

    A column that got the number of a dropped one cannot be distinguished from it, and is left out.

    Args:
        began: The earlier schema, as JSON.
        now: The dataset's current schema, as JSON.

    Raises:
        RecordDamagedError: `began`, which comes from a ledger, is not a schema.
    """
    typed(began, _SchemaJson)
    known = {column["id"] for _, column in _flat(began["fields"])}
    return frozenset(path for number, path in _paths(now["fields"]) if number not in known)


def with_metadata(
    schema: Any,  # noqa: ANN401 - LanceSchema, of which Lance exports no type.
    changes: Mapping[str, str | None],
) -> Any:  # noqa: ANN401
    """Return a Lance schema with changed metadata and exactly the same fields.

    Going through Arrow would renumber the fields, and files would be read as other columns. Lance's
    own way to copy a schema keeps the numbers.

    Args:
        schema: The schema.
        changes: The values to set; None removes a key.
    """
    rebuild, (text, *fields) = schema.__reduce__()
    metadata = json.loads(text)
    for name, value in changes.items():
        if value is None:
            metadata.pop(name, None)
        else:
            metadata[name] = list(value.encode())
    return rebuild(json.dumps(metadata), *fields)


def _field_json(column: Any) -> dict[str, Any]:  # noqa: ANN401 - LanceField.
    arrow, children = column.to_arrow(), column.children()
    return {
        "id": column.id(),
        "name": column.name(),
        # For nested ones only the kind: their children follow.
        "type": str(arrow.type).partition("<")[0] if children else str(arrow.type),
        "nullable": arrow.nullable,
        "children": [_field_json(child) for child in children],
    }


def _paths(
    fields: Iterable[Mapping[str, Any]], above: ColumnPath = ()
) -> Iterator[tuple[int, ColumnPath]]:
    """Yield each column's number and path, with our names for children of lists and maps."""
    for column in fields:
        path = (*above, column["name"])
        yield column["id"], path
        below = column["children"]
        if column["type"].endswith("list"):
            below = [{**child, "name": ELEMENT} for child in below]
        elif column["type"] == "map":
            (entries,) = below
            named = zip((KEY, VALUE), entries["children"], strict=True)
            below = [{**child, "name": name} for name, child in named]
        yield from _paths(below, path)


def _flat(fields: Iterable[Mapping[str, Any]], above: str = "") -> Iterator[tuple[str, Any]]:
    for column in fields:
        yield above + column["name"], column
        yield from _flat(column["children"], f"{above}{column['name']}.")


# ---- The post: one conditional commit to a Lance dataset

_REFUSALS = ("forbidden", "access denied", "accessdenied", "permission denied", "unauthorized")


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """What is to be posted, and the look that it was built on."""

    place: DatasetPlace
    view: TableView
    # A LanceSchema; Lance exports no type for it.
    schema: Any
    fragments: Sequence[FragmentMetadata] = ()
    # Fragments that are there, by their number, as they will be: one that goes has a deletion file
    # over all its rows.
    changed: Mapping[int, FragmentMetadata] = field(default_factory=dict)
    notes: Mapping[str, str] = field(default_factory=dict)

    def send(self) -> tuple[Outcome, int]:
        """Post once, and return the version that it made, if any.

        Anything but a clear answer is unknown, and the mark will show the outcome.

        Raises:
            CommitRefusedError: The store refused permanently.
            TableChangedError: It landed in a dataset that was recreated, or cleaned up meanwhile.
        """
        merge = LanceOperation.Merge(
            [*self._fragments(), *self.fragments],
            self.schema,
            # A new column may be NULL, so other writers' appends may land on top of it.
            preserves_nullability=True,
        )
        landed = self._commit(merge)
        if isinstance(landed, Outcome):
            return landed, 0
        base = self._base.version
        self._refuse_stray(landed, is_whole=History(landed).lets_pass(base, below=landed.version))
        return Outcome.LANDED, int(landed.version)

    def uncover(self, fields: Collection[int]) -> int | None:
        """Take the fragments that change out of the indices on some columns, in one version.

        Lance's merge does this only for columns whose numbers a fragment's files name, and not at
        all for an index that is being built: it would answer with the values from before. The
        version that is made here holds the same rows, which searches find without the indices.

        Args:
            fields: The numbers of the columns, and of all columns above and below them.

        Returns:
            The version; None if it was not made: the dataset must be looked at again.

        Raises:
            CommitRefusedError: The store refused permanently.
            TableChangedError: It landed in a dataset that was recreated, or cleaned up meanwhile.
            StoreUnavailableError: The store does not answer.
        """
        there = self._base.get_fragments()
        update = LanceOperation.Update(
            updated_fragments=[part.metadata for part in there if part.fragment_id in self.changed],
            fields_modified=sorted(fields),
            update_mode="rewrite_columns",
        )
        landed = self._commit(update)
        if isinstance(landed, Outcome):
            return None
        self._refuse_stray(landed, is_whole=History(landed).shows(self._base.version))
        return int(landed.version)

    @property
    def _base(self) -> LanceDataset:
        """The dataset as it was looked at."""
        dataset: LanceDataset = self.view.handle.dataset
        return dataset

    def _fragments(self) -> list[FragmentMetadata]:
        there = [fragment.metadata for fragment in self._base.get_fragments()]
        return [self.changed.get(fragment.id, fragment) for fragment in there]

    def _commit(self, operation: LanceOperation.BaseOperation) -> LanceDataset | Outcome:
        """Send one request, and return the version that it made, or what is known otherwise.

        Raises:
            CommitRefusedError: The store refused permanently.
            StoreUnavailableError: The store does not answer.
        """
        base = self._base
        transaction = Transaction(
            read_version=base.version, operation=operation, transaction_properties=dict(self.notes)
        )
        # Right before the post: Lance itself does not notice versions that were cleaned up since,
        # or another dataset in the same location.
        if not self._lets_pass(base.version) or read_identity(self.place) != self.view.uuid:
            return Outcome.UNSENT
        failpoint("before-lance-commit")
        try:
            return LanceDataset.commit(base, transaction, max_retries=0)
        except CommitConflictError:
            return Outcome.CONFLICT
        except Exception as error:  # noqa: BLE001 - lost answers have any shape.
            return self._outcome_of(error)

    def _refuse_stray(self, landed: LanceDataset, *, is_whole: bool) -> None:
        """Stop if a version may undo what others have done, or is in another dataset.

        Raises:
            TableChangedError: It is.
            StoreUnavailableError: The store does not answer.
        """
        if not is_whole:
            raise TableChangedError(
                table=self.place.uri,
                change=(
                    f"versions since {self._base.version} were cleaned up while version "
                    f"{landed.version} was posted, which may undo their changes: check, and "
                    f"if it does, restore version {landed.version - 1}"
                ),
            )
        if read_identity(self.place) != self.view.uuid:
            raise TableChangedError(
                table=self.place.uri,
                change=(
                    f"it was dropped and recreated while version {landed.version} was posted, "
                    f"which refers to files that are gone: restore version {landed.version - 1}"
                ),
            )

    def _outcome_of(self, error: Exception) -> Outcome:
        """Return the outcome that an error means.

        Raises:
            CommitRefusedError: The store refused permanently.
        """
        text = str(error).lower()
        if any(word in text for word in _REFUSALS):
            reason, cause = reason_and_cause(error, self.place.options)
            raise CommitRefusedError(table=self.place.uri, reason=reason) from cause
        if is_gone(error):
            return Outcome.CONFLICT  # The version that it was built on was cleaned up.
        if isinstance(error, ValueError) and not self._has_changed():
            reason, cause = reason_and_cause(error, self.place.options)
            raise CommitRefusedError(table=self.place.uri, reason=reason) from cause
        return Outcome.UNKNOWN

    def _lets_pass(self, base: int) -> bool:
        """Whether a post that was built on a version can still be correct.

        Raises:
            StoreUnavailableError: The store does not answer.
        """
        try:
            return History(self.place.open()).lets_pass(base)
        except TableMissingError:
            return False

    def _has_changed(self) -> bool:
        try:
            return bool(self.place.open().version != self.view.parent_snapshot_id)
        except (TableMissingError, StoreUnavailableError):
            return True
