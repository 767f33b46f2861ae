"""A table's schema changes between the starts of a run: staged rows fit it, or are refused."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.table.update.schema import UpdateSchema
from pyiceberg.types import DecimalType, DoubleType, FloatType, LongType, NestedField, StringType

from holdfast.engine import drive
from holdfast.engine.claim import claim_run
from holdfast.engine.drive import Driver
from holdfast.engine.options import WriteOptions
from holdfast.errors import SchemaMismatchError, TableChangedError, TransformError
from holdfast.ledger.ledger import Ledger, Ports
from holdfast.model.records import Claim
from holdfast.model.report import Report
from holdfast.sinks.base import Sink
from tests.fakes.cli_lake import CliLake, lake
from tests.fakes.lance_rig import LanceRig
from tests.fakes.manual_ports import manual_ports
from tests.fakes.memory_storage import DriverDiedError
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.rig import RUN_ID, STORE, Rig
from tests.fakes.unpinned import Unpinned

__all__ = ["lake"]
pytestmark = pytest.mark.filterwarnings("ignore:run .* code has changed:UserWarning")

PARTS = (range(10), range(10, 20), range(20, 30))
Transform = Callable[[pa.RecordBatch], Any]


def plain(batch: pa.RecordBatch) -> dict[str, Any]:
    """Return the columns that the table has had from the start."""
    return {"id": batch["id"]}


def scored(batch: pa.RecordBatch) -> dict[str, Any]:
    """Return one more column."""
    return {**plain(batch), "score": pa.array([f"paid-{i}" for i in batch["id"].to_pylist()])}


def die() -> None:
    """End the driver, as a lost machine does."""
    raise DriverDiedError


class IcebergStory:
    """Starts of one run on an Iceberg table that its owner changes in between."""

    def __init__(self, lake: CliLake, schema: Schema | None = None) -> None:
        self._lake = lake
        self.sink = lake.make_table()
        if schema is not None:
            catalog = self.sink._catalog  # noqa: SLF001
            catalog.drop_table(lake.name)
            catalog.create_table(lake.name, schema=schema)

    @property
    def table(self) -> Table:
        return self.sink._catalog.load_table(self._lake.name)  # noqa: SLF001

    def change(self, what: Callable[[UpdateSchema], object]) -> None:
        with self.table.update_schema() as update:
            what(update)

    def start(self, transform: Transform, until: int | None = None) -> Report | None:
        rows = MemorySubmitter(*PARTS)
        if until is not None:
            rows.after_task[until] = die
        ports = Ports() if until is None else Ports(process_id=2**30)
        with contextlib.suppress(DriverDiedError):
            return self._lake.start(
                "r", rows, ports, sink=self.sink, transform=transform, takeover="now"
            )
        return None

    def column(self, name: str) -> list[Any]:
        found: list[Any] = self.table.scan().to_arrow().sort_by("id")[name].to_pylist()
        return found


def test_a_column_of_a_later_start_that_is_dropped_and_added_again_is_not_filled_with_null(
    lake: CliLake,
) -> None:
    """Each start wrote for another schema; checking only the oldest would let the others pass."""
    story = IcebergStory(lake)
    story.start(plain, until=0)
    story.change(lambda update: update.add_column("score", StringType()))
    story.start(scored, until=1)
    story.change(lambda update: update.delete_column("score"))
    story.change(lambda update: update.add_column("score", StringType()))
    with pytest.raises(TableChangedError, match="column 'score' was dropped"):
        story.start(scored)
    assert story.table.current_snapshot() is None


def recreate(story: IcebergStory) -> None:
    """Drop the column, and add another one of its name."""
    story.change(lambda update: update.delete_column("score"))
    story.change(lambda update: update.add_column("score", StringType()))


def give_the_name_away(story: IcebergStory) -> None:
    """Drop the column, and rename another one to its name."""
    story.change(lambda update: update.delete_column("score"))
    story.change(lambda update: update.rename_column("label", "score"))


@pytest.mark.parametrize("change", [recreate, give_the_name_away])
def test_a_name_that_becomes_another_columns_while_a_start_waits_is_refused(
    lake: CliLake, monkeypatch: pytest.MonkeyPatch, change: Callable[[IcebergStory], None]
) -> None:
    """The output was made for the column that the start saw; nothing is paid for.

    Found by simulation (seed 201778221): the table was loaded again after the wait, and values
    landed in the other column of that name.
    """
    story, computed = IcebergStory(lake), []
    story.change(lambda update: update.add_column("score", StringType()))
    story.change(lambda update: update.add_column("label", StringType()))

    def wait(*arguments: Any, **options: Any) -> Claim:  # noqa: ANN401 - those of the real one.
        claim = claim_run(*arguments, **options)
        change(story)
        monkeypatch.setattr(drive, "_VIEW_S_MAX", -1.0)
        return claim

    def counted(batch: pa.RecordBatch) -> dict[str, Any]:
        computed.append(batch.num_rows)
        return scored(batch)

    monkeypatch.setattr(drive, "claim_run", wait)
    with pytest.raises(TableChangedError, match="column 'score' was dropped"):
        story.start(counted)
    assert (computed, story.table.current_snapshot()) == ([], None)


def test_a_column_added_in_mid_run_is_filled_by_later_starts(lake: CliLake) -> None:
    """Rows staged before have NULL there, and nothing else is lost."""
    story = IcebergStory(lake)
    story.start(plain, until=0)
    story.change(lambda update: update.add_column("score", StringType()))
    story.start(scored, until=1)
    assert story.start(scored) is not None
    assert story.column("score") == [None] * 10 + [f"paid-{i}" for i in range(10, 30)]


def test_a_column_added_in_mid_run_need_not_be_in_the_output(lake: CliLake) -> None:
    """The script is older than the column: it continues, and its rows have NULL there."""
    story = IcebergStory(lake)
    story.start(plain, until=0)
    story.change(lambda update: update.add_column("score", StringType()))
    assert story.start(plain) is not None
    assert story.column("score") == [None] * 30
    # A run that begins after the column was added must provide it.
    with pytest.raises(SchemaMismatchError, match="'score'"):
        lake.start("later", MemorySubmitter(*PARTS), sink=story.sink, transform=plain)


def test_a_run_that_has_staged_nothing_has_still_begun(lake: CliLake) -> None:
    """The output must have the columns that the table had at the first plan."""
    story = IcebergStory(lake)

    def failing(_batch: pa.RecordBatch) -> Any:  # noqa: ANN401 - it returns nothing.
        raise LookupError

    with pytest.raises(TransformError):
        story.start(failing)
    story.change(lambda update: update.add_column("score", StringType()))
    story.change(lambda update: update.rename_column("id", "number"))

    def other(batch: pa.RecordBatch) -> dict[str, Any]:
        return {"score": batch["id"].cast(pa.string())}

    with pytest.raises(SchemaMismatchError, match="'number'"):
        story.start(other)
    assert story.start(lambda batch: {"number": batch["id"]}) is not None
    assert story.table.scan().to_arrow()["score"].null_count == 30


@pytest.mark.parametrize(
    ("change", "wanted"),
    [
        (lambda update: update.update_column("v", DoubleType()), [1.5] * 30),
        (lambda update: update.update_column("w", required=False), list(range(30))),
        (lambda update: update.update_column("n", DecimalType(12, 2)), [1] * 30),
    ],
    ids=["float to double", "not null dropped", "a longer decimal"],
)
def test_a_change_that_iceberg_allows_for_old_files_is_not_a_dead_end(
    lake: CliLake, change: Callable[[UpdateSchema], object], wanted: list[Any]
) -> None:
    """A wider type or a dropped NOT NULL in mid-run: the run continues, and every value is read."""
    story = IcebergStory(
        lake,
        Schema(
            NestedField(1, "id", LongType(), required=False),
            NestedField(2, "v", FloatType(), required=False),
            NestedField(3, "w", LongType(), required=True),
            NestedField(4, "n", DecimalType(9, 2), required=False),
        ),
    )

    def values(batch: pa.RecordBatch) -> dict[str, Any]:
        rows = batch.num_rows
        return {
            "id": batch["id"],
            "v": pa.array([1.5] * rows, pa.float32()),
            "w": batch["id"],
            "n": pa.array([Decimal(1)] * rows, pa.decimal128(9, 2)),
        }

    story.start(values, until=0)
    story.change(change)
    driven = story.start(values)
    assert driven is not None
    assert driven.kept_rows == 10
    column = {1.5: "v", 0: "w", 1: "n"}[wanted[0]]
    assert story.column(column) == wanted


class LanceStory:
    """Starts of one run on a Lance dataset that its owner changes in between."""

    def __init__(self, folder: Path) -> None:
        self.rig = LanceRig(str(folder / "t.lance"))

    def start(self, transform: Transform, until: int | None = None) -> Report | None:
        rows = MemorySubmitter(*PARTS)
        if until is not None:
            rows.after_task[until] = die
        sink: Sink = self.rig.sink()
        view = sink.load()
        identity = replace(Rig().identity(), table=self.rig.uri, table_uuid=view.uuid)
        ledger = Ledger.open(RUN_ID, STORE, self.rig.storage, manual_ports(self.rig.time))
        driver = Driver(ledger=ledger, sink=sink, input=Unpinned(rows))
        with contextlib.suppress(DriverDiedError):
            return driver.write(view, identity, WriteOptions(transform=transform, takeover="now"))
        return None

    def drop_and_add(self, field: pa.Field) -> None:
        self.rig.dataset().drop_columns(["score"])
        self.rig.dataset().add_columns(field)


def labelled(batch: pa.RecordBatch) -> dict[str, Any]:
    """Return the columns that the dataset has had from the start."""
    return {"id": batch["id"], "label": pa.array(["x"] * batch.num_rows)}


def labelled_and_scored(batch: pa.RecordBatch) -> dict[str, Any]:
    """Return one more column."""
    return {**scored(batch), **labelled(batch)}


@pytest.mark.parametrize(
    ("successor", "said"),
    [
        (pa.field("rank", pa.int64()), "renamed to 'rank'"),
        (pa.field("note", pa.string()), "renamed to 'note'"),
        (pa.field("score", pa.string()), "in version .*column 'score' was dropped"),
    ],
    ids=["another type", "another name", "the same name"],
)
def test_lance_reuses_a_field_number_and_no_value_lands_in_another_column(
    tmp_path: Path, successor: pa.Field, said: str
) -> None:
    """A new column gets a dropped one's number: the start is refused, no wrong value is read."""
    story = LanceStory(tmp_path)
    story.start(labelled, until=0)
    story.rig.dataset().add_columns(pa.field("score", pa.string()))
    story.start(labelled_and_scored, until=1)
    story.drop_and_add(successor)

    def last(batch: pa.RecordBatch) -> dict[str, Any]:
        values = batch["id"].cast(successor.type)
        return {**labelled(batch), successor.name: values}

    with pytest.raises(TableChangedError, match=said):
        story.start(last)
    assert story.rig.ids() == [-1]


