"""A ledger and a table on GCS and on Azure, as far as their emulators behave as they do.

Each run has its ledger and its files in the emulator; the catalog is a SQLite file. What the tests
showed is in `docs/versions.md`.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from holdfast.ledger.store import create_once, probe_store
from holdfast.storage import objects
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import AlreadyThereError, StorageError
from tests.emulators.cloud_lake import CloudLake
from tests.emulators.front import running
from tests.emulators.gcs_server import GcsServer
from tests.emulators.servers import (
    ACCOUNT,
    ACCOUNT_KEY,
    Emulator,
    emulator,
    make_bucket,
    make_container,
)
from tests.fakes.memory_submitter import MemorySubmitter

pytestmark = pytest.mark.emulator

ROUNDS, RIVALS = 25, 8
SERVERS = {"fake-gcs-server": "gs", "azurite": "az"}


@pytest.fixture(scope="module", params=SERVERS)
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Emulator]:
    """Run an emulator for the module."""
    with emulator(request.param, tmp_path_factory.mktemp("logs")) as found:
        if found.name == "azurite":
            yield found
            return
        with running(GcsServer(found.uri)) as front:
            yield replace(found, uri=front.uri)


@pytest.fixture
def lake(
    request: pytest.FixtureRequest,
    server: Emulator,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> CloudLake:
    """Give a lake in a bucket of its own; the environment says where the store is."""
    request.node.user_properties.append(("emulator", (server.name, server.version)))
    bucket = f"lake-{uuid.uuid4().hex[:8]}"
    if server.name == "azurite":
        make_container(server, bucket)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", ACCOUNT)
        monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", ACCOUNT_KEY)
        monkeypatch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
        monkeypatch.setenv("AZURITE_BLOB_STORAGE_URL", server.uri)
    else:
        make_bucket(server, bucket)
        account = tmp_path / "account.json"
        account.write_text(
            json.dumps(
                {
                    "gcs_base_url": server.uri,
                    "disable_oauth": True,
                    "client_email": "",
                    "private_key": "",
                    "private_key_id": "",
                }
            )
        )
        monkeypatch.setenv("GOOGLE_SERVICE_ACCOUNT", str(account))
    return CloudLake(tmp_path, root=f"{SERVERS[server.name]}://{bucket}")


def test_an_object_is_created_once(lake: CloudLake) -> None:
    """Of many that create it at once one wins, and what it has written stays."""
    storage = ObjectStorage()
    probe_store(storage, lake.store, "nonce", sleep=lambda _: None)

    def create(uri: str, number: int) -> int | None:
        with suppress(AlreadyThereError):
            storage.create(uri, f"writer {number}".encode())
            return number
        return None

    with ThreadPoolExecutor(RIVALS) as pool:
        for turn in range(ROUNDS):
            uri = f"{lake.root}/once/{turn}"
            outcomes = list(pool.map(partial(create, uri), range(RIVALS)))
            (winner,) = [number for number in outcomes if number is not None]
            assert storage.get(uri) == f"writer {winner}".encode()


def test_a_long_listing_has_each_name_once(
    lake: CloudLake, server: Emulator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where it is read in parallel, from names on: here after the first 40 names.

    A server that cannot do it is noticed: a listing without some names would lose records.
    """
    for name, value in (("_PAGE", 20), ("_FIRST_PAGES", 2), ("_RANGES", 3), ("_RANGE_PAGES", 1)):
        monkeypatch.setattr(objects, name, value)
    storage = ObjectStorage()
    names = {f"{lake.root}/many/{group}/{number:04d}" for group in "ab" for number in range(75)}
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda uri: create_once(storage, uri, b"x", sleep=time.sleep), sorted(names)))
    if server.name == "fake-gcs-server":
        with pytest.raises(StorageError, match="does not list names in order"):
            list(storage.walk(f"{lake.root}/many"))
        pytest.xfail("the emulator ignores start-after")
    assert sorted(uri for uri, _ in storage.walk(f"{lake.root}/many")) == sorted(names)
    storage.delete(names)
    assert lake.objects("many") == set()


def rows() -> MemorySubmitter:
    """Return an input of two tasks."""
    return MemorySubmitter(range(10), range(10, 20))


def test_a_killed_run_is_resumed_and_lands_once(lake: CloudLake) -> None:
    """The second driver keeps what the first one finished; the third finds the mark."""
    lake.start_and_die("r", rows())
    assert lake.ids() == []
    report = lake.start("r", rows(), takeover="now")
    assert (report.outcome, report.rows) == ("committed", 20)
    assert report.kept_rows == 10
    assert lake.ids() == list(range(20))
    assert lake.start("r", rows()).outcome == "already_committed"


def test_a_sweep_deletes_what_is_not_needed_and_nothing_else(
    lake: CloudLake, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an aborted run its staged files, of a landed one no file of the table."""
    lake.start("landed", rows())
    landed = lake.data_names()
    lake.start_and_die("dead", MemorySubmitter(range(100, 110), range(110, 120)))
    assert lake.data_names() > landed
    assert lake.call("abort", "dead", "--yes", *lake.catalog_arguments) == 0
    for run_id in ("dead", "landed"):
        assert lake.call("sweep", run_id, "--yes", *lake.catalog_arguments) == 0
    capsys.readouterr()
    assert lake.data_names() == landed
    assert lake.ids() == list(range(20))
