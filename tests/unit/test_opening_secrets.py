"""Secrets: a credential is in no repr, no message, no record and no task report."""

from __future__ import annotations

import dataclasses
import pickle
import traceback
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.exceptions import NoSuchTableError
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField

import holdfast as hf
from holdfast import IcebergTable, LanceTable, Run
from holdfast.engine.drive import Driver
from holdfast.engine.options import WriteOptions
from holdfast.errors import (
    CatalogUnavailableError,
    HoldfastError,
    SettingsError,
    TableMissingError,
    UnsupportedTableError,
)
from holdfast.ledger.ledger import Ledger
from holdfast.opening import open_table
from holdfast.sinks.iceberg.catalog import configured, open_catalog, pyiceberg_properties
from holdfast.sinks.iceberg.file_io import HoldfastFileIO
from holdfast.sinks.iceberg.loading import load_table
from holdfast.sinks.iceberg.open import open_sink
from holdfast.sinks.lance.dataset import DatasetPlace
from holdfast.storage import locations
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import StorageError
from holdfast.worker.task import TaskPlan
from tests.fakes.iceberg_tables import new_table, writer_spec
from tests.fakes.logs import job_ledger, task_records
from tests.fakes.manual_ports import manual_ports
from tests.fakes.memory_storage import MemoryStorage
from tests.fakes.memory_submitter import MemorySubmitter
from tests.fakes.rig import Rig
from tests.fakes.unpinned import Unpinned

CANARY = "canary-7f3a"
OPTIONS = {
    "s3.access-key-id": f"id-{CANARY}",
    "s3.secret-access-key": CANARY,
    "s3.endpoint": "http://127.0.0.1:9",
    "s3.region": "x",
    "token": CANARY,
}
SCHEMA = Schema(NestedField(1, "id", LongType()))


def shown(value: object) -> str:
    """Return all that a log or a notebook would show of a value."""
    return f"{value!r} {value!s} {value}"


def test_a_target_hides_its_catalog() -> None:
    """A notebook shows the last value of a cell."""
    table = IcebergTable("db.t", catalog={"uri": f"postgresql://me:{CANARY}@db/lake", **OPTIONS})
    assert CANARY not in shown(table)
    assert "db.t" in shown(table)


def test_a_run_hides_its_store_options() -> None:
    """Id and store are shown, options are not."""
    run = Run("r", store="s3://lake/_holdfast", store_options=OPTIONS)
    assert CANARY not in shown(run)
    assert "s3://lake/_holdfast" in shown(run)


def test_what_holds_connections_hides_its_options() -> None:
    """Storage and FileIO carry credentials; neither shows them."""
    assert CANARY not in shown(ObjectStorage(OPTIONS))
    assert CANARY not in shown(HoldfastFileIO(OPTIONS))


def plan(folder: Path) -> TaskPlan:
    """Return a plan whose writer carries credentials to the executors."""
    spec = writer_spec(folder, SCHEMA, io_properties=OPTIONS)
    return TaskPlan(
        transform=None,
        batch_rows=None,
        key=("id",),
        writer=spec,
        ledger=job_ledger(ObjectStorage(OPTIONS)),
        job_nonce="j",
    )


def test_a_task_plan_hides_the_credentials_that_travel_with_it(tmp_path: Path) -> None:
    """They are pickled to executors, and a log line with the plan would show them."""
    assert CANARY not in shown(plan(tmp_path).writer)
    assert CANARY not in shown(plan(tmp_path))


def test_a_tasks_report_and_its_records_hold_no_credential(tmp_path: Path) -> None:
    """Neither the record of staged rows nor the record of a problem holds them."""
    batch = pa.RecordBatch.from_pydict({"id": [1]})
    good = dataclasses.replace(plan(tmp_path), ledger=job_ledger())
    fails = dataclasses.replace(good, ledger=job_ledger(), transform=lambda _: 1 / 0)
    for task in (good, fails):
        assert CANARY not in task.run([batch], place=0, attempt=0).to_json()
        assert task_records(task.ledger)
        assert CANARY not in str(task_records(task.ledger))