def test_a_lance_column_added_in_mid_run_need_not_be_in_the_output(tmp_path: Path) -> None:
    """The script is older than the column: it continues, and its rows have NULL there."""
    story = LanceStory(tmp_path)
    story.start(labelled, until=0)
    with pytest.raises(SchemaMismatchError, match="'label'"):  # A column from the start.
        story.start(plain)
    story.rig.dataset().add_columns(pa.field("score", pa.string()))
    assert story.start(labelled) is not None
    assert story.rig.ids() == [-1, *range(30)]
    assert story.rig.dataset().to_table()["score"].null_count == 31


def test_if_old_versions_are_gone_name_number_and_type_decide(tmp_path: Path) -> None:
    """After a clean-up the same name, number and type suffice: the values belong to the column."""
    story = LanceStory(tmp_path)
    story.start(labelled, until=0)
    story.rig.dataset().add_columns(pa.field("score", pa.string()))
    story.start(labelled_and_scored, until=1)
    story.drop_and_add(pa.field("score", pa.string()))
    story.rig.dataset().cleanup_old_versions(older_than=dt.timedelta(0))
    assert story.start(labelled_and_scored) is not None
    rows = story.rig.dataset().to_table().to_pylist()
    scores = {row["id"]: row["score"] for row in rows}
    assert scores == {-1: None} | dict.fromkeys(range(10)) | {i: f"paid-{i}" for i in range(10, 30)}


def test_a_lance_column_that_becomes_nullable_is_not_a_dead_end(tmp_path: Path) -> None:
    """Fragments that hold a value in every row fit a column that allows NULL."""
    story = LanceStory(tmp_path)
    story.start(labelled, until=0)
    story.rig.dataset().alter_columns({"path": "label", "nullable": True})
    assert story.start(labelled) is not None
    assert story.rig.ids() == [-1, *range(30)]
