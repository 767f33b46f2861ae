"""The input of a task that reads its rows itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import pyarrow as pa

from holdfast.model.pins import FileSlice
from holdfast.model.ranges import Span
from holdfast.sources.base import ScanReader

# The one column of the DataFrame that Spark runs over: the numbers of work items.
ITEM_COLUMN = "id"


@dataclass(frozen=True, kw_only=True)
class ScanTask:
    """All work items of a job, and how they are read. Pickled with the task plan."""

    reader: ScanReader
    items: Sequence[Sequence[FileSlice]]

    def rows(
        self, batches: Iterable[pa.RecordBatch], passed_over: list[Span]
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a task's items.

        Args:
            batches: What Spark hands the task: numbers of items. A batch can hold several.
            passed_over: Where the reader notes rows that it does not hand on.
        """
        for batch in batches:
            for number in batch.column(ITEM_COLUMN).to_pylist():
                yield from self.reader.read(self.items[number], passed_over)

    def locate(self, number: int) -> tuple[str, int]:
        """Return which file a row stands in, and its number there."""
        for item in self.items:
            for one in item:
                if one.base + one.start <= number < one.base + one.stop:
                    return one.file.uri, number - one.base
        return "", number
