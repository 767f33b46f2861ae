"""A store's refusal may repeat the credentials that it refused: they never reach an error."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator

import pytest

from holdfast.storage import locations
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import StorageError
from tests.fakes.http_servers import running
from tests.fakes.s3_server import AnsweringS3

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


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[AnsweringS3]:
    """Run a server that refuses everything; the client does not retry."""
    monkeypatch.setattr(locations, "_RETRY_CONFIG", {"max_retries": 0})
    with running(AnsweringS3()) as found:
        found.status, found.body = 400, ONE_LINE
        yield found


def upload(storage: ObjectStorage) -> None:
    """Write piece by piece, as a data file is written."""
    sink = storage.open_sink(URI)
    sink.write(b"1")
    sink.close()


CALLS: dict[str, Callable[[ObjectStorage], object]] = {
    "create": lambda storage: storage.create(URI, b"1"),
    "put": lambda storage: storage.put(URI, b"1"),
    "get": lambda storage: storage.get(URI),
    "folders": lambda storage: storage.folders(URI),
    "newest": lambda storage: storage.newest(URI),
    "list": lambda storage: storage.list(URI),
    "upload": upload,
}


def refusal(call: Callable[[ObjectStorage], object], server: AnsweringS3) -> str:
    """Return the error's text, after a look at all that Python would print of it."""
    with pytest.raises(StorageError) as caught:
        call(server.storage(TOKEN))
    printed = "".join(traceback.format_exception(caught.value))
    assert TOKEN not in printed
    assert "Token-0" not in printed
    assert TOKEN not in repr(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("status", [400, 403, 500])
def test_a_refusal_says_code_and_message_and_nothing_else_of_the_body(
    server: AnsweringS3, status: int, name: str
) -> None:
    """Whichever call was refused, in its text and in its traceback with all causes."""
    server.status = status
    text = refusal(CALLS[name], server)
    assert text.startswith(f"{URI}: ")
    assert "InvalidToken" in text
    assert "The provided token is malformed." in text


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_no_spelling_of_the_body_gets_through(server: AnsweringS3, body: str) -> None:
    """Other servers write the same error with a prologue, a namespace or line breaks."""
    server.body = body
    text = refusal(CALLS["create"], server)
    assert "<" not in text
    assert "InvalidToken" in text
    assert "The provided token is malformed." in text


@pytest.mark.parametrize("name", ["size", "delete"])
def test_a_refusal_without_a_body_is_still_an_error(server: AnsweringS3, name: str) -> None:
    """A HEAD has no body to repeat anything in."""
    call: Callable[[ObjectStorage], object] = {
        "size": lambda storage: storage.size(URI),
        "delete": lambda storage: storage.delete([URI]),
    }[name]
    assert refusal(call, server).startswith(f"{URI}: ")
