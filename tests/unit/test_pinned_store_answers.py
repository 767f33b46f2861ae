"""A store's refusal may repeat the credentials that it refused: they never reach an error."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from holdfast.storage import locations
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import StorageError

URI = "s3://bucket/x"
TOKEN = "SESSIONTOKENSECRET"  # noqa: S105 - the canary.
FACTS = (
    "<Code>InvalidToken</Code><Message>The provided token is malformed.</Message>"
    f"<Token-0>{TOKEN}</Token-0><RequestId>1</RequestId>"
)
ONE_LINE = f"<Error>{FACTS}</Error>"
BODIES = {
    "one line": ONE_LINE,
    "with a prologue": f'<?xml version="1.0" encoding="UTF-8"?>{ONE_LINE}',
    "with a namespace": f'<Error xmlns="http://s3.example/doc/2006-03-01/">{FACTS}</Error>',
    "many lines": '<?xml version="1.0"?>\n' + ONE_LINE.replace("><", ">\n<"),
    "token first": f"<Error><Token-0>{TOKEN}</Token-0>{FACTS}</Error>",
}


class Refusing(ThreadingHTTPServer):
    """Refuses every request with the same body."""

    body = ONE_LINE
    status = 400

    def __init__(self) -> None:
        """Listen on a free port of this machine."""
        super().__init__(("127.0.0.1", 0), RefusingHandler)


class RefusingHandler(BaseHTTPRequestHandler):
    """Reads the request and refuses it."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        """Refuse a write."""
        server: Refusing = self.server  # type: ignore[assignment]
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = server.body.encode()
        self.send_response(server.status)
        self.send_header("Content-Type", "application/xml")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = do_DELETE = do_PUT  # noqa: N815 - http.server's names.

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Refusing]:
    """Run a server for one test; the client does not retry."""
    monkeypatch.setattr(locations, "_RETRY_CONFIG", {"max_retries": 0})
    with Refusing() as running:
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield running
        running.shutdown()
        thread.join()


def storage_on(server: Refusing) -> ObjectStorage:
    """Return storage whose S3 is the server."""
    host, port = server.server_address[:2]
    return ObjectStorage(
        {
            "s3.endpoint": f"http://{host!s}:{port}",
            "s3.access-key-id": "k",
            "s3.secret-access-key": "s",
            "s3.session-token": TOKEN,
            "s3.region": "x",
        }
    )


def upload(storage: ObjectStorage) -> None:
    """Write piece by piece, as a data file is written."""
    sink = storage.open_sink(URI)
    sink.write(b"1")
    sink.close()


CALLS: dict[str, Callable[[ObjectStorage], object]] = {
    "create": lambda storage: storage.create(URI, b"1"),
    "put": lambda storage: storage.put(URI, b"1"),
    "get": lambda storage: storage.get(URI),
    "get_range": lambda storage: storage.get_range(URI, 0, 1),
    "list": lambda storage: storage.list(URI),
    "upload": upload,
}


def refusal(call: Callable[[ObjectStorage], object], server: Refusing) -> str:
    """Return the error's text, after a look at all that Python would print of it."""
    with pytest.raises(StorageError) as caught:
        call(storage_on(server))
    printed = "".join(traceback.format_exception(caught.value))
    assert TOKEN not in printed
    assert "Token-0" not in printed
    assert TOKEN not in repr(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("status", [400, 403, 500])
def test_a_refusal_says_code_and_message_and_nothing_else_of_the_body(
    server: Refusing, status: int, name: str
) -> None:
    """Whichever call was refused, in its text and in its traceback with all causes."""
    server.status = status
    text = refusal(CALLS[name], server)
    assert text.startswith(f"{URI}: ")
    assert "InvalidToken" in text
    assert "The provided token is malformed." in text


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_no_spelling_of_the_body_gets_through(server: Refusing, body: str) -> None:
    """Other servers write the same error with a prologue, a namespace or line breaks."""
    server.body = body
    text = refusal(CALLS["create"], server)
    assert "<" not in text
    assert "InvalidToken" in text
    assert "The provided token is malformed." in text


@pytest.mark.parametrize("name", ["size", "delete"])
def test_a_refusal_without_a_body_is_still_an_error(server: Refusing, name: str) -> None:
    """A HEAD has no body to repeat anything in."""
    call: Callable[[ObjectStorage], object] = {
        "size": lambda storage: storage.size(URI),
        "delete": lambda storage: storage.delete([URI]),
    }[name]
    assert refusal(call, server).startswith(f"{URI}: ")
