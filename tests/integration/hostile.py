"""A table that other writers change at the two worst moments of a run.

The first: the run has staged its files and written its intent, and is about to post. The second:
the post has landed, and the driver dies before its receipt. Workers import this module, so it does
not need pytest.
"""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any
from unittest import mock

import pyarrow as pa
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyspark.sql import DataFrame, SparkSession

import holdfast as hf
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.run_log import RunLog
from holdfast.model.records import Body, Receipt, Record
from holdfast.sinks.base import Change, Outcome, RunMark, TableView
from holdfast.sinks.iceberg.catalog import open_catalog, pyiceberg_properties
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.storage.objects import ObjectStorage

ROWS = 6
RUN = "r"
COLUMNS = ("id", "label", "n", "f", "d")
_DDL = "id bigint, label string, n int, f float, d decimal(9,2)"
# What our run writes.
_MADE = "id", "concat('l', id) label", "cast(id AS int) n", "cast(id AS float) f"


class DriverDied(BaseException):
    """The driver's process is gone, at this line."""


def as_is(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the rows as they came: the costly step of every job here."""
    return batch


def made(*columns: str) -> list[tuple[Any, ...]]:
    """Return the rows that our run makes, each once; all columns unless some are named."""
    rows = (
        {"id": number, "label": f"l{number}", "n": number, "f": float(number), "d": Decimal(number)}
        for number in range(ROWS)
    )
    return [tuple(row[name] for name in ("id", *(columns or COLUMNS[1:]))) for row in rows]


@dataclass(kw_only=True)
class HostileTable:
    """`<catalog>.<namespace>.t` with one foreign row, and a run that appends six rows to it."""

    spark: SparkSession
    catalog: str
    ledger: dict[str, Any]
    namespace: str = field(default_factory=lambda: f"h{uuid.uuid4().hex[:10]}")
    # What became of each post of ours, in order.
    posts: list[Outcome] = field(default_factory=list)

    @property
    def hides_history(self) -> bool:
        """Whether the catalog shows the newest snapshot only."""
        return self.catalog == "nessie"

    @property
    def short(self) -> str:
        """The table's name inside its catalog."""
        return f"{self.namespace}.t"

    @property
    def name(self) -> str:
        """The table's name in Spark."""
        return f"{self.catalog}.{self.short}"

    # ---- what others do ------------------------------------------------------------------------
    def create(self) -> None:
        """Create the table with one foreign row."""
        self.py_catalog().create_namespace(self.namespace)
        self.make()
        self.insert(-1)

    def make(self, name: str = "{t}", more: str = "", *, verb: str = "CREATE") -> None:
        """Create the table, or another of its kind, without any row."""
        self.sql(f"{verb} TABLE {name} ({_DDL}) USING iceberg {more}")

    def sql(self, *statements: str) -> None:
        """Run SQL statements in Spark; {t} is the table, {s} its short name, {c} its catalog."""
        for statement in statements:
            text = statement.format(t=self.name, s=self.short, c=self.catalog, n=self.namespace)
            self.spark.sql(text).collect()

    def insert(self, row_id: int) -> None:
        """Append one foreign row."""
        self.sql(f"INSERT INTO {{t}} (id, label) VALUES ({row_id}, 'foreign')")

    def py_catalog(self) -> Catalog:
        """Open the catalog for another client: PyIceberg."""
        conf: Any = self.spark.conf
        prefix = f"spark.sql.catalog.{self.catalog}."
        settings = {
            name.removeprefix(prefix): value
            for name, value in conf.getAll.items()
            if name.startswith(prefix)
        }
        return open_catalog(self.catalog, pyiceberg_properties(self.catalog, settings))

    def py_table(self) -> Table:
        """Load the table with PyIceberg."""
        return self.py_catalog().load_table(self.short)

    # ---- what our run does ---------------------------------------------------------------------
    def input(self) -> DataFrame:
        """Return the rows that our run appends."""
        return self.spark.range(0, ROWS, 1, 1).selectExpr(*_MADE, "cast(id AS decimal(9,2)) d")

    def run(self, run_id: str = RUN, **ledger: Any) -> hf.Run:  # noqa: ANN401 - those of `Run`.
        """Return a run on our ledger, or on another."""
        return hf.Run(run_id, **{**self.ledger, **ledger})

    def append(
        self,
        run: hf.Run | None = None,
        *,
        to: str = "",
        **options: Any,  # noqa: ANN401 - those of `append`.
    ) -> hf.Report:
        """Start the script."""
        usual: dict[str, Any] = {"key": "id", "transform": as_is}
        return (run or self.run()).append(self.input(), to=to or self.name, **{**usual, **options})

    def append_while(self, *changes: Callable[[], object]) -> hf.Report:
        """Start the script; one of the changes is made before each of its first posts."""
        with self._before_posts(changes):
            return self.append()

    def find_landed(self, snapshot_id: int, *, is_told: bool = True) -> None:
        """Start the script again: it writes nothing, and knows the snapshot.

        Args:
            snapshot_id: What has landed.
            is_told: Whether the table still shows that it holds the rows; otherwise there is a
                warning.
        """
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", UserWarning)
            report = self.append()
        assert (report.outcome, report.snapshot_id) == ("already_committed", snapshot_id)
        assert report.still_in_table == ("yes" if is_told else "unknown")
        assert any("does not show" in str(warning.message) for warning in warned) is not is_told

    def append_unanswered(self, change: Callable[[], object]) -> hf.Report:
        """Start the script; its post lands, then the change is made, and no answer comes."""
        with self._before_posts((), after=change):
            return self.append()

    def land_and_die(self, **options: Any) -> int:  # noqa: ANN401 - those of `append`.
        """Start the script, which lands and dies before its receipt; return the snapshot."""
        append = RunLog.append

        def die_at_receipt(log: RunLog, body: Body) -> Record:
            if isinstance(body, Receipt):
                raise DriverDied
            return append(log, body)

        with mock.patch.object(RunLog, "append", die_at_receipt), self._before_posts(()):
            try:
                self.append(**options)
            except DriverDied:
                return self.head()
        raise AssertionError("the driver did not die before its receipt")

    @contextmanager
    def _before_posts(
        self, changes: Sequence[Callable[[], object]], after: Callable[[], object] | None = None
    ) -> Iterator[None]:
        post, left, after_left = IcebergSink.post, list(changes), [after] if after else []

        def change_and_post(
            sink: IcebergSink,
            view: TableView,
            run_id: str,
            mark: RunMark,
            change: Change,
        ) -> Outcome:
            if run_id == RUN and left:
                left.pop(0)()
            outcome = post(sink, view, run_id, mark, change)
            if run_id == RUN and after_left:
                assert outcome is Outcome.LANDED
                after_left.pop()()
                outcome = Outcome.UNKNOWN
            if run_id == RUN:
                self.posts.append(outcome)
            return outcome

        with mock.patch.object(IcebergSink, "post", change_and_post):
            yield
        assert not left + after_left  # Each change was made, so the test is not vacuous.

    # ---- what is there -------------------------------------------------------------------------
    @property
    def storage(self) -> ObjectStorage:
        """How the ledger and the table's files are reached."""
        return ObjectStorage(self.ledger["store_options"])

    def layout(self) -> RunLayout:
        """Return where the run's ledger is."""
        return RunLayout.of(self.ledger["store"], RUN)

    def head(self) -> int:
        """Return the snapshot that main points to."""
        refs = self.spark.table(f"{self.name}.refs").where("name = 'main'").collect()
        found: int = refs[0]["snapshot_id"]
        return found

    def first_snapshot(self) -> int:
        """Return the table's oldest snapshot."""
        found = self.spark.table(f"{self.name}.snapshots").orderBy("committed_at").collect()
        snapshot_id: int = found[0]["snapshot_id"]
        return snapshot_id

    def rows(self, *columns: str, name: str = "") -> list[tuple[Any, ...]]:
        """Return all rows in full, sorted by id, as Spark's own reader gives them."""
        found = self.spark.table(name or self.name).select("id", *(columns or COLUMNS[1:]))
        return sorted((tuple(row) for row in found.collect()), key=lambda row: int(row[0]))

    def assert_each_row_once(
        self, *columns: str, foreign: Sequence[int] = (-1,), name: str = ""
    ) -> None:
        """Read the whole table: it holds our rows once, with every value, and no others."""
        rows = self.rows(*columns, name=name)
        assert [row[0] for row in rows if row[0] < 0] == sorted(foreign)
        assert [row for row in rows if row[0] >= 0] == made(*columns)

    def assert_nothing_of_ours(self, *, foreign: Sequence[int] = (-1,), name: str = "") -> None:
        """Read the whole table: no row of ours is in it."""
        found = self.spark.table(name or self.name).select("id").collect()
        assert sorted(row["id"] for row in found) == sorted(foreign)

    def runs_in_history(self) -> list[str]:
        """Return the run ids that the table's snapshots name, one for each snapshot of a run."""
        found = self.spark.table(f"{self.name}.snapshots").collect()
        return [run for row in found if (run := row["summary"].get("holdfast.run")) is not None]

    def properties(self) -> dict[str, str]:
        """Return the table's properties."""
        found = self.spark.sql(f"SHOW TBLPROPERTIES {self.name}").collect()
        return {row["key"]: row["value"] for row in found}
