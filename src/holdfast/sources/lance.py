"""Pin a version of a Lance dataset: its fragments, their deletions, and the columns."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from holdfast.errors import (
    InputChangedError,
    SettingsError,
    TableMissingError,
    UnsupportedTableError,
)
from holdfast.ledger.store import answers
from holdfast.model.coverage import Origin, Pins
from holdfast.sources.base import Tagging
from holdfast.sources.filters import chosen, text_of, with_needed
from holdfast.sources.lance_fragments import (
    MARK,
    Place,
    blob_columns,
    holds_blobs,
    is_blob,
    open_pinned,
    pinned_fragment,
    refuse_other,
)
from holdfast.sources.lance_reader import LanceReader
from holdfast.sources.scans import LanceScan


class PinnedLanceScan:
    """A scan together with its dataset."""

    def __init__(self, scan: LanceScan, place: Place) -> None:
        """Keep both; nothing is read yet."""
        self._scan = scan
        self._place = place

    @property
    def identity(self) -> str:
        """What is read from the dataset, as a string; the version is compared separately."""
        scan = self._scan
        facts = {
            "scan": "lance",
            "dataset": self._place.uri,
            "columns": scan.columns,
            "where": text_of(scan.where),
        }
        return json.dumps(facts)

    def pin(self) -> Pins:
        """Choose a version, and find its fragments.

        Raises:
            SettingsError: There is no such version, or the columns or the filter do not fit.
            TableMissingError: There is no such dataset.
            UnsupportedTableError: Workers cannot read a column.
            StoreUnavailableError: The store does not answer.
        """
        dataset = self._open()
        schema = self._schema_of(dataset)
        origin = Origin(version=dataset.version, table_uuid=self._place.identity() or "")
        beside = self._beside() if blob_columns(schema) else Counter()
        uri = self._place.uri
        fragments = sorted(dataset.get_fragments(), key=lambda fragment: fragment.fragment_id)
        files = tuple(pinned_fragment(uri, fragment, beside) for fragment in fragments)
        return Pins(files=files, schema=schema, origin=origin)

    def compare(self, pins: Pins) -> str:
        """Return how this start's rows differ from the pins; empty if they do not.

        Raises:
            InputChangedError: The pinned version is gone, or the dataset was recreated.
            StoreUnavailableError: The store does not answer.
        """
        before, now, uri = self._version(pins), self._scan.version, self._place.uri
        if now is not None and now != before:
            return f"the run reads version {before} of {uri}, but this start names {now}"
        dataset = open_pinned(self._place, before)
        fragments = {fragment.fragment_id: fragment for fragment in dataset.get_fragments()}
        for file in pins.files:
            refuse_other(uri, file, fragments.pop(file.values["fragment"], None))
        for fragment in fragments.values():  # The dataset has more than were pinned.
            refuse_other(uri, pinned_fragment(uri, fragment, {}), None)
        return self._moved(pins, before) if now is None else ""

    def schema(self, pins: Pins) -> pa.Schema:
        """Return the columns that the transform gets."""
        plain = pa.schema(
            [pa.field(column.name, column.type, column.nullable) for column in pins.schema]
        )
        return chosen(plain, self._scan.columns)

    def reader(self, pins: Pins) -> LanceReader:
        """Return the reader that executors use for the pinned fragments."""
        where = self._scan.where
        return LanceReader(
            place=self._place,
            version=self._version(pins),
            schema=pins.schema,
            tagging=Tagging(
                columns=tuple(self.schema(pins).names),
                where=where,
                is_sparse=where is not None or any(file.deletes for file in pins.files),
            ),
        )

    def _version(self, pins: Pins) -> int:
        """Return the pinned version.

        Raises:
            InputChangedError: No version was pinned: the newest would be read instead.
        """
        if pins.origin.version is None:
            raise InputChangedError(what=f"the run's ledger names no version of {self._place.uri}")
        return pins.origin.version

    def _open(self) -> Any:  # noqa: ANN401 - Lance ships no types.
        """Return the dataset at the requested version.

        Raises:
            SettingsError: There is no such version.
        """
        wanted, uri = self._scan.version, self._place.uri
        if wanted is None:
            return self._place.open()
        try:
            return self._place.open(wanted)
        except TableMissingError as error:
            newest = self._place.open().version
            raise SettingsError(
                what=f"{uri} has no version {wanted}",
                cure=f"the newest is {newest}; older ones may have been cleaned up",
            ) from error

    def _schema_of(self, dataset: Any) -> pa.Schema:  # noqa: ANN401
        """Return the requested columns, and those that the filter needs.

        Raises:
            SettingsError: There is no such column, or the filter does not fit.
            UnsupportedTableError: Workers cannot read a column.
        """
        known = pa.schema([_handed_on(column) for column in dataset.schema])
        wanted = chosen(known, self._scan.columns)
        for column in wanted:
            if holds_blobs(dataset.schema.field(column.name).type):
                raise UnsupportedTableError(
                    table=self._place.uri,
                    what=f"column {column.name!r} contains nested blobs",
                    cure="leave it out with columns=",
                )
        # Blobs are fetched only for rows that the filter keeps, so the filter cannot use them.
        blobs = blob_columns(known)
        to_ask = pa.schema([column for column in known if column.name not in blobs])
        found = pa.schema([column for column in wanted if column.name not in blobs])
        needed = with_needed(found, self._scan.where, to_ask)
        return pa.schema([*wanted, *list(needed)[len(found) :]])

    def _beside(self) -> Counter[str]:
        """Return how many bytes of blobs are stored beside each data file."""
        folder = f"{self._place.uri}/data"
        sizes: Counter[str] = Counter()
        with answers(folder):
            for file in self._place.storage.facts(folder):
                name, _, rest = file.uri.removeprefix(f"{folder}/").partition("/")
                sizes[name] += file.size_bytes if rest else 0
        return sizes

    def _moved(self, pins: Pins, before: int) -> str:
        newest = self._place.open()
        uri = self._place.uri
        now = [pinned_fragment(uri, fragment, {}) for fragment in newest.get_fragments()]
        # An index or a setting also makes a version, with the same rows.
        if _rows_of(now) == _rows_of(pins.files):
            return ""
        return (
            f"{uri} has moved from version {before} to {newest.version}, whose rows are not in "
            f"this run; pass version={before} to continue with what it began with, or read the "
            "newer rows in a separate run"
        )


def _handed_on(field: pa.Field) -> pa.Field:
    """Return a column in the form that a transform sees, marked if it is a blob column."""
    if is_blob(field):
        return pa.field(field.name, pa.large_binary(), field.nullable, {MARK: b"true"})
    kind = field.type.value_type if pt.is_dictionary(field.type) else field.type
    return pa.field(field.name, kind, field.nullable)


def _rows_of(files: Any) -> list[Any]:  # noqa: ANN401
    return sorted((file.values["fragment"], file.values["files"], file.deletes) for file in files)
