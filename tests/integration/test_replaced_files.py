"""Manifests that we rewrite, on tables that Spark wrote: Spark reads them as its own."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import pyarrow as pa
import pytest
from pyiceberg.catalog import Catalog
from pyiceberg.manifest import ManifestFile
from pyiceberg.table import Table
from pyiceberg.table.metadata import TableMetadataV3
from pyspark.sql import DataFrame, SparkSession

from holdfast.errors import UnsupportedTableError
from holdfast.sinks.base import Change, Outcome, Removes, RunMark
from holdfast.sinks.iceberg.avro import read_header
from holdfast.sinks.iceberg.catalog import open_catalog
from holdfast.sinks.iceberg.rewrite import Manifest
from holdfast.sinks.iceberg.sink import IcebergSink
from tests.fakes.avro_files import avro_of, avro_rows
from tests.integration.test_types_and_layouts import LAYOUTS
from tests.integration.wide_rows import differences, table_ddl, wide_rows
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

MERGE_ON_READ = "TBLPROPERTIES ('format-version'='2', 'write.delete.mode'='merge-on-read')"
# Spark's own upkeep works after it; a few layouts are enough, and the others save minutes.
KEEP_WORKING = ("identity", "identity of floats")
# What Spark's writer and ours name alike: all but how many files the new rows are in.
FIGURES = (
    "added-records",
    "deleted-data-files",
    "deleted-records",
    "removed-delete-files",
    "removed-position-delete-files",
    "removed-position-deletes",
    "changed-partition-count",
    "replace-partitions",
    "total-records",
    "total-delete-files",
    "total-position-deletes",
    "total-equality-deletes",
)


@dataclass(frozen=True)
class Lake:
    """A namespace of the REST catalog, for Spark and for us."""

    session: SparkSession
    namespace: str
    catalog: Catalog

    def name(self, table: str) -> str:
        """Return a table's name for Spark."""
        return f"lake.{self.namespace}.{table}"

    def rows(self, table: str) -> DataFrame:
        """Return a table's rows."""
        return self.session.table(self.name(table))

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        """Run a statement, and return its rows."""
        return [tuple(row) for row in self.session.sql(text).collect()]

    def load(self, table: str) -> Table:
        """Load a table as PyIceberg sees it."""
        return self.catalog.load_table(f"{self.namespace}.{table}")

    def summary(self, table: str) -> dict[str, str]:
        """Return the summary of a table's newest snapshot."""
        query = f"SELECT operation, summary FROM {self.name(table)}.snapshots"
        ((operation, summary),) = self.sql(f"{query} ORDER BY committed_at DESC LIMIT 1")
        return {"operation": operation, **dict(summary)}

    def replace(self, table: str, rows: pa.Table | None, removes: Removes) -> int:
        """Stage rows as a task does, and post them in place of others; return the snapshot."""
        sink = IcebergSink(self.catalog, f"{self.namespace}.{table}", "main")
        view = sink.load()
        writer = sink.writer_spec(view).open(uuid.uuid4().hex)
        for batch in rows.to_batches() if rows is not None else []:
            writer.write(writer.fit(batch))
        change = Change(adds=writer.cut(), removes=removes)
        snapshot_id = sink.new_snapshot_id(view)
        mark = RunMark(
            run_nonce=uuid.uuid4().hex,
            intent_number=1,
            snapshot_id=snapshot_id,
            sequence_number=view.next_sequence_number,
        )
        change = replace(change, loss=sink.loss(view, change, uuid.uuid4().hex))
        assert sink.post(view, "a run", mark, change) is Outcome.LANDED
        return snapshot_id

    def keeps_working(self, table: str) -> None:
        """Let Spark maintain the table: no row may come back, double or vanish."""
        rows = self.rows(table).count()
        call, name = "CALL lake.system", f"{self.namespace}.{table}"
        self.sql(f"{call}.rewrite_manifests(table => '{name}', use_caching => false)")
        assert self.rows(table).count() == rows
        options = "options => map('rewrite-all', 'true')"
        self.sql(f"{call}.rewrite_data_files(table => '{name}', {options})")
        assert self.rows(table).count() == rows
        self.sql(
            f"{call}.expire_snapshots(table => '{name}', retain_last => 1, "
            "older_than => TIMESTAMP '2100-01-01 00:00:00')"
        )
        assert self.rows(table).count() == rows


@pytest.fixture
def ours(lake: SparkSession, namespace: str, stack: Stack) -> Lake:
    """Return a fresh namespace."""
    return Lake(lake, namespace, open_catalog("lake", stack.rest_catalog_properties()))


