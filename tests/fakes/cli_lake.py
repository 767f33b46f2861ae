"""A real store in a folder, a real Iceberg table and runs on them, for command-line tests."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import lance
import pyarrow as pa
import pytest
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

from holdfast.cli.main import main
from holdfast.engine.drive import Driver
from holdfast.engine.options import WriteOptions
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.ledger import Ledger, Ports
from holdfast.ledger.run_log import RunLog
from holdfast.model.identity import Identity
from holdfast.model.records import Body, Receipt, Record, open_json, seal_json
from holdfast.model.report import Report
from holdfast.opening import open_table
from holdfast.sinks.base import Sink
from holdfast.sinks.iceberg.catalog import open_catalog
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.sinks.targets import LanceTable
from holdfast.storage.objects import ObjectStorage
from tests.fakes.memory_storage import DriverDiedError
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.rig import LAYOUT, Rig
from tests.fakes.unpinned import Unpinned

# No process has this id.
_GONE = 2**30
_SCHEMA = Schema(NestedField(1, "id", LongType(), required=False))


@dataclass(frozen=True)
class CliLake:
    """A folder with a store and a table, both as a user would have them."""

    folder: Path
    name: str = "db.t"

    @property
    def store(self) -> str:
        """The store's URI."""
        return f"file://{self.folder}/store"

    @property
    def properties(self) -> Mapping[str, str]:
        """What PyIceberg needs to open the catalog."""
        return {
            "type": "sql",
            "uri": f"sqlite:///{self.folder}/catalog.db",
            "warehouse": f"file://{self.folder}/warehouse",
        }

    @property
    def catalog_arguments(self) -> list[str]:
        """The same, as command-line arguments."""
        pairs = [f"{name}={value}" for name, value in self.properties.items()]
        return [word for pair in pairs for word in ("--catalog", pair)]

    def make_table(self, **arguments: Any) -> IcebergSink:  # noqa: ANN401 - those of `create_table`.
        """Create the table in the catalog `lake`, if it is not there."""
        catalog = open_catalog("lake", self.properties)
        catalog.create_namespace_if_not_exists(self.name.partition(".")[0])
        catalog.create_table_if_not_exists(self.name, schema=_SCHEMA, **arguments)
        return IcebergSink(catalog, self.name, "main")

    def make_dataset(self) -> Sink:
        """Create an empty Lance dataset of ids, and return a sink on it."""
        uri = f"{self.folder}/t.lance"
        lance.write_dataset(pa.table({"id": pa.array([], pa.int64())}), uri)
        return open_table(LanceTable(uri), None)

    def ledger(self, run_id: str, ports: Ports | None = None) -> Ledger:
        """Open a run's ledger as a driver does."""
        return Ledger.open(run_id, self.store, ObjectStorage(), ports or Ports())

    def start(  # noqa: PLR0913 - each is a choice of the test's.
        self,
        run_id: str,
        submitter: MemorySubmitter,
        ports: Ports | None = None,
        *,
        sink: Sink | None = None,
        branch: str = "main",
        mode: str = "append",
        ledger: Ledger | None = None,
        **options: Any,  # noqa: ANN401 - any of `WriteOptions`.
    ) -> Report:
        """Start a run, as a script does; by default on the Iceberg table."""
        sink = sink or self.make_table()
        view = sink.load()
        chosen = WriteOptions(**options)
        identity = Identity(
            table=sink.name,
            table_uuid=view.uuid,
            branch=branch,
            mode=mode,
            key=("id",),
            session_time_zone="UTC",
            ansi_mode="true",
            version="",
            on=chosen.on_columns,
        )
        ledger = ledger or self.ledger(run_id, ports)
        driver = Driver(ledger=ledger, sink=sink, input=Unpinned(submitter))
        return driver.write(view, identity, chosen)

    def start_and_die(self, run_id: str, submitter: MemorySubmitter, **options: Any) -> None:  # noqa: ANN401
        """Start a run in a process that is killed when its first task has ended."""
        submitter.after_task[0] = _die
        with contextlib.suppress(DriverDiedError):
            self.start(run_id, submitter, Ports(process_id=_GONE), **options)

    def put(self, rig: Rig, run_id: str) -> None:
        """Put the run of a rig into the store, under a name of its own."""
        folder = RunLayout.of(self.store, run_id).folder.removeprefix("file://")
        for uri, data in rig.storage.objects.items():
            file = Path(f"{folder}{uri.removeprefix(LAYOUT.folder)}")
            file.parent.mkdir(parents=True, exist_ok=True)
            if uri == LAYOUT.identity:  # It says whose folder it is.
                data = seal_json({**open_json(data), "run_id": run_id})  # noqa: PLW2901
            file.write_bytes(data)

    def damage(self, run_id: str, number: int) -> None:
        """Cut a record of a run's log short."""
        file = Path(self.ledger(run_id).layout.record(number).removeprefix("file://"))
        file.write_bytes(file.read_bytes()[:-20])

    def data_files(self) -> list[Path]:
        """Return the data files in the table's folder, landed or not."""
        return sorted((self.folder / "warehouse").rglob("*.parquet"))

    def call(self, *words: str) -> int:
        """Run the command line on this store."""
        return main([words[0], "--store", self.store, *words[1:]])


def _die() -> None:
    raise DriverDiedError


def die_before_post(lake: CliLake, **arguments: Any) -> None:  # noqa: ANN401 - of `start`.
    """Start the run `r`, whose driver dies between its intent and its post."""
    with (
        mock.patch.object(IcebergSink, "post", mock.Mock(side_effect=DriverDiedError)),
        contextlib.suppress(DriverDiedError),
    ):
        rows = MemorySubmitter(range(10), range(10, 20))
        lake.start("r", rows, Ports(process_id=_GONE), **arguments)


def die_before_receipt(lake: CliLake, run_id: str = "r") -> None:
    """Start a run that lands, and whose driver dies before it records that."""
    append = RunLog.append

    def until_receipt(log: RunLog, body: Body) -> Record:
        if isinstance(body, Receipt):
            raise DriverDiedError
        return append(log, body)

    with (
        mock.patch.object(RunLog, "append", until_receipt),
        contextlib.suppress(DriverDiedError),
    ):
        rows = MemorySubmitter(range(10), range(10, 20))
        lake.start(run_id, rows, Ports(process_id=_GONE))


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CliLake:
    """Give a fresh lake, whose command line prints 80 columns and no colours."""
    monkeypatch.setenv("COLUMNS", "80")
    for name in ("HOLDFAST_STORE", "FORCE_COLOR", "NO_COLOR", "PYICEBERG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # No configuration of the user's own.
    return CliLake(tmp_path)
