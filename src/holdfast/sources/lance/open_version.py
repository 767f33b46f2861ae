"""One version of a dataset that is being read, on an executor."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import pyarrow as pa

from holdfast.errors import InputChangedError, StoreUnavailableError
from holdfast.model.lasting import lasts
from holdfast.model.pins import FileSlice, PinnedFile
from holdfast.plain_text import told
from holdfast.sources.base import TAG_COLUMN
from holdfast.sources.lance.blobs import with_blobs
from holdfast.sources.lance.fragments import (
    ADDRESS,
    Place,
    address_of,
    gone_file,
    open_pinned,
    place_of,
    refuse_other,
)
from holdfast.sources.tagging import Numbers
from holdfast.storage.port import StorageError
from holdfast.storage.runtime import io_runtime

# After that the dataset is opened afresh.
_OPEN_S = 600.0
_LANCE_ERRORS = (pa.ArrowException, ValueError, OSError)


class UnreadableFragmentError(ValueError):
    """Lance gave other rows than those that were asked for."""


@dataclass(frozen=True)
class FoundRows:
    """Rows that have arrived, and where in their fragment they stand."""

    batch: pa.RecordBatch | None
    places: Numbers


class OpenVersion:
    """The dataset at the pinned version. Used by the task and by IO threads."""

    def __init__(self, place: Place, version: int, columns: Sequence[str]) -> None:
        """Open nothing yet.

        Args:
            place: Where the dataset stands.
            version: Which version.
            columns: What is read of it.
        """
        self._place = place
        self._version = version
        self._columns = list(columns)
        self._opening = threading.Lock()
        self._dataset: Any = None
        self._opened_at = 0.0
        # Of the fragment that was asked about last.
        self._live: tuple[int, Numbers] | None = None

    def live(self, file: PinnedFile) -> Numbers:
        """Return the places of a fragment's rows that are not deleted, in order.

        Raises:
            InputChangedError: The fragment is not the one that was pinned.
            StoreUnavailableError: The store does not answer.
        """
        number = file.values["fragment"]
        if self._live is None or self._live[0] != number:
            try:
                found = self._fragment(file).scanner(columns=[], with_row_address=True).to_table()
            except _LANCE_ERRORS as error:
                self._explain(file, error)
            self._live = number, place_of(np.asarray(found[ADDRESS]), number)
        return self._live[1]

    def fetch(self, file: PinnedFile, offset: int, places: Numbers) -> FoundRows:
        """Return some rows of a fragment. Runs on an IO thread.

        Args:
            file: Which fragment.
            offset: How many rows that are not deleted come before.
            places: Where the rows stand.

        Raises:
            InputChangedError: The fragment is not the one that was pinned.
            StoreUnavailableError: The store does not answer.
            UnreadableFragmentError: Lance gives other rows.
        """
        started = time.perf_counter()
        try:
            table = (
                self._fragment(file)
                .scanner(
                    columns=self._columns,
                    offset=offset,
                    limit=len(places),
                    batch_size=len(places),
                    with_row_address=True,
                    blob_handling="blobs_descriptions",
                )
                .to_table()
            )
        except _LANCE_ERRORS as error:
            self._explain(file, error)
        self._count(time.perf_counter() - started)
        found = place_of(np.asarray(table[ADDRESS]), file.values["fragment"])
        if not np.array_equal(found, places):
            raise UnreadableFragmentError(
                f"{file.uri}: {len(places)} rows from {places[0]} on were asked for, and Lance "
                "gave others"
            )
        (batch,) = table.drop_columns([ADDRESS]).combine_chunks().to_batches()
        return FoundRows(batch, places)

    def with_blobs(
        self, one: FileSlice, tagged: pa.RecordBatch, blobs: Sequence[str]
    ) -> Iterator[pa.RecordBatch]:
        """Yield tagged rows with the bytes of their blobs.

        Raises:
            InputChangedError: The fragment is not the one that was pinned.
            StoreUnavailableError: The store does not answer.
            UnsupportedTableError: A blob stands outside the dataset.
        """
        tags = tagged.column(TAG_COLUMN)
        numbers = np.asarray(tags.field(0) if pa.types.is_struct(tags.type) else tags)
        addresses = numbers - one.base + address_of(one.file.values["fragment"], 0)
        pieces = with_blobs(self._at_version(), tagged, blobs, addresses)
        while True:
            started = time.perf_counter()
            try:
                piece = next(pieces, None)
            except _LANCE_ERRORS as error:
                self._explain(one.file, error)
            took = time.perf_counter() - started
            self._count(took, waited_s=took)
            if piece is None:
                return
            yield piece

    def _fragment(self, file: PinnedFile) -> Any:  # noqa: ANN401 - Lance ships no types.
        fragment = self._at_version().get_fragment(file.values["fragment"])
        refuse_other(self._place.uri, file, fragment)
        return fragment

    def _at_version(self) -> Any:  # noqa: ANN401
        """Return the dataset, opened afresh from time to time: a long task outlives credentials."""
        with self._opening:
            if self._dataset is None or time.monotonic() - self._opened_at > _OPEN_S:
                self._dataset = open_pinned(self._place, self._version)
                self._opened_at = time.monotonic()
            return self._dataset

    def _count(self, busy_s: float, waited_s: float = 0.0) -> None:
        read = self._dataset.io_stats_incremental()
        io_runtime().count(
            requests=read.read_iops, bytes_read=read.read_bytes, busy_s=busy_s, waited_s=waited_s
        )

    def _explain(self, file: PinnedFile, error: Exception) -> NoReturn:
        """Say why a fragment cannot be read.

        Raises:
            InputChangedError: A file of it is gone.
            StoreUnavailableError: Anything else.
        """
        try:
            gone = gone_file(self._place, file)
        except StorageError:
            gone = ""
        if gone:
            raise InputChangedError(what=f"{gone} is gone") from error
        reason, cause = told(error, {})
        raise StoreUnavailableError(
            uri=file.uri, reason=reason, retry_safe=not lasts(error)
        ) from cause
