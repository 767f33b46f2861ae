"""The rows that columns are computed for: all live rows of a Lance dataset when the run begins.

Others may change the dataset while the run is at work. What they do to rows that are done does not
matter to the input. Rows that are left to do because of it are pinned again, in the version that
holds them, and get numbers beyond those of the rows before.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from holdfast.errors import InputChangedError, TableMissingError
from holdfast.model.coverage import FileSlice, Origin, PinnedFile, Pins, Ranges, Span
from holdfast.reading.lance_rows import field_ids, state_of
from holdfast.sources.lance import PinnedLanceScan
from holdfast.sources.lance_fragments import open_pinned, pinned_fragment, refuse_other
from holdfast.sources.lance_reader import LanceReader

# What is known of a pinned fragment besides what every scan knows: its version, and its state.
VERSION, STATE = "version", "state"


class PinnedColumnScan(PinnedLanceScan):
    """The rows of a dataset, as the input of a run that computes columns for them."""

    def pin(self) -> Pins:
        """Take the newest version, and find its fragments.

        Raises:
            SettingsError: The columns or the filter do not fit.
            TableMissingError: There is no such dataset.
            UnsupportedTableError: Workers cannot read a column.
            StoreUnavailableError: The store does not answer.
        """
        dataset = self._open()
        schema = self._schema_of(dataset)
        fragments = sorted(dataset.get_fragments(), key=lambda fragment: fragment.fragment_id)
        files = tuple(self._file(dataset, fragment, schema) for fragment in fragments)
        origin = Origin(version=dataset.version, table_uuid=self._place.identity() or "")
        return Pins(files=files, schema=schema, origin=origin)

    def pin_again(self, pins: Pins, version: int, rows: Mapping[int, Sequence[Span]]) -> Pins:
        """Return the pins with rows of a later version behind them.

        Args:
            pins: The pins so far.
            version: The version that holds the rows.
            rows: Their positions, by fragment.

        Raises:
            InputChangedError: The version is gone, or lacks a fragment.
            StoreUnavailableError: The store does not answer.
        """
        dataset = open_pinned(self._place, version)
        found = {fragment.fragment_id: fragment for fragment in dataset.get_fragments()}
        if lacks := rows.keys() - found.keys():
            raise InputChangedError(what=f"version {version} has no fragment {min(lacks)}")
        more = (
            _only(self._file(dataset, found[number], pins.schema), spans)
            for number, spans in sorted(rows.items())
        )
        return replace(pins, files=(*pins.files, *more))

    def still_there(self, pins: Pins, left: Ranges) -> Pins:
        """Return the pins in which all rows that are left can be read; the same if they can.

        A fragment whose version was cleaned up is read in the newest one, if it is there in the
        same state. Otherwise its rows that are left are left out.

        Args:
            pins: The pins so far.
            left: The rows that are left to do.

        Raises:
            InputChangedError: A fragment is not the one that was pinned.
            StoreUnavailableError: The store does not answer.
        """
        opened: dict[int, dict[int, Any] | None] = {}
        files = list(pins.files)
        for number, (base, file) in enumerate(zip(pins.bases, pins.files, strict=False)):
            own = left.overlap(Ranges(((base, base + file.rows),)))
            if not own:
                continue
            version = file.values[VERSION]
            if version not in opened:
                opened[version] = self._fragments_at(version)
            fragments = opened[version]
            if fragments is None:
                files[number] = self._elsewhere(pins, base, file, own)
            else:
                refuse_other(self._place.uri, file, fragments.get(file.values["fragment"]))
        return pins if files == list(pins.files) else replace(pins, files=tuple(files))

    def _fragments_at(self, version: int) -> dict[int, Any] | None:
        """Return the fragments of a version; None if it is gone."""
        try:
            dataset = self._place.open(version)
        except TableMissingError:
            return None
        return {fragment.fragment_id: fragment for fragment in dataset.get_fragments()}

    def _elsewhere(self, pins: Pins, base: int, file: PinnedFile, left: Ranges) -> PinnedFile:
        """Return a fragment as it is in the newest version, or without the rows that are left."""
        dataset = self._place.open()
        fragment = dataset.get_fragment(file.values["fragment"])
        if fragment is not None:
            now = self._file(dataset, fragment, pins.schema)
            if now.values[STATE] == file.values[STATE]:
                return replace(
                    now,
                    group_rows=file.group_rows,
                    group_bytes=file.group_bytes,
                    left_out=file.left_out,
                )
        read = Ranges.of((start, stop) for start, stop in _read_spans(file))
        gone = Ranges.of((start - base, stop - base) for start, stop in left)
        return _only(file, read.minus(gone).spans)

    def reader(self, pins: Pins) -> VersionsReader:  # type: ignore[override]
        """Return the reader that executors use for the pinned fragments."""
        return VersionsReader(reader=super().reader(pins))

    def _file(self, dataset: Any, fragment: Any, schema: pa.Schema) -> PinnedFile:  # noqa: ANN401
        fields = field_ids(dataset.lance_schema, schema.names)
        file = pinned_fragment(self._place.uri, fragment, {})
        facts = {VERSION: dataset.version, STATE: state_of(fragment.metadata, fields)}
        return replace(file, values={**file.values, **facts})

    @property
    def identity(self) -> str:
        """Which columns of the dataset are read, as a string."""
        return json.dumps({**json.loads(super().identity), "scan": "columns"})


@dataclass(frozen=True, kw_only=True)
class VersionsReader:
    """Reads slices of fragments, each in the version that it is pinned in. Pickled with a task."""

    reader: LanceReader

    def read(
        self, slices: Sequence[FileSlice], passed_over: list[Span]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some slices, tagged with their numbers.

        Raises:
            InputChangedError: A fragment is not the one that was pinned.
            StoreUnavailableError: The store does not answer.
        """
        some: list[FileSlice] = []
        for piece in slices:
            if some and some[-1].file.values[VERSION] != piece.file.values[VERSION]:
                yield from self._of_one_version(some, passed_over)
                some = []
            some.append(piece)
        if some:
            yield from self._of_one_version(some, passed_over)

    def _of_one_version(
        self, slices: Sequence[FileSlice], passed_over: list[Span]
    ) -> Iterator[pa.RecordBatch]:
        reader = replace(self.reader, version=slices[0].file.values[VERSION])
        yield from reader.read(slices, passed_over)


def _read_spans(file: PinnedFile) -> Iterator[Span]:
    """Yield the rows of a pinned file that are read."""
    first = 0
    for number, rows in enumerate(file.group_rows):
        if number not in file.left_out:
            yield first, first + rows
        first += rows


def _only(file: PinnedFile, spans: Sequence[Span]) -> PinnedFile:
    """Return a file of which only some rows are read."""
    edges = sorted({0, file.rows, *(edge for span in spans for edge in span)})
    groups = list(itertools.pairwise(edges))
    wanted = Ranges.of(spans)
    sizes = tuple(file.size_bytes * (stop - start) // max(1, file.rows) for start, stop in groups)
    return replace(
        file,
        group_rows=tuple(stop - start for start, stop in groups),
        group_bytes=sizes,
        left_out=tuple(
            number for number, span in enumerate(groups) if not wanted.overlap(Ranges((span,)))
        ),
    )
