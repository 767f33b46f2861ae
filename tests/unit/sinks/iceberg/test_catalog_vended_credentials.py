"""Keys that a REST catalog vends for a table: workers ask for new ones, and no call fails."""

from __future__ import annotations

import json
import pickle
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.schema import Schema
from pyiceberg.table.metadata import new_table_metadata
from pyiceberg.table.sorting import UNSORTED_SORT_ORDER
from pyiceberg.types import LongType, NestedField

from holdfast.errors import SettingsError
from holdfast.sinks.iceberg.catalog import TimedRestCatalog, open_catalog
from holdfast.sinks.iceberg.file_io import FILE_IO_PATH, HoldfastFileIO
from holdfast.sinks.iceberg.sink import IcebergSink
from holdfast.storage import credentials, locations
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import StorageError
from tests.fakes.http_servers import running
from tests.fakes.keyed_s3 import SECRET, KeyedS3

SCHEMA = Schema(NestedField(1, "id", LongType()))
LOCATION = "s3://bucket/t"
URI = f"{LOCATION}/x"
_CREDENTIALS = "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials"
_LOAD = "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}"


class VendingCatalog(ThreadingHTTPServer):
    """A REST catalog with one table, which vends keys for its files with each look."""

    def __init__(self, s3: KeyedS3) -> None:
        """Listen on a free port of this machine."""
        super().__init__(("127.0.0.1", 0), _Handler)
        self.s3 = s3
        self.key = "old"
        # Whether it says when keys expire, and has an endpoint for keys alone.
        self.lasts_s: float | None = None
        self.has_credentials_answer = False
        self.is_down = False
        # Paths that end with this are answered with an error.
        self.broken = "nothing"
        self.properties: dict[str, str] = {}
        self.asked: list[str] = []

    def sink(self, **properties: str) -> IcebergSink:
        """Return a sink on its table."""
        return IcebergSink(open_catalog("lake", {**self.settings(), **properties}), "db.t", "main")

    def settings(self) -> dict[str, str]:
        """Return its address."""
        return {"uri": f"http://127.0.0.1:{self.server_address[1]}"}

    def storage(self, **properties: str) -> ObjectStorage:
        """Return a worker's storage, as it is after a transfer to another process."""
        sink = self.sink(**properties)
        spec = pickle.loads(pickle.dumps(sink.writer_spec(sink.load())))  # noqa: S301 - our own.
        found = HoldfastFileIO(dict(spec.io_properties), spec.vendor).storage
        assert isinstance(found, ObjectStorage)
        return found

    def answer(self, path: str) -> dict[str, Any]:
        """Return its answer to a request."""
        if path == "/v1/config":
            more = [_CREDENTIALS] if self.has_credentials_answer else []
            return {"defaults": {}, "overrides": {}, "endpoints": [_LOAD, *more]}
        keys = {"s3.access-key-id": self.key, "s3.secret-access-key": SECRET}
        if self.lasts_s is not None:
            keys["s3.session-token-expires-at-ms"] = str(int((time.time() + self.lasts_s) * 1000))
        keys = keys if self.key else {}
        if path.endswith("/credentials"):
            return {"storage-credentials": [{"prefix": LOCATION, "config": keys}]}
        metadata = new_table_metadata(
            SCHEMA, UNPARTITIONED_PARTITION_SPEC, UNSORTED_SORT_ORDER, LOCATION, self.properties
        )
        return {
            "metadata-location": f"{LOCATION}/metadata/1.json",
            "metadata": json.loads(metadata.model_dump_json()),
            "config": {**self.s3.options(), **keys},
        }


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: VendingCatalog

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        if path != "/v1/config":
            self.server.asked.append(path.rsplit("/", 1)[-1])
        body = json.dumps(self.server.answer(path)).encode()
        fails = self.server.is_down or path.endswith(self.server.broken)
        self.send_response(503 if fails else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def catalog(monkeypatch: pytest.MonkeyPatch) -> Iterator[VendingCatalog]:
    """Run a catalog and its store for one test, without the settings of this machine."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(locations, "_RETRY_CONFIG", {"max_retries": 0})
    monkeypatch.setattr(credentials, "_known", {})
    with running(KeyedS3()) as s3, running(VendingCatalog(s3)) as server:
        yield server


@dataclass
class Clock:
    """A stand-in for the module `time` in `credentials`, which a test sets ahead."""

    ahead_s: float = 0.0

    def monotonic(self) -> float:
        """Return the time by this clock."""
        return time.monotonic() + self.ahead_s


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Measure the age of keys by a clock of the test."""
    made = Clock()
    monkeypatch.setattr(credentials, "time", made)
    return made


@pytest.mark.parametrize("answer", ["t", "credentials"])
def test_keys_that_are_refused_are_requested_again(catalog: VendingCatalog, answer: str) -> None:
    """The catalog is not asked earlier; the credentials endpoint is preferred if there is one."""
    catalog.has_credentials_answer = answer == "credentials"
    storage = catalog.storage()
    storage.put(URI, b"1")
    assert catalog.asked == ["t"]  # The driver's look.
    catalog.key = catalog.s3.key = "new"
    assert storage.get(URI) == b"1"
    assert storage.get(URI) == b"1"
    assert catalog.asked == ["t", answer]
    assert catalog.s3.refused == 1


def test_loading_the_table_helps_where_the_credentials_endpoint_fails(
    catalog: VendingCatalog,
) -> None:
    """A server, or a gateway in front of it, may list an endpoint that it does not serve."""
    catalog.has_credentials_answer, catalog.broken = True, "/credentials"
    storage = catalog.storage()
    catalog.key = catalog.s3.key = "new"
    storage.put(URI, b"1")


def test_keys_are_renewed_before_they_expire(catalog: VendingCatalog, clock: Clock) -> None:
    """Nothing is refused: the store accepts the old keys until the new ones are there."""
    catalog.lasts_s = 600.0
    storage = catalog.storage()
    storage.put(URI, b"1")
    catalog.lasts_s = 3600.0
    clock.ahead_s = 480.0  # Two minutes before they expire.
    for _ in range(3):
        storage.put(URI, b"1")
    assert catalog.asked == ["t", "t"]
    assert catalog.s3.refused == 0


def test_keys_that_seem_expired_on_arrival_are_used(catalog: VendingCatalog) -> None:
    """The worker's clock is ahead; the catalog is still not asked before each call."""
    catalog.lasts_s = -3600.0
    storage = catalog.storage()
    for _ in range(3):
        storage.put(URI, b"1")
    assert catalog.asked == ["t"]


@pytest.mark.parametrize("value", ["0", "9999999999999999", "²", "soon"])
def test_a_tables_property_does_not_say_when_keys_expire(
    catalog: VendingCatalog, value: str
) -> None:
    """Otherwise anyone who may alter a table could make every call ask the catalog, or none."""
    catalog.properties = {"s3.session-token-expires-at-ms": value}
    sink = catalog.sink()
    vendor = sink.writer_spec(sink.load()).vendor
    assert vendor is not None
    assert vendor.first["expires_at"] is None


@pytest.mark.parametrize("name", ["warehouse", "token"])
def test_one_name_may_mean_two_catalogs(catalog: VendingCatalog, name: str) -> None:
    """Two warehouses behind one address, or a new login, each have keys of their own."""
    catalog.storage(**{name: "a"}).put(URI, b"1")
    catalog.key = catalog.s3.key = "new"
    catalog.storage(**{name: "b"}).put(URI, b"1")
    assert catalog.s3.refused == 0


def test_a_task_that_writes_outlives_its_keys(catalog: VendingCatalog) -> None:
    """The keys are replaced between two files of one writer."""
    sink = catalog.sink()
    writer = sink.writer_spec(sink.load()).open("task")
    rows = pa.record_batch({"id": pa.array([1, 2], pa.int64())})
    writer.write(writer.fit(rows))
    writer.cut()
    catalog.key = catalog.s3.key = "new"
    writer.write(writer.fit(rows))
    writer.cut()
    assert len([name for name in catalog.s3.objects if name.endswith(".parquet")]) == 2


def test_a_driver_outlives_its_keys(catalog: VendingCatalog) -> None:
    """It reads files long after its last look at the table."""
    sink = catalog.sink()
    view = sink.load()
    catalog.s3.objects["/bucket/t/x"] = b"1"
    catalog.key = catalog.s3.key = "new"
    assert view.handle.io.storage.size(URI) == 1


def test_old_keys_are_used_while_the_catalog_is_down(catalog: VendingCatalog, clock: Clock) -> None:
    """Workers may not reach it at all. If the store refuses too, the error names both."""
    catalog.lasts_s = 600.0
    storage = catalog.storage()
    storage.put(URI, b"0")
    catalog.is_down = True
    clock.ahead_s = 601.0
    storage.put(URI, b"1")
    assert credentials.trouble()  # New keys were requested in vain.
    catalog.s3.key = "new"
    said = r"InvalidAccessKeyId \(no credentials from catalog 'lake', for table db\.t: "
    with pytest.raises(StorageError, match=said):
        storage.put(URI, b"2")
    catalog.is_down, catalog.key = False, "new"
    storage.put(URI, b"2")


def test_a_refusal_by_another_store_does_not_discard_the_keys(catalog: VendingCatalog) -> None:
    """The ledger's keys have expired and the catalog is down, but the table's are still good."""
    storage = catalog.storage()
    storage.put(URI, b"1")
    catalog.is_down = True
    with running(KeyedS3()) as other:
        keys = {"s3.access-key-id": "mine", "s3.secret-access-key": SECRET}
        with pytest.raises(StorageError, match="InvalidAccessKeyId"):
            ObjectStorage(other.options(**keys)).get(URI)
    storage.put(URI, b"2")


def test_a_slow_request_for_keys_is_not_repeated_at_each_call(clock: Clock) -> None:
    """A catalog that hangs until the timeout must not delay every call."""
    asked: list[int] = []

    def hang() -> dict[str, Any]:
        asked.append(1)
        clock.ahead_s += 120.0  # Longer than the old keys are used without another request.
        raise TimeoutError

    soon = datetime.now(timezone.utc) + timedelta(minutes=10)
    first = {"access_key_id": "k", "secret_access_key": SECRET, "expires_at": soon}
    made = credentials.Credentials("somebody", hang, first=first)
    clock.ahead_s = 601.0
    assert [made()["access_key_id"] for _ in range(3)] == ["k"] * 3
    assert asked == [1]


def test_a_catalog_that_vends_no_keys_any_more_is_an_error(catalog: VendingCatalog) -> None:
    """A store must not be called without keys, or with keys from another source."""
    storage = catalog.storage()
    catalog.key, catalog.s3.key = "", "new"
    with pytest.raises(StorageError, match="no credentials from catalog 'lake'"):
        storage.get(URI)


def test_half_a_key_is_an_error_that_names_the_catalog(
    catalog: VendingCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is raised before any call to the store."""
    answer = catalog.answer

    def without_secret(path: str) -> dict[str, Any]:
        found = answer(path)
        found.get("config", {}).pop("s3.secret-access-key", None)
        return found

    monkeypatch.setattr(catalog, "answer", without_secret)
    with pytest.raises(SettingsError, match=r"catalog .lake., for table db\.t returned no secret"):
        catalog.storage().get(URI)
    assert catalog.s3.refused == 0


def test_the_users_own_keys_are_not_renewed(catalog: VendingCatalog) -> None:
    """They are not vended, and the catalog has no others."""
    catalog.key = ""
    keys = {"s3.access-key-id": "mine", "s3.secret-access-key": SECRET}
    io = catalog.sink(**keys).load().handle.io
    assert io.vendor is None
    assert io.properties["s3.access-key-id"] == "mine"


def test_the_users_own_token_is_not_sent_with_a_vended_key(catalog: VendingCatalog) -> None:
    """It belongs to another key, and the store would refuse the combination."""
    keys = {"s3.access-key-id": "mine", "s3.secret-access-key": "x", "s3.session-token": "mine"}
    sink = catalog.sink(**keys)
    vendor = sink.writer_spec(sink.load()).vendor
    assert vendor is not None
    assert (vendor.first["access_key_id"], vendor.first["token"]) == ("old", None)


def test_an_object_in_the_settings_stays_on_the_driver(catalog: VendingCatalog) -> None:
    """PyIceberg accepts a boto3 session there, which cannot be sent to a worker."""
    opened = open_catalog("lake", catalog.settings())
    assert isinstance(opened, TimedRestCatalog)
    opened.given["botocore_session"] = threading.Lock()  # It cannot be pickled either.
    sink = IcebergSink(opened, "db.t", "main")
    pickle.dumps(sink.writer_spec(sink.load()))


def test_keys_in_a_tables_properties_are_not_vended(catalog: VendingCatalog) -> None:
    """Those who may alter a table must not choose whose keys are used."""
    catalog.key = ""
    catalog.properties = {"s3.access-key-id": "theirs", "s3.secret-access-key": SECRET}
    io = catalog.sink().load().handle.io
    assert io.vendor is None
    assert "s3.access-key-id" not in io.properties


def test_the_servers_config_is_used_as_storage_options_but_a_tables_properties_are_not(
    catalog: VendingCatalog,
) -> None:
    """The answer holds both, and anyone who may alter the table sets its properties."""
    catalog.properties = {
        "s3.endpoint": "http://127.0.0.1:9",
        "s3.anonymous": "true",
        "s3.session-token": "theirs",
        "client.region": "theirs",
        "client.access-key-id": "theirs",
        "gcs.service.host": "http://127.0.0.1:9",
        "adls.account-host": "theirs",
        "py-io-impl": "no.such.Io",
        "write.py-location-provider.impl": "no.such.Provider",
    }
    sink = catalog.sink(**{"client.region": "ours"})
    view = sink.load()
    assert view.handle.properties == catalog.properties  # They are in what was loaded.
    for options in (view.handle.io.properties, sink.writer_spec(view).io_properties):
        assert options["s3.endpoint"] == catalog.s3.options()["s3.endpoint"]
        assert options["client.region"] == "ours"
        assert options["py-io-impl"] == FILE_IO_PATH
        shared = catalog.properties.keys() & options.keys()
        assert shared == {"s3.endpoint", "client.region", "py-io-impl"}
    storage = catalog.storage()
    storage.put(URI, b"1")
    assert catalog.s3.objects == {"/bucket/t/x": b"1"}


def test_vended_keys_take_precedence_over_the_environments_function(
    catalog: VendingCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are made for this table; the user's function is for all else."""
    monkeypatch.setenv("HOLDFAST_CREDENTIALS", "no_such_module:x")
    catalog.storage().put(URI, b"1")


def test_no_secret_is_shown(catalog: VendingCatalog) -> None:
    """Neither vended secrets nor the catalog's own are shown."""
    sink = catalog.sink(token="canary")  # noqa: S106 - of no real server.
    view = sink.load()
    spec = sink.writer_spec(view)
    shown = f"{spec!r} {spec.vendor!r}"
    assert SECRET not in shown
    assert "canary" not in shown
    assert SECRET not in str(spec.io_properties)
