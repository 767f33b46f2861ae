"""A Lance dataset in memory, in the shape that the shipped look-up reads.

A look sees the version that it opened. Older ones are read on demand, so they may have been cleaned
up since, and in a dataset that was created again they belong to the new one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa
from lance.fragment import DataFile, FragmentMetadata

from holdfast.model.work import StagedGroup
from tests.simulation.columns import Column, Columns, key_column, widened


class SimFile(NamedTuple):
    """A fragment's file; those of other writers have no name."""

    path: str
    # The numbers of the columns that it holds, including dropped ones, and of those that were
    # rewritten beside it, each into a file that is removed when its column is dropped.
    numbers: tuple[int, ...]
    beside: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSchema:
    """In place of Lance's own schema: columns by number, and texts beside them."""

    columns: Columns = field(default_factory=lambda: key_column(0))
    metadata: Mapping[str, str] = field(default_factory=dict)

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of the columns."""
        return tuple(column.number for column in self.columns)

    def fields(self) -> list[_Field]:
        """Return the columns."""
        return [_Field(column) for column in self.columns]

    def __reduce__(self) -> tuple[Callable[..., SimSchema], tuple[str, Columns]]:
        """Return what Lance gives to code that copies a schema."""
        texts = {name: list(text.encode()) for name, text in self.metadata.items()}
        return _rebuilt, (json.dumps(texts), self.columns)


@dataclass(frozen=True, slots=True)
class _Field:
    column: Column

    def id(self) -> int:
        return self.column.number

    def name(self) -> str:
        return self.column.name

    def children(self) -> list[_Field]:
        return []

    def to_arrow(self) -> pa.Field:
        return self.column.arrow


def _rebuilt(text: str, columns: Columns) -> SimSchema:
    texts = {name: bytes(value).decode() for name, value in json.loads(text).items()}
    return SimSchema(columns=columns, metadata=texts)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimVersion:
    """One version: what made it, and what is in it."""

    # As in Lance, the name of its class says what it did.
    operation: Any
    # Whether Lance refuses a merge that was built on an older version.
    stops: bool = True
    properties: Mapping[str, str] = field(default_factory=dict)
    schema: SimSchema = field(default_factory=SimSchema)
    # Data files by the numbers of their fragments, and which of our groups are in them, here or
    # rewritten.
    fragments: Mapping[int, SimFile] = field(default_factory=dict)
    groups: tuple[StagedGroup, ...] = ()
    # Whether it came so late that newer versions were there, and its number had been cleaned up.
    is_stray: bool = False


def operation(kind: str, **what: Any) -> Any:  # noqa: ANN401 - of a class of its own.
    """Return an operation of a kind.

    Which files an append brings matters only to columns, and the simulation computes none.
    """
    return type(kind, (), {"fragments": (), **what})()


@dataclass
class SimFolder:
    """What is in the dataset's folder."""

    uri: str
    there: dict[int, SimVersion] = field(default_factory=dict)
    newest: int = 0
    # How many fragments there have been: each has its own number.
    fragments: int = 0
    # Whether each commit removes all older versions, as a setting of Lance's can make it.
    cleans_up: bool = False

    @property
    def head(self) -> SimVersion:
        """The newest version."""
        return self.there[self.newest]

    def put(self, number: int, version: SimVersion) -> None:
        """Store a version; readers see the one with the highest number."""
        self.newest = max(self.newest, number)
        self.there[number] = version
        if self.cleans_up and number == self.newest:
            self.clean_up(number)

    def change(self, kind: str, *, stops: bool = True, **changes: Any) -> None:  # noqa: ANN401
        """Make a version that differs from the newest in something, or in nothing."""
        made = replace(self.head, operation=operation(kind), stops=stops, properties={})
        self.put(self.newest + 1, replace(made, **changes))

    def new_fragments(self, files: Sequence[SimFile]) -> dict[int, SimFile]:
        """Return fragments of files."""
        first = self.fragments
        self.fragments += len(files)
        return {first + number: file for number, file in enumerate(files)}

    def new_number(self) -> int:
        """Return the number of the next column: above those in the schema and in files.

        So the number of a dropped column is reused, unless a file holds its values.
        """
        files = self.head.fragments.values()
        held = [number for file in files for number in (*file.numbers, *file.beside)]
        return 1 + max((*self.head.schema.numbers, *held))

    def append(self) -> None:
        """Make a version with another writer's rows, in all columns."""
        made = self.new_fragments([SimFile("", self.head.schema.numbers)])
        self.change("Append", fragments={**self.head.fragments, **made})

    def add_column(self, column: Column) -> None:
        """Make a version with one column more, of which no file holds values."""
        self.change_columns("Merge", (*self.head.schema.columns, column))

    def change_columns(self, kind: str, columns: Columns) -> None:
        """Make a version with other columns."""
        head, live = self.head, {column.number for column in columns}
        files = {
            fragment: file._replace(
                beside=tuple(column for column in file.beside if column in live)
            )
            for fragment, file in head.fragments.items()
        }
        self.change(kind, schema=replace(head.schema, columns=columns), fragments=files)

    def cast_column(self, number: int) -> None:
        """Make a version in which a column has a wider type: its values are rewritten."""
        head, number_now = self.head, self.new_number()
        columns = widened(head.schema.columns, number, number_now)
        files = {
            fragment: file._replace(
                beside=(*(column for column in file.beside if column != number), number_now)
            )
            for fragment, file in head.fragments.items()
        }
        self.change("Merge", schema=replace(head.schema, columns=columns), fragments=files)

    def delete(self) -> None:
        """Make a version without one of other writers' files."""
        others = [number for number, file in self.head.fragments.items() if not file.path]
        kept = {
            number: file for number, file in self.head.fragments.items() if number not in others[:1]
        }
        self.change("Delete", fragments=kept)

    def create(self) -> None:
        """Make a dataset without rows, replacing one that may have been there."""
        self.there, self.newest, self.fragments, self.cleans_up = {}, 0, 0, False
        self.put(1, SimVersion(operation=operation("Overwrite")))

    def overwrite(self) -> None:
        """Make a version without anything that was there."""
        fragments = self.new_fragments([SimFile("", SimSchema().numbers)])
        made = SimVersion(operation=operation("Overwrite"), fragments=fragments)
        self.put(self.newest + 1, made)

    def compact(self) -> None:
        """Compact small files into larger ones, whose numbers are reserved first."""
        self.change("ReserveFragments", stops=False)
        self.change(
            "Rewrite", fragments=self.new_fragments([SimFile("", self.head.schema.numbers)])
        )

    def restore(self, version: int) -> None:
        """Make a version with the rows, the columns and the texts of an older one."""
        old = self.there[version]
        made = replace(old, operation=operation("Restore", version=version), properties={})
        self.put(self.newest + 1, replace(made, stops=True))

    def clean_up(self, below: int) -> None:
        """Remove old versions; the newest stays."""
        for version in [number for number in self.there if number < min(below, self.newest)]:
            del self.there[version]

    def refuses(self, base: int) -> bool:
        """Whether another writer was faster than a merge, as far as Lance can still see."""
        return any(made.stops for version, made in self.there.items() if version > base)

    def lacks(self, fragments: Iterable[int]) -> bool:
        """Whether a merge fails to name every fragment that is there, as Lance demands."""
        return bool(set(self.head.fragments) - set(fragments))


