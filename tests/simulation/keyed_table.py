"""The table of runs that merge rows by a key: others have rows with the same keys."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.sinks.base import Change, Filter, MayLack, Removes, StagedReaderSpec, TableView
from holdfast.sinks.base import WriterSpec as Writer
from tests.simulation.columns import GONE, KEY
from tests.simulation.filtered_table import FileRows, FilteredTable, Verdict
from tests.simulation.writer import SimWriterSpec, columns_of

# Keys of others are those of the first rows of runs, over and over.
_KEYS_OF_OTHERS = 4


class KeyedTable(FilteredTable):
    """An Iceberg table into which rows are merged."""

    removes: Removes = "keys"
    # The keys of a run's rows that delete: each run that lands has them all.
    deleting: frozenset[int] = frozenset()

    def writer_spec(
        self,
        view: TableView,
        may_lack: MayLack = frozenset(),
        where: Filter | None = None,
        on: Sequence[str] = (),
        delete_column: str = "",
    ) -> Writer:
        """Return a writer whose files are closed one by one."""
        self._refuse_misfit(view)
        assert (where, tuple(on), delete_column) == (None, (KEY,), GONE if self.deleting else "")
        return SimWriterSpec(
            columns_of(view.schema),
            self._world,
            self,
            may_lack,
            is_numbered=True,
            deletes=bool(delete_column),
        )

    def key_meaning(self, view: TableView, on: Sequence[str]) -> str:
        """Return which column the key is."""
        self._refuse_misfit(view)
        numbers = {column.name: column.number for column in columns_of(view.schema)}
        return ", ".join(f"{name} {numbers[name]}" for name in on)

    def staged_reader(self, view: TableView, on: Sequence[str] = ()) -> StagedReaderSpec:  # noqa: ARG002
        """Return what tasks need to read keys."""
        self.moments += 1
        return _StagedReader(self)

    def read_keys(self, path: str) -> pa.RecordBatch:
        """Read the keys of a staged file.

        Raises:
            FileNotFoundError: The file is gone.
        """
        self._world.pause(f"read the keys of {path}")
        self.moments += 1
        if path not in self.files:
            raise FileNotFoundError(path)
        ids = self.files[path][KEY].to_pylist()
        return pa.RecordBatch.from_pydict({KEY: pa.array(ids, pa.int64())})

    def going(self, ids: Sequence[int], change: Change) -> set[int]:
        """Return which of some rows have a key of the index."""
        assert change.keys is not None
        found = change.keys.found([pa.array(ids, pa.int64())])
        return {id_ for id_, goes in zip(ids, found, strict=True) if goes}

    def append_file(self, kind: FileRows, *, has_bounds: bool = True) -> None:
        """Let another writer add a file: rows with keys of runs, with other keys, or both."""
        counts = self._others_ids
        counts["key"] = counts.get("key", -1) + 1
        ids = [counts["key"] % _KEYS_OF_OTHERS] if kind in {"inside", "mixed"} else []
        for _ in range(2 if kind in {"outside", "mixed"} else 0):
            counts["outside"] -= 1
            ids.append(counts["outside"])
        self.foreign_rows(ids)
        if not has_bounds:
            self.boundless.update(self.newest_files())

    def _verdict(self, path: str, change: Change) -> Verdict:
        ids = self._listed[path]
        if not ids:
            return "none"
        if change.keys is None or path in self.boundless:
            return "some"
        ends = [(first.as_py(), last.as_py()) for first, last in change.keys.stretches]
        overlaps = any(first <= max(ids) and min(ids) <= last for first, last in ends)
        return "some" if overlaps else "none"

    def _should_go(self, id_: int, ours: Sequence[int]) -> bool:
        return id_ in ours or id_ in self.deleting


@dataclass(frozen=True, slots=True)
class _StagedReader:
    table: KeyedTable

    @property
    def schema(self) -> pa.Schema:
        return pa.schema([(KEY, pa.int64())])

    def open(self) -> _StagedReader:
        return self

    def rows(self, item: str) -> Iterator[pa.RecordBatch]:
        for path, _ in json.loads(item):
            yield self.table.read_keys(path)
