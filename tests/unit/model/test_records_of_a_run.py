"""Records belong to their run: those of another run, a copy or a lost log are never trusted."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from holdfast.engine.claim import prepare
from holdfast.engine.cleanup import abort, sweep
from holdfast.engine.options import WriteOptions
from holdfast.engine.watch import quarantine_chunks, status
from holdfast.errors import LedgerDamagedError, RunAbortedError
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.run_log import read_run_file
from holdfast.model.records import (
    Abort,
    Intent,
    Receipt,
    Record,
    Refused,
    decode_record,
    encode_record,
    intent_named,
    open_json,
    seal_json,
)
from tests.fakes.logs import CLAIM, INTENT
from tests.fakes.rig import LAYOUT, STORE, Rig, two_partitions
from tests.fakes.watched_transform import WatchedTransform

OTHERS = "it belongs to another run"


def half_done() -> Rig:
    """Return a run whose driver was killed with chunks written."""
    rig, transform = Rig(), WatchedTransform()
    transform.at[6] = rig.storage.kill
    rig.start_and_die(transform=transform, batch_rows=2, checkpoint_every=1e-9)
    return rig


def changed(rig: Rig, number: int, change: Callable[[Record], Record]) -> None:
    """Rewrite a record of the log, sealed as its own writer would."""
    uri = LAYOUT.record(number)
    rig.storage.objects[uri] = encode_record(change(decode_record(rig.storage.objects[uri])))


def test_another_runs_receipt_is_not_trusted() -> None:
    """By a mistake of a copy tool, a run would report "landed" for rows that are in no table."""
    landed, rig = Rig(), half_done()
    landed.start()
    number = max(landed.log().records[-1].number, len(rig.log().records) + 1)
    for at in range(3, number + 1):
        rig.storage.objects[LAYOUT.record(at)] = landed.storage.objects[LAYOUT.record(at)]
    for part in landed.storage.list(LAYOUT.parts):
        rig.storage.objects[part] = landed.storage.objects[part]
    with pytest.raises(LedgerDamagedError, match=OTHERS):
        rig.start(takeover="now")
    with pytest.raises(LedgerDamagedError, match=OTHERS):
        status(rig.ledger())
    with pytest.raises(LedgerDamagedError, match=OTHERS):
        abort(rig.ledger(), lambda _identity: rig.table, "no longer wanted")
    assert rig.table.ids == []


def test_a_record_follows_the_one_that_its_writer_saw() -> None:
    """If a log's lost end reappears after new records, it is not accepted."""
    rig = Rig()
    rig.start()
    changed(rig, 2, lambda record: replace(record, nonce="begun anew"))
    with pytest.raises(LedgerDamagedError, match="the record that it follows is missing"):
        status(rig.ledger())


@pytest.mark.parametrize("run", ["", "another"])
def test_once_the_run_has_a_nonce_every_record_carries_it(run: str) -> None:
    """Only a record written before run.json may lack it, not an intent or a later claim."""
    rig = Rig()
    rig.start()
    last = len(rig.log().records)
    changed(rig, last, lambda record: replace(record, run=run))
    with pytest.raises(LedgerDamagedError, match=OTHERS):
        status(rig.ledger())


def test_records_written_before_the_run_had_a_nonce_count() -> None:
    """`remaining` claims a run before its table is known."""
    rig = Rig()
    rig.ledger().log.claim(CLAIM)
    rig.ledger().log.claim(Abort(reason="no longer wanted"))
    with pytest.raises(RunAbortedError):
        rig.commit_step()
    assert rig.ledger().run_file() is not None
    assert [(record.run, type(record.body).__name__) for record in rig.log().records] == [
        ("", "Claim"),
        ("", "Abort"),
    ]


def test_a_driver_that_finds_the_run_created_meanwhile_names_it() -> None:
    """It looked for run.json before another driver created it, and loses the first number."""
    rig = Rig()
    late = rig.ledger()
    rig.commit_step()
    late.log.claim(CLAIM)
    first, second = rig.log().records
    assert first.run == second.run != ""


@pytest.mark.parametrize("intent", [None, replace(INTENT, rows=5)])
@pytest.mark.parametrize("kind", [Receipt, Refused])
def test_a_receipt_without_its_intent_in_the_log_is_damage(
    intent: Intent | None, kind: type[Receipt | Refused]
) -> None:
    """A sweep would keep other files than those that have landed."""
    rig = Rig()
    commit = rig.commit_step()
    if intent is not None:
        commit.log.append(intent)
    receipt = Receipt(
        intent_number=9 if kind is Refused else 2,
        snapshot_id=2,
        sequence_number=3,
        staged=replace(INTENT.staged, name="other"),
        rows=4,
        files=5,
        size_bytes=6,
    )
    commit.log.append(receipt if kind is Receipt else Refused(intent_number=9))
    with pytest.raises(LedgerDamagedError, match="no matching intent"):
        rig.log()


