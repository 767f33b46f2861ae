"""Status: what a run's ledger says, for people. Reads only."""

from __future__ import annotations

from holdfast.engine.prepare import Ledger
from holdfast.engine.seal import gather
from holdfast.ledger.answers import answers
from holdfast.ledger.parts import read_work
from holdfast.ledger.run_log import RunLog
from holdfast.model.input_sums import InputSums
from holdfast.model.records import Plan, Seal, Stop
from holdfast.model.status import RunState, RunStatus
from holdfast.model.work import Work
from holdfast.storage.port import Storage


def status(ledger: Ledger, *, with_tasks: bool = True) -> RunStatus:
    """Return what is known of a run.

    Args:
        ledger: The run's ledger.
        with_tasks: Also read the logs of tasks that no seal has accepted yet.

    Raises:
        StoreError: The ledger is damaged or does not answer.
    """
    log = ledger.log
    log.refresh()
    run_file = ledger.run_file()
    last = last_seal(log)
    done = last.covered.rows if last else 0
    if with_tasks and log.receipt is None and not log.is_aborted:
        done = accepted_work(ledger).sums.rows
    planned = last_input(log)
    claim = log.claims[max(log.claims)] if log.claims else None
    state, end = state_of(log, last), log.records[-1].body if log.records else None
    return RunStatus(
        run_id=ledger.run_id,
        state=state,
        table=run_file.identity.table if run_file else "",
        input_rows=planned.rows if planned else None,
        done_rows=done,
        quarantined_rows=last.quarantined_rows if last else 0,
        starts=len({(one.host, one.process_id) for one in log.claims.values()}),
        host=claim.host if claim else "",
        process_id=claim.process_id if claim else 0,
        last_record_at=log.records[-1].written_at if log.records else "",
        snapshot_id=log.receipt.snapshot_id if log.receipt else None,
        stopped_by=end.why if isinstance(end, Stop) and state == "stopped" else "",
    )


def accepted_work(ledger: Ledger) -> Work:
    """Return what counts now: what has landed, or what the next driver would begin with.

    Args:
        ledger: The run's ledger, freshly read.

    Raises:
        StoreError: The ledger is damaged or does not answer.
    """
    log, storage, layout = ledger.log, ledger.storage, ledger.layout
    if log.receipt is not None:
        return read_work(storage, layout, log.receipt.staged)
    last = last_seal(log)
    work = Work() if last is None else read_work(storage, layout, last.work)
    sealed = last.through_claim if last else 0
    folders = [name for claim, name in log.task_folders.items() if claim > sealed]
    return gather(storage, layout, work, folders).work


def last_seal(log: RunLog) -> Seal | None:
    """Return the seal that stands for all earlier ones."""
    return log.seals[max(log.seals)] if log.seals else None


def run_folders(storage: Storage, store: str) -> list[str]:
    """Return the folders of all runs in a store.

    Raises:
        StoreUnavailableError: The store did not answer.
    """
    with answers(store):
        return [name for name in storage.folders(store) if not name.startswith("=probe")]


def state_of(log: RunLog, last: Seal | None) -> RunState:
    """Say in a word where a run stands.

    Args:
        log: Its log, freshly read.
        last: The last seal in it.
    """
    if log.receipt is not None:
        return "committed"  # Also where it was found after the run was given up.
    if log.is_aborted:
        return "aborted"
    if not log.records:
        return "new"
    if isinstance(log.records[-1].body, Stop):
        return "stopped"
    return "staged" if last is not None and last.complete else "started"


def last_input(log: RunLog) -> InputSums | None:
    """Return what the input was when somebody last measured it."""
    for record in reversed(log.records):
        if isinstance(record.body, Plan | Seal) and record.body.input is not None:
            return record.body.input
    return None
