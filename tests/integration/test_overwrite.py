"""Overwrites on real Spark and a real REST catalog: killed, resumed, and beside other writers."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.errors import (
    EmptyOutputError,
    RunMismatchError,
    SchemaMismatchError,
    SettingsError,
    TableChangedError,
    TransformError,
    UnsupportedTableError,
)
from holdfast.sinks.base import Outcome
from holdfast.sinks.iceberg.sink import IcebergSink

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

ROWS, PARTITIONS = 40, 4


class Noted:
    """Leaves a file for each row, and fails once at a row if it is told to."""

    def __init__(self, folder: Path, fails_at: int | None = None) -> None:
        """Take the folder of the files."""
        self.folder = str(folder)
        self.fails_at = fails_at

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as they are."""
        for id_ in batch.column("id").to_pylist():
            if id_ == self.fails_at:
                time.sleep(1.5)  # What is done by then is in a checkpoint.
                raise ValueError("not this one")
            (Path(self.folder) / f"{id_}-{time.monotonic_ns()}").touch()
        return batch


class Shop:
    """A partitioned table with old rows, and runs that replace them."""

    def __init__(self, lake: SparkSession, namespace: str, ledger: dict[str, Any]) -> None:
        """Make the table: ids from 1000 on are the old ones, ten in each of four partitions."""
        self.lake, self.ledger, self.name = lake, ledger, f"lake.{namespace}.t"
        lake.sql(f"CREATE TABLE {self.name} (id BIGINT, p INT) USING iceberg PARTITIONED BY (p)")
        self.old().coalesce(1).writeTo(self.name).append()

    def old(self) -> DataFrame:
        """Return the rows that are there at first."""
        return self.lake.range(1000, 1000 + ROWS).selectExpr("id", "cast(id % 4 as int) p")

    def new(self, *, partitions: int = PARTITIONS) -> DataFrame:
        """Return the rows that replace them, in some of the partitions."""
        rows = self.lake.range(0, ROWS, 1, 2).selectExpr("id", "cast(id % 4 as int) p")
        return rows.where(f"p < {partitions}")

    def run(self, run_id: str = "r") -> hf.Run:
        """Return a run."""
        return hf.Run(run_id, **self.ledger)

    def ids(self, where: str = "true") -> list[int]:
        """Return the ids in the table."""
        found = self.lake.sql(f"SELECT id FROM {self.name} WHERE {where} ORDER BY id").collect()
        return [row["id"] for row in found]

    @property
    def head(self) -> int:
        """The newest snapshot."""
        query = f"SELECT snapshot_id FROM {self.name}.refs WHERE name = 'main'"
        return int(self.lake.sql(query).collect()[0][0])


@pytest.fixture
def shop(lake: SparkSession, namespace: str, ledger: dict[str, Any]) -> Shop:
    """Return a table of old rows."""
    return Shop(lake, namespace, ledger)


NEW, OLD = list(range(ROWS)), list(range(1000, 1000 + ROWS))


def test_an_overwrite_that_failed_goes_on_and_replaces_all_rows_once(
    shop: Shop, tmp_path: Path
) -> None:
    """Until then the old rows are there; no row is paid for twice; old rows by time travel."""
    options: dict[str, Any] = {"to": shop.name, "key": "id", "batch_rows": 2, "retries": 0}
    before = shop.head
    with pytest.raises(TransformError):
        shop.run().overwrite(
            shop.new(), transform=Noted(tmp_path, fails_at=39), checkpoint_every=0.5, **options
        )
    done = {file.name.split("-")[0] for file in tmp_path.iterdir()}
    assert shop.ids() == OLD
    report = shop.run().overwrite(shop.new(), transform=Noted(tmp_path), **options)
    assert shop.ids() == NEW
    assert 0 < report.kept_rows <= len(done)
    assert (report.replaced_rows, report.rows) == (ROWS, ROWS)
    rows = shop.lake.sql(f"SELECT count(*) FROM {shop.name} VERSION AS OF {before}").collect()
    assert rows[0][0] == ROWS
    shop.old().writeTo(shop.name).append()
    again = shop.run().overwrite(shop.new(), transform=Noted(tmp_path), **options)
    assert (again.outcome, len(shop.ids())) == ("already_committed", 2 * ROWS)


