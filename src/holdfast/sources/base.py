"""What the engine needs of an input that workers read themselves.

A scan pins its files once; every start after that reads exactly those. On executors a reader
turns slices of files into batches whose rows carry their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Protocol

import pyarrow as pa

from holdfast.model.pins import FileSlice, Pins
from holdfast.model.ranges import Span

# What Holdfast must know of each input row: Spark's hash of its key where that is not computed
# here, or the numbers of the rows of a scan that it stands for. Where values are compared it is a
# struct: Spark's hash of the whole row, and beside it that of the key, if it is needed.
TAG_COLUMN = "__holdfast_tag"
ROW_HASH, KEY_HASH = "row", "key"


class ScanReader(Protocol):
    """Reads rows on an executor: pickled with the task, never stored."""

    def read(
        self, slices: Sequence[FileSlice], passed_over: list[Span]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some slices, tagged with their numbers.

        Args:
            slices: Which rows of which files.
            passed_over: Where to note rows that are not handed on, as the scan's `where` wants.

        Raises:
            InputChangedError: A file is not the one that was pinned.
        """


class PinnedScan(Protocol):
    """A scan as the driver sees it, with storage at hand."""

    @property
    def identity(self) -> str:
        """What is read of the files, as one text: another text is another input."""

    def pin(self) -> Pins:
        """Find the files, and what is in them.

        Raises:
            SettingsError: There are none, or they do not fit together.
            StoreUnavailableError: The storage does not answer.
        """

    def compare(self, pins: Pins) -> str:
        """Say how the input that this start names differs from the pins; empty if it does not.

        Raises:
            InputChangedError: A pinned file was changed or deleted.
            StoreUnavailableError: The storage does not answer.
        """

    def schema(self, pins: Pins) -> pa.Schema:
        """Return the columns that are handed on."""

    def reader(self, pins: Pins) -> ScanReader:
        """Return what reads the pinned files on executors."""
