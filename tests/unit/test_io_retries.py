"""Retries of the client below us: with jitter, and with a deadline."""

from __future__ import annotations

import itertools
import time
from datetime import timedelta

import pytest

from holdfast.storage import locations
from holdfast.storage.port import StorageError
from tests.fakes.http_servers import running
from tests.fakes.s3_server import AnsweringS3

URI = "s3://bucket/x"


def tries_of_one_put(server: AnsweringS3, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Let one put fail for good, and return when the server was asked."""
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
    """With tries left and the deadline past, the answer is an error and not another wait."""
    config = {**locations._RETRY_CONFIG, "max_retries": 1000}  # noqa: SLF001 - what is tested.
    config["retry_timeout"] = timedelta(seconds=1)
    monkeypatch.setattr(locations, "_RETRY_CONFIG", config)
    with running(AnsweringS3()) as server:
        server.status = 503
        began = time.monotonic()
        tries = tries_of_one_put(server, monkeypatch)
        assert len(tries) > 2
        assert time.monotonic() - began < 5


def test_no_two_clients_come_back_at_the_same_moments(monkeypatch: pytest.MonkeyPatch) -> None:
    """The waits are drawn by chance, as they are set for every store."""
    monkeypatch.setattr(
        locations,
        "_RETRY_CONFIG",
        {**locations._RETRY_CONFIG, "max_retries": 2},  # noqa: SLF001 - what is tested.
    )
    with running(AnsweringS3()) as server:
        server.status = 503
        waits = []
        for _ in range(3):
            tries = tries_of_one_put(server, monkeypatch)
            waits += [later - sooner for sooner, later in itertools.pairwise(tries)]
    assert max(waits) - min(waits) > 0.01


def test_every_store_has_a_deadline_that_its_credentials_outlive() -> None:
    """A request is sent again with the signature that it has, which is good for five minutes."""
    config = locations._RETRY_CONFIG  # noqa: SLF001 - what is tested.
    assert timedelta(0) < config["retry_timeout"] < timedelta(minutes=5)
