"""A reused run id: no table is created for a start that is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shutil import rmtree

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog

from holdfast.engine.claim import refuse_new_table
from holdfast.errors import RunMismatchError, TableMissingError
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.run_log import open_run_file
from holdfast.model.identity import Identity
from holdfast.opening import open_table
from holdfast.sinks.base import Sink
from holdfast.sinks.targets import Create, IcebergTable, LanceTable, Target
from tests.fakes.manual_ports import manual_ports
from tests.fakes.memory_storage import MemoryStorage

SCHEMA = pa.schema([("id", pa.int64())])


@dataclass(frozen=True, kw_only=True)
class Lake:
    """Tables of one format on this machine, and one run's ledger."""

    target: Callable[[str], Target]
    drop: Callable[[str], None]
    ledger: Ledger

    def identity_on(self, *, version: str = "") -> Callable[..., Identity]:
        """Return a factory for the identity that a start expects, given its table."""
        return partial(
            Identity,
            branch="main",
            mode="append",
            key=("id",),
            session_time_zone="UTC",
            ansi_mode="true",
            version=version,
        )

    def open(self, name: str, *, version: str = "") -> Sink:
        """Open a table as `Run.append(create=)` does."""
        refuse = partial(refuse_new_table, self.ledger, self.identity_on(version=version))
        return open_table(
            self.target(name), None, Create(schema=SCHEMA), lambda: SCHEMA, before_create=refuse
        )

    def start(self, name: str, *, version: str = "") -> None:
        """Start the run, up to writing run.json."""
        sink = self.open(name, version=version)
        identity = self.identity_on(version=version)(table=sink.name, table_uuid=sink.load().uuid)
        open_run_file(
            self.ledger.storage,
            self.ledger.layout,
            run_id=self.ledger.run_id,
            identity=identity,
            nonce=self.ledger.ports.new_nonce(),
            sleep=self.ledger.ports.sleep,
        )

    def has(self, name: str) -> bool:
        """Whether the table exists."""
        try:
            open_table(self.target(name), None).load()
        except TableMissingError:
            return False
        return True


@pytest.fixture(params=["iceberg", "lance"])
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Lake:
    """Tables of both formats, and a run that has not been started."""
    ledger = Ledger.open("r", "s3://store", MemoryStorage(), manual_ports())
    if request.param == "lance":
        return Lake(
            target=lambda name: LanceTable(f"{tmp_path}/{name}.lance"),
            drop=lambda name: rmtree(tmp_path / f"{name}.lance"),
            ledger=ledger,
        )
    properties = {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": f"file://{tmp_path}"}
    catalog = SqlCatalog("default", **properties)
    catalog.create_namespace("db")
    return Lake(
        target=lambda name: IcebergTable(f"db.{name}", catalog={"type": "sql", **properties}),
        drop=lambda name: catalog.drop_table(f"db.{name}"),
        ledger=ledger,
    )


def test_a_new_run_creates_its_table_and_finds_it_again(lake: Lake) -> None:
    """The tests below refuse variations of this case."""
    lake.start("t")
    lake.start("t")
    assert lake.has("t")


def test_a_reused_id_does_not_create_the_table_that_it_names(lake: Lake) -> None:
    """The error names both tables, and the wrong one does not exist afterwards."""
    lake.start("t")
    with pytest.raises(RunMismatchError, match=r"it writes the table .*t.*, but this start") as no:
        lake.open("other", version="2")
    assert "version= was '', and is now '2'" in no.value.differences  # All differences at once.
    assert not lake.has("other")


def test_a_dropped_table_of_a_run_is_not_created_again(lake: Lake) -> None:
    """A new table would not be the run's table."""
    lake.start("t")
    lake.drop("t")
    with pytest.raises(RunMismatchError, match="has since been dropped"):
        lake.open("t")
    assert not lake.has("t")


def test_a_table_that_another_start_has_just_created_is_used(lake: Lake) -> None:
    """Of two first starts at once, one sees no table, and then the other's run.json.

    Method: the other start runs between this start's look at the table and its look at the ledger.
    """
    called = []

    def refuse(sink: Sink) -> None:
        lake.start("t")
        called.append(sink.name)
        refuse_new_table(lake.ledger, lake.identity_on(), sink)

    sink = open_table(
        lake.target("t"), None, Create(schema=SCHEMA), lambda: SCHEMA, before_create=refuse
    )
    assert called == [sink.name]
    lake.start("t")  # It is the run's table.
