"""The run log: one gapless list decides who drives a run."""

from __future__ import annotations

import pytest

from holdfast.errors import (
    LedgerDamagedError,
    RunAbortedError,
    RunFencedError,
    StoreUnavailableError,
)
from holdfast.ledger.run_log import RunLog
from holdfast.model.records import Abort, Claim, Stop
from tests.fakes.logs import CLAIM, INTENT, LAYOUT, RECEIPT, claimed, new_log, put_record
from tests.fakes.manual_ports import ManualTime
from tests.fakes.memory_storage import CreateFault, MemoryStorage
from tests.fakes.rig import Rig


def test_a_driver_claims_and_appends_in_a_gapless_row() -> None:
    """Records are numbered from 1 without a gap, and a later driver reads them all."""
    storage = MemoryStorage()
    log = claimed(storage)
    log.append(INTENT)
    log.append(RECEIPT)
    assert sorted(storage.objects) == [LAYOUT.record(number) for number in (1, 2, 3)]
    later = new_log(storage)
    later.refresh()
    assert later.records == log.records
    assert [record.body for record in later.records] == [CLAIM, INTENT, RECEIPT]
    assert later.intents == {2: INTENT}
    assert later.receipt == RECEIPT


def test_a_fresh_log_is_empty() -> None:
    """A run that nobody has started has no records, no intents and no receipt."""
    log = new_log(MemoryStorage())
    log.refresh()
    assert (log.records, log.intents, log.receipt) == ((), {}, None)


def test_a_record_says_when_it_was_written() -> None:
    """The time is the injected clock's, in UTC."""
    log = new_log(MemoryStorage(), ManualTime())
    assert log.claim(CLAIM).written_at == "2027-01-15T08:00:00+00:00"


def test_a_later_claim_fences_the_earlier_driver() -> None:
    """The earlier driver learns it at its next record, and nothing of it enters the log."""
    storage = MemoryStorage()
    first = claimed(storage)
    second = claimed(storage)
    with pytest.raises(RunFencedError) as caught:
        first.append(INTENT)
    assert caught.value.number == 2
    assert second.append(INTENT).number == 3
    assert len(storage.objects) == 3


@pytest.mark.parametrize("second_record", [False, True])
def test_a_fenced_driver_stays_fenced(*, second_record: bool) -> None:
    """Trying again after the fence writes nothing, whatever the new driver has done since."""
    storage = MemoryStorage()
    first, second = claimed(storage), claimed(storage)
    with pytest.raises(RunFencedError):
        first.append(INTENT)
    if second_record:
        second.append(INTENT)
    standing = dict(storage.objects)
    with pytest.raises(RunFencedError):
        first.append(RECEIPT)
    assert storage.objects == standing


def test_a_driver_that_has_read_a_later_claim_is_fenced() -> None:
    """Reading the log again does not make an old driver the owner of a new claim."""
    storage = MemoryStorage()
    first = claimed(storage)
    claimed(storage)
    first.refresh()
    with pytest.raises(RunFencedError):
        first.append(INTENT)
    assert len(storage.objects) == 2


def test_a_claim_goes_behind_whatever_stands_there() -> None:
    """A rival that is faster costs an attempt; both claims stand, and the later one owns."""
    storage = MemoryStorage()
    rivals: list[RunLog] = []
    storage.before_create = lambda: rivals.append(claimed(storage))
    log = new_log(storage)
    assert log.claim(CLAIM).number == 2
    with pytest.raises(RunFencedError):
        rivals[0].append(INTENT)
    assert log.append(INTENT).number == 3


def test_a_rivals_record_just_before_the_claim_is_read() -> None:
    """An intent that slips in before the claim is seen by the claimant, so it can be adopted."""
    storage = MemoryStorage()
    first = claimed(storage)

    def slip_in() -> None:
        first.append(INTENT)

    log = new_log(storage)
    log.refresh()
    storage.before_create = slip_in
    assert log.claim(CLAIM).number == 3
    assert log.intents == {2: INTENT}