def test_with_snapshot_isolation_what_others_add_meanwhile_stays(shop: Shop) -> None:
    """A scan of the table itself, computed anew, beside a writer that appends."""
    scan = hf.scan_iceberg(shop.name)

    def later(batch: pa.RecordBatch) -> pa.RecordBatch:
        ids = pc.add(batch.column("id"), 1000)
        return batch.set_column(0, "id", ids)

    def beside(sink: IcebergSink, *arguments: Any) -> Outcome:  # noqa: ANN401
        if not added:
            added.append(True)
            shop.new(partitions=1).writeTo(shop.name).append()
        return post(sink, *arguments)

    added: list[bool] = []
    post = IcebergSink.post
    options: dict[str, Any] = {"to": shop.name, "transform": later}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(IcebergSink, "post", beside)
        report = shop.run().overwrite(scan, isolation_level="snapshot", **options)
    assert (report.posts, report.replaced_rows) == (2, ROWS)
    assert shop.ids() == sorted([id_ for id_ in NEW if id_ % 4 == 0] + [i + 1000 for i in OLD])


def test_partitions_without_new_rows_stay(shop: Shop) -> None:
    """And the run's own clean-up leaves all rows alone."""
    report = shop.run().overwrite_partitions(shop.new(partitions=2), to=shop.name, key="id")
    assert (report.replaced_rows, report.replaced_files) == (ROWS // 2, 2)
    assert shop.ids("p < 2") == [id_ for id_ in NEW if id_ % 4 < 2]
    assert shop.ids("p >= 2") == [id_ for id_ in OLD if id_ % 4 >= 2]
    before = shop.ids()
    shop.run().sweep(to=shop.name)
    assert shop.ids() == before
    assert "replaced  20 rows in 2 files of 2 partitions" in str(report)


def test_a_scan_of_the_table_itself_is_bound_to_what_it_read(shop: Shop) -> None:
    """Rows that come after the scan was pinned are not in the input: they must not go."""
    scan = hf.scan_iceberg(shop.name)

    def double(batch: pa.RecordBatch) -> dict[str, Any]:
        return {"id": [id_ * 2 for id_ in batch["id"].to_pylist()], "p": batch["p"]}

    report = shop.run().overwrite(scan, to=shop.name, transform=double)
    assert shop.ids() == [id_ * 2 for id_ in OLD]
    assert report.replaced_rows == ROWS
    again = shop.run().overwrite(hf.scan_iceberg(shop.name), to=shop.name, transform=double)
    assert (again.outcome, shop.ids()) == ("already_committed", [id_ * 2 for id_ in OLD])
    read = shop.head
    shop.lake.sql(f"INSERT INTO {shop.name} VALUES (7, 1)")
    with pytest.raises(TableChangedError, match="which this run is based on"):
        shop.run("later").overwrite(
            hf.scan_iceberg(shop.name, snapshot_id=read), to=shop.name, transform=double
        )
    assert 7 in shop.ids()


def test_a_run_that_depends_on_a_snapshot_does_not_land_on_another(shop: Shop) -> None:
    """The user read the table with Spark, which Holdfast cannot see."""
    read = shop.head
    shop.lake.sql(f"INSERT INTO {shop.name} VALUES (7, 1)")
    with pytest.raises(TableChangedError, match=f"snapshot {read}"):
        shop.run().overwrite(shop.new(), to=shop.name, key="id", based_on=read)
    assert 7 in shop.ids()
    call = f"CALL lake.system.rollback_to_snapshot('{shop.name.removeprefix('lake.')}', {read})"
    shop.lake.sql(call)
    shop.run().overwrite(shop.new(), to=shop.name, key="id", based_on=read)
    assert shop.ids() == NEW


FILTERS = (
    "id < 1007",
    "n != 5 or id = 1012",
    "f > 2",
    "n is null",
    "p = 1 and id >= 1010",
    "text not in ('t3', 't7') and p < 3",
)


def test_a_filter_replaces_the_rows_that_sparks_delete_removes(shop: Shop, tmp_path: Path) -> None:
    """Over NULL and NaN, files that match whole or in part, and rows that were deleted before."""
    ours, theirs = f"{shop.name}_ours", f"{shop.name}_theirs"
    columns = "id BIGINT, p INT, n BIGINT, f DOUBLE, text STRING"
    for name in (ours, theirs):
        shop.lake.sql(
            f"CREATE TABLE {name} ({columns}) USING iceberg PARTITIONED BY (p) "
            "TBLPROPERTIES ('write.delete.mode'='merge-on-read')"
        )
        for first in (1000, 1020):
            shop.lake.range(first, first + 20, 1, 1).selectExpr(
                "id",
                "cast(id % 4 as int) p",
                "if(id % 3 = 0, null, id % 10) n",
                "case id % 5 when 0 then cast('NaN' as double) when 1 then null else id % 5 end f",
                "concat('t', id % 10) text",
            ).writeTo(name).append()
        shop.lake.sql(f"DELETE FROM {name} WHERE id IN (1003, 1021)")
    for number, where in enumerate(FILTERS):
        # NaN is larger than every number for Spark; for a filter it is not.
        shop.lake.sql(f"DELETE FROM {theirs} WHERE ({where}) AND NOT coalesce(isnan(f), false)")
        if "f >" not in where:
            shop.lake.sql(f"DELETE FROM {theirs} WHERE {where}")
        report = shop.run(f"w{number}").overwrite(
            shop.lake.table(ours).limit(0), to=ours, key="id", where=where, allow_empty=True
        )
        left = [
            sorted(row.id for row in shop.lake.table(name).collect()) for name in (ours, theirs)
        ]
        assert left[0] == left[1], where
        assert (report.outcome, report.rows) == ("committed", 0)
    new = shop.lake.range(1100, 1103).selectExpr(
        "id", "1 p", "7L n", "cast(null as double) f", "'new' text"
    )
    report = shop.run("w").overwrite(new, to=ours, key="id", where="p = 1")
    assert report.rows == 3
    found = shop.lake.sql(f"SELECT id FROM {ours} WHERE p = 1 ORDER BY id").collect()
    assert [row.id for row in found] == [1100, 1101, 1102]
    with pytest.raises(SchemaMismatchError, match=r"outside where=p = 2.*p = 1"):
        shop.run("outside").overwrite(new, to=ours, key="id", where="p = 2")
    with pytest.raises(SettingsError, match="Lance dataset"):
        shop.run("l").overwrite(new, to=f"{tmp_path}/t.lance", key="id", where="p = 1")


def test_what_cannot_be_replaced_is_refused_before_a_row_is_computed(
    shop: Shop, tmp_path: Path
) -> None:
    """A table without partitions, an empty input, and another verb of the same run."""
    plain, noted = f"{shop.name}_plain", Noted(tmp_path)
    shop.lake.sql(f"CREATE TABLE {plain} (id BIGINT, p INT) USING iceberg")
    with pytest.raises(UnsupportedTableError, match="no partitions"):
        shop.run("a").overwrite_partitions(shop.new(), to=plain, key="id", transform=noted)
    with pytest.raises(EmptyOutputError):
        shop.run("b").overwrite(shop.new().limit(0), to=shop.name, key="id", transform=noted)
    assert shop.ids() == OLD
    with pytest.raises(SettingsError, match=r"(?s)Lance dataset, whose rows.*call overwrite"):
        shop.run("c").overwrite_partitions(
            shop.new(), to=f"{tmp_path}/t.lance", key="id", transform=noted
        )
    assert list(tmp_path.iterdir()) == []  # Neither a dataset nor a computed row.
    shop.run("d").append(shop.new(), to=shop.name, key="id")
    with pytest.raises(RunMismatchError, match="its mode was 'append', and is now 'overwrite'"):
        shop.run("d").overwrite(shop.new(), to=shop.name, key="id")
    shop.run("b").overwrite(shop.new().limit(0), to=shop.name, key="id", allow_empty=True)
    assert shop.ids() == []
