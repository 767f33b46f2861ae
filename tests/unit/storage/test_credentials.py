"""Credentials that expire in mid-job: they are requested again, and no call fails."""

from __future__ import annotations

import contextlib
import re
import threading
import time
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from holdfast.errors import SettingsError
from holdfast.sinks.iceberg.file_io import HoldfastFileIO
from holdfast.storage import credentials, locations
from holdfast.storage.credentials import Credentials
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import StorageError
from tests.fakes.http_servers import running
from tests.fakes.keyed_s3 import SECRET, KeyedS3

HERE = f"{__name__}:current"
URI = "s3://bucket/x"

# What the user's function returns now, and how often it was called.
given: dict[str, Any] = {}
asked: list[str] = []


def current() -> dict[str, Any]:
    """Stand in for the user's own function."""
    asked.append(given.get("access_key_id", ""))
    if "raise" in given:
        raise RuntimeError(f"cannot renew {SECRET}")
    return dict(given)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[KeyedS3]:
    """Run a server for one test, without this machine's own credentials."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_WEB_IDENTITY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setattr(locations, "_RETRY_CONFIG", {"max_retries": 0})
    monkeypatch.setattr(credentials, "_known", {})
    given.clear()
    asked.clear()
    replace("old")
    with running(KeyedS3()) as server:
        yield server


def replace(key: str, **more: Any) -> None:  # noqa: ANN401 - whatever a user returns.
    """Let the user's function return another key from now on."""
    given.clear()
    given.update(access_key_id=key, secret_access_key=SECRET, **more)


@pytest.mark.parametrize(
    ("status", "code"),
    [(403, "InvalidAccessKeyId"), (400, "ExpiredToken"), (401, "Unauthorized")],
)
def test_refused_credentials_are_requested_again(server: KeyedS3, status: int, code: str) -> None:
    """Reads, writes, heads and listings continue with the new key; each is refused once at most."""
    server.status, server.code = status, code
    storage = ObjectStorage(server.options(**{credentials.OPTION: HERE}))
    storage.put(URI, b"1")
    calls: list[Callable[[], object]] = [
        lambda: storage.put(URI, b"2"),
        lambda: storage.get(URI),
        lambda: storage.size(URI),
        lambda: storage.list(URI),
        lambda: storage.folders(URI),
        lambda: storage.facts(URI),
    ]
    for number, call in enumerate(calls):
        server.key = f"new-{number}"
        replace(server.key)
        call()
        assert server.refused == number + 1
    assert storage.get(URI) == b"2"
    assert asked == ["old", *(f"new-{number}" for number in range(len(calls)))]


def test_a_key_that_the_server_does_not_know_is_not_a_missing_object(server: KeyedS3) -> None:
    """One real server answers 404: a refused ledger must not pass for an empty one."""
    server.status, server.code = 404, "XAdminUserNotFound"
    server.key = "another"
    storage = ObjectStorage(server.options(**{credentials.OPTION: HERE}))
    with pytest.raises(StorageError, match="XAdminUserNotFound"):
        storage.get(URI)
    server.key = "old"
    with pytest.raises(FileNotFoundError):
        storage.get(URI)


def test_an_upload_continues_with_new_credentials(server: KeyedS3) -> None:
    """An object that is written piece by piece does not fail either."""
    storage = ObjectStorage(server.options(**{credentials.OPTION: HERE}))
    sink = storage.open_sink(URI)
    sink.write(b"123")
    server.key = "new"
    replace("new")
    sink.close()
    assert server.objects == {"/bucket/x": b"123"}


def test_many_calls_refused_at_once_request_credentials_once(server: KeyedS3) -> None:
    """The user's function may be slow, and its service may limit calls."""
    storage = ObjectStorage(server.options(**{credentials.OPTION: HERE}))
    storage.put(URI, b"1")
    server.key = "new"
    replace("new")
    assert storage.get_many([URI] * 16) == [b"1"] * 16
    assert asked.count("new") == 1


def test_credentials_are_requested_again_before_they_expire(server: KeyedS3) -> None:
    """Nothing is refused: the server accepts both, but the old ones are replaced in time."""
    soon = datetime.now(timezone.utc) + timedelta(seconds=3.0)
    replace("old", expires_at=soon)
    storage = ObjectStorage(server.options(**{credentials.OPTION: HERE}))
    storage.put(URI, b"1")
    storage.put(URI, b"1")
    assert asked == ["old"]
    replace("old", expires_at=(datetime.now(timezone.utc) + timedelta(hours=1)).isoformat())
    threading.Event().wait(1.9)
    for _ in range(3):
        storage.put(URI, b"1")
    assert asked == ["old"] * 2
    assert server.refused == 0


