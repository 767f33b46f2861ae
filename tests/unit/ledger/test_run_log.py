"""The run log: one gapless list decides which driver owns a run, and damage is an error."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from holdfast.errors import (
    LedgerDamagedError,
    RunAbortedError,
    RunFencedError,
    RunMismatchError,
    StoreUnavailableError,
)
from holdfast.ledger.run_log import RunFile, RunLog, open_run_file
from holdfast.model.identity import Identity
from holdfast.model.records import Abort, Claim, Stop, seal_json
from tests.fakes.logs import CLAIM, INTENT, LAYOUT, RECEIPT, claimed, new_log, put_record
from tests.fakes.manual_ports import ManualTime
from tests.fakes.memory_storage import CreateFault, MemoryStorage, bit_flipped, truncated
from tests.fakes.rig import Rig


# ---- The run log: one gapless list decides which driver owns a run
def test_a_driver_claims_and_appends_without_gaps() -> None:
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
    """A run that was never started has no records, no intents and no receipt."""
    log = new_log(MemoryStorage())
    log.refresh()
    assert (log.records, log.intents, log.receipt) == ((), {}, None)


def test_a_record_says_when_it_was_written() -> None:
    """The time is the injected clock's, in UTC."""
    log = new_log(MemoryStorage(), ManualTime())
    assert log.claim(CLAIM).written_at == "2027-01-15T08:00:00+00:00"


def test_a_later_claim_fences_the_earlier_driver() -> None:
    """The earlier driver finds out at its next record, which does not enter the log."""
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


def test_a_claim_goes_after_all_existing_records() -> None:
    """A faster rival costs an attempt; both claims are in the log, and the later one owns."""
    storage = MemoryStorage()
    rivals: list[RunLog] = []
    storage.before_create = lambda: rivals.append(claimed(storage))
    log = new_log(storage)
    assert log.claim(CLAIM).number == 2
    with pytest.raises(RunFencedError):
        rivals[0].append(INTENT)
    assert log.append(INTENT).number == 3


def test_a_rivals_record_just_before_the_claim_is_read() -> None:
    """An intent written just before the claim is seen by the claimant, so it can be adopted."""
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
    """One listing after the first loss, not one failed create for each existing record."""
    storage = MemoryStorage()
    for number in range(1, 151):
        put_record(storage, number, CLAIM)
    assert new_log(storage).claim(CLAIM).number == 151
    assert len(storage.names_called("create")) == 2


@pytest.mark.parametrize(
    ("body", "error"), [(CLAIM, RunFencedError), (Abort(reason="enough"), RunAbortedError)]
)
def test_a_driver_can_check_whether_the_run_is_still_its_own(
    body: Claim | Abort, error: type[Exception]
) -> None:
    """Its tasks were fenced: it stops before it counts their work."""
    storage = MemoryStorage()
    log = claimed(storage)
    log.stop_if_taken_over()
    put_record(storage, 2, body)
    with pytest.raises(error):
        log.stop_if_taken_over()
    assert len(storage.objects) == 2


def test_a_driver_without_a_claim_writes_nothing_to_anothers_run() -> None:
    """Reading the log does not make it the owner."""
    storage = MemoryStorage()
    claimed(storage)
    reader = new_log(storage)
    reader.refresh()
    with pytest.raises(RunFencedError):
        reader.append(INTENT)
    assert len(storage.objects) == 1


def test_an_abort_is_final() -> None:
    """No driver, old or new, can add anything after an abort."""
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


def test_a_driver_notices_an_abort_at_its_next_record() -> None:
    """An abort at the driver's next number stops it as a claim would."""
    storage = MemoryStorage()
    log = claimed(storage)
    put_record(storage, 2, Abort(reason="enough"))
    with pytest.raises(RunAbortedError, match="enough"):
        log.append(INTENT)


@pytest.mark.parametrize("fault", [None, *CreateFault])
def test_own_landed_writes_are_found_by_reading_back(fault: CreateFault | None) -> None:
    """Whatever the store answers, our record is recognised as ours."""
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
    """The first record has lost the claim that it was written under."""
    storage = MemoryStorage()
    put_record(storage, 1, INTENT)
    with pytest.raises(LedgerDamagedError, match="the first record is not a claim"):
        new_log(storage).refresh()


def test_a_start_that_fails_before_its_claim_writes_nothing() -> None:
    """A first listing without an answer must not use up the run id (simulation, seed 459)."""
    rig = Rig()
    rig.ledger().stop(StoreUnavailableError(uri="s3://store", reason="no answer"))
    assert rig.log().records == ()
    rig.start()
    assert rig.table.ids == list(range(20))


