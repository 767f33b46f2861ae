"""Retries of the underlying client: with jitter, and with a deadline."""

from __future__ import annotations

import contextlib
import itertools
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest

from holdfast.errors import SettingsError
from holdfast.storage import locations
from holdfast.storage.port import StorageError
from tests.fakes.http_servers import running
from tests.fakes.s3_server import AnsweringS3

URI = "s3://bucket/x"


def tries_of_one_put(server: AnsweringS3, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let one put fail for good, and return when the server was called."""
    seen: list[float] = []
    monkeypatch.setattr(server, "conditions", _Noting(seen))
    with pytest.raises(StorageError):
        server.storage().put(URI, b"1")
    return seen


class _Noting(list[str | None]):
    def __init__(self, seen: list[float]) -> None:
        super().__init__()
        self._seen = seen

    def append(self, _: str | None) -> None:
        self._seen.append(time.monotonic())


def test_a_store_that_is_down_is_tried_again_until_the_deadline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With retries left and the deadline past, the answer is an error and not another wait."""
    # The client has no clock that can be set, so the waits are ten times shorter.
    config: dict[str, Any] = {**locations._RETRY_CONFIG}  # noqa: SLF001 - what is tested.
    backoff = {**config["backoff"], "init_backoff": timedelta(milliseconds=10)}
    config |= {"max_retries": 1000, "retry_timeout": timedelta(seconds=0.4), "backoff": backoff}
    monkeypatch.setattr(locations, "_RETRY_CONFIG", config)
    with running(AnsweringS3()) as server:
        server.status = 503
        began = time.monotonic()
        tries = tries_of_one_put(server, monkeypatch)
        assert len(tries) > 2
        assert time.monotonic() - began < 5


def test_clients_do_not_retry_at_the_same_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits are random, as configured for every store."""
    monkeypatch.setattr(
        locations,
        "_RETRY_CONFIG",
        {**locations._RETRY_CONFIG, "max_retries": 2},  # noqa: SLF001 - what is tested.
    )
    with contextlib.ExitStack() as block:
        servers = [block.enter_context(running(AnsweringS3())) for _ in range(3)]
        for server in servers:
            server.status = 503
        # All at the same time: only their waits take long.
        clients = block.enter_context(ThreadPoolExecutor(3))
        tries = clients.map(lambda server: tries_of_one_put(server, monkeypatch), servers)
        waits = [
            later - sooner for moments in tries for sooner, later in itertools.pairwise(moments)
        ]
    assert max(waits) - min(waits) > 0.01


def test_every_store_has_a_deadline_that_its_credentials_outlive() -> None:
    """A retried request keeps its signature, which is valid for five minutes."""
    config = locations._RETRY_CONFIG  # noqa: SLF001 - what is tested.
    assert timedelta(0) < config["retry_timeout"] < timedelta(minutes=5)


@pytest.mark.parametrize("uri", ["file://lake/ledger", "file://host/share"])
def test_a_file_uri_with_a_host_is_refused(uri: str) -> None:
    """Two slashes and a relative path: records were written to one folder and listed in another."""
    with pytest.raises(SettingsError, match="is not an absolute path"):
        locations.normalise(uri)
