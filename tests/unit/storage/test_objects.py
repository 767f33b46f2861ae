"""Storage over HTTP: what an S3 server's answers mean, and that no error repeats a secret."""

from __future__ import annotations

import hashlib
import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import obstore
import pytest
from obstore.exceptions import GenericError
from obstore.store import MemoryStore

from holdfast.errors import StoreUnavailableError
from holdfast.ledger.store import create_once
from holdfast.storage import locations, objects
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import AlreadyThereError, StorageError
from tests.fakes.http_servers import running
from tests.fakes.manual_ports import ManualTime
from tests.fakes.s3_server import AnsweringS3

# ---- Storage over HTTP: what each answer of an S3 server means
URI = "s3://bucket/x"
LISTED = "<LastModified>2026-11-18T00:00:00.000Z</LastModified><Size>1</Size><ETag>e</ETag>"
DELETED = "<DeleteResult><Deleted><Key>x</Key></Deleted></DeleteResult>"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[AnsweringS3]:
    """Run a server for one test; the client does not retry."""
    monkeypatch.setattr(locations, "_RETRY_CONFIG", {"max_retries": 0})
    with running(AnsweringS3()) as found:
        yield found


def refuse(server: AnsweringS3, status: int, code: str) -> None:
    """Let the server answer with an S3 error."""
    server.status = status
    server.body = f"<Error><Code>{code}</Code><Message>no</Message></Error>"


def test_a_listing_that_breaks_off_is_an_error(server: AnsweringS3) -> None:
    """A part of it must never be taken for the whole: records would be missed."""
    names = "".join(f"<Contents><Key>x/{n}</Key>{LISTED}</Contents>" for n in range(3))
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
    first, last = (f"<ListBucketResult>{end}{names}</ListBucketResult>" for end in (more, ""))
    server.next_bodies += [first.encode(), last.encode()]
    assert len(list(server.storage().walk(URI))) == 6
    server.next_bodies += [first.encode(), b"<ListBucketResult>"]
    with pytest.raises(StorageError):
        list(server.storage().walk(URI))
    assert len(server.conditions) == 4


# ---- A long listing, in parallel
FOLDER = "s3://bucket/r/tasks"