def test_a_stop_before_the_first_claim_is_read() -> None:
    """Earlier versions wrote one; the run continues."""
    storage = MemoryStorage()
    put_record(storage, 1, Stop(reason="StoreUnavailableError"))
    log = new_log(storage)
    log.refresh()
    assert log.claim(CLAIM).number == 2


# ---- The run log: gaps, damaged records and silent stores are errors, never an empty log
def test_a_record_that_no_claim_allows_is_damage() -> None:
    """Only a claim or an abort may be where the owner writes next."""
    storage = MemoryStorage()
    log = claimed(storage)
    put_record(storage, 2, INTENT)
    with pytest.raises(LedgerDamagedError, match="written without a claim"):
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


def test_all_records_are_requested_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One by one, a run of many passes would wait for a remote store once per record."""
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
    """It is refused when the log is read and when a driver writes at its number."""
    storage = MemoryStorage()
    first = claimed(storage)
    claimed(storage)
    storage.damage[LAYOUT.record(2)] = damage
    with pytest.raises(LedgerDamagedError, match=LAYOUT.record(2)):
        new_log(storage).claim(CLAIM)
    with pytest.raises(LedgerDamagedError, match=LAYOUT.record(2)):
        first.append(INTENT)


def test_a_record_under_anothers_number_is_refused() -> None:
    """A whole record that was copied to another number gives itself away."""
    storage = MemoryStorage()
    claimed(storage)
    storage.objects[LAYOUT.record(2)] = storage.objects[LAYOUT.record(1)]
    with pytest.raises(LedgerDamagedError, match="its number is 1"):
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


# ---- run.json: what a run is
IDENTITY = Identity(
    table="lake.db.t",
    table_uuid="u1",
    branch="main",
    mode="append",
    key=("id",),
    session_time_zone="UTC",
    ansi_mode="true",
    version="",
)


def start(storage: MemoryStorage, *, nonce: str = "n1", **changes: Any) -> RunFile:  # noqa: ANN401
    """Open the run's file as one start would."""
    return open_run_file(
        storage,
        LAYOUT,
        run_id="r",
        identity=replace(IDENTITY, **changes),
        nonce=nonce,
        sleep=ManualTime().sleep,
    )


def test_the_first_start_creates_the_run_and_later_ones_read_it() -> None:
    """Nonce and schema are always the first start's."""
    storage = MemoryStorage()
    first = start(storage, nonce="n1")
    assert first == RunFile(nonce="n1", identity=IDENTITY)
    assert start(storage, nonce="n2") == first


@pytest.mark.parametrize("fault", list(CreateFault))
def test_a_lost_answer_does_not_make_a_second_run(fault: CreateFault) -> None:
    """The run has one nonce, whatever the store answered to its creation."""
    storage = MemoryStorage()
    storage.create_faults.append(fault)
    assert start(storage, nonce="n1").nonce == "n1"
    assert start(storage, nonce="n2").nonce == "n1"


def test_another_job_under_the_same_id_is_refused_by_what_differs() -> None:
    """A reused id never drops data silently: each difference is named."""
    storage = MemoryStorage()
    start(storage)
    with pytest.raises(RunMismatchError) as caught:
        start(storage, key=("other",), version="2")
    assert caught.value.run_id == "r"
    assert caught.value.differences == (
        "its key was (id), and is now (other); version= was '', and is now '2'"
    )


@pytest.mark.parametrize("damage", [truncated, bit_flipped, lambda _: b"{}"])
def test_a_damaged_run_file_is_refused(damage: Callable[[bytes], bytes]) -> None:
    """It is never taken for another job's file, and never rewritten."""
    storage = MemoryStorage()
    start(storage)
    standing = dict(storage.objects)
    storage.damage[LAYOUT.identity] = damage
    with pytest.raises(LedgerDamagedError, match=LAYOUT.identity):
        start(storage, nonce="n2")
    assert storage.objects == standing


@pytest.mark.parametrize(
    "content",
    [
        {"nonce": "n", "schema": {}},
        {"nonce": "n", "schema": {}, "identity": {}},
        {"nonce": "n", "schema": {}, "identity": None},
        {"nonce": "n", "schema": {}, "identity": {**IDENTITY.to_json(), "later": 1}},
        {"schema": {}, "identity": IDENTITY.to_json()},
    ],
)
def test_a_run_file_of_another_shape_is_refused(content: dict[str, Any]) -> None:
    """A whole file that this version does not understand is damage, not a crash."""
    storage = MemoryStorage()
    storage.objects[LAYOUT.identity] = seal_json(content)
    with pytest.raises(LedgerDamagedError, match=LAYOUT.identity):
        start(storage)
