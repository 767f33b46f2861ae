"""Manifests that foreign writers wrote, rewritten without some of their files.

A rewritten manifest is the old Avro file with its own schema and metadata; only the status and the
numbers of its entries change. PyIceberg's model is not used: it drops the fields of format v3, and
it cannot write a manifest whose partition column was dropped from the table.

What an entry says about its data file is copied byte by byte, and decoded only as far as it is
needed: most of it is statistics. Logical types are ignored: a date of the year 10000 is a number
here, and a number again where a file has to be encoded anew.

What readers derive from a manifest's position in the table's history is written into each entry
that stays, because the new manifest has another position: its snapshot id, both sequence numbers
and, in v3, its first row id. Entries that are removed have no snapshot id: readers give them that
of the snapshot that removes them.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, cast
from uuid import UUID

import fastavro
from pyiceberg.manifest import (
    UNASSIGNED_SEQ,
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestFile,
    PartitionFieldSummary,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.typedef import Record
from pyiceberg.utils.decimal import unscaled_to_decimal

from holdfast.sinks.iceberg.avro import avro_file, blocks, read_header

# ---- Rows of Avro files, as they are stored


def encoded(schema: Any, row: Mapping[str, Any]) -> bytes:  # noqa: ANN401 - what `parsed` gave.
    """Return a row in the form in which an Avro file stores it."""
    found = io.BytesIO()
    fastavro.schemaless_writer(found, schema, row)
    return found.getvalue()


def parsed(schema: Any) -> Any:  # noqa: ANN401 - a schema is any JSON.
    """Return a schema by which values are read and written as they are stored."""
    return fastavro.parse_schema(_plain(schema))


def _plain(schema: Any) -> Any:  # noqa: ANN401 - a schema is any JSON.
    """Return a schema without logical types, so that values are read and written as stored."""
    if isinstance(schema, dict):
        return {name: _plain(part) for name, part in schema.items() if name != "logicalType"}
    if isinstance(schema, list):
        return [_plain(part) for part in schema]
    return schema


# ---- The entries of a manifest

_STATUS, _SNAPSHOT_ID, _DATA_FILE, _SEQUENCE_NUMBER, _FILE_SEQUENCE_NUMBER = 0, 1, 2, 3, 4
_FILE_PATH, _PARTITION, _ROW_COUNT, _FILE_SIZE = 100, 102, 103, 104
_CONTENT, _FIRST_ROW_ID = 134, 142
_FILE_FORMAT, _KEY_METADATA, _EQUALITY_IDS, _SORT_ORDER_ID = 101, 131, 135, 140
_REFERENCED = 143
# The column of a file of position deletes that names data files.
_DELETED_PATH = 2147483546
# Counts and bounds of columns, as arguments of PyIceberg's data file.
_STATISTICS = {
    "column_sizes": 108,
    "value_counts": 109,
    "null_value_counts": 110,
    "nan_value_counts": 137,
    "lower_bounds": 125,
    "upper_bounds": 128,
}
# What is needed of a data file to know which one it is.
_IDENTITY = {
    *(_FILE_PATH, _PARTITION, _ROW_COUNT, _FILE_SIZE, _CONTENT, _FIRST_ROW_ID),
    *(_FILE_FORMAT, _KEY_METADATA, _REFERENCED),
}
_EXISTING, _ADDED, _DELETED = 0, 1, 2
# Fields that manifests of earlier formats lack, or do not let be empty.
_ENTRY_FIELDS = {
    _SNAPSHOT_ID: "snapshot_id",
    _SEQUENCE_NUMBER: "sequence_number",
    _FILE_SEQUENCE_NUMBER: "file_sequence_number",
}
_NAN = struct.pack(">d", float("nan"))

PartitionKey = tuple[Any, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveFile:
    """A file that the manifest adds to the table or keeps in it, with what readers derive."""

    # The position of its entry in the manifest.
    at: int
    path: str
    # 0: data, 1: position deletes, 2: equality deletes.
    content: int
    spec_id: int
    # The values of the partition's fields, in the order of the fields' ids; comparable.
    partition: PartitionKey
    rows: int
    size_bytes: int
    snapshot_id: int
    sequence_number: int
    file_sequence_number: int
    first_row_id: int | None
    file_format: str = "PARQUET"
    is_encrypted: bool = False
    # The only data file that a file of position deletes is for, if it says so.
    referenced: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewritten:
    """A manifest without the removed files, ready to be stored and listed."""

    data: bytes
    kept: Sequence[LiveFile]
    removed: Sequence[LiveFile]
    # What a manifest list says of it besides its place, as it says of the old one.
    spec_id: int
    content: int
    partitions: Sequence[PartitionFieldSummary] | None

    def listed(self, path: str, snapshot_id: int) -> ManifestFile:
        """Return its entry in the manifest list of a snapshot.

        Args:
            path: Where it is stored.
            snapshot_id: The snapshot that removes the files.
        """
        numbers = [file.sequence_number for file in self.kept]
        return ManifestFile.from_args(
            manifest_path=path,
            manifest_length=len(self.data),
            partition_spec_id=self.spec_id,
            content=self.content,
            sequence_number=UNASSIGNED_SEQ,  # The list gives it the snapshot's own.
            # Not that of the snapshot: writers drop deletes that are older than all data.
            min_sequence_number=min(numbers, default=UNASSIGNED_SEQ),
            added_snapshot_id=snapshot_id,
            added_files_count=0,
            existing_files_count=len(self.kept),
            deleted_files_count=len(self.removed),
            added_rows_count=0,
            existing_rows_count=sum(file.rows for file in self.kept),
            deleted_rows_count=sum(file.rows for file in self.removed),
            partitions=self.partitions,
            key_metadata=None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    """An entry of a manifest: the position, the fields beside its data file, and the data file."""

    at: int
    own: dict[str, Any]
    # The data file's fields that were asked for, and all of them as they are stored.
    file: dict[str, Any]
    stored: bytes


class _EntrySchema:
    """The schema of entries, cut where the data file begins and ends."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        fields = schema["fields"]
        at = next(i for i, field in enumerate(fields) if field["field-id"] == _DATA_FILE)
        self._file = fields[at]["type"]
        self.before, self.file, self.after = map(
            parsed, (_record("before", fields[:at]), self._file, _record("after", fields[at + 1 :]))
        )

    def entries(self, data: bytes, only: Collection[int] | None) -> Iterator[_Entry]:
        """Decode a manifest's entries.

        Args:
            data: The manifest.
            only: The data file's fields that are needed, by id; None for all.

        Raises:
            ValueError: It cannot be read: see `blocks`.
        """
        read, wanted, at = cast("Any", fastavro.schemaless_reader), None, 0
        if only is not None:
            fields = [field for field in self._file["fields"] if field["field-id"] in only]
            wanted = parsed({**self._file, "fields": fields})
        for count, block in blocks(data):
            stream = io.BytesIO(block)
            for _ in range(count):
                own = read(stream, self.before, None)
                start = stream.tell()
                file = read(stream, self.file, wanted)
                stored = block[start : stream.tell()]
                own |= read(stream, self.after, None)
                yield _Entry(at=at, own=own, file=file, stored=stored)
                at += 1


