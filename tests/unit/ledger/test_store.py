"""Create-once: after anything but success, the stored object decides."""

from __future__ import annotations

import pytest

from holdfast.errors import StoreError, StoreUnavailableError, UnsafeStoreError
from holdfast.ledger.store import ObjectNames, create_once, probe_store
from tests.fakes.manual_ports import ManualTime
from tests.fakes.memory_storage import CreateFault, MemoryStorage

URI = "mem://store/run/log/00000001.json"
OURS, THEIRS = b"ours", b"theirs"
ATTEMPTS = 6


@pytest.mark.parametrize("taken", [False, True])
@pytest.mark.parametrize("fault", [None, *CreateFault])
def test_the_object_decides_whatever_the_store_answers(
    fault: CreateFault | None, *, taken: bool
) -> None:
    """Ours means won, another's means lost, absent means try again: no answer is trusted."""
    storage = MemoryStorage()
    if taken:
        storage.objects[URI] = THEIRS
    storage.create_faults.append(fault)
    found = create_once(storage, URI, OURS, sleep=ManualTime().sleep)
    assert found == (THEIRS if taken else OURS)
    assert storage.objects[URI] == found


def test_a_successful_create_is_not_read_back() -> None:
    """Otherwise every record of every task would cost one more request."""
    storage = MemoryStorage()
    assert create_once(storage, URI, OURS, sleep=ManualTime().sleep) == OURS
    assert storage.names_called("get") == []


@pytest.mark.parametrize("fault", [CreateFault.FAILS, CreateFault.IS_THERE])
def test_a_store_that_keeps_nothing_is_tried_again_and_then_given_up(fault: CreateFault) -> None:
    """A refusal that stored nothing is not a loss; after six of them the error says why."""
    storage, time = MemoryStorage(), ManualTime()
    storage.create_faults.extend([fault] * ATTEMPTS)
    with pytest.raises(StoreUnavailableError, match=URI):
        create_once(storage, URI, OURS, sleep=time.sleep)
    assert len(storage.names_called("create")) == ATTEMPTS
    assert len(time.sleeps) == ATTEMPTS - 1
    assert time.sleeps == sorted(time.sleeps)


@pytest.mark.parametrize("fault", [CreateFault.FAILS, CreateFault.IS_THERE])
def test_the_last_attempt_still_counts(fault: CreateFault) -> None:
    """Five refusals that stored nothing, then success."""
    storage = MemoryStorage()
    storage.create_faults.extend([fault] * (ATTEMPTS - 1))
    assert create_once(storage, URI, OURS, sleep=ManualTime().sleep) == OURS


@pytest.mark.parametrize("fault", list(CreateFault))
def test_a_read_back_that_fails_decides_nothing(fault: CreateFault) -> None:
    """When neither the create nor the read-back gives an answer, both are tried again."""
    storage = MemoryStorage()
    storage.create_faults.append(fault)
    storage.failures["get"] = 1
    assert create_once(storage, URI, OURS, sleep=ManualTime().sleep) == OURS


def test_a_store_that_never_reads_back_is_given_up_though_the_object_landed() -> None:
    """Landed but never seen is not won: the caller must not continue."""
    storage = MemoryStorage()
    storage.create_faults.append(CreateFault.LANDS_AND_FAILS)
    storage.failures["get"] = ATTEMPTS
    with pytest.raises(StoreUnavailableError, match="no answer to get"):
        create_once(storage, URI, OURS, sleep=ManualTime().sleep)
    assert storage.objects[URI] == OURS


def test_a_rival_that_is_faster_wins() -> None:
    """The object is created between our decision and our write: theirs is returned."""
    storage = MemoryStorage()
    storage.before_create = lambda: storage.put(URI, THEIRS)
    assert create_once(storage, URI, OURS, sleep=ManualTime().sleep) == THEIRS


def test_a_good_store_passes_the_probe_and_keeps_nothing() -> None:
    """The probe leaves the store as it found it."""
    storage = MemoryStorage()
    probe_store(storage, "mem://store", "n", sleep=ManualTime().sleep)
    assert storage.objects == {}


