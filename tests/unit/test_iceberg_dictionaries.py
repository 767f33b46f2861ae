"""Dictionaries: which columns of a file get one, judged by some of its first rows."""

from __future__ import annotations

import pyarrow as pa
import pytest

from holdfast.sinks.iceberg.data_file import dictionary_columns

PATHS = {"few": 1, "all": 2, "late": 3, "nested.one": 4}


def rows_of(rows: int, told_rows: int) -> pa.Table:
    """Return a column of few values, one of distinct ones, and one distinct up to a row only."""
    return pa.table(
        {
            "few": [number % 10 for number in range(rows)],
            "all": [f"text {number}" for number in range(rows)],
            "late": [min(number, told_rows) for number in range(rows)],
            "nested": [{"one": number} for number in range(rows)],
        }
    )


@pytest.mark.parametrize(
    ("rows", "told_rows"),
    [(1_000, 1_000), (3_000, 1_000), (16_000, 2_000), (300_000, 32_768)],
    ids=["all of few rows", "a thousand", "an eighth", "no more than enough"],
)
def test_a_column_is_judged_by_some_first_rows(rows: int, told_rows: int) -> None:
    """Nearly distinct there: no dictionary, whatever comes later. Nested ones always get one."""
    assert dictionary_columns(rows_of(rows, told_rows), PATHS) == ["few", "nested.one"]
    seen_repeating = rows_of(rows, told_rows * 8 // 10)
    assert dictionary_columns(seen_repeating, PATHS) == ["few", "late", "nested.one"]


def test_very_few_rows_are_not_judged() -> None:
    """It would take longer than the dictionaries do."""
    assert dictionary_columns(rows_of(999, 999), PATHS) == list(PATHS)