def test_a_claim_finds_the_end_of_a_long_log() -> None:
    """One listing after the first loss: not a lost create for each record that is there."""
    storage = MemoryStorage()
    for number in range(1, 151):
        put_record(storage, number, CLAIM)
    assert new_log(storage).claim(CLAIM).number == 151
    assert len(storage.names_called("create")) == 2


@pytest.mark.parametrize(
    ("body", "error"), [(CLAIM, RunFencedError), (Abort(reason="enough"), RunAbortedError)]
)
def test_a_driver_can_look_whether_the_run_is_still_its_own(
    body: Claim | Abort, error: type[Exception]
) -> None:
    """Its tasks were fenced: it stops before it counts what they have left."""
    storage = MemoryStorage()
    log = claimed(storage)
    log.stop_if_taken_over()
    put_record(storage, 2, body)
    with pytest.raises(error):
        log.stop_if_taken_over()
    assert len(storage.objects) == 2


def test_a_driver_without_a_claim_writes_nothing_into_anothers_run() -> None:
    """Reading the log is not owning it."""
    storage = MemoryStorage()
    claimed(storage)
    reader = new_log(storage)
    reader.refresh()
    with pytest.raises(RunFencedError):
        reader.append(INTENT)
    assert len(storage.objects) == 1


def test_an_abort_is_final() -> None:
    """No driver, old or new, can add anything behind an abort."""
    storage = MemoryStorage()
    first, second = claimed(storage), claimed(storage)
    number = second.append(Abort(reason="wrong input")).number
    for driver in (new_log(storage), new_log(storage)):
        with pytest.raises(RunAbortedError, match="wrong input") as caught:
            driver.claim(CLAIM)
        assert caught.value.number == number
    with pytest.raises(RunFencedError):
        first.append(INTENT)
    assert len(storage.objects) == 3


def test_a_driver_meets_an_abort_at_its_next_record() -> None:
    """An abort at the number that the driver wants stops it like a claim would."""
    storage = MemoryStorage()
    log = claimed(storage)
    put_record(storage, 2, Abort(reason="enough"))
    with pytest.raises(RunAbortedError, match="enough"):
        log.append(INTENT)


@pytest.mark.parametrize("fault", [None, *CreateFault])
def test_own_landed_writes_are_found_by_reading_back(fault: CreateFault | None) -> None:
    """Whatever the store answers, a record of ours that stands there is ours."""
    storage = MemoryStorage()
    log = claimed(storage)
    storage.create_faults.append(fault)
    assert log.append(INTENT).number == 2
    assert log.append(RECEIPT).number == 3
    assert len(storage.objects) == 3


def test_nothing_is_appended_to_a_log_that_lacks_a_record() -> None:
    """A record at the missing number would make the log look whole (simulation, seed 474)."""
    storage = MemoryStorage()
    claimed(storage).append(INTENT)
    storage.delete([LAYOUT.record(1)])
    log = new_log(storage)
    with pytest.raises(LedgerDamagedError):
        log.refresh()
    with pytest.raises(LedgerDamagedError):
        log.append(RECEIPT)
    with pytest.raises(LedgerDamagedError):
        log.claim(CLAIM)
    assert list(storage.objects) == [LAYOUT.record(2)]


def test_a_log_that_does_not_begin_with_a_claim_is_damaged() -> None:
    """What stands first has lost the claim that it was written under."""
    storage = MemoryStorage()
    put_record(storage, 1, INTENT)
    with pytest.raises(LedgerDamagedError, match="the first record is no claim"):
        new_log(storage).refresh()


def test_a_start_that_fails_before_its_claim_writes_nothing() -> None:
    """A first listing without an answer must not use the run id up (simulation, seed 459)."""
    rig = Rig()
    rig.ledger().stop(StoreUnavailableError(uri="s3://store", reason="no answer"))
    assert rig.log().records == ()
    rig.start()
    assert rig.table.ids == list(range(20))


def test_a_stop_before_the_first_claim_is_read() -> None:
    """Earlier versions wrote one; the run goes on."""
    storage = MemoryStorage()
    put_record(storage, 1, Stop(reason="StoreUnavailableError"))
    log = new_log(storage)
    log.refresh()
    assert log.claim(CLAIM).number == 2
