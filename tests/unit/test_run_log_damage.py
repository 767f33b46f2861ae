"""The run log: gaps, damaged records and silent stores are errors, never an empty log."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from holdfast.errors import LedgerDamagedError, StoreUnavailableError
from tests.fakes.logs import CLAIM, INTENT, LAYOUT, RECEIPT, claimed, new_log, put_record
from tests.fakes.memory_storage import MemoryStorage, bit_flipped, truncated


def test_a_record_that_no_claim_allows_is_damage() -> None:
    """Only a claim or an abort may stand where the owner writes next."""
    storage = MemoryStorage()
    log = claimed(storage)
    put_record(storage, 2, INTENT)
    with pytest.raises(LedgerDamagedError, match="no claim allows"):
        log.append(RECEIPT)


@pytest.mark.parametrize("removed", [1, 2])
def test_a_gap_is_damage(removed: int) -> None:
    """A missing number below a later one is never skipped."""
    storage = MemoryStorage()
    log = claimed(storage)
    log.append(INTENT)
    log.append(RECEIPT)
    del storage.objects[LAYOUT.record(removed)]
    with pytest.raises(LedgerDamagedError, match="missing, though later") as caught:
        new_log(storage).refresh()
    assert caught.value.uri == LAYOUT.record(removed)


def test_a_record_that_vanishes_while_it_is_read_is_damage() -> None:
    """Listed and then gone: the error is ours and names the record."""
    storage = MemoryStorage()
    claimed(storage)

    def gone(_: bytes) -> bytes:
        raise FileNotFoundError(LAYOUT.record(1))

    storage.damage[LAYOUT.record(1)] = gone
    with pytest.raises(LedgerDamagedError, match=LAYOUT.record(1)):
        new_log(storage).refresh()


def test_all_records_are_asked_for_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One after the other, a run of many passes would wait for a far store as often."""
    storage, asked = MemoryStorage(), []
    for _ in range(5):
        claimed(storage)
    get_many = storage.get_many

    def watched(uris: Sequence[str]) -> list[bytes | None]:
        asked.append(list(uris))
        return get_many(uris)

    monkeypatch.setattr(storage, "get_many", watched)
    new_log(storage).refresh()
    assert asked == [[LAYOUT.record(number) for number in range(1, 6)]]


@pytest.mark.parametrize("damage", [truncated, bit_flipped, lambda _: b""])
def test_a_damaged_record_is_refused(damage: Callable[[bytes], bytes]) -> None:
    """It is refused when the log is read and when it stands where a driver writes."""
    storage = MemoryStorage()
    first = claimed(storage)
    claimed(storage)
    storage.damage[LAYOUT.record(2)] = damage
    with pytest.raises(LedgerDamagedError, match=LAYOUT.record(2)):
        new_log(storage).claim(CLAIM)
    with pytest.raises(LedgerDamagedError, match=LAYOUT.record(2)):
        first.append(INTENT)


def test_a_record_under_anothers_number_is_refused() -> None:
    """A whole record that was copied to another place says so itself."""
    storage = MemoryStorage()
    claimed(storage)
    storage.objects[LAYOUT.record(2)] = storage.objects[LAYOUT.record(1)]
    with pytest.raises(LedgerDamagedError, match="number 1"):
        new_log(storage).refresh()


@pytest.mark.parametrize("kind", ["list", "get"])
def test_a_store_that_does_not_answer_is_unavailable(kind: str) -> None:
    """No answer is not an empty log."""
    storage = MemoryStorage()
    claimed(storage)
    storage.failures[kind] = 1
    log = new_log(storage)
    with pytest.raises(StoreUnavailableError):
        log.refresh()
    log.refresh()
    assert len(log.records) == 1