def test_a_store_that_overwrites_is_refused() -> None:
    """Two drivers would both believe that they own the run."""
    storage = MemoryStorage()
    storage.overwrites_on_create = True
    with pytest.raises(UnsafeStoreError, match="create-if-absent"):
        probe_store(storage, "mem://store", "n", sleep=ManualTime().sleep)


def test_a_store_that_returns_other_bytes_is_refused() -> None:
    """A store whose fresh name already holds something else cannot be trusted."""
    storage = MemoryStorage()
    storage.before_create = lambda: storage.put("mem://store/=probe/n", THEIRS)
    with pytest.raises(UnsafeStoreError, match="another object's content"):
        probe_store(storage, "mem://store", "n", sleep=ManualTime().sleep)


def test_a_store_that_does_not_answer_the_probe_is_unavailable() -> None:
    """No answer does not prove that the store is safe."""
    storage = MemoryStorage()
    storage.create_faults.extend([CreateFault.FAILS] * ATTEMPTS)
    with pytest.raises(StoreUnavailableError):
        probe_store(storage, "mem://store", "n", sleep=ManualTime().sleep)


def test_an_unsafe_store_does_not_pass_because_a_request_was_lost() -> None:
    """The second create never arrived: that it left the object alone proves nothing."""
    storage = MemoryStorage()
    storage.overwrites_on_create = True
    storage.create_faults.extend([None, CreateFault.FAILS])
    with pytest.raises(StoreError):
        probe_store(storage, "mem://store", "n", sleep=ManualTime().sleep)


@pytest.mark.parametrize("fault", [CreateFault.LANDS_AND_FAILS, CreateFault.LANDS_AND_IS_THERE])
def test_an_overwrite_that_the_answer_denies_is_noticed(fault: CreateFault) -> None:
    """The store overwrote and then denied it: the object shows it."""
    storage = MemoryStorage()
    storage.overwrites_on_create = True
    storage.create_faults.extend([None, fault])
    with pytest.raises(UnsafeStoreError):
        probe_store(storage, "mem://store", "n", sleep=ManualTime().sleep)


def test_a_probe_that_cannot_be_removed_is_an_error() -> None:
    """A store that can be written but not cleaned up is an error at the start, not at the end."""
    storage = MemoryStorage()
    storage.failures["delete"] = 1
    with pytest.raises(StoreUnavailableError):
        probe_store(storage, "mem://store", "n", sleep=ManualTime().sleep)


def test_names_held_by_folder_are_the_same_names() -> None:
    """In any order, and with folders inside folders."""
    uris = ["s3://b/r/x", "s3://b/r/a/1.json", "s3://b/r/a/2.json", "s3://b/r/y", "s3://b/r/a/3"]
    names = ObjectNames(uris)
    assert (sorted(names), len(names)) == (sorted(uris), 5)
    assert all(uri in names for uri in uris)
    assert not any(uri in names for uri in ("s3://b/r/a", "s3://b/r/a/1", "s3://b/x", "x", ""))
    assert sorted(names.folders) == ["s3://b/r", "s3://b/r/a"]
    names.discard(["s3://b/r/a/2.json", "s3://b/r/a/2", "s3://b/q/1", "s3://b/r/a/2.json"])
    assert (sorted(names), len(names)) == (sorted(set(uris) - {"s3://b/r/a/2.json"}), 4)
    names.discard(["s3://b/r/x", "s3://b/r/y"])
    assert (len(names), list(names.folders)) == (2, ["s3://b/r/a"])
    assert (list(ObjectNames()), len(ObjectNames())) == ([], 0)


def test_names_that_end_or_begin_like_one_that_is_left_out_stay() -> None:
    """A sweep deletes what is among the names: one that is lost stays in the store for ever."""
    others = ["s3://b/r/11.json", "s3://b/r/1.json.keys", "s3://b/r/1", "s3://b/r/a-1.json"]
    for at in range(len(others) + 1):
        names = ObjectNames([*others[:at], "s3://b/r/1.json", *others[at:]])
        names.discard(["s3://b/r/1.json"])
        assert (list(names), len(names)) == (others, len(others))
