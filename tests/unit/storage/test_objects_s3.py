"""Reads and uploads on real S3 servers: nothing is left behind, no changed object is read."""

from __future__ import annotations

import time
import uuid

import pytest

from holdfast.storage import objects
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import ObjectChangedError
from holdfast.storage.runtime import io_runtime
from tests.s3_uploads import unfinished_uploads
from tests.stack_access import S3Endpoint, Stack

pytestmark = pytest.mark.stack

MIB = 1024 * 1024


@pytest.fixture(params=["s3", "minio"])
def server(request: pytest.FixtureRequest, stack: Stack) -> S3Endpoint:
    """Return each kind of server in turn."""
    found: S3Endpoint | None = getattr(stack, request.param)
    if found is None:
        pytest.skip("MinIO is not part of the running stack: make stack WITH=minio")
    return found


@pytest.fixture
def key() -> str:
    """Return a name that no other test uses."""
    return f"io-{uuid.uuid4().hex}/x"


def test_an_abandoned_upload_leaves_no_part(server: S3Endpoint, key: str) -> None:
    """Parts had arrived, so the server knew the upload."""
    storage = ObjectStorage(server.store_options())
    sink = storage.open_sink(f"s3://{server.bucket}/{key}")
    for _ in range(20):
        sink.write(bytes(MIB))
    until = time.monotonic() + 20
    while not unfinished_uploads(server, key) and time.monotonic() < until:
        time.sleep(0.02)
    assert unfinished_uploads(server, key)
    sink.abandon()
    assert unfinished_uploads(server, key) == []
    assert storage.facts(f"s3://{server.bucket}/{key}") == []


def test_an_upload_of_many_parts_is_whole(server: S3Endpoint, key: str) -> None:
    """Every byte is in its place, and nothing is unfinished."""
    storage, uri = ObjectStorage(server.store_options()), f"s3://{server.bucket}/{key}"
    data = bytes(range(256)) * 100_000
    sink = storage.open_sink(uri)
    for start in range(0, len(data), 1_000_003):
        sink.write(memoryview(data)[start : start + 1_000_003])
    sink.close()
    assert storage.get(uri) == data
    assert unfinished_uploads(server, key) == []


def test_a_range_is_read_only_from_the_pinned_object(server: S3Endpoint, key: str) -> None:
    """A listing and a look at one object give the same tag, and the server checks it."""
    storage, uri = ObjectStorage(server.store_options()), f"s3://{server.bucket}/{key}"
    storage.put(uri, b"0123456789")
    (listed,) = storage.facts(uri.removesuffix("/x"))
    (alone,) = storage.facts(uri)
    assert (listed.uri, listed.size_bytes, listed.tag) == (uri, 10, alone.tag)
    assert bytes(storage.get_range(uri, 2, 5, tag=listed.tag)) == b"234"
    storage.put(uri, b"9876543210")
    with pytest.raises(ObjectChangedError):
        storage.get_range(uri, 2, 5, tag=listed.tag)
    with pytest.raises(ObjectChangedError):
        storage.get_range(uri, 5, 11)


def test_many_objects_of_a_folder_are_listed_and_the_rest_is_asked_for(
    server: S3Endpoint, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sizes and times are the same as one by one, with names of others in between."""
    monkeypatch.setattr(objects, "_LISTED_FROM", 10)
    monkeypatch.setattr(objects, "_LISTED_AT_ONCE", 10)
    storage = ObjectStorage(server.store_options())
    folder = f"s3://{server.bucket}/{key}"
    names = [f"{folder}/part=a b%20c/{number:03d}" for number in range(5)]
    names += [f"{folder}/{number:03d}" for number in range(35)]
    for number, name in enumerate(names):
        storage.put(name, b"x" * number)
        storage.put(f"{name}-others", b"y")
    before = io_runtime().counters.requests
    asked = [*names, f"{folder}/0335"]
    assert storage.sizes(asked) == [*range(40), None]
    assert io_runtime().counters.requests - before < 12  # Four listings, and the six others.
    assert all(moment for moment in storage.last_written(names))


@pytest.mark.parametrize("at_once", [1, 3, 100])
def test_a_long_folder_is_listed_in_parallel(
    server: S3Endpoint, key: str, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    """Each name comes once, whether or not its subfolder is where a range begins."""
    sizes = {"_PAGE": 4, "_FIRST_PAGES": 2, "_LISTINGS": at_once, "_RANGE_PAGES": 1}
    for name, value in sizes.items():
        monkeypatch.setattr(objects, name, value)
    storage = ObjectStorage(server.store_options())
    folder = f"s3://{server.bucket}/{key}"
    places = [f"1-x/{job}/{place:06d}/7" for job in ("replay", "rows") for place in range(7)]
    names = {f"{folder}/{place}/{number:04d}.json" for place in places for number in range(3)}
    names |= {f"{folder}/1-x/rows/000003/7/{number:04d}.keys" for number in range(30)}
    names |= {f"{folder}/1-x/rows/hopeless", f"{folder}/0", f"{folder}/zz"}
    for name in names:
        storage.put(name, b"x")
    storage.put(f"{folder}-others/0", b"x")
    found = [uri for uri, size in storage.walk(folder) if size == 1]
    assert (sorted(found), list(storage.walk(f"{folder}/none"))) == (sorted(names), [])