def make_pair(lake: Lake, layout: str) -> None:
    """Make two tables with the same rows: several files in each manifest, and deletes."""
    for table in ("ours", "theirs"):
        ddl = f"CREATE TABLE {lake.name(table)} ({table_ddl()}) USING iceberg"
        lake.sql(f"{ddl} {layout} {MERGE_ON_READ}")
        wide_rows(lake.session).coalesce(1).writeTo(lake.name(table)).append()
        wide_rows(lake.session, 20).coalesce(1).writeTo(lake.name(table)).append()
        lake.sql(f"DELETE FROM {lake.name(table)} WHERE id IN (3, 7, 11, 30)")


def overwrite(lake: Lake, rows: DataFrame, mode: str) -> None:
    """Overwrite the other table with Spark's own writer."""
    setting = "spark.sql.sources.partitionOverwriteMode"
    lake.session.conf.set(setting, mode)
    try:
        rows.coalesce(1).write.insertInto(lake.name("theirs"), overwrite=True)
    finally:
        lake.session.conf.unset(setting)


def check_alike(lake: Lake) -> None:
    """Check rows and figures of both tables."""
    assert differences(lake.rows("ours"), lake.rows("theirs")) == 0
    ours, theirs = lake.summary("ours"), lake.summary("theirs")
    assert ours["operation"] == theirs["operation"] == "overwrite"
    assert {name: ours.get(name) for name in FIGURES} == {
        name: theirs.get(name) for name in FIGURES
    }
    query = "SELECT count_if(content = 0), sum(file_size_in_bytes)"
    (live,) = lake.sql(f"{query} FROM {lake.name('ours')}.files")
    assert (ours["total-data-files"], ours["total-files-size"]) == tuple(map(str, live))


@pytest.mark.sampled
@pytest.mark.parametrize("layout", LAYOUTS)
def test_replaced_rows_are_as_from_sparks_own_overwrite(ours: Lake, layout: str) -> None:
    """Every type and layout, tables with deletes; NULL and NaN are partitions like others."""
    make_pair(ours, LAYOUTS[layout])
    rows = wide_rows(ours.session, 9)
    if LAYOUTS[layout]:
        ours.replace("ours", rows.toArrow(), "partitions")
        overwrite(ours, rows, "dynamic")
        check_alike(ours)
        if layout in KEEP_WORKING:
            ours.keeps_working("ours")
            ours.keeps_working("theirs")
    ours.replace("ours", rows.toArrow(), "all")
    overwrite(ours, rows, "static")
    check_alike(ours)


def entries(lake: Lake, snapshot_id: int) -> list[tuple[Any, ...]]:
    """Return the manifest entries of a snapshot as Spark reads them."""
    return lake.sql(
        "SELECT status, snapshot_id, sequence_number, file_sequence_number, data_file.content "
        f"FROM {lake.name('t')}.entries VERSION AS OF {snapshot_id} ORDER BY ALL"
    )


def test_spark_sees_which_snapshot_removed_a_file_and_the_numbers_of_the_others(ours: Lake) -> None:
    """Readers of changes see the rows that went and those that came, and no other."""
    name = ours.name("t")
    ours.sql(f"CREATE TABLE {name} (id BIGINT, p INT) USING iceberg PARTITIONED BY (p)")
    ours.session.range(0, 40).selectExpr("id", "cast(id % 4 as int) p").coalesce(1).writeTo(
        name
    ).append()
    ((first,),) = ours.sql(f"SELECT snapshot_id FROM {name}.snapshots")
    new = pa.table({"id": pa.array([100, 101], pa.int64()), "p": pa.array([1, 1], pa.int32())})
    second = ours.replace("t", new, "partitions")
    found = entries(ours, second)
    assert found == sorted(
        [(0, first, 1, 1, 0)] * 3 + [(1, second, 2, 2, 0)] + [(2, second, 1, 1, 0)]
    )
    changes = ours.sql(
        f"CALL lake.system.create_changelog_view(table => '{ours.namespace}.t', changelog_view => "
        f"'changed', options => map('start-snapshot-id', '{first}'))"
    )
    assert changes == [("changed",)]
    assert ours.sql(
        "SELECT _change_type, count(*), min(id), max(id) FROM changed GROUP BY 1 ORDER BY 1"
    ) == [("DELETE", 10, 1, 37), ("INSERT", 2, 100, 101)]
    ours.sql(f"DELETE FROM {name} WHERE id IN (2, 3)")
    assert ours.rows("t").count() == 30


