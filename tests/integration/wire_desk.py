"""A whole job whose traffic to S3 and to the catalog goes through proxies of ours."""

from __future__ import annotations

import secrets
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.errors import HoldfastError
from holdfast.sinks.iceberg.catalog import open_catalog
from tests.fault_proxy import Fault, FaultProxy, Rule, Seen, fault_proxy
from tests.run_options import run_wide
from tests.stack_access import Stack

RUN = "r"
ROWS = 20
FOREIGN = -1


class FailsAt:
    """A transform that passes rows on, and fails at some of them."""

    def __init__(self, *numbers: int) -> None:
        """Take the numbers to fail at."""
        self._numbers = set(numbers)

    def __call__(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """Return the rows as they are."""
        if bad := self._numbers.intersection(batch.column("id").to_pylist()):
            raise LookupError(f"no answer for {sorted(bad)}")
        return batch


def enlarge(batch: pa.RecordBatch) -> dict[str, Any]:
    """Return rows of five megabytes each, all different."""
    ids = batch.column("id").to_pylist()
    return {"id": ids, "text": [secrets.token_hex(2_500_000) for _ in ids]}


def keep(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Pass rows on."""
    return batch


@dataclass
class WireDesk:
    """One table with one foreign row, and one run that appends to it."""

    session: SparkSession
    stack: Stack
    namespace: str
    s3_uri: str
    rest_uri: str
    store: str
    # The error that the first start ended with, if any.
    error: HoldfastError | None = None
    # The numbers of foreign rows.
    foreign: list[int] = field(default_factory=lambda: [FOREIGN])
    rules: list[Rule] = field(default_factory=list)

    @property
    def table(self) -> str:
        """The table's name in Spark, which reads it without the proxies."""
        return f"lake.{self.namespace}.t"

    @property
    def _s3(self) -> dict[str, str]:
        return {**self.stack.s3.store_options(), "s3.endpoint": self.s3_uri}

    @property
    def target(self) -> hf.IcebergTable:
        """The table as the run is given it."""
        catalog = {**self.stack.rest_catalog_properties(), **self._s3, "uri": self.rest_uri}
        return hf.IcebergTable(f"{self.namespace}.t", catalog=catalog)

    def make_table(self) -> None:
        """Create the table with one foreign row, or with no snapshot at all."""
        with_pyiceberg = open_catalog("lake", self.stack.rest_catalog_properties())
        schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
        rows = pa.table({"id": self.foreign, "text": ["x"] * len(self.foreign)}, schema=schema)
        # Not compressed, so that a test knows how large a file becomes.
        properties = {"format-version": "2", "write.parquet.compression-codec": "uncompressed"}
        table = with_pyiceberg.create_table(
            f"{self.namespace}.t", schema=schema, properties=properties
        )
        if self.foreign:
            table.append(rows)
        with_pyiceberg.close()

    def append(self, rows: int = ROWS, **options: Any) -> hf.Report:  # noqa: ANN401 - append's own.
        """Start the run."""
        numbers = self.session.range(0, rows, 1, 2)
        usual: dict[str, Any] = {"transform": keep, "batch_rows": 2, "retries": 0}
        df = numbers.selectExpr("id", "concat('row ', id) AS text")
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "run 'r': the transform's code has changed")
            run = hf.Run(
                RUN,
                store=self.store,
                store_options=self._s3,
                takeover="now",
                **run_wide(options),
            )
            return run.append(df, to=self.target, key="id", **{**usual, **options})

    def on(self, proxy: FaultProxy, matches: Callable[[Seen], bool], *faults: Fault) -> Rule:
        """Inject faults into requests; they end with the first start."""
        rule = proxy.on(matches, *faults)
        self.rules.append(rule)
        return rule

    def start(self, **options: Any) -> hf.Report | None:  # noqa: ANN401 - those of `append`.
        """Start the run under the faults; afterwards there are none."""
        report = None
        try:
            report = self.append(**options)
        except HoldfastError as error:
            self.error = error
        finally:
            for rule in self.rules:
                rule.faults.clear()
        return report

    def failed(self, *kinds: type[HoldfastError]) -> None:
        """Check that the first start ended with such an error, which says that a retry is safe."""
        assert isinstance(self.error, kinds)
        assert self.error.retry_safe
        assert "Worth a retry: yes" in str(self.error)

    def ends_well(self, first: hf.Report | None, **options: Any) -> None:  # noqa: ANN401
        """Check that the run's rows are there once, in one snapshot, and all foreign ones.

        If the first start failed, the same script is started again, and must succeed.
        """
        landed = first or self.append(**options)
        assert landed.outcome in {"committed", "already_committed"}
        assert self.snapshots() == [landed.snapshot_id]
        rows = options.get("rows", ROWS)
        assert self.ids() == [*self.foreign, *range(rows)]

    def ids(self) -> list[int]:
        """Return the numbers of all rows, read by Spark from the files themselves."""
        found = self.session.table(self.table).select("id", "text").collect()
        assert all(row["text"] for row in found)
        return sorted(row["id"] for row in found)

    def snapshots(self) -> list[int]:
        """Return the snapshots that hold rows of the run."""
        found = self.session.sql(f"SELECT snapshot_id, summary FROM {self.table}.snapshots")
        return [
            row["snapshot_id"]
            for row in found.collect()
            if row["summary"].get("holdfast.run") == RUN
        ]


@pytest.fixture
def s3_wire(stack: Stack) -> Iterator[FaultProxy]:
    """Return a proxy in front of S3."""
    with fault_proxy(stack.s3.endpoint) as proxy:
        yield proxy


@pytest.fixture
def rest_wire(stack: Stack) -> Iterator[FaultProxy]:
    """Return a proxy in front of the REST catalog."""
    with fault_proxy(stack.rest.uri) as proxy:
        yield proxy


@pytest.fixture
def plain_desk(
    lake: SparkSession, stack: Stack, namespace: str, ledger: dict[str, Any]
) -> WireDesk:
    """Return a run without any proxy, and without a table."""
    return WireDesk(lake, stack, namespace, stack.s3.endpoint, stack.rest.uri, ledger["store"])


@pytest.fixture
def desk(plain_desk: WireDesk, s3_wire: FaultProxy, rest_wire: FaultProxy) -> WireDesk:
    """Return a run that has not begun, on a table of its own, behind both proxies."""
    plain_desk.s3_uri, plain_desk.rest_uri = s3_wire.uri, rest_wire.uri
    plain_desk.make_table()
    return plain_desk
