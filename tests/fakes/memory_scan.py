"""A scan: files of ids that workers read themselves, pinned when the run begins."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa

from holdfast.engine.ports import Jobs, Submitter
from holdfast.engine.scan_input import ScanRows, pin
from holdfast.errors import InputChangedError
from holdfast.ledger.ledger import Ledger
from holdfast.model.coverage import FileSlice, Origin, PinnedFile, Pins, Span
from holdfast.sources.base import TAG_COLUMN, PinnedScan
from tests.fakes.memory_submitter import partition

_FILE_ROWS = 4
_GROUP_ROWS = 2


class MemoryReader:
    """Reads ids, which are also their rows' numbers; leaves out what `where` would."""

    def __init__(self, batch_rows: int = 1) -> None:
        """Read so many rows of a slice at a time."""
        self._batch_rows = batch_rows

    def read(
        self, slices: Sequence[FileSlice], passed_over: list[Span]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some slices; note the rows that are left out."""
        for part in slices:
            numbers: list[int] = []
            for number in range(part.base + part.start, part.base + part.stop):
                if number in part.file.values["left_out"]:
                    passed_over.append((number, number + 1))
                    continue
                numbers.append(number)
                if len(numbers) == self._batch_rows:
                    yield _numbered(numbers)
                    numbers = []
            if numbers:
                yield _numbered(numbers)


def _numbered(numbers: Sequence[int]) -> pa.RecordBatch:
    return partition(numbers).append_column(TAG_COLUMN, pa.array(numbers, pa.int64()))


NOWHERE = Origin()


class MemoryScan:
    """What one start of the script names."""

    identity = "scan"

    def __init__(
        self,
        ids: Sequence[int | None],
        *,
        left_out: frozenset[int] = frozenset(),
        before_listing: Callable[[str], object] = lambda _text: None,
        origin: Origin = NOWHERE,
        batch_rows: int = 1,
    ) -> None:
        """Take the ids that the files hold now.

        Args:
            ids: Their ids.
            left_out: The ids to leave out.
            before_listing: Runs before the files are listed.
            origin: The table that the files are from.
            batch_rows: How many rows are read at a time.
        """
        self._origin = origin
        self._batch_rows = batch_rows
        self._before_listing = before_listing
        self._ids = [id_ for id_ in ids if id_ is not None]
        self._left_out = left_out

    def pin(self) -> Pins:
        """List the files."""
        self._before_listing("list the input")
        return Pins(files=self._files(), schema=partition([]).schema, origin=self._origin)

    def compare(self, pins: Pins) -> str:
        """Say what is new.

        Raises:
            InputChangedError: A file was changed or is gone.
        """
        self._before_listing("list the input again")
        now = self._files()
        if now[: len(pins.files)] != pins.files:
            raise InputChangedError(what="a file")
        return "a file is new" if len(now) > len(pins.files) else ""

    def schema(self, pins: Pins) -> pa.Schema:
        """Return the columns."""
        return pins.schema

    def reader(self, pins: Pins) -> MemoryReader:  # noqa: ARG002 - all files are alike.
        """Return what reads the files."""
        return MemoryReader(self._batch_rows)

    def _files(self) -> tuple[PinnedFile, ...]:
        ids = self._ids
        pieces = [ids[start : start + _FILE_ROWS] for start in range(0, len(ids), _FILE_ROWS)]
        return tuple(
            PinnedFile(
                uri=f"in/{number}",
                size_bytes=len(piece),
                tag=str(piece),
                group_rows=tuple(
                    len(piece[start : start + _GROUP_ROWS])
                    for start in range(0, len(piece), _GROUP_ROWS)
                ),
                group_bytes=tuple(
                    len(piece[start : start + _GROUP_ROWS])
                    for start in range(0, len(piece), _GROUP_ROWS)
                ),
                values={"left_out": sorted(self._left_out.intersection(piece))},
            )
            for number, piece in enumerate(pieces)
        )


class MemoryScanInput:
    """A scan, and the submitter that reads it."""

    def __init__(self, scan: PinnedScan, jobs: Jobs) -> None:
        """Keep both; nothing is pinned yet."""
        self._scan = scan
        self._jobs = jobs
        self._rows: ScanRows | None = None

    @property
    def submitter(self) -> Submitter:
        """The submitter that reads it, once it is settled."""
        assert self._rows is not None
        return self._rows

    def settle(self, ledger: Ledger, *, compare: bool) -> None:
        """Pin the files, or compare them with those that are pinned."""
        pins = pin(ledger, self._scan, compare=compare)
        self._rows = ScanRows(self._scan, pins, self._jobs)
