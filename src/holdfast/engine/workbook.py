"""The workbook: which task records count, what is left out, and the seal that makes it durable.

An orphan removal may delete files that no snapshot refers to yet. Their rows are computed again,
which costs time and money; committing without them would lose rows.

For each place the log of a complete attempt counts, or else the one that covers most rows. What a
task writes after its claim is sealed never counts, so a task that cannot be stopped does no harm.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from holdfast.errors import LedgerDamagedError
from holdfast.failpoints import failpoint
from holdfast.ledger.layout import RunLayout
from holdfast.ledger.ledger import Ledger, log_step
from holdfast.ledger.parts import read_work, write_work
from holdfast.ledger.row_files import KeyFiles
from holdfast.ledger.run_log import RunLog
from holdfast.ledger.store import answers, walk
from holdfast.ledger.task_log import read_logs, read_records
from holdfast.model.costs import Spent
from holdfast.model.coverage import InputSums, Span
from holdfast.model.records import PartReference, Seal
from holdfast.model.work import TaskRecord, Work
from holdfast.sinks.base import Sink, TableView
from holdfast.storage.port import Storage
from holdfast.worker.budget import Account
from holdfast.worker.reports import TaskReport


# ---- Withdraw: leave out inherited work whose objects are gone
def without_lost(ledger: Ledger, work: Work, sink: Sink, view: TableView) -> Work:
    """Return the work without the records that have lost a file or a ledger object.

    Chunks that a lost file had replaced count again, as long as they still exist.

    Raises:
        StoreUnavailableError: The store did not answer.
    """
    while True:
        lost_files = set(sink.missing_files(view, work.groups))
        lost = {
            record.name
            for record in work.records
            if any(lost_files.intersection(group.paths) for group in record.groups)
        }
        lost |= _without_objects(ledger, work)
        if not lost:
            return work
        work = _without(ledger, work, lost)


def without_lost_objects(ledger: Ledger, work: Work) -> Work:
    """Return the work without the records that have lost a ledger object.

    For a start that does not know the table yet.

    Raises:
        StoreUnavailableError: The store did not answer.
    """
    while lost := _without_objects(ledger, work):
        work = _without(ledger, work, lost)
    return work


def _without(ledger: Ledger, work: Work, lost: set[str]) -> Work:
    return with_replaced(ledger.storage, ledger.layout, work, work.without(lost))


def with_replaced(storage: Storage, layout: RunLayout, work: Work, kept: Work) -> Work:
    """Return what is kept of some work, with what the rest had replaced, if it is still there.

    Raises:
        LedgerDamagedError: A record is not as it was written.
        StoreUnavailableError: The store did not answer.
    """
    names = {record.name for record in kept.records}
    gone = [record for record in work.records if record.name not in names]
    replaced = [name for record in gone for name in record.replaced]
    if not replaced:
        return kept
    whole, _ = kept.plus(read_records(storage, layout, replaced))
    failpoint("after-replaced-records")
    return whole


def _without_objects(ledger: Ledger, work: Work) -> set[str]:
    """Return the records whose keys, waiting chunk or failed rows are missing or incomplete.

    Raises:
        StoreUnavailableError: The store did not answer.
    """
    layout = ledger.layout
    expected: list[tuple[TaskRecord, str, int]] = [
        (record, layout.keys(record.name), record.coverage.keys_bytes)
        for record in work.with_keys
        if record.coverage.ranges is None
    ]
    expected += [
        (record, layout.chunk(record.name), record.chunk.size_bytes)
        for record in work.waiting
        if record.chunk is not None
    ]
    expected += [
        (record, layout.quarantine(record.name), record.quarantine.size_bytes)
        for record in work.quarantined
        if record.quarantine is not None
    ]
    with answers(layout.tasks):
        sizes = ledger.storage.sizes([uri for _, uri, _ in expected])
    return {
        record.name
        for (record, _, size), found in zip(expected, sizes, strict=True)
        if found != size
    }


# ---- Seal: decide which task records count; the same procedure for live and dead claims
@dataclass(frozen=True, slots=True, kw_only=True)
class Gathered:
    """The work, with what was found under further claims, and the rows that were left out."""

    work: Work
    dropped_rows: int = 0
    dropped_cost: float = 0.0
    # All logs by name, and the accepted logs whose tasks died before their last record.
    logs: Mapping[str, Sequence[TaskRecord]] = field(default_factory=dict)
    open_logs: Sequence[Sequence[TaskRecord]] = ()


def gather(
    storage: Storage,
    layout: RunLayout,
    work: Work,
    folders: Iterable[str],
    reports: Sequence[TaskReport] = (),
) -> Gathered:
    """Read the task logs of the claims and accept what counts.

    Args:
        storage: How the store is reached.
        layout: Where the run's objects are.
        work: The work that earlier seals have accepted.
        folders: The names of the task log folders to read, in order.
        reports: The reports of the tasks that returned one.

    Raises:
        LedgerDamagedError: A record is damaged, or a reported one is missing.
        StoreUnavailableError: The store did not answer.
    """
    gathered = accept(
        work,
        (read_logs(storage, layout, walk(storage, layout.job_tasks(folder))) for folder in folders),
    )
    for report in reports:
        # A task's report says how many records it wrote: an incomplete listing must not pass.
        log = gathered.logs.get(report.log)
        if (log[-1].number + 1 if log else 0) < report.records:
            raise LedgerDamagedError(
                uri=f"{layout.tasks}/{report.log}",
                reason=f"the task wrote {report.records} records, but fewer are listed",
            )
    return gathered


def accept(work: Work, claims: Iterable[Mapping[str, Sequence[TaskRecord]]]) -> Gathered:
    """Decide which records count.

    Args:
        work: The work that earlier seals have accepted.
        claims: The logs of each claim that is not sealed yet by name, oldest claim first.
    """
    dropped: list[TaskRecord] = []
    open_logs: list[Sequence[TaskRecord]] = []
    found: dict[str, Sequence[TaskRecord]] = {}
    for logs in claims:
        found |= logs
        best: dict[str, str] = {}
        for name in sorted(logs):
            place = name.rsplit("/", 1)[0]
            if place not in best or _worth(logs[name]) > _worth(logs[best[place]]):
                best[place] = name
        chosen = [record for name in sorted(best.values()) for record in logs[name]]
        work, refused = work.plus(chosen)
        open_logs += [logs[name] for name in best.values() if not logs[name][-1].end]
        counted = {record.name for record in chosen} - set(refused)
        dropped += [record for log in logs.values() for record in log if record.name not in counted]
    return Gathered(
        work=work,
        dropped_rows=_rows(dropped),
        dropped_cost=sum(record.paid for record in dropped),
        logs=found,
        open_logs=open_logs,
    )


def killed_seconds(log: RunLog, open_logs: Iterable[Sequence[TaskRecord]]) -> float:
    """Return about how long tasks without an end had worked since their last record.

    A kill comes at any moment between two checkpoints: on average half an interval is lost. With a
    budget there is no need to guess: see `killed_cost`.
    """
    claims = [task[0].claim for task in open_logs if not log.plans[task[0].claim].chains]
    return sum((log.claims[claim].checkpoint_every_s or 0.0) / 2 for claim in claims)


def spent_on(log: RunLog, work: Work, tally: Tally) -> Spent:
    """Return what a run has spent, by what counts and by what was left out or lost.

    Args:
        log: The run log.
        work: The work that counts.
        tally: What was left out or lost since the run began.
    """
    # With a budget only what is known counts: a guess might use it up.
    is_capped = any(claim.budget is not None for claim in log.claims.values())
    return Spent.of(
        work,
        dropped_cost=tally.dropped_cost,
        killed_seconds=0.0 if is_capped else tally.killed_seconds,
        killed_cost=tally.killed_cost,
    )


def accounts_of(ledger: Ledger, claims: Iterable[int]) -> dict[int, Account]:
    """Return the account of each claim whose job has one."""
    plans, folders = ledger.log.plans, ledger.log.task_folders
    return {
        claim: Account(
            ledger.storage,
            ledger.layout,
            folders[claim],
            amount=plans[claim].may_spend,
            chains=plans[claim].chains,
            nonce=ledger.ports.new_nonce(),
            sleep=ledger.ports.sleep,
        )
        for claim in claims
        if plans[claim].chains
    }


def killed_cost(accounts: Mapping[int, Account], found: Gathered) -> float:
    """Return what killed tasks of some claims may have spent of a budget since their last record.

    Raises:
        StoreError: The ledger is damaged or does not answer.
    """
    recorded = dict.fromkeys(accounts, 0.0)
    for record in (record for log in found.logs.values() for record in log):
        if record.claim in recorded:
            recorded[record.claim] += record.paid
    return sum(account.killed_cost(recorded[claim]) for claim, account in accounts.items())


def _worth(log: Sequence[TaskRecord]) -> tuple[bool, int, int]:
    """Rank a log: a complete one, then the most rows, then the most chunks written into files."""
    complete = any(record.end == "complete" for record in log)
    return complete, _rows(log), sum(len(record.supersedes) for record in log)


def _rows(log: Sequence[TaskRecord]) -> int:
    return sum(record.coverage.rows for record in log)


# ---- The workbook: what counts so far, and the seal that makes it durable
@dataclass(slots=True)
class Tally:
    """Counters of one start, for the report."""

    tasks: int = 0
    passes: int = 0
    dropped_rows: int = 0
    withdrawn_rows: int = 0
    # The tasks' use of storage: see `IoCounters`.
    io: Counter[str] = field(default_factory=Counter)
    copied_files: int = 0
    not_copied_files: int = 0
    # Files of the table: see `Report`.
    searched_files: int = 0
    searched_again: int = 0
    # Since the run began: see `Seal`.
    dropped_cost: float = 0.0
    killed_seconds: float = 0.0
    killed_cost: float = 0.0


class Workbook:
    """All accepted work of a run. Changes are durable once they are sealed."""

    def __init__(self, ledger: Ledger) -> None:
        """Start empty; the run is already claimed."""
        self._ledger = ledger
        self._log = ledger.log
        self._storage = ledger.storage
        self._new_nonce = ledger.ports.new_nonce
        self.work = Work()
        self.tally = Tally()
        # The sums of the input when it was planned; None until it is measured.
        self.input_sums: InputSums | None = None
        # Whether all input keys were compared, and none appears in two rows.
        self.keys_differ = False
        self.is_complete = False
        # Whether tasks have read the whole input, and no record was left out since.
        self.all_rows_seen = False
        self._through_claim = 0
        self._reference: PartReference | None = None
        self._changed = False

    @property
    def finished(self) -> KeyFiles:
        """The key files of all finished rows, or which rows of a scan are finished."""
        uris: dict[str, str] = {}
        counts: dict[str, int] = {}
        ranges: dict[str, Sequence[Span]] = {}
        for record in self.work.with_keys:
            if record.coverage.ranges is None:
                uris[record.name] = self._log.layout.keys(record.name)
                counts[record.name] = record.coverage.rows
            else:
                ranges[record.name] = record.coverage.ranges
        return KeyFiles(
            storage=self._storage,
            uris=uris,
            rows=self.work.sums.rows,
            counts=counts,
            ranges=ranges,
        )

    @property
    def run_id(self) -> str:
        """The id of the run."""
        return self._log.run_id

    @property
    def spent(self) -> Spent:
        """What all answers have cost, and what killed tasks may have spent besides."""
        return spent_on(self._log, self.work, self.tally)

    @property
    def planned_columns(self) -> Sequence[str]:
        """The input's columns at the last start that summed whole rows, each with its type."""
        inputs = [plan.input for plan in self._log.plans.values() if plan.input is not None]
        return next((sums.columns for sums in reversed(inputs) if sums.columns), ())

    @property
    def progress(self) -> tuple[int, int]:
        """What a pass must change to count as progress."""
        return self.work.sums.rows, len(self.work.waiting)

    @property
    def schemas(self) -> list[dict[str, Any]]:
        """Every table schema that accepted files and waiting chunks were written for.

        Each start writes for the schema that it found, so there may be several. A table that fits
        the oldest need not fit the others: a column added in between may be gone again.

        Raises:
            LedgerDamagedError: The log lacks a plan that rows were written under.
        """
        claims = {record.claim for record in self.work.records if record.groups}
        claims |= {record.claim for record in self.work.waiting}
        plans = self._log.plans
        if strangers := claims - plans.keys():
            raise LedgerDamagedError(
                uri=self._log.layout.log, reason=f"claim {min(strangers)} has work, but no plan"
            )
        schemas = [plans[claim].schema for claim in sorted(claims)]
        found = {json.dumps(schema, sort_keys=True): schema for schema in schemas}
        return list(found.values())

    def inherit(self) -> None:
        """Take over earlier drivers' work: the last seal, and the tasks of later claims.

        Raises:
            StoreError: The ledger is damaged or does not answer.
        """
        seals = self._log.seals
        if seals:
            last = seals[max(seals)]
            self.work = read_work(self._storage, self._log.layout, last.work)
            self._reference = last.work
            self._through_claim = last.through_claim
            self.tally.dropped_cost = last.dropped_cost
            self.tally.killed_seconds = last.killed_seconds
            self.tally.killed_cost = last.killed_cost
            self.is_complete = last.complete
        self.take_tasks()

    def take_tasks(self, reports: Sequence[TaskReport] = ()) -> None:
        """Accept what tasks have written under all claims that are not sealed yet.

        Args:
            reports: The reports of the tasks that returned one.

        Raises:
            StoreError: The ledger is damaged or does not answer.
        """
        folders = self._log.task_folders
        claims = [claim for claim in folders if claim > self._through_claim]
        if not claims:
            return
        unread = [folders[claim] for claim in claims]
        accounts = accounts_of(self._ledger, claims)
        for account in accounts.values():
            # What still runs may spend what it has taken, which is counted, and no more.
            account.close()
        found = gather(self._storage, self._log.layout, self.work, unread, reports)
        self._through_claim = claims[-1]
        self.tally.dropped_rows += found.dropped_rows
        self.tally.dropped_cost += found.dropped_cost
        self.tally.killed_seconds += killed_seconds(self._log, found.open_logs)
        self.tally.killed_cost += killed_cost(accounts, found)
        self._replace(found.work)

    def drop(self, kept: Work) -> bool:
        """Leave out records that cover rows that others cover; return if what they replaced counts.

        Raises:
            StoreError: The ledger is damaged or does not answer.
        """
        whole = with_replaced(self._storage, self._log.layout, self.work, kept)
        self.tally.dropped_rows += self.work.sums.rows - whole.sums.rows
        self.tally.dropped_cost += self.work.paid - whole.paid
        self._leave_out(whole)
        return len(whole.records) > len(kept.records)

    def withdraw(self, kept: Work) -> None:
        """Leave out records that have lost an object."""
        self.tally.withdrawn_rows += self.work.sums.rows - kept.sums.rows
        self.tally.dropped_cost += self.work.paid - kept.paid
        self._leave_out(kept)

    def release(self, kept: Work) -> None:
        """Leave out rows that have failed, so that they are retried."""
        if kept is not self.work:
            self.tally.dropped_cost += self.work.paid - kept.paid  # Answers that did not fit.
            self._leave_out(kept)

    def rename(self, work: Work) -> None:
        """Replace the work by the same work under new names; completeness does not change."""
        is_complete = self.is_complete
        self._replace(work)
        self.is_complete = is_complete

    def reopen(self) -> None:
        """Mark the work as incomplete: the input has gained rows since."""
        self.is_complete = self.all_rows_seen = False

    def complete(self) -> PartReference:
        """Mark the work as complete, and return the part that lists it.

        Raises:
            RunFencedError: Another driver has claimed the run.
            StoreError: The ledger does not answer.
        """
        if not self.is_complete or self._reference is None:
            self.is_complete = self._changed = True
        return self.seal()

    def seal(self) -> PartReference:
        """Make the accepted work durable, if it has changed; return the part that lists it.

        Raises:
            RunFencedError: Another driver has claimed the run.
            StoreError: The ledger does not answer.
        """
        if self._reference is not None and not self._changed:
            return self._reference
        name = f"work-{self._new_nonce()}.parquet"
        reference = write_work(self._storage, self._log.layout, name, self.work)
        self._log.append(
            Seal(
                through_claim=self._through_claim,
                work=reference,
                covered=self.work.sums,
                waiting_chunks=len(self.work.waiting),
                dropped_rows=self.tally.dropped_rows,
                withdrawn_rows=self.tally.withdrawn_rows,
                complete=self.is_complete,
                input=self.input_sums,
                quarantined_rows=self.work.quarantined_rows,
                dropped_cost=self.tally.dropped_cost,
                killed_seconds=self.tally.killed_seconds,
                killed_cost=self.tally.killed_cost,
            )
        )
        self._reference, self._changed = reference, False
        whole = ", complete" if self.is_complete else ""
        waiting = len(self.work.waiting)
        log_step(
            self._log.run_id, f"sealed: {self.work.sums.rows:,} rows, {waiting:,} chunks{whole}"
        )
        return reference

    def seal_changes(self) -> None:
        """Seal the work, if it has changed.

        Raises:
            RunFencedError: Another driver has claimed the run.
            StoreError: The ledger does not answer.
        """
        if self._changed:
            self.seal()

    def _leave_out(self, kept: Work) -> None:
        self.all_rows_seen = False
        self._replace(kept)

    def _replace(self, work: Work) -> None:
        self.work, self._changed, self.is_complete = work, True, False
