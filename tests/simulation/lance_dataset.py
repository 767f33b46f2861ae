"""A Lance dataset in memory, in the shape that the shipped look-up reads.

A look sees the version that it opened. Older ones are read when they are asked for, so they may
have been cleaned away since, and in a dataset that was made again they are somebody else's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
from lance.fragment import DataFile, FragmentMetadata

from holdfast.model.staged import StagedGroup

_COLUMNS = {0: "id"}


@dataclass(frozen=True, slots=True, kw_only=True)
class SimSchema:
    """What stands for Lance's own schema: columns by number, and texts beside them."""

    columns: Mapping[int, str] = field(default_factory=lambda: dict(_COLUMNS))
    metadata: Mapping[str, str] = field(default_factory=dict)

    def fields(self) -> list[_Field]:
        """Return the columns."""
        return [_Field(number, name) for number, name in self.columns.items()]

    def __reduce__(self) -> tuple[Callable[..., SimSchema], tuple[str, Mapping[int, str]]]:
        """Return what Lance gives to whoever copies a schema."""
        texts = {name: list(text.encode()) for name, text in self.metadata.items()}
        return _rebuilt, (json.dumps(texts), self.columns)


@dataclass(frozen=True, slots=True)
class _Field:
    number: int
    label: str

    def id(self) -> int:
        return self.number

    def name(self) -> str:
        return self.label

    def children(self) -> list[_Field]:
        return []

    def to_arrow(self) -> pa.Field:
        return pa.field(self.label, pa.int64())


def _rebuilt(text: str, columns: Mapping[int, str]) -> SimSchema:
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
    # Data files by the numbers of their fragments, and what of ours is in them, here or rewritten.
    fragments: Mapping[int, str] = field(default_factory=dict)
    groups: tuple[StagedGroup, ...] = ()
    # Whether it came so late that younger versions stood there, and its number had been cleaned up.
    is_stray: bool = False


def operation(kind: str, **what: Any) -> Any:  # noqa: ANN401 - of a class of its own.
    """Return an operation of a kind."""
    return type(kind, (), what)()


@dataclass
class SimFolder:
    """What stands in the dataset's folder."""

    uri: str
    there: dict[int, SimVersion] = field(default_factory=dict)
    newest: int = 0
    # How many fragments there have been: each has a number of its own.
    fragments: int = 0
    # Whether each commit removes all older versions, as a setting of Lance's can have it.
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

    def new_fragments(self, paths: Sequence[str] = ("",)) -> dict[int, str]:
        """Return fragments of files; those of other writers have no name."""
        first = self.fragments
        self.fragments += len(paths)
        return {first + number: path for number, path in enumerate(paths)}

    def append(self) -> None:
        """Make a version with another writer's rows."""
        self.change("Append", fragments={**self.head.fragments, **self.new_fragments()})

    def delete(self) -> None:
        """Make a version without one of other writers' files."""
        others = [number for number, path in self.head.fragments.items() if not path]
        kept = {one: path for one, path in self.head.fragments.items() if one not in others[:1]}
        self.change("Delete", fragments=kept)

    def create(self) -> None:
        """Make a dataset without rows, in the place of one that may have been there."""
        self.there, self.newest, self.fragments, self.cleans_up = {}, 0, 0, False
        self.put(1, SimVersion(operation=operation("Overwrite")))

    def overwrite(self) -> None:
        """Make a version without anything that was there."""
        made = SimVersion(operation=operation("Overwrite"), fragments=self.new_fragments())
        self.put(self.newest + 1, made)

    def compact(self) -> None:
        """Write small files into larger ones, whose numbers are taken first."""
        self.change("ReserveFragments", stops=False)
        self.change("Rewrite", fragments=self.new_fragments())

    def restore(self, version: int) -> None:
        """Make a version with the rows, the columns and the texts of an older one."""
        old = self.there[version]
        made = replace(old, operation=operation("Restore", version=version), properties={})
        self.put(self.newest + 1, replace(made, stops=True))

    def clean_up(self, below: int) -> None:
        """Remove old versions; the newest stays."""
        for version in [one for one in self.there if one < min(below, self.newest)]:
            del self.there[version]

    def refuses(self, base: int) -> bool:
        """Whether somebody has been faster than a merge, as far as Lance can still see."""
        return any(one.stops for version, one in self.there.items() if version > base)

    def lacks(self, fragments: Iterable[int]) -> bool:
        """Whether a merge does not name every fragment that is there, which Lance demands."""
        return bool(set(self.head.fragments) - set(fragments))


class SimDataset:
    """One look at a version."""

    def __init__(self, folder: SimFolder, version: int, before_read: Callable[[str], None]) -> None:
        """Open a version that is there.

        Args:
            folder: Where it stands.
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
        columns = [(name, pa.int64()) for name in self.lance_schema.columns.values()]
        return pa.schema(columns, metadata=dict(self.lance_schema.metadata))

    def get_fragments(self) -> Sequence[SimpleNamespace]:
        """Return the version's fragments."""
        return [
            SimpleNamespace(metadata=FragmentMetadata(number, [DataFile(path, [0])], 1))
            for number, path in self._fragments.items()
        ]

    def checkout_version(self, version: int) -> SimDataset:
        """Open another version.

        Raises:
            OSError: It was cleaned away, or the store does not answer.
        """
        self._before_read(f"open version {version}")
        self._refuse_missing(version)
        return SimDataset(self._folder, version, self._before_read)

    def read_transaction(self, version: int) -> SimpleNamespace:
        """Return what made a version.

        Raises:
            OSError: It was cleaned away, or the store does not answer.
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