def test_processes_with_the_same_credentials_do_not_renew_them_all_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A service with a rate limit would refuse a thousand workers; still, each asks in time."""
    now = time.monotonic()
    asked.clear()
    replace("old", expires_at=datetime.now(timezone.utc) + timedelta(hours=1))
    workers = [Credentials(HERE, current, first=dict(given)) for _ in range(100)]
    for seconds, least, most in ((2_700, 0, 0), (3_130, 10, 90), (3_490, 100, 100)):
        monkeypatch.setattr(time, "monotonic", lambda later=now + seconds: later)
        for worker in workers:
            worker()
        assert least <= len(asked) <= most


def test_a_store_that_also_refuses_the_new_credentials_is_an_error(server: KeyedS3) -> None:
    """It is asked only twice, and no message holds a secret."""
    storage = ObjectStorage(server.options(**{credentials.OPTION: HERE}))
    server.key = "another"
    with pytest.raises(StorageError, match="InvalidAccessKeyId") as caught:
        storage.put(URI, b"1")
    assert server.refused == 2
    assert SECRET not in str(caught.value)


def test_a_function_that_fails_is_named_without_its_message(server: KeyedS3) -> None:
    """Its message may hold the secret itself."""
    given["raise"] = True
    storage = ObjectStorage(server.options(**{credentials.OPTION: HERE}))
    with pytest.raises(StorageError, match=f"{HERE}: RuntimeError") as caught:
        storage.get(URI)
    assert SECRET not in str(caught.value)
    assert caught.value.__suppress_context__


@pytest.mark.parametrize(
    "name", ["no_such_module:x", f"{__name__}:nothing", f"{__name__}:URI", ":"]
)
def test_a_name_that_is_not_a_function_is_an_error_with_advice(server: KeyedS3, name: str) -> None:
    """The error contains the name."""
    storage = ObjectStorage(server.options(**{credentials.OPTION: name}))
    with pytest.raises(SettingsError, match=re.escape(name)):
        storage.get(URI)


def test_an_incomplete_credential_is_an_error(server: KeyedS3) -> None:
    """It names the missing field, not the value of another."""
    given.clear()
    given["secret_access_key"] = SECRET
    storage = ObjectStorage(server.options(**{credentials.OPTION: HERE}))
    with pytest.raises(SettingsError, match="returned no access_key_id") as caught:
        storage.get(URI)
    assert SECRET not in str(caught.value)


def test_the_shared_credentials_file_is_read_and_read_again(
    server: KeyedS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another program replaces it, as single sign-on tools do."""
    monkeypatch.setenv("AWS_PROFILE", "lake")
    file = tmp_path / "credentials"

    def put_down(key: str) -> None:
        lines = ["[lake]", f"aws_access_key_id = {key}", f"aws_secret_access_key = {SECRET}"]
        file.write_text("\n".join(lines))

    put_down("old")
    storage = ObjectStorage(server.options())
    storage.put(URI, b"1")
    put_down("new")
    server.key = "new"
    assert storage.get(URI) == b"1"


def test_keys_in_the_options_come_before_the_file(server: KeyedS3, tmp_path: Path) -> None:
    """They are not requested again: there is no function to call."""
    (tmp_path / "credentials").write_text("[default]\naws_access_key_id = wrong\n")
    keys = {"s3.access-key-id": "old", "s3.secret-access-key": SECRET}
    storage = ObjectStorage(server.options(**keys))
    storage.put(URI, b"1")
    server.key = "new"
    with pytest.raises(StorageError):
        storage.get(URI)
    assert server.refused == 1


def test_an_iceberg_table_cannot_name_code(
    server: KeyedS3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its server and its properties can say anything; the user's environment is trusted."""
    io = HoldfastFileIO(server.options(**{credentials.OPTION: HERE, "s3.anonymous": "true"}))
    with pytest.raises(OSError, match="InvalidAccessKeyId"):
        io.new_input(URI).open()
    assert asked == []
    monkeypatch.setenv("HOLDFAST_CREDENTIALS", HERE)
    HoldfastFileIO(server.options()).new_output(URI).create(overwrite=True).close()
    assert asked == ["old"]
    keys = {"s3.access-key-id": "mine", "s3.secret-access-key": SECRET}
    with pytest.raises(OSError, match="InvalidAccessKeyId"):
        HoldfastFileIO(server.options(**keys)).new_input(URI).open()
    assert asked == ["old"]


def test_no_secret_in_a_representation() -> None:
    """Neither in the repr of the credentials nor in what is pickled with a task."""
    replace("old")
    made = Credentials(HERE, current)
    with contextlib.suppress(StorageError):
        made()
    assert SECRET not in repr(made)
    assert HERE in repr(made)
