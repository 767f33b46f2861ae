"""Tables in stores that do not copy, list or delete objects, as S3 Tables is documented to be.

The table's files are on a real S3 server behind a proxy that refuses these requests; the ledger is
on the same server, without the proxy. S3 Tables itself was never tried.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pytest
from pyarrow.fs import S3FileSystem
from pyspark.sql import SparkSession

import holdfast as hf
from holdfast.engine import resolve
from holdfast.errors import TransformError
from holdfast.sinks.iceberg.catalog import open_catalog
from holdfast.storage import objects
from holdfast.storage.objects import ObjectStorage
from tests.fault_proxy import Fault, FaultProxy, Seen, fault_proxy
from tests.integration.wire_desk import ROWS, FailsAt, keep
from tests.stack_access import Stack

pytestmark = [pytest.mark.spark, pytest.mark.stack, pytest.mark.rest, pytest.mark.versitygw]

REFUSAL = Fault(
    forward=False,
    status=405,
    content=b"<Error><Code>MethodNotAllowed</Code><Message>not on this resource</Message></Error>",
)
ALL = list(range(ROWS))


def is_refused(seen: Seen) -> bool:
    """Whether it is a copy, a listing or a delete; an upload that is given up is none."""
    _, _, query = seen.target.partition("?")
    if seen.method == "DELETE":
        return "uploadId" not in query
    return bool(seen.source) or "list-type" in query or query.startswith("delete")


@pytest.fixture
def refusing(stack: Stack) -> Iterator[FaultProxy]:
    """Return a proxy in front of S3 that refuses to copy, list and delete."""
    with fault_proxy(stack.s3.endpoint) as proxy:
        proxy.on(is_refused, *[REFUSAL] * 1000)
        yield proxy


@pytest.fixture(params=["a folder", "a bucket"])
def place(request: pytest.FixtureRequest, stack: Stack, namespace: str) -> tuple[str, str]:
    """Return a table's name and folder: an ordinary one, or a bucket, as S3 Tables has it."""
    name = f"{namespace}.t"
    if request.param == "a folder":
        return name, f"{stack.rest.warehouse}/{namespace}/t"
    bucket = f"table-{secrets.token_hex(6)}"
    files = S3FileSystem(
        access_key=stack.s3.access_key,
        secret_key=stack.s3.secret_key,
        endpoint_override=stack.s3.endpoint,
        region=stack.s3.region,
        allow_bucket_creation=True,
    )
    files.create_dir(bucket)
    return name, f"s3://{bucket}"


@dataclass
class RefusingTable:
    """A table behind the proxy, and runs that append to it."""

    session: SparkSession
    catalog: dict[str, str]
    name: str
    location: str
    ledger: dict[str, Any]
    proxy: FaultProxy

    def run(self, run_id: str) -> hf.Run:
        """Return a run by its id."""
        return hf.Run(run_id, **self.ledger, takeover="now")

    def append(self, run_id: str, *fails_at: int) -> hf.Report:
        """Start a run, which fails at some rows."""
        numbers = self.session.range(0, ROWS, 1, 2).selectExpr("id", "concat('row ', id) AS text")
        return self.run(run_id).append(
            numbers,
            to=self.target,
            key="id",
            transform=FailsAt(*fails_at) if fails_at else keep,
            batch_rows=2,
            retries=0,
        )

    @property
    def target(self) -> hf.IcebergTable:
        """The table as a run is given it."""
        return hf.IcebergTable(self.name, catalog=self.catalog)

    def ids(self) -> list[int]:
        """Return the numbers of all rows, read by Spark without the proxy."""
        return sorted(row["id"] for row in self.session.table(f"lake.{self.name}").collect())

    def refused(self) -> set[str]:
        """Return what the proxy has refused, and forget it."""
        kinds = {"copy" if s.source else s.method for s, _ in self.proxy.seen if is_refused(s)}
        self.proxy.seen.clear()
        return kinds


@pytest.fixture
def table(
    lake: SparkSession,
    stack: Stack,
    ledger: dict[str, Any],
    refusing: FaultProxy,
    place: tuple[str, str],
) -> RefusingTable:
    """Return an empty table in its place."""
    (name, location), plain = place, stack.rest_catalog_properties()
    schema = pa.schema([("id", pa.int64()), ("text", pa.string())])
    catalog = open_catalog("lake", plain)
    catalog.create_table(name, schema=schema, location=location, properties={"format-version": "2"})
    catalog.close()
    return RefusingTable(
        session=lake,
        catalog={**plain, **stack.s3.store_options(), "s3.endpoint": refusing.uri},
        name=name,
        location=location,
        ledger=ledger,
        proxy=refusing,
    )


@pytest.mark.filterwarnings("ignore:run 'r'. the transform's code has changed")
def test_a_run_that_has_waited_long_is_committed_without_copies(
    table: RefusingTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It resumes, asks for each file, keeps the names, and says so; Spark reads all rows."""
    with pytest.raises(TransformError):
        table.append("r", ROWS - 1)
    monkeypatch.setattr(resolve, "_OLD_AFTER_S", -60.0)  # Whatever is staged is old.
    monkeypatch.setattr(objects, "_LISTED_FROM", 1)
    table.refused()
    with pytest.warns(UserWarning, match="could not be copied .*405 Method Not Allowed"):
        report = table.append("r")
    assert table.refused() == {"GET", "copy"}
    assert (report.outcome, report.copied_files) == ("committed", 0)
    assert report.not_copied_files == report.files > 0
    assert report.kept_rows > 0
    assert table.ids() == ALL
    again = table.append("r")
    assert (again.outcome, again.snapshot_id) == ("already_committed", report.snapshot_id)


def test_a_sweep_leaves_the_files_and_deletes_the_rest(table: RefusingTable) -> None:
    """The ledger's objects go, but for those that list the files; other runs are not concerned."""
    with pytest.raises(TransformError):
        table.append("given up", ROWS - 1)
    run = table.run("given up")
    run.abort(to=table.target)
    swept = run.sweep(to=table.target)
    assert (swept.data_files, swept.out_of_reach > 0) == (0, True)
    assert swept.ledger_objects > 0
    # In a bucket that other tables might share, no delete is even tried.
    assert re.search("refuses to delete .*405 Method|only this table uses", swept.reason)
    assert table.append("another").outcome == "committed"
    assert table.ids() == ALL


@pytest.mark.filterwarnings("ignore:run 'r'. the transform's code has changed")
def test_rows_of_a_file_that_the_store_took_away_are_computed_again(table: RefusingTable) -> None:
    """To a caller who may not list, S3 says "forbidden" of an object that is not there."""
    with pytest.raises(TransformError):
        table.append("r", ROWS - 1)
    storage = ObjectStorage(table.ledger["store_options"])
    (gone, *_) = [uri for uri in storage.list(table.location) if uri.endswith(".parquet")]
    storage.delete([gone])
    name = gone.rpartition("/")[2]
    forbidden = Fault(forward=False, status=403, content=b"")
    table.proxy.on(lambda seen: name in seen.path, *[forbidden] * 100)
    report = table.append("r")
    assert (report.outcome, report.withdrawn_rows > 0) == ("committed", True)
    assert table.ids() == ALL
