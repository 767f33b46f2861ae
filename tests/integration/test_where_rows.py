"""The rows that a filter removes are those for which Spark says TRUE, for every type and layout."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.table import Table
from pyspark.sql import SparkSession

from holdfast.sinks.base import Change, Outcome, RunMark
from holdfast.sinks.iceberg.catalog import open_catalog
from holdfast.sinks.iceberg.file_io import file_bytes
from holdfast.sinks.iceberg.rewrite_rows import RewriteSpec
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.sinks.iceberg.where import Verdict, Where
from tests.fakes.live_files import Found, found_files
from tests.integration.wide_rows import COLUMNS, differences, table_ddl, wide_rows
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest]

LAYOUTS = {
    "unpartitioned": "",
    "identity": "PARTITIONED BY (text)",
    "identity of plain types": "PARTITIONED BY (flag, day)",
    "identity of floats": "PARTITIONED BY (f64)",
    "bucket": "PARTITIONED BY (bucket(3, small), bucket(2, text))",
    "truncate": "PARTITIONED BY (truncate(2, text), truncate(10, small))",
    "truncate of decimals": "PARTITIONED BY (truncate(500, dec9))",
    "day": "PARTITIONED BY (days(at))",
    "month and year": "PARTITIONED BY (months(local_at), years(day))",
    "nested": "PARTITIONED BY (truncate(2, place.y.name))",
}
# Ours, and Spark's if that is another text. To Spark NaN is larger than any number.
FILTERS: dict[str, str] = {
    "small = 3": "",
    "small != 3": "",
    "small not in (3, 7)": "",
    "not (small in (3, 7))": "",
    "not (small > 3)": "",
    "small is null": "",
    "small is not null": "",
    "small != 99999999999": "",
    "big > 500000000000 and big <= 2000000000000": "",
    "f32 > 2": "f32 > 2 and not isnan(f32)",
    "f32 < 2": "",
    "f32 in (1.0, 2.0)": "",
    "f64 != -1": "",
    "f64 is nan": "isnan(f64)",
    "f64 is not nan": "f64 is not null and not isnan(f64)",
    "not (f64 < -1)": "f64 >= -1 and not isnan(f64)",
    "f64 not in (-1.0, -2.0)": "",
    "dec9 > 3.75": "",
    "dec9 not in (7.75, 8.75)": "",
    "dec18 = -15": "",
    "not (dec18 = -15)": "",
    "dec38 != 6000000000003": "",
    "day >= '1970-01-02'": "day >= date'1970-01-02'",
    "day = '1969-12-31' or day is null": "day = date'1969-12-31' or day is null",
    "at < '1970-01-02T00:00:00+00:00'": "at < timestamp'1970-01-02 00:00:00+00:00'",
    "at != '1970-01-01T10:58:59.999999+00:00'": "at != timestamp'1970-01-01 10:58:59.999999+00:00'",
    "local_at >= '2000-01-01T10:00:00'": "local_at >= timestamp_ntz'2000-01-01 10:00:00'",
    "text like 't1%'": "",
    "text not like 't%'": "",
    "text = ''": "",
    "not (text != 't10')": "",
    "text > 't2' or text = 't10'": "",
    "flag = true": "",
    "not (flag = true)": "",
    "place.x > 3": "place.x > 3 and not isnan(place.x)",
    "place.y.name not in ('n1', 'n10')": "",
    "place.y.name like 'n1%'": "",
    "place is null": "",
    "numbers is not null": "",
    "not (small > 3 and text like 't%')": "",
    "(small < 0 or f32 is nan) and not (flag = true and day is null)": (
        "(small < 0 or isnan(f32)) and not (flag = true and day is null)"
    ),
    "id < 10 or id >= 300": "",
}


@dataclass
class Wide:
    """A table of every type: files of NULL only, of NaN only, without either, and mixed."""

    lake: SparkSession
    stack: Stack
    namespace: str
    layout: str
    sinks: dict[str, IcebergSink] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Make the table with Spark, with position deletes in some of its files."""
        properties = "TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')"
        for name in ("t", "kept"):
            self.lake.sql(
                f"CREATE TABLE lake.{self.namespace}.{name} ({table_ddl()}) USING iceberg "
                f"{self.layout} {properties}"
            )
            catalog = open_catalog("lake", self.stack.rest_catalog_properties())
            self.sinks[name] = IcebergSink(catalog, f"{self.namespace}.{name}", "main")
        rows, columns = wide_rows(self.lake), list(COLUMNS)
        rows.writeTo(self.name).append()
        for first, chosen in ((100, "id in (1, 2, 3)"), (200, "id in (10, 11, 12, 13)")):
            some = rows.where(chosen).selectExpr(f"id + {first} as id", *columns)
            some.coalesce(1).writeTo(self.name).append()
        not_numbers = rows.where("id in (7, 21)").selectExpr("id + 300 as id", *columns)
        not_numbers.coalesce(1).writeTo(self.name).append()
        nulls = [f"cast(null as {kind}) as {name}" for name, (kind, _) in COLUMNS.items()]
        self.lake.range(400, 404).selectExpr("id", *nulls).coalesce(1).writeTo(self.name).append()
        self.lake.sql(f"DELETE FROM {self.name} WHERE id IN (2, 11, 17, 211, 401)")

    @property
    def name(self) -> str:
        """The table."""
        return f"lake.{self.namespace}.t"

    @property
    def table(self) -> Table:
        """The table, as PyIceberg has it."""
        loaded: Table = self.sinks["t"].load().handle
        return loaded

    def going(self) -> Mapping[str, Mapping[str, set[int]]]:
        """Return which rows go by Spark, as ids by filter and file; "" is for all rows."""
        judged = [
            f"coalesce({theirs or ours}, false) as c{at}"
            for at, (ours, theirs) in enumerate(FILTERS.items())
        ]
        query = f"SELECT id, _file, {', '.join(judged)} FROM {self.name}"
        rows = self.lake.sql(query).collect()
        found: dict[str, dict[str, set[int]]] = {text: {} for text in ("", *FILTERS)}
        for row in rows:
            for at, text in enumerate(("", *FILTERS)):
                ids = found[text].setdefault(row["_file"], set())
                if at == 0 or row[f"c{at - 1}"]:
                    ids.add(row["id"])
        return found

    def keep(self, where: Where, files: Sequence[Found]) -> tuple[list[str], int]:
        """Rewrite files, and add the new ones to the other table; return those written anew."""
        view = self.sinks["t"].load()
        spec = RewriteSpec.of(view.handle, self.sinks["t"].writer_spec(view), where)
        rewriter = spec.open(f"task-{uuid.uuid4().hex}")
        done = {found.live.path: rewriter.rewrite(found.target()) for found in files}
        groups = [file.group for file in done.values() if file.group is not None]
        other = self.sinks["kept"]
        view = other.load()
        if view.parent_snapshot_id is None:
            assert other.post_empty(view) is Outcome.LANDED
            view = other.load()
        mark = RunMark(
            run_nonce=uuid.uuid4().hex,
            intent_number=1,
            snapshot_id=other.new_snapshot_id(view),
            sequence_number=view.next_sequence_number,
        )
        assert other.post(view, uuid.uuid4().hex, mark, Change(adds=groups)) is Outcome.LANDED
        written = [path for path, file in done.items() if file.group is not None]
        return written, sum(file.removed_rows for file in done.values())


