"""What a run's ledger says, for people: status, quarantined rows, a watch; read-only."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from difflib import get_close_matches
from itertools import zip_longest
from typing import TypeVar

from holdfast.engine.takeover import beat_every_s
from holdfast.engine.workbook import (
    Gathered,
    Tally,
    accept,
    accounts_of,
    gather,
    killed_cost,
    killed_seconds,
    spent_on,
)
from holdfast.errors import SettingsError
from holdfast.ledger.ledger import Ledger
from holdfast.ledger.parts import read_work
from holdfast.ledger.run_log import RunLog
from holdfast.ledger.store import answers, list_objects, walk
from holdfast.ledger.task_log import read_logs
from holdfast.model.costs import Spent
from holdfast.model.coverage import InputSums
from holdfast.model.history import Progress, RunState, RunStatus, Start, progress_of, starts_of
from holdfast.model.identity import Identity
from holdfast.model.records import PartReference, Plan, Ready, Receipt, Record, Seal, Stop
from holdfast.model.stored import decode_run_id, is_run_folder
from holdfast.model.work import Chunk, TaskRecord, Work
from holdfast.storage.port import Storage

_Result = TypeVar("_Result")

# Of each, a few objects are read one after the other.
_RUNS_AT_ONCE = 32


# ---- Status: what a run's ledger says, for people; read-only
def status(ledger: Ledger) -> RunStatus:
    """Return the status of a run, with what its tasks have done that no seal has accepted yet.

    Args:
        ledger: The run's ledger.

    Raises:
        StoreError: The ledger is damaged or does not answer.
    """
    log = ledger.log
    log.refresh()
    run_file = ledger.run_file()
    last = last_seal(log)
    done, failed = (last.covered.rows, last.quarantined_rows) if last else (0, 0)
    if log.receipt is None and not log.is_aborted:
        work = accepted_work(ledger)
        done, failed = work.sums.rows, work.quarantined_rows
    planned = last_input(log)
    claim = log.claims[max(log.claims)] if log.claims else None
    state, end = state_of(log, last), log.records[-1].body if log.records else None
    budget = claim.budget if claim else None
    seen = None if budget is None else Watcher(ledger=ledger).look().progress
    return RunStatus(
        run_id=ledger.run_id,
        state=state,
        table=run_file.identity.table if run_file else "",
        input_rows=planned.rows if planned else None,
        done_rows=done,
        quarantined_rows=failed,
        starts=len(starts_of(log.records)),
        host=claim.host if claim else "",
        process_id=claim.process_id if claim else 0,
        last_record_at=log.records[-1].written_at if log.records else "",
        snapshot_id=log.receipt.snapshot_id if log.receipt else None,
        stopped_by=end.why if isinstance(end, Stop) and state == "stopped" else "",
        budget=budget,
        spent=seen.cost if seen else None,
        held=seen.held_cost if seen else 0.0,
    )


def state(ledger: Ledger) -> RunState:
    """Return the state of a run, without reading what its tasks have done.

    Raises:
        StoreError: The ledger is damaged or does not answer.
    """
    ledger.log.refresh()
    ledger.run_file()  # From here on, another run's records are refused.
    return state_of(ledger.log, last_seal(ledger.log))


def accepted_work(ledger: Ledger) -> Work:
    """Return the work that counts now: what has landed, or what the next driver would start with.

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
    """Return the last seal, which replaces all earlier ones."""
    return log.seals[max(log.seals)] if log.seals else None


def run_folders(storage: Storage, store: str) -> list[str]:
    """Return the folders of all runs in a store.

    Raises:
        StoreUnavailableError: The store did not answer.
    """
    with answers(store):
        return [name for name in storage.folders(store) if not name.startswith("=probe")]


def run_ids(storage: Storage, store: str) -> list[str]:
    """Return the ids of all runs in a store; a folder that is not a run's is left out.

    Raises:
        StoreUnavailableError: The store did not answer.
    """
    return [decode_run_id(name) for name in run_folders(storage, store) if is_run_folder(name)]


