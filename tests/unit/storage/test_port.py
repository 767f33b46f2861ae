"""Storage: one contract, kept by obstore on a folder and by the tests' own store in memory."""

from __future__ import annotations

import os
import pickle
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from holdfast.errors import SettingsError
from holdfast.storage.locations import normalise, split
from holdfast.storage.objects import ObjectStorage
from holdfast.storage.port import AlreadyThereError, ObjectChangedError, Storage, StorageError
from tests.fakes.manual_ports import ManualTime
from tests.fakes.memory_storage import MemoryStorage

# What table layouts and run ids put into names; `%3A` must not be decoded or encoded again.
NAMES = [
    "plain",
    "a b",
    "day=2024-02-29",
    "t=a%3Ab",
    "a:b",
    "größe",
    "a#b",
    "a?b*",
    "a+b&c",
    "=2E.",
]


@dataclass
class Place:
    """A store, and a folder in it."""

    storage: Storage
    folder: str
    # Advances the store's clock.
    advance: Callable[[], object]

    def uri(self, name: str = "x") -> str:
        """Return the URI of an object in the folder."""
        return f"{self.folder}/{name}"


@pytest.fixture(params=["local", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Place:
    """Return each store in turn."""
    folder = f"file://{tmp_path}/folder"
    if request.param == "local":
        return Place(ObjectStorage(), folder, lambda: time.sleep(0.02))
    clock = ManualTime()
    return Place(MemoryStorage(clock.now), folder, lambda: clock.sleep(1))


def test_create_makes_an_object_once(place: Place) -> None:
    """The second create is refused and changes nothing."""
    place.storage.create(place.uri(), b"first")
    with pytest.raises(AlreadyThereError):
        place.storage.create(place.uri(), b"second")
    assert place.storage.get(place.uri()) == b"first"


def test_put_overwrites(place: Place) -> None:
    """The last one wins."""
    place.storage.put(place.uri(), b"first")
    place.storage.put(place.uri(), b"second")
    assert place.storage.get(place.uri()) == b"second"


@pytest.mark.parametrize("name", NAMES)
def test_sizes_of_many_objects_of_a_folder(place: Place, name: str) -> None:
    """They may be listed: the answer is the same, whatever is in their names."""
    uris = [place.uri(f"{name}/{name}-{number}") for number in range(120)]
    for number, uri in enumerate(uris):
        if number != 7:
            place.storage.put(uri, b"x" * number)
    place.storage.put(place.uri(f"{name}/{name}-50x"), b"another's")
    expected = [None if number == 7 else number for number in range(120)]
    assert place.storage.sizes(uris) == expected
    assert [moment is None for moment in place.storage.last_written(uris)] == [
        size is None for size in expected
    ]


def test_sizes(place: Place) -> None:
    """Missing objects have no size; sizes are in the requested order."""
    place.storage.put(place.uri("a"), b"0123456789")
    assert place.storage.size(place.uri("a")) == 10
    names = [place.uri(name) for name in ("a", "none", "a")]
    assert place.storage.sizes(names) == [10, None, 10]
    assert place.storage.sizes([]) == []


@pytest.mark.parametrize(
    "call",
    [
        lambda s, uri: s.get(uri),
        lambda s, uri: s.size(uri),
        lambda s, uri: s.get_range(uri, 0, 1, tag="t"),
    ],
)
def test_a_missing_object_is_pythons_own_error(
    place: Place, call: Callable[[Storage, str], object]
) -> None:
    """Missing is an answer; every other failure is not."""
    with pytest.raises(FileNotFoundError):
        call(place.storage, place.uri("none"))


def test_a_range_is_read_from_the_pinned_object(place: Place) -> None:
    """Its first byte, its last, or none; a reader gets bytes without the whole object."""
    place.storage.put(place.uri(), b"0123456789")
    (fact,) = place.storage.facts(place.uri())
    for start, stop in ((0, 3), (7, 10), (0, 10), (4, 4)):
        read = place.storage.get_range(place.uri(), start, stop, tag=fact.tag)
        assert bytes(read) == b"0123456789"[start:stop]
    assert bytes(place.storage.get_range(place.uri(), 2, 4)) == b"23"


def test_a_range_of_an_object_that_was_overwritten_is_refused(place: Place) -> None:
    """A plan made for other bytes must not read these, even if they have the same length."""
    place.storage.put(place.uri(), b"0123456789")
    (fact,) = place.storage.facts(place.uri())
    place.advance()
    place.storage.put(place.uri(), b"9876543210")
    with pytest.raises(ObjectChangedError, match=place.uri()):
        place.storage.get_range(place.uri(), 0, 3, tag=fact.tag)
    assert place.storage.facts(place.uri())[0].tag != fact.tag


def test_a_range_that_is_not_whole_is_refused(place: Place) -> None:
    """A shorter answer would pass for the requested bytes."""
    place.storage.put(place.uri(), b"0123456789")
    with pytest.raises(ObjectChangedError, match="ends before byte 11"):
        place.storage.get_range(place.uri(), 3, 11)


def test_facts_describe_a_folder_or_one_object(place: Place) -> None:
    """Name, size, tag and time of each, sorted by name; nothing for a missing name."""
    for name in ("in/b", "in/a", "in/sub/c", "in2/d"):
        place.storage.put(place.uri(name), name.encode())
        place.advance()
    found = place.storage.facts(place.uri("in"))
    assert [fact.uri for fact in found] == [
        place.uri(name) for name in ("in/a", "in/b", "in/sub/c")
    ]
    assert [fact.size_bytes for fact in found] == [4, 4, 8]
    assert all(fact.tag for fact in found)
    assert max(fact.modified for fact in found) == place.storage.newest(place.uri("in"))
    assert place.storage.facts(place.uri("in/a")) == found[:1]
    assert place.storage.facts(place.uri("none")) == []


def test_a_listing_holds_the_folder_and_nothing_else(place: Place) -> None:
    """Folders whose names have the same prefix are not in it; an empty listing is not an error."""
    for name in ("log/2", "log/1", "log/sub/3", "log2/1", "lo", "log.json"):
        place.storage.put(place.uri(name), name.encode())
    expected = [place.uri(name) for name in ("log/1", "log/2", "log/sub/3")]
    assert place.storage.list(place.uri("log")) == expected
    sized = list(zip(expected, (5, 5, 9), strict=True))
    assert sorted(place.storage.walk(place.uri("log"))) == sized
    assert place.storage.list(place.uri("none")) == []
    assert list(place.storage.walk(place.uri("none"))) == []


def test_folders_are_the_direct_subfolders(place: Place) -> None:
    """Each once, by its name; objects next to them and deeper folders are left out."""
    for name in ("runs/b/log/1", "runs/b/run.json", "runs/a/log/1", "runs/file", "runs2/c/x"):
        place.storage.put(place.uri(name), b"")
    assert place.storage.folders(place.uri("runs")) == ["a", "b"]
    assert place.storage.folders(place.uri("none")) == []


def test_the_newest_object_says_when_a_folder_was_last_written(place: Place) -> None:
    """Whatever its name, and however deep it is; an empty folder has no time."""
    assert place.storage.newest(place.uri("log")) is None
    for name in ("log/b", "log/sub/a", "log2/c"):
        place.storage.put(place.uri(name), b"")
        place.advance()
    ages = [place.storage.newest(place.uri(name)) for name in ("log", "log/sub", "log2")]
    assert ages[0] == ages[1]
    assert ages[0] is not None
    assert ages[2] is not None
    assert ages[0] < ages[2]


def test_each_object_says_when_it_was_written(place: Place) -> None:
    """Missing ones have no time; times are in the requested order; an overwrite gives a new one."""
    place.storage.put(place.uri("a"), b"1")
    place.advance()
    place.storage.put(place.uri("b"), b"2")
    names = [place.uri(name) for name in ("a", "none", "b")]
    first, none, second = place.storage.last_written(names)
    assert none is None
    assert first is not None
    assert second is not None
    assert first < second
    assert place.storage.newest(place.folder) == pytest.approx(second)
    place.advance()
    place.storage.put(place.uri("a"), b"1")
    assert (place.storage.last_written([place.uri("a")])[0] or 0.0) > second
    assert place.storage.last_written([]) == []


@pytest.mark.parametrize("size", [0, 5, 20_000_000])
def test_a_copy_is_a_new_object_with_the_same_bytes(place: Place, size: int) -> None:
    """It is as new as if it had just been written, and outlives its source."""
    data = os.urandom(size)
    place.storage.put(place.uri("a"), data)
    place.storage.put(place.uri("b"), b"other")
    place.advance()
    names = {place.uri("a"): place.uri("folder/a b%3A"), place.uri("b"): place.uri("c")}
    place.storage.copy(names)
    old, new = place.storage.last_written([place.uri("a"), place.uri("folder/a b%3A")])
    assert old is not None
    assert new is not None
    assert old < new
    place.storage.delete(names)
    assert place.storage.get(place.uri("folder/a b%3A")) == data
    assert place.storage.get(place.uri("c")) == b"other"
    place.storage.copy({})


def test_a_copy_of_a_missing_object_is_pythons_own_error(place: Place) -> None:
    """Nothing appears under the new name."""
    with pytest.raises(FileNotFoundError, match="none"):
        place.storage.copy({place.uri("none"): place.uri("a")})
    assert place.storage.list(place.folder) == []


def test_delete_ignores_missing_objects(place: Place) -> None:
    """An interrupted clean-up is simply run again."""
    place.storage.put(place.uri("a"), b"")
    place.storage.delete([place.uri("a"), place.uri("none")])
    assert place.storage.sizes([place.uri("a")]) == [None]


@pytest.mark.parametrize("size", [0, 5, 20_000_000])
def test_an_object_written_piece_by_piece_appears_when_it_is_closed(
    place: Place, size: int
) -> None:
    """Small and large ones alike; before that there is nothing."""
    sink = place.storage.open_sink(place.uri())
    for start in range(0, size, 7_000_000):
        sink.write(memoryview(b"x" * min(7_000_000, size - start)))
    assert sink.tell() == size
    assert place.storage.sizes([place.uri()]) == [None]
    sink.close()
    assert place.storage.sizes([place.uri()]) == [size]
    assert sink.tell() == size  # A record states the object's size after it was closed.


def test_an_abandoned_object_does_not_appear(place: Place) -> None:
    """Nothing is left at its name."""
    sink = place.storage.open_sink(place.uri())
    sink.write(b"half")
    sink.abandon()
    del sink
    assert place.storage.list(place.folder) == []


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_used_as_it_is(place: Place, name: str) -> None:
    """An object is read and listed under the name that it was written under."""
    place.storage.put(place.uri(f"{name}/{name}"), b"1")
    assert place.storage.get(place.uri(f"{name}/{name}")) == b"1"
    assert place.storage.list(place.folder) == [place.uri(f"{name}/{name}")]


@pytest.mark.parametrize("name", NAMES)
def test_a_local_name_is_what_other_programs_see(tmp_path: Path, name: str) -> None:
    """Spark opens the file by the same path."""
    ObjectStorage().put(f"file://{tmp_path}/{name}/x", b"1")
    assert (tmp_path / name / "x").read_bytes() == b"1"


def test_a_store_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    """Any failure below is one error above, and its message holds the URI."""
    (tmp_path / "file").write_bytes(b"")
    for call in (ObjectStorage().put, ObjectStorage().create):
        with pytest.raises(StorageError, match="file/below"):
            call(f"file://{tmp_path}/file/below", b"1")


def test_storage_survives_pickle(tmp_path: Path) -> None:
    """Options are pickled, connections are not."""
    storage = ObjectStorage({"s3.region": "x"})
    storage.put(f"file://{tmp_path}/x", b"1")
    copy: ObjectStorage = pickle.loads(pickle.dumps(storage))  # noqa: S301 - ours.
    assert copy.get(f"file://{tmp_path}/x") == b"1"


@pytest.mark.parametrize(
    ("given", "root", "key"),
    [
        ("s3://bucket/a/b/", "s3://bucket", "a/b"),
        ("s3a://bucket", "s3a://bucket", ""),
        ("/srv/lake", "file://", "srv/lake"),
        ("file:/srv/lake", "file://", "srv/lake"),
        ("file:///srv/lake/", "file://", "srv/lake"),
        ("abfss://c@account.dfs.core.windows.net/x", "abfss://c@account.dfs.core.windows.net", "x"),
    ],
)
def test_a_location_is_a_root_and_a_key(given: str, root: str, key: str) -> None:
    """All spellings that Spark and Java use."""
    assert split(given) == (root, key)


@pytest.mark.parametrize("given", ["lake", "./lake", "", "s3:bucket"])
def test_a_relative_location_is_refused(given: str) -> None:
    """Driver and workers would resolve it differently."""
    with pytest.raises(SettingsError, match="neither a URI nor an absolute path"):
        normalise(given)


def test_an_unknown_scheme_is_refused() -> None:
    """The message names the supported ones."""
    with pytest.raises(SettingsError, match="s3://, gs://"):
        ObjectStorage().get("ftp://host/x")
