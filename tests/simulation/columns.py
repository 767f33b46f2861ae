"""Columns: what others do to a table's schema, and where readers find the values of a run.

A number does not identify a column: Lance gives the number of a dropped column to the next one that
is added, and so does an Iceberg catalog that was restored from a backup. Here each column that ever
existed has its own origin, which the product does not see, and each value names the origin that it
was computed for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import pyarrow as pa

KEY = "id"
# The column of a job's output that says which rows delete; no table has it.
GONE = "gone"
# How far apart the values of two columns are: more than a history has rows.
_APART = 1_000
_ARROW = {"int": pa.int32(), "long": pa.int64()}

Kind = Literal["int", "long"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One column of a table at some time."""

    number: int
    name: str
    kind: Kind = "int"
    origin: int = 0

    @property
    def arrow(self) -> pa.Field:
        """The column in Arrow's terms."""
        return pa.field(self.name, _ARROW[self.kind])


Columns = tuple[Column, ...]


def key_column(number: int) -> Columns:
    """Return the one column that a table starts with."""
    return (Column(number=number, name=KEY, kind="long"),)


def renamed(columns: Columns, number: int, name: str) -> Columns:
    """Return the columns, one of them under another name."""
    return tuple(
        replace(column, name=name) if column.number == number else column for column in columns
    )


def widened(columns: Columns, number: int, number_now: int) -> Columns:
    """Return the columns, one of them with a wider type and maybe another number."""
    return tuple(
        replace(column, kind="long", number=number_now) if column.number == number else column
        for column in columns
    )


def dropped(columns: Columns, number: int) -> Columns:
    """Return the columns without one."""
    return tuple(column for column in columns if column.number != number)


def filled(columns: Iterable[Column], ids: Sequence[int]) -> dict[str, pa.Array]:
    """Return what a job computes for each column but the key, by name."""
    return {
        column.name: pa.array([_APART * column.origin + id_ for id_ in ids], _ARROW[column.kind])
        for column in columns
        if column.name != KEY
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Misread:
    """Values that readers do not find in the column that they were computed for."""

    path: str
    written: Column
    # The column in which readers find them; None if they find none.
    read: Column | None

    @property
    def looks_right(self) -> bool:
        """Whether number, name and type match: only the table's history shows the change."""
        now, then = self.read, self.written
        if now is None or (now.number, now.name) != (then.number, then.name):
            return False
        return now.kind == then.kind or (then.kind, now.kind) == ("int", "long")

    def __str__(self) -> str:
        """Describe what readers see."""
        if self.read is None:
            return f"values of {self.written} are lost in {self.path}"
        return f"values of {self.written} landed in {self.read}, in {self.path}"


def misread(
    path: str, rows: pa.Table, written: Columns, now: Columns, known: Mapping[int, Column]
) -> list[Misread]:
    """Return the values of a file that readers do not find in their column.

    Args:
        path: The file's path.
        rows: What is in it.
        written: The columns that it was written for.
        now: The table's columns, by whose numbers readers find values.
        known: Each column that ever existed, by origin.
    """
    if len(now) == 1 and written == now:
        return []
    by_number = {column.number: column for column in now}
    found = []
    for column in written:
        values = rows[column.name].drop_null().to_pylist()
        read = by_number.get(column.number)
        origins = {0} if column.name == KEY else {value // _APART for value in values}
        for origin in origins if values else ():
            if read is None or read.origin != origin:
                meant = column if column.origin == origin else known[origin]
                found.append(Misread(path=path, written=meant, read=read))
    return found
