"""Rows of some hundred bytes that do not compress to nothing. Workers import this."""

from __future__ import annotations

import hashlib
from typing import Any

import pyarrow as pa

from tests.crash.counted_calls import Costly

_PIECES = 3
FILLER_COLUMN = "filler STRING"
# The Spark SQL condition that a row has the filler that was made for it.
_DIGESTS = [f"sha2(concat(id, ' {n}'), 512)" for n in range(_PIECES)]
FILLER_IS_RIGHT = f"filler = concat({', '.join(_DIGESTS)})"


class CostlyWide(Costly):
    """Also makes a filler for each row, unique to the row."""

    def __call__(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """Work on the rows, count them, and add the filler."""
        fillers = [filler(number) for number in batch.column("id").to_pylist()]
        return {**super().__call__(batch), "filler": fillers}


def filler(number: int) -> str:
    """Return 384 characters derived from a row's number."""
    pieces = [hashlib.sha512(f"{number} {n}".encode()).hexdigest() for n in range(_PIECES)]
    return "".join(pieces)