def ids_that_match(table: Table, where: Where, found: Found) -> tuple[set[int], set[int]]:
    """Return the ids of all rows of a file, deleted ones too, and of those that match."""
    with pq.ParquetFile(pa.BufferReader(file_bytes(table.io, found.live.path))) as parquet:
        (batch,) = parquet.iter_batches()
    ids = batch.column("id").to_pylist()
    goes = where.matches(where.columns().fit(batch)).to_pylist()
    return set(ids), {id_ for id_, matches in zip(ids, goes, strict=True) if matches}


@pytest.mark.sampled
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_rows_that_go_are_those_that_spark_selects(
    lake: SparkSession, stack: Stack, namespace: str, layout: str
) -> None:
    """By whole files where metadata decides, by rows elsewhere; and metadata is never wrong."""
    wide = Wide(lake, stack, namespace, LAYOUTS[layout])
    table, going = wide.table, wide.going()
    files = found_files(table)
    assert any(found.deletes for found in files)
    verdicts: list[Verdict] = []
    for text in FILTERS:
        where = Where.of(wide.name, table.schema(), text)
        for found in files:
            live, path = going[""].get(found.live.path, set()), found.live.path
            verdict = where.verdict(found.data_file, found.spec)
            verdicts.append(verdict)
            whole, match = ids_that_match(table, where, found)
            if verdict == "some":
                assert match & live == going[text].get(path, set()), (text, path)
            else:
                expected = whole if verdict == "all" else set()
                assert match == expected, (text, path, verdict)
                assert expected & live == going[text].get(path, set()), (text, path, verdict)
    shares = {verdict: verdicts.count(verdict) / len(verdicts) for verdict in set(verdicts)}
    assert shares["all"] > 0.05, shares
    assert shares["none"] > 0.1, shares


@pytest.mark.sampled
@pytest.mark.parametrize("layout", ["unpartitioned", "bucket", "truncate of decimals", "nested"])
def test_a_rewritten_file_has_all_other_rows_to_spark(
    lake: SparkSession, stack: Stack, namespace: str, layout: str
) -> None:
    """Values of every type, in the partition that they were in; deleted rows are not back."""
    wide = Wide(lake, stack, namespace, LAYOUTS[layout])
    files, written = found_files(wide.table), 0
    for text in ("small not in (3, 7)", "f32 is nan or place.x > 9", "not (text like 't1%')"):
        where = Where.of(wide.name, wide.table.schema(), text)
        paths, removed = wide.keep(where, files)
        theirs = text.replace("f32 is nan", "isnan(f32)")
        condition = f"coalesce({theirs}, false)"
        assert lake.table(wide.name).where(condition).count() == removed
        inside = ", ".join(f"'{path}'" for path in paths)
        left = lake.sql(f"SELECT * FROM {wide.name} WHERE _file IN ({inside}) AND NOT {condition}")
        kept = lake.table(f"lake.{namespace}.kept")
        assert differences(kept, left) == 0
        assert kept.where("small = 3").count() == left.where("small = 3").count()
        lake.sql(f"DELETE FROM lake.{namespace}.kept WHERE true")
        written += len(paths)
    assert written > 3