def of_each(action: Callable[[str], _Result], names: Sequence[str]) -> list[_Result]:
    """Return what an action says about each of many runs, several at a time.

    Not on IO threads: these fetch the records of each run, many at once.

    Args:
        action: What is done for one run; reads only.
        names: The runs' ids or folders.
    """
    with ThreadPoolExecutor(_RUNS_AT_ONCE, thread_name_prefix="holdfast-runs") as pool:
        return list(pool.map(action, names))


def refuse_unknown(ledger: Ledger) -> None:
    """Refuse a run that does not exist: its id, or the store, is probably mistyped.

    Raises:
        SettingsError: There is no such run in the store.
        StoreError: The ledger is damaged or does not answer.
    """
    ledger.log.refresh()
    if ledger.log.records or ledger.run_file() is not None:
        return
    known = run_ids(ledger.storage, ledger.store)
    if not known:
        cure = "check the store: it holds no run at all"
    else:
        near = get_close_matches(ledger.run_id, known, n=3, cutoff=0.4)
        near = near or [run_id for run_id in known if ledger.run_id in run_id][:3]
        asked = f"did you mean {' or '.join(repr(run_id) for run_id in near)}? " if near else ""
        cure = f"{asked}`holdfast runs` lists the runs of the store"
    raise SettingsError(what=f"there is no run {ledger.run_id!r} in {ledger.store}", cure=cure)


def state_of(log: RunLog, last: Seal | None) -> RunState:
    """Return the state of a run.

    Args:
        log: Its log, freshly read.
        last: The last seal in it.
    """
    if log.receipt is not None:
        return "committed"  # Also if the receipt was written after an abort.
    if log.is_aborted:
        return "aborted"
    if not log.records:
        return "new"
    if isinstance(log.records[-1].body, Stop):
        return "stopped"
    if isinstance(log.records[-1].body, Ready):
        return "ready"
    return "staged" if last is not None and last.complete else "started"


def last_input(log: RunLog) -> InputSums | None:
    """Return the sums of the input when it was last measured."""
    for record in reversed(log.records):
        if isinstance(record.body, Plan | Seal) and record.body.input is not None:
            return record.body.input
    return None


# ---- Quarantined: where the failed rows of a run are
def quarantine_chunks(ledger: Ledger) -> dict[str, Chunk]:
    """Return the chunks of failed rows that count now, by URI.

    Raises:
        StoreError: The ledger is damaged or does not answer.
    """
    ledger.log.refresh()
    ledger.run_file()  # Whose records these are.
    return {
        ledger.layout.quarantine(record.name): record.quarantine
        for record in accepted_work(ledger).quarantined
        if record.quarantine is not None
    }


# ---- Watch a run: read its ledger repeatedly, and only what is new; write nothing
@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What a run's ledger shows at one moment."""

    # None before the first start has written run.json.
    identity: Identity | None
    log: tuple[Record, ...]
    starts: list[Start]
    # The work that counts now, with what was found in task logs of claims not sealed yet.
    gathered: Gathered
    progress: Progress
    # When the driver of the last start last wrote its heartbeat.
    beat_at: float | None = None

    @property
    def receipt(self) -> Receipt | None:
        """The receipt, if the log has one."""
        return next(
            (record.body for record in reversed(self.log) if isinstance(record.body, Receipt)), None
        )