def test_a_partition_column_that_was_dropped_is_no_obstacle(ours: Lake) -> None:
    """PyIceberg cannot write such a manifest; ours is written with the schema of the old one."""
    name = ours.name("t")
    ours.sql(f"CREATE TABLE {name} (id BIGINT, a INT, b STRING) USING iceberg PARTITIONED BY (b)")
    ours.sql(f"INSERT INTO {name} VALUES (1, 1, 'x'), (2, 2, 'y'), (3, 3, null)")
    ours.sql(f"ALTER TABLE {name} DROP PARTITION FIELD b")
    ours.sql(f"ALTER TABLE {name} ADD PARTITION FIELD a")
    ours.sql(f"ALTER TABLE {name} DROP COLUMN b")
    ours.sql(f"INSERT INTO {name} VALUES (4, 4)")
    new = pa.table({"id": pa.array([9], pa.int64()), "a": pa.array([9], pa.int32())})
    with pytest.raises(UnsupportedTableError, match="3 of its files are partitioned differently"):
        ours.replace("t", new, "partitions")
    ours.replace("t", new, "all")
    assert ours.sql(f"SELECT * FROM {name}") == [(9, 9)]
    assert (ours.summary("t")["deleted-data-files"], ours.summary("t")["total-records"]) == (
        "4",
        "1",
    )
    ours.keeps_working("t")


def test_a_table_without_partitions_has_none_to_replace(ours: Lake) -> None:
    """Replacing all of it would be a surprise."""
    ours.sql(f"CREATE TABLE {ours.name('t')} (id BIGINT) USING iceberg")
    ours.sql(f"INSERT INTO {ours.name('t')} VALUES (1)")
    with pytest.raises(UnsupportedTableError, match="call overwrite instead"):
        ours.replace("t", pa.table({"id": pa.array([9], pa.int64())}), "partitions")


def test_manifests_of_format_1_are_rewritten_in_an_upgraded_table(ours: Lake) -> None:
    """They have no sequence numbers: Spark must find 0, and later deletes must still apply."""
    name = ours.name("t")
    ours.sql(
        f"CREATE TABLE {name} (id BIGINT, p INT) USING iceberg PARTITIONED BY (p) "
        "TBLPROPERTIES ('format-version'='1')"
    )
    ours.session.range(0, 40).selectExpr("id", "cast(id % 4 as int) p").coalesce(1).writeTo(
        name
    ).append()
    properties = "'format-version'='2', 'write.delete.mode'='merge-on-read'"
    ours.sql(f"ALTER TABLE {name} SET TBLPROPERTIES ({properties})")
    ours.sql(f"DELETE FROM {name} WHERE id IN (2, 3)")
    new = pa.table({"id": pa.array([100], pa.int64()), "p": pa.array([1], pa.int32())})
    snapshot_id = ours.replace("t", new, "partitions")
    numbers = {(row[0], row[2], row[3]) for row in entries(ours, snapshot_id) if row[4] == 0}
    assert numbers == {(0, 0, 0), (1, 2, 2), (2, 0, 0)}
    assert ours.rows("t").count() == 29
    ours.sql(f"DELETE FROM {name} WHERE id = 100")
    assert ours.sql(f"SELECT count(*) FROM {name} WHERE id IN (2, 3, 100)") == [(0,)]
    ours.keeps_working("t")


def test_an_empty_replace_is_a_delete(ours: Lake) -> None:
    """Nothing is added: that is what Iceberg calls it."""
    name = ours.name("t")
    ours.sql(f"CREATE TABLE {name} (id BIGINT) USING iceberg")
    ours.sql(f"INSERT INTO {name} VALUES (1), (2)")
    ours.replace("t", None, "all")
    summary = ours.summary("t")
    assert (summary["operation"], summary["total-records"]) == ("delete", "0")
    assert ours.rows("t").count() == 0
    ours.sql(f"INSERT INTO {name} VALUES (3)")
    assert ours.sql(f"SELECT * FROM {name}") == [(3,)]


# ---- Format v3: rewritten here, and posted by hand, because no sink writes it yet