def _data_files(file: SimFile) -> list[DataFile]:
    beside = [DataFile("", [number]) for number in file.beside]
    return [DataFile(file.path, [*file.numbers]), *beside]


class SimDataset:
    """One look at a version."""

    def __init__(self, folder: SimFolder, version: int, before_read: Callable[[str], None]) -> None:
        """Open a version that is there.

        Args:
            folder: The dataset's folder.
            version: Which one.
            before_read: Called before another version is read; may raise what a store does.
        """
        self.uri, self.version = folder.uri, version
        self.lance_schema = folder.there[version].schema
        self._fragments = folder.there[version].fragments
        self._folder = folder
        self._before_read = before_read

    @property
    def schema(self) -> pa.Schema:
        """The schema in Arrow's terms."""
        columns = [column.arrow for column in self.lance_schema.columns]
        return pa.schema(columns, metadata=dict(self.lance_schema.metadata))

    def get_fragments(self) -> Sequence[SimpleNamespace]:
        """Return the version's fragments."""
        return [
            SimpleNamespace(
                fragment_id=number,
                physical_rows=1,
                metadata=FragmentMetadata(number, _data_files(file), 1),
            )
            for number, file in self._fragments.items()
        ]

    def checkout_version(self, version: int) -> SimDataset:
        """Open another version.

        Raises:
            OSError: It was cleaned up, or the store does not answer.
        """
        self._before_read(f"open version {version}")
        self._refuse_missing(version)
        return SimDataset(self._folder, version, self._before_read)

    def read_transaction(self, version: int) -> SimpleNamespace:
        """Return what made a version.

        Raises:
            OSError: It was cleaned up, or the store does not answer.
        """
        self._before_read(f"read version {version}")
        self._refuse_missing(version)
        found = self._folder.there[version]
        return SimpleNamespace(
            operation=found.operation, transaction_properties=dict(found.properties)
        )

    def _refuse_missing(self, version: int) -> None:
        if version not in self._folder.there:
            raise OSError(f"{self.uri}: version {version} not found")
