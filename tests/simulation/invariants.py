"""What must hold after every history: the invariants of the design, seen from outside.

Nothing here trusts the engine: the evidence is the table's snapshots and files, the store's objects
and the calls of the transform.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pyarrow as pa

from holdfast.errors import HoldfastError, LedgerDamagedError, RunAbortedError
from holdfast.ledger.parts import read_work
from holdfast.ledger.row_files import read_chunk, read_keys
from holdfast.ledger.run_log import RunLog, read_run_file
from holdfast.ledger.task_log import read_logs
from holdfast.model.records import Claim, Intent, PartReference, Receipt, Refused
from holdfast.model.work import TaskRecord
from holdfast.sinks.base import TableView
from tests.simulation.history import LAYOUT, History
from tests.simulation.store import SimStorage
from tests.simulation.world import DiedError

# Deeds after which a table no longer names the run that has landed there.
_TAKE_THE_MARK = {"drop marks", "rewind", "make again", "restore", "replace"}
_KEYS = pa.schema([("id", pa.int64())])


def violations(history: History) -> list[str]:
    """Return the violated invariants."""
    return history.wrong + _left_wrong(history)


def _left_wrong(history: History) -> list[str]:
    log = history.ledger().log
    try:
        log.refresh()
    except LedgerDamagedError as error:
        found = [] if _may_be_damaged(history) else [f"the ledger is damaged: {error}"]
        return found + _at_most_one_snapshot(history) + _ended_well(history, in_doubt=True)
    found = _at_most_one_snapshot(history) + _honest_receipts(history, history.storage, log)
    for copy in history.copies:
        found += _honest_receipts_of_copy(history, copy)
    # A driver that was fenced before it could record an unsent post leaves it in doubt too.
    in_doubt = log.doubtful
    found += _ended_well(history, in_doubt=bool(in_doubt))
    found += _true_refusals(history, log) + _recorded_refusals(history, log)
    if history.table.ever:
        found += _whole_content(history, log)
    if history.is_ledger_moved:
        return found + _values_where_they_belong(history)
    if history.aborted_at is not None and _has_landed_in_sight(history):
        found.append("a run that was aborted has landed")
    found += _values_where_they_belong(history)
    found += history.table.mislanded + _manifests_left(history)
    if history.table.undone:
        found.append(f"versions {history.table.undone} undid what others had done")
    if history.setting.must_not_land and history.table.ids_ever:
        found.append("it landed, but must not")
    found += _within_budget(history, log)
    return found + _no_copies_left(history, log) + _paid_once(history)


def _within_budget(history: History, log: RunLog) -> list[str]:
    """Starts with a budget have called the transform for no more rows than it pays for.

    A call that fails is not paid for, and without its ledger nobody knows what was spent.
    """
    setting = history.setting
    if setting.budget is None or history.is_damaged or history.files_removed:
        return []
    if setting.poison or setting.flaky is not None or setting.misfit:
        return []
    capped = {number for number, claim in log.claims.items() if claim.budget is not None}
    rows = sum(len(call.ids) for call in history.calls if call.claim in capped)
    if rows <= setting.budget:
        return []
    return [f"{rows} rows were called for, with a budget for {setting.budget:g}"]


def _honest_receipts_of_copy(history: History, copy: SimStorage) -> list[str]:
    log = history.ledger(copy).log
    try:
        log.refresh()
    except LedgerDamagedError as error:  # It may have been copied after records were lost.
        return [] if _may_be_damaged(history) else [f"a copied ledger is damaged: {error}"]
    return _honest_receipts(history, copy, log)


def _manifests_left(history: History) -> list[str]:
    """What a landed replace has written lists files of other writers: no sweep deletes it."""
    table = history.table
    used = {path for snapshot in table.snapshots.values() for path in snapshot.written}
    gone = used.intersection(table.deleted_files)
    return [f"a manifest that the table uses was deleted: {min(gone)}"] if gone else []


def _values_where_they_belong(history: History) -> list[str]:
    """Readers find each landed value in the column that it was computed for.

    Where the table's history is gone, a column that was dropped and added again looks the same.
    """
    is_blind = history.versions_removed or history.is_rewound
    wrong = [value for value in history.table.misread if not (is_blind and value.looks_right)]
    return [str(wrong[0])] if wrong else []


def _at_most_one_snapshot(history: History) -> list[str]:
    ever = history.table.ever
    if history.is_ledger_moved and history.deeds & _TAKE_THE_MARK:
        return []  # Neither the table nor the ledger knows any more.
    found = [f"{len(ever)} data snapshots of one run"] if len(ever) > 1 else []
    is_lost = history.is_damaged or history.is_ledger_moved
    run_file = None if is_lost else read_run_file(history.storage, LAYOUT)
    if run_file is not None and set(history.table.landed_in) - {run_file.identity.table_uuid}:
        found.append("it landed in another table than the run's")
    return found


def _honest_receipts(history: History, storage: SimStorage, log: RunLog) -> list[str]:
    receipts = [record.body for record in log.records if isinstance(record.body, Receipt)]
    landed = {
        snapshot.mark.intent_number for snapshot in history.table.ever if snapshot.mark is not None
    }

    def is_honest(receipt: Receipt) -> bool:
        # Once old versions are cleaned up, only the mark is left, and it does not name the version.
        by_mark = history.versions_removed and receipt.intent_number in landed
        return receipt.snapshot_id in history.table.ids_ever or by_mark

    if any(not is_honest(receipt) for receipt in receipts):
        return ["a receipt for what never landed"]
    return _receipts_of_other_files(history, storage, receipts)


def _receipts_of_other_files(
    history: History, storage: SimStorage, receipts: Sequence[Receipt]
) -> list[str]:
    """A receipt lists the files of the snapshot that it names: a sweep keeps only those."""
    # A table that was created again counts its versions anew, so several may share a number.
    landed: dict[int, list[set[str]]] = {}
    for snapshot in history.table.ever:
        paths = {file.path for group in snapshot.groups for file in group.files}
        landed.setdefault(snapshot.snapshot_id, []).append(paths)
    for receipt in receipts:
        is_there = LAYOUT.part(receipt.staged.name) in storage.objects
        if receipt.snapshot_id in landed and is_there and not history.is_damaged:
            groups = read_work(storage, LAYOUT, receipt.staged).groups
            listed = {file.path for group in groups for file in group.files}
            if listed not in landed[receipt.snapshot_id]:
                return [f"the receipt of snapshot {receipt.snapshot_id} lists other files"]
    return []


def _has_landed_in_sight(history: History) -> bool:
    """Whether the table shows it: not one that was dropped since, which an abort warns about."""
    table = history.table
    return table.landed_in == [table.uuid] and not table.is_gone and not history.is_rewound


def _may_be_damaged(history: History) -> bool:
    """Whether the ledger was damaged: an object was spoiled, removed, or written over."""
    removed = history.is_ledger_moved or "remove a ledger object" in history.deeds
    return history.is_damaged or removed or history.setting.unsafe_store


def _true_refusals(history: History, log: RunLog) -> list[str]:
    """An intent that is recorded as refused has not landed, and does not."""
    refused = {
        record.body.intent_number for record in log.records if isinstance(record.body, Refused)
    }
    landed = {
        snapshot.mark.intent_number for snapshot in history.table.ever if snapshot.mark is not None
    }
    is_known = not history.is_ledger_moved and not history.is_rewound
    wrong = refused & landed if is_known else ()
    return [f"intent {number} was recorded as refused, but landed" for number in wrong]


def _recorded_refusals(history: History, log: RunLog) -> list[str]:
    """A driver that got a conflict, and continues with its next intent, has recorded it.

    Otherwise the post stays in doubt, and a run whose table is gone can no longer be aborted. This
    holds only where the table has moved past the post, as the next intent's sequence number shows.
    """
    if history.is_ledger_moved or history.is_rewound:
        return []
    last: tuple[int, Intent] | None = None
    for record in log.records:
        if isinstance(record.body, Claim):
            last = None
        elif isinstance(record.body, Intent):
            if last is not None and last[1].sequence_number < record.body.sequence_number:
                number, intent = last
                if intent.snapshot_id in history.table.conflicts and number in log.doubtful:
                    return [f"intent {number} was refused, but the log does not say so"]
            last = record.number, record.body
    return []


def _ended_well(history: History, *, in_doubt: bool) -> list[str]:
    """The last starts, without faults, end in a commit or in an error that says why."""
    found = []
    for start in history.starts:
        error = start.error
        if error is not None and not isinstance(error, HoldfastError | DiedError):
            found.append(f"{start.name} raised {error!r}")
        # "Aborted" makes a user start over under another id: then no row may be in the table.
        is_known = not history.is_ledger_moved
        if isinstance(error, RunAbortedError) and is_known and _has_landed_in_sight(history):
            found.append(f"{start.name} reported the run as aborted, but it has landed")
    errors = [start.error for start in history.starts[-2:]]
    if "sweep" not in history.deeds:  # It may delete what a driver is about to read.
        errors += [*(start.error for start in history.starts), *history.refusals]
    damage = [error for error in errors if isinstance(error, LedgerDamagedError)]
    if damage and not _may_be_damaged(history):
        found.append(f"damage that nothing did: {damage[0]}")
    last = history.starts[-1]
    setting = history.setting
    may_fail = setting.may_not_end_well(has_landed=bool(history.table.ids_ever))
    if history.is_harmless(in_doubt=in_doubt) and not may_fail and last.driven is None:
        found.append(f"the last start ended in {last.error!r}")
    if last.driven is not None and not history.table.ids_ever:
        found.append("a start reports that it has landed, but nothing has")
    return found


def _whole_content(history: History, log: RunLog) -> list[str]:
    """The snapshot holds each row once, and its files are there; failed rows are set aside."""
    table = history.table
    snapshot = table.ever[0]
    paths = [file.path for group in snapshot.groups for file in group.files]
    rest = [file.path for group in snapshot.carried for file in group.files]
    rest += snapshot.deletes
    merged = [group.path for group in snapshot.groups if "-merged-" in group.path]
    gone = [path for path in (*paths, *rest, *merged) if path not in table.files]
    if gone:
        # A rewound catalog may accept what was given up for good, and so may a restored ledger.
        is_undone = history.is_rewound or (history.is_ledger_moved and "sweep" in history.deeds)
        # Nothing protects files between the last look at them and the post: see promises.md.
        is_undone |= "remove old orphans" in history.deeds and bool(history.world.counts["stalls"])
        # A restored ledger lands again what was rolled back: then nothing reaches the first
        # landing.
        live = table.live_files(cast("TableView", None), gone, "")
        is_undone |= history.is_ledger_moved and not live
        return [] if is_undone else [f"files of the snapshot are gone: {gone}"]
    ids = sorted(id_ for path in paths for id_ in table.files[path]["id"].to_pylist())
    # Without an input check, a source that gives other rows each time is the user's own risk.
    is_sure = history.setting.verify_input or not history.setting.is_risky
    if is_sure and len(set(ids)) < len(ids):
        return [f"rows have landed twice: {ids}"]
    if history.is_damaged or history.is_ledger_moved:
        return []  # Which rows were set aside is no longer known.
    found: list[str] = []
    if snapshot.mark is None or snapshot.mark.intent_number not in log.intents:
        return [*found, "the snapshot's intent is not in the log"]
    aside = _aside(history, log.intents[snapshot.mark.intent_number].staged)
    if aside is None:
        return found
    deleting = history.setting.deleting
    if deleting.intersection(ids):
        found.append(f"rows {ids} have landed, of which {deleting} delete")
    if is_sure and sorted([*ids, *aside, *deleting]) not in history.inputs:
        found.append(f"rows {ids} have landed, {aside} were set aside, of {history.setting.rows}")
    if set(aside) - history.setting.poison - history.setting.outside - {history.setting.flaky}:
        found.append(f"{aside} were set aside, but only {history.setting.poison} fail")
    return found


def _no_copies_left(history: History, log: RunLog) -> list[str]:
    """A sweep leaves no copy that has not landed, wherever the driver that made it died.

    Exceptions: after an earlier sweep, a driver that could not be stopped may still have copied. A
    post in doubt keeps its files, and so does a version that came too late to be part of the
    dataset's history: the sweep does not judge versions.
    """
    is_in_doubt = log.receipt is None and bool(log.doubtful)
    if not history.is_swept or history.is_disturbed or "sweep" in history.deeds or is_in_doubt:
        return []
    landed = {
        path for snapshot in history.table.ever for group in snapshot.groups for path in group.paths
    }
    left = [path for path in history.table.files if "-copy-" in path and path not in landed]
    useless = set(left) - history.table.live_files(cast("TableView", None), left, "")
    return [f"copies are left: {sorted(useless)}"] if useless else []


def _aside(history: History, staged: PartReference) -> list[int] | None:
    """Return the rows that were set aside; None if their file was removed."""
    if history.is_rewound and LAYOUT.part(staged.name) not in history.storage.objects:
        return None  # The sweep went by a receipt; the rewound catalog accepted an older intent.
    work = read_work(history.storage, LAYOUT, staged)
    found: list[int] = []
    for record in work.quarantined:
        uri = LAYOUT.quarantine(record.name)
        if history.files_removed and uri not in history.storage.objects:
            return None
        if record.quarantine is not None:
            for batch in read_chunk(history.storage, uri, record.quarantine):
                found += [int(row["id"]) for row in batch["input"].to_pylist()]
    return found


def _paid_once(history: History) -> list[str]:
    """What a durable record covers is not computed again by a later claim.

    Checked only where nothing can be dropped or withdrawn: each place has one log, rows stay where
    they are, and no file was removed. A record counts if it was written before a driver listed its
    claim: what a task writes after that was given up with the task.
    """
    setting = history.setting
    if setting.unstable or history.files_removed or setting.poison or history.is_damaged:
        return []
    if setting.flaky is not None:
        return []  # A batch that fails is computed again.
    storage = history.before_sweep
    logs = read_logs(storage, LAYOUT, storage.list(LAYOUT.tasks))
    places = [name.rsplit("/", 1)[0] for name in logs]
    if len(set(places)) < len(places):
        return []
    records = [record for log in logs.values() for record in log]

    def in_time(record: TaskRecord) -> bool:
        sealed = history.storage.listed_at.get(
            LAYOUT.job_tasks(record.name.split("/")[0]), float("inf")
        )
        return storage.written_at[LAYOUT.task_record(record.name)] < sealed

    covered = _covered(history, [record for record in records if in_time(record)])
    return [
        f"row {id_} was durable under claim {claim}, but was computed again under {call.claim}"
        for call in history.calls
        for id_ in call.ids
        for claim in covered.get(id_, ())
        if claim < call.claim
    ][:1]


def _covered(history: History, records: Sequence[TaskRecord]) -> dict[int, list[int]]:
    """Return the claims under which each row was covered."""
    covered: dict[int, list[int]] = {}
    for record in records:
        if record.coverage.ranges is not None:
            for start, stop in record.coverage.ranges:
                for id_ in range(start, stop):
                    covered.setdefault(id_, []).append(record.claim)
        elif record.coverage.rows:
            uri = LAYOUT.keys(record.name)
            if "sweep" in history.deeds and uri not in history.before_sweep.objects:
                continue  # It deletes keys first, or leaves the records; a task may write later.
            for batch in read_keys(history.before_sweep, uri, _KEYS):
                for id_ in batch["id"].to_pylist():
                    covered.setdefault(id_, []).append(record.claim)
    return covered
