"""Storage over HTTP: what each answer of an S3 server is taken for."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from holdfast.errors import StoreUnavailableError
from holdfast.ledger.create_once import create_once
from holdfast.storage import locations
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import AlreadyThereError, StorageError
from tests.fakes.manual_ports import ManualTime

URI = "s3://bucket/x"


class Server(ThreadingHTTPServer):
    """Answers every request alike, and remembers the conditions that were sent."""

    answer = (200, "")

    def __init__(self) -> None:
        """Listen on a free port of this machine."""
        super().__init__(("127.0.0.1", 0), Answering)
        self.conditions: list[str | None] = []


class Answering(BaseHTTPRequestHandler):
    """Reads the request and gives the server's one answer."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        """Answer a write."""
        server: Server = self.server  # type: ignore[assignment]
        server.conditions.append(self.headers.get("If-None-Match"))
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, code = server.answer
        body = f"<Error><Code>{code}</Code><Message>no</Message></Error>".encode()
        self.send_response(status)
        self.send_header("ETag", '"e"')
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        """Answer a read in the same way."""
        self.do_PUT()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Run a server for one test; the client does not retry."""
    monkeypatch.setattr(locations, "_RETRY_CONFIG", {"max_retries": 0})
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def storage_on(server: Server) -> ObjectStorage:
    """Return storage whose S3 is the server."""
    host, port = server.server_address[:2]
    return ObjectStorage(
        {
            "s3.endpoint": f"http://{host!s}:{port}",
            "s3.access-key-id": "k",
            "s3.secret-access-key": "s",
            "s3.region": "x",
        }
    )


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (412, "PreconditionFailed", AlreadyThereError),
        (409, "ConditionalRequestConflict", StorageError),
        (403, "AccessDenied", StorageError),
        (500, "InternalError", StorageError),
        (503, "SlowDown", StorageError),
        (404, "NoSuchBucket", StorageError),
    ],
)
def test_each_answer_to_a_create_has_its_error(
    server: Server, status: int, code: str, error: type[Exception]
) -> None:
    """A bucket that does not exist is a store that does not answer, not a missing object."""
    server.answer = (status, code)
    with pytest.raises(error):
        storage_on(server).create(URI, b"1")
    assert set(server.conditions) == {"*"}


def test_a_put_asks_for_no_condition(server: Server) -> None:
    """Only a create is conditional."""
    storage_on(server).put(URI, b"1")
    assert server.conditions == [None]


@pytest.mark.parametrize("code", ["NoSuchBucket", "NoSuchKey"])
def test_a_store_that_does_not_exist_is_unavailable(server: Server, code: str) -> None:
    """A typing error in the bucket's name ends in advice, not in a bare FileNotFoundError."""
    server.answer = (404, code)
    with pytest.raises(StoreUnavailableError, match=URI):
        create_once(storage_on(server), URI, b"1", sleep=ManualTime().sleep)
