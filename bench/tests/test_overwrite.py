"""How the benchmarks of overwrites check their tables, and what they count."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from bench.overwrite import Found
from bench.overwrite_busy import Overwrite, Replay, figures, partitions_of, problem, rows_of
from bench.overwrite_rival import ROW_PROPERTY, Rival
from bench.scan_child import Spread

RIGHT = Found(new_rows=4, sum_of_new_ids=6, old_rows=0, other_rows=150_000)
RIVAL = Rival(table="bench.t", seconds=1.0, every_s=1.0, partitions=(0, 9_999))
FIRST = Overwrite(
    number=1, started_at=10.0, seconds=2.0, posts=1, replaced_rows=12, snapshot_id=101
)
SECOND = replace(FIRST, number=2, posts=2, replaced_rows=20, snapshot_id=102)
# A row that is replaced, an overwrite, a row that stays, a row that is replaced, another overwrite.
HISTORY: list[tuple[int, dict[str, str]]] = [
    (100, {}),
    (1, {ROW_PROPERTY: "0"}),
    (101, {}),
    (2, {ROW_PROPERTY: "1"}),
    (102, {}),
    (3, {ROW_PROPERTY: "2"}),
]


def expected_rows() -> list[tuple[int, int]]:
    """Return the rows of a table with that history."""
    ids = {partition: {partition} for partition in range(10_000)} | rows_of(1) | rows_of(2)
    ids[9_999].add(-2)
    ids[0].add(-3)
    return sorted((partition, row) for partition, rows in ids.items() for row in rows)


def test_a_table_with_all_rows_in_place_is_right() -> None:
    """New rows once each, no old row of a replaced partition, all rows of other partitions."""
    assert RIGHT.problem(4) == ""


@pytest.mark.parametrize(
    "change", [{"new_rows": 5}, {"sum_of_new_ids": 7}, {"old_rows": 1}, {"other_rows": 149_999}]
)
def test_a_table_that_differs_is_wrong(change: dict[str, int]) -> None:
    """The figure that differs is named."""
    ((name, value),) = change.items()
    assert f"{name} is {value}, not" in replace(RIGHT, **change).problem(4)


def test_spread_gives_as_many_categories_as_asked_for() -> None:
    """Each from 0 up; the other columns stay."""
    batch = pa.record_batch({"user_id": list(range(8)), "category": pa.array([9] * 8, pa.int32())})
    assert Spread(3)(batch).to_pydict() == {
        "user_id": list(range(8)),
        "category": [0, 1, 2, 0, 1, 2, 0, 1],
    }


def test_each_overwrite_replaces_a_file_of_every_large_manifest() -> None:
    """And the contested partition; never what another has replaced, or the one left alone."""
    first, second = partitions_of(1), partitions_of(998)
    assert [partition // 1_000 for partition in first[1:]] == list(range(10))
    assert set(first) & set(second) == {0}
    assert 9_999 not in second


@pytest.mark.parametrize("number", [0, 999])
def test_more_overwrites_than_there_are_partitions_end_the_benchmark(number: int) -> None:
    """They would replace what another has replaced."""
    with pytest.raises(SystemExit):
        partitions_of(number)


def test_ids_of_two_overwrites_differ() -> None:
    """So that a row shows which overwrite it is from; a seed's id is its partition."""
    first, second = (set().union(*rows_of(number).values()) for number in (1, 2))
    assert not first & second
    assert min(first) >= 10_000


def test_a_replayed_overwrite_takes_what_was_appended_before() -> None:
    """Also rows of an earlier overwrite: its ten in the contested partition."""
    replay = Replay()
    replay.append(-1, 0)
    assert replay.overwrite(1) == 12
    replay.append(-2, 0)
    assert replay.overwrite(2) == 10 + 10 + 1


def test_a_table_that_matches_its_history_is_right() -> None:
    """Rows of the other writer are gone if an overwrite came later, and there otherwise."""
    assert problem(HISTORY, [FIRST, SECOND], RIVAL, expected_rows()) == ""


def test_an_overwrite_that_gave_up_counts_for_nothing() -> None:
    """It is in the list, and nothing of it in the table."""
    lost = Overwrite(number=3, started_at=20.0, seconds=2.0)
    assert problem(HISTORY, [FIRST, SECOND, lost], RIVAL, expected_rows()) == ""


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (expected_rows()[1:], "1 rows are missing"),
        ([*expected_rows(), expected_rows()[0]], "1 more"),
        ([*expected_rows(), (0, -1)], "1 more, as [(0, -1)]"),
    ],
    ids=["lost", "doubled", "back again"],
)
def test_a_row_too_few_or_too_many_is_found(found: list[tuple[int, int]], words: str) -> None:
    """Also one that was there before an overwrite of its partition."""
    assert words in problem(HISTORY, [FIRST, SECOND], RIVAL, found)


def test_a_wrong_count_of_replaced_rows_is_found() -> None:
    """A report must say what the history shows."""
    wrong = replace(FIRST, replaced_rows=11)
    found = problem(HISTORY, [wrong, SECOND], RIVAL, expected_rows())
    assert found == "overwrite 1 says it replaced 11 rows, not 12"


def test_an_overwrite_that_the_table_does_not_know_is_found() -> None:
    """It said that it has landed."""
    found = problem(HISTORY[:4], [FIRST, SECOND], RIVAL, expected_rows())
    assert found == "1 overwrites are not in the table's history"


def test_only_overwrites_beside_the_other_writer_count() -> None:
    """From its first append to its last; one that gave up counts, but has not landed."""
    early, late = replace(FIRST, started_at=4.0), replace(FIRST, started_at=19.0)
    lost = Overwrite(number=9, started_at=15.0, seconds=5.0)
    made = [early, FIRST, replace(SECOND, seconds=6.0), lost, late]
    appended: dict[str, Any] = {"landed_at": [5.0, 7.0, 20.0], "refused": 1}
    found = figures([(beside, replace(FIRST, seconds=4.0)) for beside in made], appended)
    assert found["beside_s"] == [2.0, 6.0, 5.0]
    assert found["alone_s"] == [4.0, 4.0, 4.0]
    assert (found["overwrites"], found["landed"], found["rival_rows"]) == (3, 2, 3)
    assert found["overwrites_by_replans"] == {"0": 1, "1": 1}
    assert found["replans_max"] == 1
    assert found["ratio"] == 1.25
