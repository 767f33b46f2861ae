"""How the benchmark of upserts beside another writer checks its table, and what it counts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from bench.overwrite_busy import Overwrite, problem
from bench.overwrite_rival import ROW_PROPERTY, Rival
from bench.upsert_busy import Merging, figures, rows_of

RIVAL = Rival(table="bench.t", seconds=1.0, every_s=1.0, partitions=(0, 9_999))
# The ten old keys, and the one that the other writer has added before it.
FIRST = Overwrite(
    number=1,
    started_at=10.0,
    seconds=2.0,
    posts=2,
    replaced_rows=11,
    searched_files=12,
    searched_again=3,
    snapshot_id=101,
)
# Ten other old keys, and all the contested ones, one of which is there twice.
SECOND = replace(FIRST, number=2, started_at=12.0, posts=1, replaced_rows=171, snapshot_id=102)
HISTORY: list[tuple[int, dict[str, str]]] = [
    (100, {}),
    (1, {ROW_PROPERTY: "0"}),
    (101, {}),
    (2, {ROW_PROPERTY: "1"}),
    (3, {ROW_PROPERTY: "2"}),
    (102, {}),
]


def expected_rows() -> list[tuple[int, int]]:
    """Return the rows of a table with that history."""
    ids = {partition: {partition} for partition in range(10_000)}
    for number in (1, 2):
        for partition, rows in rows_of(number).items():
            ids[partition] |= rows
    ids[9_999].add(-2)
    return sorted((partition, row) for partition, rows in ids.items() for row in rows)


def test_a_table_with_each_key_once_is_right() -> None:
    """Rows that others added are replaced if they have one of the keys."""
    assert problem(HISTORY, [FIRST, SECOND], RIVAL, expected_rows(), Merging()) == ""


@pytest.mark.parametrize("wrong", ["doubled", "missing", "count"])
def test_a_table_that_differs_is_wrong(wrong: str) -> None:
    """A row too many, one too few, or a report that miscounts."""
    rows, made = expected_rows(), [FIRST, SECOND]
    if wrong == "doubled":
        rows = sorted([*rows, (0, -1)])
    elif wrong == "missing":
        rows.remove((9_999, -2))
    else:
        made[0] = replace(FIRST, replaced_rows=10)
    assert problem(HISTORY, made, RIVAL, rows, Merging())


def test_the_sixth_upsert_has_the_old_keys_of_the_first() -> None:
    """Then their files hold other rows too, and are written anew."""
    first, sixth, second = rows_of(1), rows_of(6), rows_of(2)
    assert first.keys() == sixth.keys()
    assert first.keys() & second.keys() == {0}
    assert all(len(first[part] & sixth[part]) == 1 for part in first if part)


def test_replans_and_searches_are_counted_of_upserts_beside_the_other_writer() -> None:
    """One that gave up has not landed; one before the other writer's first row does not count."""
    early, gone = replace(FIRST, started_at=1.0), replace(SECOND, snapshot_id=None)
    appended: dict[str, Any] = {"landed_at": [5.0, 15.0], "refused": 1}
    found = figures([early, FIRST, SECOND, gone], appended)
    assert (found["upserts"], found["landed"], found["replans"]) == (3, 2, 1)
    assert (found["searched_files"], found["redone_share"]) == (24, 0.25)