def _record(name: str, fields: Sequence[Any]) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": fields}


class Manifest:
    """A manifest of a table, read with the schema that it has.

    It keeps the file as it is stored, and decodes it again when it is rewritten: decoded, the
    statistics of a data file take ten times the memory of all else that is known of it.
    """

    def __init__(self, listed: ManifestFile, data: bytes, first_row_id: int | None = None) -> None:
        """Decode the manifest.

        Args:
            listed: Its entry in a manifest list.
            data: The whole file.
            first_row_id: Its first row id in a manifest list of format v3.

        Raises:
            ValueError: It is not a manifest.
        """
        if listed.key_metadata:
            raise ValueError("it is encrypted")
        self._listed = listed
        header = read_header(data)
        self._metadata, self._schema = header.metadata, header.schema
        self._entry_schema = _EntrySchema(self._schema)
        self._names = {field["field-id"]: field["name"] for field in self._schema["fields"]}
        file_schema = next(
            field["type"] for field in self._schema["fields"] if field["field-id"] == _DATA_FILE
        )
        self._file_names = {field["field-id"]: field["name"] for field in file_schema["fields"]}
        partition = next(
            field["type"] for field in file_schema["fields"] if field["field-id"] == _PARTITION
        )
        fields = sorted(partition["fields"], key=lambda field: field["field-id"])
        self._partition_fields = {field["field-id"]: field for field in fields}
        self._data = data
        self.files: Sequence[LiveFile] = list(self._live_files(first_row_id))

    def without(self, removed: Collection[int], codec: str = "deflate") -> Rewritten:
        """Return the manifest without some of its files.

        Entries of files that were removed earlier are left out: they belong to an earlier snapshot.

        Args:
            removed: The positions of the removed files' entries.
            codec: How the new manifest is compressed, by Avro's or Iceberg's name.

        Raises:
            ValueError: The codec is not supported.
        """
        schema, metadata = self._upgraded()
        new = _EntrySchema(schema)
        has_row_ids = any(file.first_row_id is not None for file in self.files)
        entries = (
            self._entry(old, file, _DELETED if file.at in removed else _EXISTING, new)
            for old, file in self._entries(self.files, None if has_row_ids else ())
        )
        return Rewritten(
            data=avro_file(schema, metadata, entries, codec),
            kept=[file for file in self.files if file.at not in removed],
            removed=[file for file in self.files if file.at in removed],
            spec_id=self._listed.partition_spec_id,
            content=self._listed.content,
            partitions=self._listed.partitions,
        )

    def data_files(
        self, files: Iterable[LiveFile], spec: PartitionSpec
    ) -> Iterator[tuple[LiveFile, DataFile]]:
        """Yield what the manifest records about files, in PyIceberg's terms.

        Args:
            files: Some of its files, in its order.
            spec: The spec of the manifest; partition values are in the order of its fields.
        """
        for entry, file in self._entries(files, None):
            yield file, self._data_file(entry.file, file, spec)

    def _entries(
        self, files: Iterable[LiveFile], only: Collection[int] | None
    ) -> Iterator[tuple[_Entry, LiveFile]]:
        """Decode the entries of files, which are in the manifest's order."""
        wanted = iter(files)
        if (file := next(wanted, None)) is None:
            return
        for entry in self._entry_schema.entries(self._data, only):
            if entry.at == file.at:
                yield entry, file
                if (file := next(wanted, None)) is None:
                    return

    def _data_file(self, found: Mapping[str, Any], file: LiveFile, spec: PartitionSpec) -> DataFile:
        statistics: dict[str, Any] = {
            name: None if (pairs := self._of_file(found, field_id)) is None else _as_dict(pairs)
            for name, field_id in _STATISTICS.items()
        }
        values = found[self._file_names[_PARTITION]]
        known = {
            field_id: _typed(values[field["name"]], field["type"])
            for field_id, field in self._partition_fields.items()
        }
        data_file = DataFile.from_args(
            content=DataFileContent(file.content),
            file_path=file.path,
            file_format=FileFormat(file.file_format),
            partition=Record(*(known.get(field.field_id) for field in spec.fields)),
            record_count=file.rows,
            file_size_in_bytes=file.size_bytes,
            key_metadata=self._of_file(found, _KEY_METADATA),
            equality_ids=self._of_file(found, _EQUALITY_IDS),
            sort_order_id=self._of_file(found, _SORT_ORDER_ID),
            **statistics,
        )
        data_file.spec_id = file.spec_id
        return data_file

    def _upgraded(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return schema and metadata of the new file: with the fields that its entries need.

        A table that was upgraded has manifests of its earlier formats.
        """
        metadata, fields = {"content": b"data", **self._metadata}, list(self._schema["fields"])
        version = metadata.get("format-version", b"1")
        for at, field in enumerate(fields):
            if field["field-id"] == _SNAPSHOT_ID:
                fields[at] = {**field, "type": ["null", "long"], "default": None}
            if field["field-id"] == _DATA_FILE and self._lacks_row_ids:
                more = _optional_number("first_row_id", _FIRST_ROW_ID)
                kind = {**field["type"], "fields": [*field["type"]["fields"], more]}
                fields[at], version = {**field, "type": kind}, b"3"
                self._file_names[_FIRST_ROW_ID] = more["name"]
        for field_id, name in _ENTRY_FIELDS.items():
            if field_id not in self._names:
                fields.append(_optional_number(name, field_id))
                self._names[field_id] = name
        metadata["format-version"] = b"2" if version == b"1" else version
        return {**self._schema, "fields": fields}, metadata

    @property
    def _lacks_row_ids(self) -> bool:
        has_ids = any(file.first_row_id is not None for file in self.files)
        return has_ids and _FIRST_ROW_ID not in self._file_names

    def _live_files(self, first_row_id: int | None) -> Iterator[LiveFile]:
        next_row_id = first_row_id
        # Bounds say which file deletes are for.
        only = _IDENTITY if self._listed.content == ManifestContent.DATA else None
        for entry in self._entry_schema.entries(self._data, only):
            status, file = entry.own[self._names[_STATUS]], entry.file
            if status == _DELETED:
                continue
            rows, row_id = file[self._file_names[_ROW_COUNT]], None
            if next_row_id is not None:
                row_id = self._of_file(file, _FIRST_ROW_ID)
                if row_id is None:
                    row_id, next_row_id = next_row_id, next_row_id + rows
            yield LiveFile(
                at=entry.at,
                path=file[self._file_names[_FILE_PATH]],
                content=self._of_file(file, _CONTENT) or 0,
                spec_id=self._listed.partition_spec_id,
                partition=self._partition_key(file),
                rows=rows,
                size_bytes=file[self._file_names[_FILE_SIZE]],
                snapshot_id=self._derived(entry.own, _SNAPSHOT_ID, self._listed.added_snapshot_id),
                sequence_number=self._number(entry.own, _SEQUENCE_NUMBER),
                file_sequence_number=self._number(entry.own, _FILE_SEQUENCE_NUMBER),
                first_row_id=row_id,
                file_format=file[self._file_names[_FILE_FORMAT]].upper(),
                is_encrypted=self._of_file(file, _KEY_METADATA) is not None,
                referenced=self._referenced(file),
            )

    def _entry(self, old: _Entry, file: LiveFile, status: int, new: _EntrySchema) -> bytes:
        """Return the entry of a file with another status, as it is stored."""
        names, stored = self._names, old.stored
        if file.first_row_id is not None:
            numbered = {**old.file, self._file_names[_FIRST_ROW_ID]: file.first_row_id}
            stored = encoded(new.file, numbered)
        own = {
            **old.own,
            names[_STATUS]: status,
            names[_SNAPSHOT_ID]: None if status == _DELETED else file.snapshot_id,
            names[_SEQUENCE_NUMBER]: file.sequence_number,
            names[_FILE_SEQUENCE_NUMBER]: file.file_sequence_number,
        }
        return encoded(new.before, own) + stored + encoded(new.after, own)

    def _number(self, entry: Mapping[str, Any], field_id: int) -> int:
        """Return a sequence number of an entry.

        Raises:
            ValueError: It has none, and is not new in its manifest.
        """
        number: int | None = self._derived(entry, field_id, None)
        if number is not None:
            return number
        if self._listed.sequence_number and entry[self._names[_STATUS]] != _ADDED:
            raise ValueError(f"{self._listed.manifest_path}: an old entry has no sequence number")
        inherited: int = self._listed.sequence_number or 0
        return inherited

    def _derived(self, entry: Mapping[str, Any], field_id: int, derived: int | None) -> Any:  # noqa: ANN401
        own = entry[self._names[field_id]] if field_id in self._names else None
        return derived if own is None else own

    def _of_file(self, file: Mapping[str, Any], field_id: int) -> Any:  # noqa: ANN401
        name = self._file_names.get(field_id)
        return None if name is None else file[name]

    def _referenced(self, file: Mapping[str, Any]) -> str | None:
        """Return the data file that a delete file names, or whose path is both its bounds."""
        named: str | None = self._of_file(file, _REFERENCED)
        if named is not None or self._of_file(file, _CONTENT) != DataFileContent.POSITION_DELETES:
            return named
        ids = (_STATISTICS["lower_bounds"], _STATISTICS["upper_bounds"])
        lower, upper = (
            _as_dict(self._of_file(file, field_id) or ()).get(_DELETED_PATH) for field_id in ids
        )
        return lower.decode() if lower is not None and lower == upper else None

    def _partition_key(self, file: Mapping[str, Any]) -> PartitionKey:
        values = file[self._file_names[_PARTITION]]
        fields = self._partition_fields.values()
        return tuple(_comparable(_typed(values[field["name"]], field["type"])) for field in fields)


def _optional_number(name: str, field_id: int) -> dict[str, Any]:
    return {"name": name, "type": ["null", "long"], "default": None, "field-id": field_id}


def _as_dict(pairs: Any) -> dict[int, Any]:  # noqa: ANN401 - Avro's maps have text keys only.
    return {pair["key"]: pair["value"] for pair in pairs}


def _typed(value: Any, kind: Any) -> Any:  # noqa: ANN401 - of whatever type the partition is.
    """Return a partition value as PyIceberg holds it: see `_plain` for what is stored.

    A decimal has more bytes if its column was made wider before it was stored.
    """
    for part in kind if isinstance(kind, list) else [kind]:
        logical = part.get("logicalType") if isinstance(part, dict) else None
        if logical == "decimal" and value is not None:
            return _decimal(value, part.get("scale", 0))
        if logical == "uuid" and value is not None:
            return UUID(bytes=value)
    return value


def _decimal(value: bytes, scale: int) -> Decimal:
    return unscaled_to_decimal(int.from_bytes(value, "big", signed=True), scale)


def _comparable(value: object) -> object:
    """Return a partition value that equals others as Iceberg compares them.

    To Python NaN differs from itself, and 0.0 equals -0.0.
    """
    if not isinstance(value, float):
        return value
    return _NAN if value != value else struct.pack(">d", value)  # noqa: PLR0124 - it is not NaN.