def post_v3(lake: Lake, table: str, is_removed: Callable[[str], bool]) -> None:
    """Remove files from a v3 table, with a manifest list of its own schema."""
    loaded = lake.load(table)
    io, metadata = loaded.io, cast("TableMetadataV3", loaded.metadata)
    parent = loaded.current_snapshot()
    assert parent is not None
    snapshot_id, number = metadata.new_snapshot_id(), metadata.next_sequence_number()

    def read(path: str) -> bytes:
        with io.new_input(path).open() as stream:
            return stream.read()

    listed = read(parent.manifest_list)
    header, rows, row_id = read_header(listed), avro_rows(listed), metadata.next_row_id
    assert row_id is not None
    for at, row in enumerate(rows):
        entry = ManifestFile.from_args(**{**row, "partitions": None, "first_row_id": None})
        old = Manifest(entry, read(row["manifest_path"]), row["first_row_id"])
        gone = {file.at for file in old.files if is_removed(file.path)}
        if not gone:
            continue
        new, path = old.without(gone), f"{loaded.location()}/metadata/{uuid.uuid4().hex}.avro"
        with io.new_output(path).create() as stream:
            stream.write(new.data)
        facts = new.listed(path, snapshot_id)
        names = [name for name in row if name not in {"partitions", "first_row_id"}]
        rows[at] = {**row, **{name: getattr(facts, name) for name in names}}
        rows[at] |= {"content": int(facts.content), "sequence_number": number}
        if rows[at]["min_sequence_number"] < 0:
            rows[at]["min_sequence_number"] = number
        if facts.content == 0:  # Java gives a new manifest ids, needed or not.
            rows[at]["first_row_id"] = row_id
            row_id += facts.existing_rows_count or 0
    path = f"{loaded.location()}/metadata/snap-{snapshot_id}-1-{uuid.uuid4()}.avro"
    notes = {
        **header.metadata,
        "snapshot-id": str(snapshot_id).encode(),
        "parent-snapshot-id": str(parent.snapshot_id).encode(),
        "sequence-number": str(number).encode(),
        "first-row-id": str(metadata.next_row_id).encode(),
    }
    with io.new_output(path).create() as stream:
        stream.write(avro_of(header.schema, notes, rows))
    snapshot = {
        "snapshot-id": snapshot_id,
        "parent-snapshot-id": parent.snapshot_id,
        "sequence-number": number,
        "timestamp-ms": parent.timestamp_ms + 1,
        "manifest-list": path,
        "summary": {"operation": "delete"},
        "schema-id": metadata.current_schema_id,
        "first-row-id": metadata.next_row_id,
        "added-rows": row_id - (metadata.next_row_id or 0),
    }
    branch = {"ref-name": "main", "type": "branch", "snapshot-id": snapshot_id}
    body = {
        "requirements": [
            {"type": "assert-ref-snapshot-id", "ref": "main", "snapshot-id": parent.snapshot_id}
        ],
        "updates": [
            {"action": "add-snapshot", "snapshot": snapshot},
            {"action": "set-snapshot-ref", **branch},
        ],
    }
    catalog: Any = lake.catalog
    uri = f"{catalog.properties['uri'].rstrip('/')}/v1/namespaces/{lake.namespace}/tables/{table}"
    answer = catalog._session.post(uri, data=json.dumps(body))  # noqa: SLF001
    assert answer.status_code == 200, answer.text


def test_row_ids_and_vectors_of_format_3_survive(ours: Lake) -> None:
    """Rows that stay keep their ids and their deletes; Spark goes on from there."""
    name = ours.name("t")
    ours.sql(
        f"CREATE TABLE {name} (id BIGINT, p INT) USING iceberg PARTITIONED BY (p) "
        "TBLPROPERTIES ('format-version'='3', 'write.delete.mode'='merge-on-read')"
    )
    for start in (0, 100):
        ours.session.range(start, start + 40).selectExpr("id", "cast(id % 4 as int) p").coalesce(
            1
        ).writeTo(name).append()
    ours.sql(f"DELETE FROM {name} WHERE id IN (2, 3, 102)")
    query = (
        f"SELECT id, _row_id, _last_updated_sequence_number FROM {name} WHERE p != 1 ORDER BY id"
    )
    before = ours.sql(query)
    loaded = ours.load("t")
    assert loaded.metadata.format_version == 3
    files = ours.sql(f"SELECT file_path FROM {name}.files WHERE content = 0 AND partition.p = 1")
    gone = {row[0] for row in files}
    assert len(gone) == 2
    post_v3(ours, "t", lambda path: path in gone)
    assert ours.sql(query) == before
    assert ours.sql(f"SELECT count(*) FROM {name}") == [(57,)]
    ours.sql(f"DELETE FROM {name} WHERE id = 103")
    ours.sql(f"INSERT INTO {name} VALUES (500, 1)")
    assert ours.sql(query) == [row for row in before if row[0] != 103]
    ids = ours.sql(f"SELECT count(*), count(DISTINCT _row_id) FROM {name}")
    assert ids == [(57, 57)]
