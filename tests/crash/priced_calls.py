"""What the calls of crash jobs cost: known only when the answer is there, and different each time.

Workers import this module, so it does not need pytest.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from tests.crash.counted_calls import Call

COST_MAX = 1.5


def of_id(id_: int) -> float:
    """Return what the answer for a row costs: between 0.5 and 1.5, and 1 on average."""
    return 0.5 + id_ % 11 / 10


def of_answer(answer: dict[str, Any]) -> float:
    """Return what the answer for one row costs."""
    return of_id(answer["id"])


def of_batch(output: pa.RecordBatch) -> float:
    """Return what the answer for a batch costs."""
    return sum(map(of_id, output["id"].to_pylist()))


def of_calls(calls: Iterable[Call]) -> float:
    """Return what the calls that a test has counted cost."""
    runs = [run for call in calls for run in call.runs]
    return sum(of_id(id_) for start, end in runs for id_ in range(start, end))