def test_a_store_that_cannot_be_reached_names_no_credential(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The whole chain of a failed request holds the address but no key."""
    monkeypatch.setattr(locations, "_RETRY_CONFIG", {"max_retries": 0})
    with pytest.raises(StorageError, match="s3://bucket/x") as caught:
        ObjectStorage(OPTIONS).get("s3://bucket/x")
    assert CANARY not in "".join(traceback.format_exception(caught.value))


@pytest.mark.parametrize(
    "settings",
    [
        {"type": "hive", **OPTIONS},
        {"type": "jdbc", "uri": f"jdbc:oracle:me/{CANARY}@db", **OPTIONS},
        {"type": "jdbc", "uri": f"nothing {CANARY}", "jdbc.password": CANARY},
    ],
)
def test_a_refused_catalog_names_no_credential(settings: dict[str, str]) -> None:
    """The reason names the kind of catalog, never its settings."""
    with pytest.raises(UnsupportedTableError) as caught:
        pyiceberg_properties("lake", settings)
    assert CANARY not in shown(caught.value)


def test_a_name_that_leads_nowhere_names_no_credential() -> None:
    """The message names the table and the settings' prefix."""
    with pytest.raises(SettingsError) as caught:
        open_sink(
            IcebergTable("t", catalog={"type": "sql", "uri": "sqlite://", **OPTIONS}),
            settings_under=lambda _: {},
            create=None,
            default_schema=lambda: None,
        )
    assert CANARY not in shown(caught.value)


def test_no_record_of_a_run_holds_a_credential(tmp_path: Path) -> None:
    """A whole run whose table carries credentials: none of them reaches the ledger."""
    sink, _ = new_table(tmp_path, SCHEMA, io_properties=OPTIONS)
    storage = MemoryStorage()
    view = sink.load()
    assert CANARY in str(sink.writer_spec(view).io_properties)  # The test is not vacuous.
    ledger = Ledger.open("r", "s3://store", storage, manual_ports())
    driver = Driver(ledger=ledger, sink=sink, input=Unpinned(MemorySubmitter([1])))
    identity = dataclasses.replace(Rig().identity(), table_uuid=view.uuid)
    driver.write(view, identity, WriteOptions())
    assert len(storage.objects) >= 7
    assert [uri for uri, data in storage.objects.items() if CANARY.encode() in data] == []
    metadata = [file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()]
    assert [data for data in metadata if CANARY.encode() in data] == []


def whole(error: BaseException) -> str:
    """Return all that a traceback shows of an error, its causes included."""
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize(
    "properties",
    [
        {"type": "rest", "uri": f"htp:/me:{CANARY}@x"},
        {"type": "rest", "uri": f"http://me:{CANARY}@127.0.0.1:9"},
        {"type": "rest", "uri": "http://127.0.0.1:9", "credential": f"me:{CANARY}"},
        {"type": "sql", "uri": f"postgresql+psycopg2://me:{CANARY}@127.0.0.1:9/db"},
        {"type": "sql", "uri": f"nosuchdb://me:{CANARY}@127.0.0.1/db"},
        {"type": "sql", "uri": f"me:{CANARY}@127.0.0.1"},
    ],
)
def test_a_catalog_that_cannot_be_opened_names_no_password(properties: dict[str, str]) -> None:
    """Libraries repeat a URI that they cannot use, some of them only in chained errors."""
    with pytest.raises(HoldfastError) as caught:
        open_catalog("lake", properties)
    assert CANARY not in whole(caught.value)


def test_a_table_that_is_not_found_names_no_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error behind PyIceberg's own holds the address of the catalog's request."""
    sink, _ = new_table(tmp_path, SCHEMA)
    catalog = sink._catalog  # noqa: SLF001 - what the sink calls.

    def answer(error: Exception) -> None:
        raise error from OSError(f"404 for url: http://me:{CANARY}@host/v1/t")

    for error, raised in (
        (NoSuchTableError("no t"), TableMissingError),
        (ValueError("odd"), CatalogUnavailableError),
    ):
        monkeypatch.setattr(catalog, "load_table", lambda _, error=error: answer(error))
        with pytest.raises(raised) as caught:
            load_table(catalog, "db.t", "lake.db.t")
        assert CANARY not in whole(caught.value)


def test_a_token_that_a_server_repeats_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every value given as a secret is cut out of a text, wherever it occurs."""
    sink, _ = new_table(tmp_path, SCHEMA, io_properties={"token": CANARY})
    catalog = sink._catalog  # noqa: SLF001 - what the sink calls.
    catalog.properties["token"] = CANARY

    def refuse(_: str) -> None:
        raise ValueError(f"the token {CANARY} is not known")

    monkeypatch.setattr(catalog, "load_table", refuse)
    with pytest.raises(CatalogUnavailableError, match=r"the token \*\*\* is not known") as caught:
        load_table(catalog, "db.t", "lake.db.t")
    assert CANARY not in whole(caught.value)


def test_a_configuration_that_cannot_be_read_shows_none_of_its_lines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """YAML's errors quote the lines around the mistake."""
    file = tmp_path / ".pyiceberg.yaml"
    file.write_text(f"catalog:\n  lake:\n    credential: me:{CANARY}\n   uri: [\n")
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    with pytest.raises(SettingsError, match="cannot be read") as caught:
        configured("lake")
    assert CANARY not in whole(caught.value)


def test_an_endpoint_that_does_not_answer_names_no_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Obstore's errors repeat the address of the request as the user gave it."""
    monkeypatch.setattr(locations, "_RETRY_CONFIG", {"max_retries": 0})
    storage = ObjectStorage({**OPTIONS, "s3.endpoint": f"http://me:{CANARY}@127.0.0.1:9"})
    with pytest.raises(StorageError, match=r"http://me:\*\*\*@127.0.0.1:9") as caught:
        storage.get("s3://bucket/x")
    assert CANARY not in whole(caught.value)


@pytest.mark.slow_unit
def test_a_dataset_that_cannot_be_reached_names_no_password() -> None:
    """Nor does Lance's error, which holds more of the request than obstore's."""
    options = {
        "aws_endpoint": f"http://me:{CANARY}@127.0.0.1:9",
        "aws_access_key_id": "k",
        "aws_secret_access_key": CANARY,
        "aws_region": "x",
        "client_max_retries": "0",
        "connect_timeout": "1s",
        "timeout": "2s",
    }
    place = DatasetPlace(uri="s3://bucket/t.lance", options=options)
    with pytest.raises(HoldfastError) as caught:
        place.open()
    assert CANARY not in whole(caught.value)
    assert CANARY not in shown(place)


@pytest.mark.parametrize("scheme", ["s3", "gs", "abfss"])
def test_a_password_in_the_uri_of_a_store_or_a_table_is_refused(scheme: str) -> None:
    """Records, reports and messages repeat these URIs, so a password must not be in them."""
    uri = f"{scheme}://me:{CANARY}@bucket/x"
    table = LanceTable(uri)
    assert CANARY not in shown(table)
    for use in (
        lambda: Run("r", store=uri),
        lambda: open_table(table, None),
        lambda: hf.scan_lance(uri),
        lambda: hf.runs(uri),
    ):
        with pytest.raises(SettingsError, match="contains a password") as caught:
            use()
        assert CANARY not in whole(caught.value)


def test_what_a_debugger_shows_of_a_storage_holds_no_option() -> None:
    """Error-reporting tools send the local variables of each frame along."""
    storage = pickle.loads(pickle.dumps(ObjectStorage(OPTIONS)))  # noqa: S301 - ours.
    assert CANARY not in f"{vars(storage)}"
    assert "s3.secret-access-key" in f"{vars(storage)}"
    assert dict(vars(storage)["_options"])["s3.secret-access-key"] == CANARY


def test_the_root_error_shows_no_argument_that_it_was_not_given() -> None:
    """An error's repr holds its class, and nothing from the code that raised it."""
    assert repr(HoldfastError()) == "HoldfastError()"