@pytest.fixture
def long_folder(monkeypatch: pytest.MonkeyPatch) -> set[tuple[str, int]]:
    """Make pages small, and fill a folder; return what is in it, with sizes."""
    for name, value in (("_PAGE", 4), ("_FIRST_PAGES", 2), ("_RANGES", 3), ("_RANGE_PAGES", 1)):
        monkeypatch.setattr(objects, name, value)
    places = [f"1-x/{job}/{place:06d}/7" for job in ("replay", "rows") for place in range(7)]
    names = {f"r/tasks/{place}/{number:04d}.json" for place in places for number in range(3)}
    names |= {f"r/tasks/1-x/rows/000003/7/{number:04d}.keys" for number in range(30)}
    names |= {"r/tasks/1-x/rows/hopeless", "r/tasks/0", "r/tasks/zz"}
    store = MemoryStore()
    for name in (*names, "r/tasks-others/0", "r/a", "r/z"):
        obstore.put(store, name, b"x" * (1 + len(name)))
    monkeypatch.setattr(objects, "_open_store", lambda *_: store)
    return {(f"s3://bucket/{name}", 1 + len(name)) for name in names}


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_each_name_of_a_long_folder_is_listed_once(
    long_folder: set[tuple[str, int]], monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Wherever ranges begin, and whether or not a name is in a subfolder."""
    monkeypatch.setattr(objects, "_LISTINGS", at_once)
    asked: list[str] = []
    list_some = obstore.list

    def counted(*given: Any, **named: Any) -> Any:  # noqa: ANN401 - as obstore's own.
        asked.append(named.get("offset", ""))
        return list_some(*given, **named)

    monkeypatch.setattr(obstore, "list", counted)
    assert sorted(ObjectStorage().walk(FOLDER)) == sorted(long_folder)
    # One listing that has only begun, and one for each range and each two pages of it.
    assert 3 <= len(asked) <= 2 + 3 + len(long_folder) // 8


def test_a_store_that_lists_names_in_another_order_is_not_listed_in_parallel(
    long_folder: set[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Names between two ranges would be missed: it is seen in the first page, or is an error."""
    list_some = obstore.list

    def backwards(*given: Any, **named: Any) -> Any:  # noqa: ANN401 - as obstore's own.
        pages = [*list_some(*given, **named)]
        is_backwards = is_from_the_start or "offset" in named
        return iter([page[::-1] for page in pages] if is_backwards else pages)

    monkeypatch.setattr(obstore, "list", backwards)
    is_from_the_start = True
    assert sorted(ObjectStorage().walk(FOLDER)) == sorted(long_folder)
    is_from_the_start = False
    with pytest.raises(StorageError, match="in order"):
        list(ObjectStorage().walk(FOLDER))


def test_a_directory_bucket_is_not_listed_in_parallel(
    long_folder: set[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 lists no such bucket from a name on."""
    monkeypatch.setattr(objects, "_rest", None)
    bucket = "s3://bucket--use1-az4--x-s3"
    found = ObjectStorage().walk(FOLDER.replace("s3://bucket", bucket))
    assert {(uri.replace(bucket, "s3://bucket"), size) for uri, size in found} == long_folder


def test_objects_that_a_store_refuses_to_list_are_asked_for(
    long_folder: set[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """S3 Tables lists nothing; another failure of a listing is an error, as a retry may help."""
    answer = "405 Method Not Allowed: MethodNotAllowed"

    def refused(*_given: object, **_named: object) -> None:
        raise GenericError(answer)

    monkeypatch.setattr(objects, "_LISTED_FROM", 2)
    monkeypatch.setattr(obstore, "list", refused)
    names = [*sorted(uri for uri, _ in long_folder), f"{FOLDER}/none"]
    expected = [dict(long_folder).get(uri) for uri in names]
    assert ObjectStorage().sizes(names) == expected
    answer = "503 Service Unavailable: SlowDown"
    with pytest.raises(StorageError):
        ObjectStorage().sizes(names)


def test_many_objects_are_deleted_in_one_request(server: AnsweringS3) -> None:
    """A run of ten hours leaves millions of objects, and a store takes a thousand at a time."""
    server.body = DELETED
    server.storage().delete(f"{URI}/{number}" for number in range(1500))
    assert len(server.conditions) == 2


def test_what_one_request_does_not_delete_is_deleted_one_by_one(server: AnsweringS3) -> None:
    """One refused object keeps no other, and is named."""
    refused = b"<Error><Key>x/1</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
    server.next_bodies.append(b"<DeleteResult>%b</DeleteResult>" % refused)
    server.body = DELETED
    server.storage().delete(f"{URI}/{number}" for number in range(3))
    assert len(server.conditions) == 4


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
    server: AnsweringS3, status: int, code: str, error: type[Exception]
) -> None:
    """A bucket that does not exist is a store that does not answer, not a missing object."""
    refuse(server, status, code)
    with pytest.raises(error):
        server.storage().create(URI, b"1")
    assert set(server.conditions) == {"*"}


def test_a_put_has_no_condition(server: AnsweringS3) -> None:
    """Only a create is conditional."""
    server.storage().put(URI, b"1")
    assert server.conditions == [None]


@pytest.mark.parametrize("code", ["NoSuchBucket", "NoSuchKey"])
def test_a_store_that_does_not_exist_is_unavailable(server: AnsweringS3, code: str) -> None:
    """A typing error in the bucket's name gives advice, not a bare FileNotFoundError."""
    refuse(server, 404, code)
    with pytest.raises(StoreUnavailableError, match=URI):
        create_once(server.storage(), URI, b"1", sleep=ManualTime().sleep)


COPY = {URI: "s3://bucket/y"}


@pytest.mark.parametrize(
    ("status", "code", "error"),
    [
        (404, "NoSuchKey", FileNotFoundError),
        (403, "AccessDenied", StorageError),
        (503, "SlowDown", StorageError),
        (200, "InternalError", StorageError),
    ],
)
def test_each_answer_to_a_copy_has_its_error(
    server: AnsweringS3, status: int, code: str, error: type[Exception]
) -> None:
    """S3 may find out that it cannot copy after it has answered 200."""
    refuse(server, status, code)
    with pytest.raises(error):
        server.storage().copy(COPY)
    assert len(server.conditions) == 1  # It is not tried in another way, over plain HTTP.


def test_an_object_that_a_store_cannot_copy_is_read_and_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """S3 copies no object above 5 GB."""

    def refused(*_arguments: object) -> None:
        raise GenericError("InvalidRequest: the source is larger than 5368709120")

    held = MemoryStore()
    monkeypatch.setattr(locations, "open_root", lambda *_arguments: held)
    monkeypatch.setattr(obstore, "copy", refused)
    storage = ObjectStorage({"s3.region": "no other test opens this one"})
    data = os.urandom(20_000_000)
    storage.put(URI, data)
    storage.copy(COPY)
    assert storage.get(COPY[URI]) == data
    storage.delete([URI])
    with pytest.raises(FileNotFoundError):
        storage.copy(COPY)


TRUE, SPOILED = b"the object", b"the objecT"
TRUE_TAG = f'"{hashlib.md5(TRUE, usedforsecurity=False).hexdigest()}"'


def test_bytes_that_do_not_match_their_tag_are_read_again(server: AnsweringS3) -> None:
    """Over plain HTTP, nothing below us detects bytes that were corrupted in transit."""
    server.tag = TRUE_TAG
    server.next_bodies.extend([SPOILED, TRUE, SPOILED])
    assert server.storage().get(URI) == TRUE
    assert len(server.conditions) == 2


def test_bytes_that_no_tag_verifies_must_arrive_twice_where_it_matters(
    server: AnsweringS3,
) -> None:
    """The tag of an encrypted object is of other bytes, and some stores have their own tags."""
    server.next_bodies.extend([SPOILED, TRUE, TRUE, SPOILED])
    assert server.storage().get_sure(URI) == TRUE
    assert server.storage().get(URI) == SPOILED  # Its digest is in the ledger.
    server.tag = TRUE_TAG.replace("0", "1")
    server.next_bodies.extend([TRUE, SPOILED, TRUE])
    assert server.storage().get(URI) == TRUE
    assert len(server.conditions) == 7


def test_bytes_that_differ_in_every_read_are_an_error(server: AnsweringS3) -> None:
    """Nothing shows which of them is the object."""
    server.tag = TRUE_TAG
    server.next_bodies.extend(bytes([number]) for number in range(4))
    with pytest.raises(StorageError, match="4 reads returned 4 different contents"):
        server.storage().get_sure(URI)


# ---- A store's refusal may repeat the credentials that it refused: they never reach an error
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
def refusing_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[AnsweringS3]:
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


def refusal(call: Callable[[ObjectStorage], object], refusing_server: AnsweringS3) -> str:
    """Return the error's text, after checking everything that Python would print of it."""
    with pytest.raises(StorageError) as caught:
        call(refusing_server.storage(TOKEN))
    printed = "".join(traceback.format_exception(caught.value))
    assert TOKEN not in printed
    assert "Token-0" not in printed
    assert TOKEN not in repr(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("status", [400, 403, 500])
def test_a_refusal_repeats_only_code_and_message_of_the_body(
    refusing_server: AnsweringS3, status: int, name: str
) -> None:
    """For every call, in the error's text and in its traceback with all causes."""
    refusing_server.status = status
    text = refusal(CALLS[name], refusing_server)
    assert text.startswith(f"{URI}: ")
    assert "InvalidToken" in text
    assert "The provided token is malformed." in text


@pytest.mark.parametrize("body", BODIES.values(), ids=BODIES)
def test_no_spelling_of_the_body_gets_through(refusing_server: AnsweringS3, body: str) -> None:
    """Other servers write the same error with a prologue, a namespace or line breaks."""
    refusing_server.body = body
    text = refusal(CALLS["create"], refusing_server)
    assert "<" not in text
    assert "InvalidToken" in text
    assert "The provided token is malformed." in text


@pytest.mark.parametrize("name", ["size", "delete"])
def test_a_refusal_without_a_body_is_still_an_error(
    refusing_server: AnsweringS3, name: str
) -> None:
    """A HEAD has no body that could repeat anything."""
    call: Callable[[ObjectStorage], object] = {
        "size": lambda storage: storage.size(URI),
        "delete": lambda storage: storage.delete([URI]),
    }[name]
    assert refusal(call, refusing_server).startswith(f"{URI}: ")