@dataclass(kw_only=True)
class Watcher:
    """Watches one run; use it in one thread only."""

    ledger: Ledger
    _identity: Identity | None = field(default=None, init=False)
    # The work of the last seal, or of the receipt, by the part that lists it.
    _sealed: tuple[PartReference, Work] | None = field(default=None, init=False)
    # The task records that counted at the last look, by claim and by name.
    _records: dict[int, dict[str, TaskRecord]] = field(default_factory=dict, init=False)

    def look(self) -> Observation:
        """Read what is new, and return an observation of the whole run.

        Raises:
            LedgerDamagedError: A record is not as it was written.
            StoreUnavailableError: The store did not answer.
        """
        ledger, log = self.ledger, self.ledger.log
        log.refresh()
        if self._identity is None:
            found = ledger.run_file()
            self._identity = found.identity if found else None
        last, starts = last_seal(log), starts_of(log.records)
        work, through = Work(), 0
        if log.receipt is not None:
            work, through = self._work(log.receipt.staged), max(log.plans, default=0)
        elif last is not None and not self._is_swept(last.work):
            work, through = self._work(last.work), last.through_claim
        claims = [claim for claim in log.plans if claim > through]
        gathered = accept(work, [self._of_claim(claim) for claim in claims])
        _lengthen(starts, gathered.work.records)
        planned = last_input(log)
        current = max(claims, default=-1)
        progress = progress_of(
            run_id=ledger.run_id,
            state=state_of(log, last),
            input_rows=planned.rows if planned else None,
            starts=starts,
            work=gathered.work,
            logs=[records for records in gathered.logs.values() if records[0].claim == current],
            spent=_spent(ledger, last, starts, gathered, claims),
        )
        return Observation(
            identity=self._identity,
            log=log.records,
            starts=starts,
            gathered=gathered,
            progress=progress,
            beat_at=self._beat_at(starts),
        )

    def _beat_at(self, starts: Sequence[Start]) -> float | None:
        """Return the last heartbeat of a start that may be running and is old enough for one."""
        ledger, log = self.ledger, self.ledger.log
        if not starts or starts[-1].end:
            return None
        age_s = ledger.ports.now() - starts[-1].began_at
        if age_s < beat_every_s(starts[-1].checkpoint_every_s):
            return None
        uri = ledger.layout.beat(max(log.claims))
        with answers(uri):
            return ledger.storage.last_written([uri])[0]

    def _is_swept(self, reference: PartReference) -> bool:
        """Whether a sweep has deleted an aborted run's list of work: then nothing is left."""
        ledger = self.ledger
        if not ledger.log.is_aborted:
            return False
        layout = ledger.layout
        return layout.part(reference.name) not in list_objects(ledger.storage, layout.parts)

    def _work(self, reference: PartReference) -> Work:
        if self._sealed is None or self._sealed[0] != reference:
            ledger = self.ledger
            self._sealed = reference, read_work(ledger.storage, ledger.layout, reference)
        return self._sealed[1]

    def _of_claim(self, claim: int) -> dict[str, list[TaskRecord]]:
        storage, layout = self.ledger.storage, self.ledger.layout
        uris = walk(storage, layout.job_tasks(self.ledger.log.task_folders[claim]))
        logs = read_logs(storage, layout, uris, self._records.get(claim, {}))
        self._records[claim] = {record.name: record for log in logs.values() for record in log}
        return logs


def _spent(
    ledger: Ledger,
    last: Seal | None,
    starts: Sequence[Start],
    gathered: Gathered,
    claims: Sequence[int],
) -> Spent:
    """Return what the run has spent, as the next start would report it."""
    log, tally = ledger.log, Tally()
    if last is not None:
        tally.dropped_cost, tally.killed_seconds = last.dropped_cost, last.killed_seconds
        tally.killed_cost = last.killed_cost
    if log.receipt is None:
        # Tasks of a start that has not ended, as far as is known, may still be at work.
        running = [start for start in starts[-1:] if not start.end]
        at_work = {job.claim for start in running for job in start.passes}
        ended = [task for task in gathered.open_logs if task[0].claim not in at_work]
        tally.killed_seconds += killed_seconds(log, ended)
        tally.dropped_cost += gathered.dropped_cost
        dead = [claim for claim in claims if claim not in at_work]
        tally.killed_cost += killed_cost(accounts_of(ledger, dead), gathered)
    return spent_on(log, gathered.work, tally)


def _lengthen(starts: Sequence[Start], records: Iterable[TaskRecord]) -> None:
    """Extend a start without a recorded end to the last record that its tasks wrote.

    Clocks differ, so it never extends past the beginning of the next start.
    """
    last: dict[int, float] = {}
    for record in records:
        last[record.claim] = max(record.usage.at, last.get(record.claim, 0.0))
    for start, later in zip_longest(starts, starts[1:]):
        if start.end in {"", "gone"}:
            written = max(start.last_at, *(last.get(pass_.claim, 0.0) for pass_ in start.passes))
            start.last_at = written if later is None else min(written, later.began_at)
