"""Rows of an Iceberg table that a scan leaves out: by its filter, or because they are deleted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.manifest import FileFormat

from holdfast.errors import SettingsError, UnsupportedTableError
from holdfast.model.coverage import Ranges
from holdfast.sources.scans import scan_iceberg
from tests.fakes.iceberg_scans import Tables, ids, stored
from tests.fakes.parquet_scans import read
from tests.fakes.position_deletes import add_equality_deletes, delete_positions


@pytest.fixture
def tables(tmp_path: Path) -> Tables:
    """Return a catalog of its own."""
    return Tables(tmp_path)


@pytest.mark.parametrize(
    "where",
    [
        "id > 7 and name != 'name 9'",
        [("id", ">", 7), ("name", "!=", "name 9")],
        [[("id", "in", [8])], [("id", "in", {10, 11, 12})]],
    ],
    ids=str,
)
def test_files_and_rows_that_do_not_match_are_left_out(tables: Tables, where: Any) -> None:  # noqa: ANN401
    """Files by their metrics, rows by the filter, and each row of the others is accounted for."""
    tables.create()
    tables.append(1, 2, 3)
    tables.append(6, 7, 8, 9, 10, 11, 12)
    scan = tables.scan(columns=["id"], where=where)
    pins = stored(scan.pin())
    assert len(pins.files) == 1
    found = read(scan, pins)
    assert found.rows == [{"id": one} for one in (8, 10, 11, 12)]
    assert found.accounted == list(range(7))


@pytest.mark.parametrize(
    "where", ["", "id >", "nope = 1", "id = 'x'", [("id", "~", 1)], []], ids=str
)
def test_a_filter_that_does_not_fit_is_refused(tables: Tables, where: Any) -> None:  # noqa: ANN401
    """On the driver, with the columns that there are."""
    tables.create()
    with pytest.raises(SettingsError, match="where="):
        tables.scan(where=where).pin()
    with pytest.raises(SettingsError, match="where="):
        scan_iceberg("a.b.c", where=3)  # type: ignore[arg-type]


def test_a_filter_under_an_old_name_does_not_leave_out_the_wrong_files(tables: Tables) -> None:
    """A named snapshot is filtered by the names that it had, though another column has one now."""
    tables.create()
    first = tables.append(8, 9, 10)
    with tables.load().update_schema() as update:
        update.rename_column("id", "old")
        update.rename_column("n", "id")
    found = read(tables.scan(snapshot_id=first, where="id = 9"))
    assert found.rows == [{"id": 9, "n": 2, "name": "name 9"}]


def test_position_deletes_are_applied_on_the_worker(tables: Tables) -> None:
    """Each deleted row is accounted for as one that a filter leaves out."""
    tables.create()
    tables.append(*range(10))
    tables.append(*range(10, 20))
    table = tables.load()
    paths = sorted(str(task.file.file_path) for task in table.scan().plan_files())
    delete_positions(table, {paths[0]: [0, 1, 5], paths[1]: [9]})
    delete_positions(tables.load(), {paths[0]: [5, 7]})
    scan = tables.scan()
    pins = stored(scan.pin())
    assert [len(file.deletes) for file in pins.files] in ([2, 1], [2, 2])
    found = read(scan, pins)
    assert found.accounted == list(range(20))
    assert len(found.rows) == 15
    assert ids(found) == sorted(tables.load().scan().to_arrow()["id"].to_pylist())
    some = read(scan, pins, Ranges.of([(1, 6), (19, 20)]))
    assert some.accounted == [1, 2, 3, 4, 5, 19]
    assert len(some.rows) == 3
    kept = read(tables.scan(where="id >= 5 and id < 15"))
    expected = tables.load().scan(row_filter="id >= 5 and id < 15").to_arrow()["id"].to_pylist()
    assert ids(kept) == sorted(expected)


def test_equality_deletes_are_refused_with_advice(tables: Tables) -> None:
    """The rows that they name cannot be told from the file alone."""
    tables.create()
    tables.append(1, 2)
    add_equality_deletes(tables.load())
    with pytest.raises(UnsupportedTableError, match=r"(?s)equality.*rewrite_data_files"):
        tables.scan().pin()


def test_deletion_vectors_are_refused_with_advice(tables: Tables) -> None:
    """They stand in files of another format."""
    tables.create()
    tables.append(1, 2)
    path = next(iter(tables.load().scan().plan_files())).file.file_path
    delete_positions(tables.load(), {path: [0]}, file_format=FileFormat.PUFFIN)
    with pytest.raises(UnsupportedTableError, match=r"(?s)deletion vectors.*rewrite_data_files"):
        tables.scan().pin()
