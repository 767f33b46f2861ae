"""The sink contract on the simulated Lance dataset, which the simulation relies on."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.errors import HoldfastError
from holdfast.sinks.base import Outcome
from tests.contract.lance_tables import LanceDatasetUnderTest
from tests.contract.simulated_lance import SimulatedLance
from tests.contract.sink_contract import SinkContract
from tests.contract.table_under_test import TableUnderTest


class TestSimulatedLance(SinkContract):
    """The dataset in memory that the simulation runs on."""

    def table(self, *, empty: bool = False) -> SimulatedLance:
        """Return a new dataset in a world of its own."""
        return SimulatedLance(empty=empty)

    @pytest.mark.xfail(
        reason="simulated executors share the memory of the driver",
        strict=True,
        raises=pickle.PicklingError,
    )
    def test_a_writer_spec_survives_the_way_to_an_executor(self) -> None:
        """A spec cannot be pickled."""
        super().test_a_writer_spec_survives_the_way_to_an_executor()


_FILLED = pa.table({"id": pa.array([-1], pa.int64()), "new": pa.array([7], pa.int32())})
# What other writers do, with Lance itself and in the simulation.
Deeds = tuple[Callable[[LanceDatasetUnderTest], object], Callable[[SimulatedLance], object]]


def _lance(act: Callable[[Any], object]) -> Callable[[LanceDatasetUnderTest], object]:
    """Return a deed on the newest version; half of what Lance takes is untyped."""
    return lambda table: act(table.load())


def _both(act: Callable[[TableUnderTest], object]) -> Deeds:
    """Return a deed that the contract has a name for."""
    return act, act


def _number(table: SimulatedLance, name: str) -> int:
    return next(column.number for column in table.table.columns if column.name == name)


DEEDS: dict[str, Deeds] = {
    "append": _both(lambda table: table.foreign_append()),
    "compaction": (
        _lance(lambda dataset: dataset.optimize.compact_files()),
        lambda table: table.table.folder.compact(),
    ),
    "setting": (
        _lance(lambda dataset: dataset.update_config({"team": "us"})),
        lambda table: table.table.folder.change("UpdateConfig", stops=False),
    ),
    "index": (
        _lance(lambda dataset: dataset.create_scalar_index("id", "BTREE")),
        lambda table: table.table.folder.change("CreateIndex", stops=False),
    ),
    "metadata": (
        _lance(lambda dataset: dataset.update_schema_metadata({}, replace=True)),
        lambda table: table.table.drop_marks(),
    ),
    "column": (
        _lance(lambda dataset: dataset.add_columns(pa.field("new", pa.int32()))),
        lambda table: table.table.add_column("new"),
    ),
    "other column": (
        _lance(lambda dataset: dataset.add_columns(pa.field("other", pa.int32()))),
        lambda table: table.table.add_column("other"),
    ),
    "dropped": (
        _lance(lambda dataset: dataset.drop_columns(["new"])),
        lambda table: table.table.drop_column(_number(table, "new")),
    ),
    "filled": (
        _lance(lambda dataset: dataset.insert(_FILLED)),
        lambda table: table.table.foreign_append(),
    ),
    "cast": (
        _lance(lambda dataset: dataset.alter_columns({"path": "new", "data_type": pa.int64()})),
        lambda table: table.table.widen_column(_number(table, "new")),
    ),
    "renamed": _both(lambda table: table.change_schema()),
    "overwrite": _both(lambda table: table.replace()),
    "delete": (
        _lance(lambda dataset: dataset.delete("id = -1")),
        lambda table: table.table.folder.delete(),
    ),
    "restore": _both(lambda table: table.roll_back(2)),
    "clean-up": _both(lambda table: table.expire_history()),
    "empty post": _both(lambda table: table.sink().post_empty(table.sink().load())),
    "made again": _both(lambda table: table.drop_and_create()),
}
DONE = (
    *((name,) for name in DEEDS if name not in {"dropped", "cast", "filled"}),
    *(("column", name) for name in ("dropped", "cast", "filled", "restore", "overwrite")),
    *(("column", "dropped", "column"), ("column", "filled", "dropped", "other column")),
    *(("column", "other column", "dropped", "column"), ("column", "dropped", "other column")),
    *(("column", "cast", "dropped", "column"), ("column", "filled", "cast", "dropped", "column")),
    *(("setting", "index"), ("setting", "append"), ("append", "setting")),
    *(("index", "clean-up"), ("append", "clean-up"), ("overwrite", "clean-up")),
    *(("overwrite", "restore"), ("restore", "clean-up"), ("restore", "append")),
    *((name, "setting", "clean-up") for name in ("append", "delete", "empty post", "renamed")),
    *(("metadata", "clean-up"), ("metadata", "setting"), ("compaction", "clean-up")),
)


@pytest.mark.slow_unit
@pytest.mark.parametrize("names", DONE, ids="-".join)
@pytest.mark.parametrize("is_before", [True, False], ids=["before the post", "after it"])
def test_the_simulation_does_as_lance_does(
    names: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_before: bool
) -> None:
    """The same deeds give the same answers, versions and rows of ours on either dataset."""
    real = LanceDatasetUnderTest(f"file://{tmp_path}/t.lance", {}, monkeypatch, empty=False)
    simulated = SimulatedLance(empty=False)
    seen = []
    for table, mine in ((real, 0), (simulated, 1)):
        table.foreign_append()  # Two fragments of rows, so that there is something to compact.

        def act(table: Any = table, mine: int = mine) -> None:  # noqa: ANN401 - one of the two.
            for name in names:
                DEEDS[name][mine](table)

        seen.append(_post_among(table, act, is_before=is_before))
    assert seen[1] == seen[0]


def _post_among(
    table: TableUnderTest, act: Callable[[], None], *, is_before: bool
) -> dict[str, object]:
    """Post before or after what others do, and return all that a driver can see of it."""
    attempt = table.attempt([0, 1])
    if is_before:
        act()
    outcome: Outcome = attempt.post()
    if not is_before:
        act()
    view = attempt.sink.load()
    try:
        found: object = attempt.find()
    except HoldfastError as error:
        found = type(error)
    return {
        "outcome": outcome,
        "found": found,
        "rows": sorted(id_ for id_ in table.rows() if id_ >= 0),
        "version": view.parent_snapshot_id,
        "columns": [(field["id"], field["name"], field["type"]) for field in view.schema["fields"]],
        "settled below": view.settled_below,
        "is the same": view.uuid == attempt.view.uuid,
    }