def test_an_intent_for_another_table_is_damage() -> None:
    """Format 1 records name no run: another run's log would report "landed" for missing rows.

    Found by fuzzing (seed 21, round 15).
    """
    rig = Rig()
    rig.start()
    number = max(rig.log().intents)
    other = replace(rig.log().intents[number], table_uuid="another")
    changed(rig, number, lambda record: replace(record, body=other))
    with pytest.raises(LedgerDamagedError, match="it is an intent for another table"):
        status(rig.ledger())


def test_without_run_json_the_owner_of_the_records_is_not_known() -> None:
    """Another run's log would be trusted, and a run that has landed could be aborted."""
    rig = Rig()
    rig.start()
    del rig.storage.objects[LAYOUT.identity]
    for call in (
        lambda: status(rig.ledger()),
        lambda: abort(rig.ledger(), lambda _identity: rig.table, "no longer wanted"),
        lambda: sweep(rig.ledger(), lambda _identity: rig.table),
        lambda: quarantine_chunks(rig.ledger()),
        lambda: prepare(rig.ledger(), two_partitions(), ("id",), WriteOptions()),
    ):
        with pytest.raises(LedgerDamagedError, match=r"run\.json.*missing, though records were"):
            call()


def test_failed_rows_of_another_run_are_not_shown() -> None:
    """They would be tried again, and land in this run's table."""
    landed, rig = Rig(), half_done()
    landed.start()
    for folder in (LAYOUT.log, LAYOUT.parts):
        for uri in rig.storage.list(folder):
            del rig.storage.objects[uri]
        for uri in landed.storage.list(folder):
            rig.storage.objects[uri] = landed.storage.objects[uri]
    with pytest.raises(LedgerDamagedError, match=OTHERS):
        quarantine_chunks(rig.ledger())


def test_a_folder_under_another_id_is_recognised_as_a_copy() -> None:
    """Two runs with the same nonce would take each other's rows in the table for their own."""
    rig = half_done()
    copy = RunLayout.of(STORE, "r-copy")
    for uri, data in list(rig.storage.objects.items()):
        rig.storage.objects[uri.replace(LAYOUT.folder, copy.folder)] = data
    with pytest.raises(LedgerDamagedError, match="the folder was copied from run 'r'"):
        read_run_file(rig.storage, copy)


def test_tasks_of_a_lost_log_are_not_taken_for_those_of_its_successor() -> None:
    """Claim numbers are reused, task folders are not.

    Found by the simulation (seed 5855): rows of lost claims landed in addition to their copies.
    """
    rig = half_done()
    assert rig.log().task_folders.keys() == {1}
    for uri in rig.storage.list(LAYOUT.log):
        del rig.storage.objects[uri]
    driven = rig.start()
    assert (driven.kept_rows, rig.table.ids) == (0, list(range(20)))


def test_a_task_record_of_another_run_is_damage() -> None:
    """A sweep would delete the files that it names, or they would count as this run's work."""
    rig, other = half_done(), half_done()
    assert rig.ledger().run_file() != other.ledger().run_file()
    uri = next(uri for uri in rig.storage.list(LAYOUT.tasks) if uri.endswith(".json"))
    content = open_json(rig.storage.objects[uri])
    for run in ("", "another"):
        rig.storage.objects[uri] = seal_json({**content, "run": run})
        with pytest.raises(LedgerDamagedError, match=OTHERS):
            rig.start(transform=WatchedTransform(), takeover="now")
    rig.ledger().log.claim(Abort(reason="enough"))
    with pytest.raises(LedgerDamagedError, match=OTHERS):
        sweep(rig.ledger(), lambda _identity: rig.table)


def test_a_mark_names_the_intent_of_one_copy_of_a_ledger() -> None:
    """Copies continue from the same number, on Lance even with the same versions."""
    ours = replace(INTENT, nonce="ours", snapshot_id=INTENT.sequence_number)
    facts = {"snapshot_id": ours.snapshot_id, "sequence_number": ours.sequence_number}
    assert intent_named({2: ours}, 2, nonce="ours", **facts) is ours
    assert intent_named({2: ours}, 2, nonce="theirs", **facts) is None
    assert intent_named({2: ours}, 2, nonce="", **facts) is None


def test_an_intent_of_format_1_is_recognised_by_its_snapshot() -> None:
    """It has no nonce; on Iceberg the snapshot's id is random and recorded before the post."""
    at = INTENT.sequence_number
    found = intent_named({2: INTENT}, 2, nonce="", snapshot_id=2, sequence_number=at)
    assert found is INTENT
    other = intent_named({2: INTENT}, 2, nonce="", snapshot_id=9, sequence_number=at)
    assert other is None
