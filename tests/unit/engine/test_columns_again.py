"""Columns that a Lance dataset has are computed again, for all rows or those of a filter."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pyarrow.compute as pc
import pytest

from holdfast.errors import (
    RunMismatchError,
    SettingsError,
)
from holdfast.sinks.base import Outcome
from tests.fakes.column_rig import ColumnRig

# What the first rows are computed for twice: once to see which columns there are.
PROBED = 8


@pytest.fixture
def rig(tmp_path: Path) -> ColumnRig:
    """Return a folder for a dataset; nothing is in it yet."""
    return ColumnRig(str(tmp_path / "t.lance"))


def updated(rig: ColumnRig, **how: Any) -> Any:  # noqa: ANN401 - of `ColumnRig.start`.
    """Add columns, and then start another run that computes one of them again."""
    rig.make()
    rig.start()
    rig.mode, rig.run_id = "update_columns", "update"
    rig.computed.clear()
    return rig.start(lambda batch: {"double": pc.multiply(batch["id"], -1)}, **how)


def doubles(rig: ColumnRig) -> list[int | None]:
    """Return the column by id."""
    found = rig.rows()
    return [found[id_]["double"] for id_ in sorted(found)]


def test_rows_outside_the_filter_keep_their_value(rig: ColumnRig) -> None:
    """In fragments with rows of both kinds, and in others."""
    report = updated(rig, where=(pc.field("id") < 5) | (pc.field("id") == 12))
    inside = {*range(5), 12}
    assert doubles(rig) == [-id_ if id_ in inside else 2 * id_ for id_ in range(30)]
    assert report.rows == 6
    assert {row["pair"][1] for row in rig.rows().values()} == set(range(1, 31))


def test_all_rows_are_computed_without_a_filter(rig: ColumnRig) -> None:
    """Fragments that hold only the old values of the column lose that file."""
    updated(rig)
    assert doubles(rig) == [-id_ for id_ in range(30)]


def test_a_filter_that_is_null_is_not_true(rig: ColumnRig) -> None:
    """`where` means IS TRUE."""
    rig.make()
    rig.start()
    rig.dataset().update({"v": "NULL"}, where="id < 3")
    rig.mode, rig.run_id = "update_columns", "update"
    rig.start(lambda batch: {"double": pc.multiply(batch["id"], -1)}, where=pc.field("v") != "v5")
    inside = set(range(30)) - {0, 1, 2, 5}
    assert doubles(rig) == [-id_ if id_ in inside else 2 * id_ for id_ in range(30)]


def test_an_index_on_an_updated_column_answers_rightly(rig: ColumnRig) -> None:
    """It lacks the rows that were computed again, and the report says so."""
    rig.make()
    rig.start()
    rig.dataset().create_scalar_index("double", "BTREE")
    rig.mode, rig.run_id = "update_columns", "update"
    rig.start(lambda batch: {"double": pc.multiply(batch["id"], -1)}, where=pc.field("id") < 5)
    assert rig.sink().unindexed_rows() == {"double_idx": 10}
    found = {
        n: rig.dataset().to_table(filter=f"double = {n}")["id"].to_pylist() for n in (4, 24, -2)
    }
    assert found == {4: [], 24: [12], -2: [2]}
    rig.dataset().optimize.optimize_indices()
    assert rig.sink().unindexed_rows() == {}
    assert rig.dataset().to_table(filter="double = -2")["id"].to_pylist() == [2]


def test_values_that_others_write_meanwhile_stay(rig: ColumnRig) -> None:
    """Outside the filter, also after the file was put together."""
    rig.make()
    rig.start()
    rig.mode, rig.run_id = "update_columns", "update"
    rig.start_while(
        lambda: rig.dataset().update({"double": "1000"}, where="id = 25"),
        transform=lambda batch: {"double": pc.multiply(batch["id"], -1)},
        where=pc.field("id") < 5,
    )
    wanted = [-id_ if id_ < 5 else 2 * id_ for id_ in range(30)]
    wanted[25] = 1000
    assert doubles(rig) == wanted


def test_an_update_without_rows_changes_nothing(rig: ColumnRig) -> None:
    """The transform is not called, so that its columns are not known."""
    report = updated(rig, where=pc.field("id") > 100)
    assert (report.rows, report.outcome) == (0, "committed")
    assert doubles(rig) == [2 * id_ for id_ in range(30)]


def test_an_update_of_a_missing_column_is_refused(rig: ColumnRig) -> None:
    """`add_columns` is what was meant."""
    rig.make()
    rig.mode = "update_columns"
    with pytest.raises(SettingsError, match="has no column 'double'"):
        rig.start()


def test_kept_values_of_restored_rows_are_right(rig: ColumnRig) -> None:
    """Rows that were deleted while the file was put together keep their value, too."""
    rig.make()
    rig.start()
    version = rig.dataset().version
    rig.mode, rig.run_id = "update_columns", "update"

    rig.jobs.before_tasks = [lambda: rig.dataset().delete("id in (7, 17)")]
    rig.start_while(
        lambda: rig.dataset(version).restore(),
        transform=lambda batch: {"double": pc.multiply(batch["id"], -1)},
        where=pc.field("id") < 5,
    )
    assert doubles(rig) == [-id_ if id_ < 5 else 2 * id_ for id_ in range(30)]


def test_another_dataset_in_the_same_place_is_refused(rig: ColumnRig) -> None:
    """Its rows are not those that the run has computed."""
    rig.make()
    rig.start_and_die(1)
    shutil.rmtree(rig.uri)
    rig.make()
    with pytest.raises(RunMismatchError, match="dropped and created again"):
        rig.start()


def test_posts_that_lose_are_made_again(rig: ColumnRig) -> None:
    """Each for the rows that are there then; nothing is computed again."""
    rig.make()
    changes = [lambda number=number: rig.append(100 + number) for number in range(4)]
    rig.start_while(*changes)
    assert rig.posts[-1] is Outcome.LANDED
    rig.assert_filled(without=[100, 101, 102, 103], rows=34)
    assert len(rig.computed) == 30 + PROBED
