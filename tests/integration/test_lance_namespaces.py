"""Whole runs with a real Spark onto datasets that are named in a Lance Namespace."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lance
import pytest
from lance.namespace import DirectoryNamespace, RestAdapter

import holdfast as hf
from holdfast.errors import RunMismatchError, TransformError
from tests.integration.lance_desk import LABELLED, ROWS, Labelled, LanceDesk

pytestmark = [pytest.mark.spark, pytest.mark.lance]


@pytest.fixture
def desk(lance_desk: LanceDesk) -> LanceDesk:
    """Return a place without a dataset, on each kind of storage."""
    return lance_desk


def of_folder(desk: LanceDesk) -> dict[str, Any]:
    """Return the properties of a namespace in the desk's folder."""
    storage = {f"storage.{name}": value for name, value in desk.options.items()}
    return {"root": f"{desk.folder}/datasets", **storage}


@pytest.fixture(params=["dir", "rest"])
def table(request: pytest.FixtureRequest, desk: LanceDesk) -> Iterator[hf.LanceTable]:
    """Yield a table by its name, in each kind of namespace that pylance ships."""
    if request.param == "dir":
        yield hf.LanceTable("texts", namespace={"impl": "dir", **of_folder(desk)})
        return
    with RestAdapter("dir", of_folder(desk), port=0) as server:
        settings = {"impl": "rest", "uri": f"http://127.0.0.1:{server.port}"}
        yield hf.LanceTable("texts", namespace=settings, storage_options=desk.options)


def rows_of(desk: LanceDesk, name: str) -> list[tuple[Any, ...]]:
    """Return a dataset's rows as another program reads them, by its name."""
    kind: Any = DirectoryNamespace  # It has no types.
    dataset = lance.dataset(
        namespace_client=kind(**of_folder(desk)),
        table_id=[name],
        storage_options=desk.options,
    )
    return sorted(tuple(row.values()) for row in dataset.to_table().to_pylist())


def test_a_run_is_created_resumed_and_found_again_by_name(
    desk: LanceDesk, table: hf.LanceTable
) -> None:
    """Each row is in the dataset once, and the ledger names its location, without the namespace."""
    with pytest.raises(TransformError):
        desk.append(to=table, transform=Labelled([ROWS - 4]))
    report = desk.append(to=table)
    assert (report.outcome, report.rows) == ("committed", ROWS)
    assert report.kept_rows > 0
    assert rows_of(desk, "texts") == LABELLED
    assert report.table == f"{desk.folder}/datasets/texts.lance"

    assert desk.append(to=table).outcome == "already_committed"
    by_place = hf.LanceTable(report.table, storage_options=desk.options)
    assert desk.append(to=by_place).outcome == "already_committed"
    assert rows_of(desk, "texts") == LABELLED
    assert desk.run().sweep(to=table).data_files == 0


def test_a_name_that_leads_elsewhere_later_is_refused(
    desk: LanceDesk, table: hf.LanceTable
) -> None:
    """A run goes on in the dataset in which it began, and not in another one of that name."""
    with pytest.raises(TransformError):
        desk.append(to=table, transform=Labelled([ROWS - 4]))
    other = hf.LanceTable(
        "others", namespace={"impl": "dir", **of_folder(desk)}, storage_options=desk.options
    )
    with pytest.raises(RunMismatchError, match=r"others"):
        desk.append(to=other)
    desk.append(to=other, run_id="another")
    with pytest.raises(RunMismatchError, match=r"others\.lance"):
        desk.append(to=other)
    assert desk.append(to=table).rows == ROWS
    assert rows_of(desk, "others") == rows_of(desk, "texts") == LABELLED
