"""Drive one start of a run from claim to receipt, and report what it did."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from holdfast.engine.base import Indexes, Rewrites
from holdfast.engine.claim import Prepared, SettledInput, claim_again, claim_run
from holdfast.engine.commit import Commit, Landed
from holdfast.engine.input_check import without_row_sums
from holdfast.engine.options import WriteOptions, removes_of
from holdfast.engine.passes import Passes, Start
from holdfast.engine.resolve import merge, refuse_doubt, renew
from holdfast.engine.takeover import Heartbeat
from holdfast.engine.workbook import Workbook
from holdfast.errors import (
    CommitConflictError,
    EmptyOutputError,
    HoldfastError,
    InputChangedError,
    RunAbortedError,
    RunMismatchError,
    RunNotReadyError,
    SchemaMismatchError,
    StagedFileMissingError,
)
from holdfast.ledger.ledger import Ledger, log_step
from holdfast.ledger.row_files import KeyFiles
from holdfast.ledger.run_log import RunLog, open_run_file
from holdfast.model.coverage import Span, changed_columns
from holdfast.model.history import starts_of
from holdfast.model.identity import Identity
from holdfast.model.records import Claim, PartReference, Ready, Receipt, Seal
from holdfast.model.report import Compared, Outcome, Report
from holdfast.model.work import StagedTotals, TaskRecord, Work
from holdfast.sinks.base import Change, MayLack, RowsMovedError, Sink, TableView, WriterSpec
from holdfast.text import warn_caller

# An orphan removal may delete staged files between the last pass and the post, repeatedly.
_STAGINGS_MAX = 3
# Others may move rows again while those that they have moved are done again.
_MOVES_MAX = 20
# Maximum age of the table view when the work begins.
_VIEW_S_MAX = 30.0


class MovingRows(Protocol):
    """Rows of the table that are the input, and that others may move meanwhile."""

    def refresh(self, ledger: Ledger, finished: KeyFiles) -> bool:
        """Find out where the rows are that are left to do; return whether that has changed.

        Raises:
            StoreUnavailableError: The store does not answer.
        """

    def extend(self, ledger: Ledger, moved: RowsMovedError) -> None:
        """Add rows to the input that have no value, because others have moved them.

        Raises:
            InputChangedError: They have been moved again.
            StoreUnavailableError: The store does not answer.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """One start of a run.

    Args:
        ledger: The run's ledger.
        sink: The table.
        input: The input to read.
        prepared: The result of `prepare`; None to claim the run here.
        check_output: Raises if the job's output will not fit the table, as far as that is known
            before it runs. Not called for a run that has landed.
        moving: What to do about rows of the table that others move, if they are the input.
        ready: What an earlier start has staged, if this one only commits it.
    """

    ledger: Ledger
    sink: Sink
    input: SettledInput
    prepared: Prepared | None = None
    check_output: Callable[[WriterSpec], object] = lambda _spec: None
    moving: MovingRows | None = None
    ready: Ready | None = None

    def write(self, view: TableView, identity: Identity, options: WriteOptions) -> Report:
        """Write the transformed input to the table once, in the run's mode.

        Args:
            view: A fresh view of the table.
            identity: The identity that this start expects the run to have.
            options: The user's options.

        Raises:
            RunAbortedError: The run was aborted, and none of it has landed.
            HoldfastError: Any other error; durable work is kept.
        """
        try:
            return self._write(view, identity, options)
        finally:
            if self.prepared is not None:  # A kept traceback would keep the heartbeat running.
                self.prepared.heartbeat.stop()

    def _write(self, view: TableView, identity: Identity, options: WriteOptions) -> Report:
        ledger, began = self.ledger, self.ledger.ports.now()
        if self.prepared is None:
            ledger.probe()
            # A filter or a key that does not fit leaves nothing in the store.
            if options.where is not None or options.on:
                self._writer_spec(view, options)
            # What a transform returns is not known yet, nor are a scan's columns before its files.
            if identity.key and options.transform is None:
                self._refuse_misfit(view, options)
        # Before the claim: a start of a different job must not fence this run's driver.
        nonce = ledger.ports.new_nonce()
        run_file = open_run_file(
            ledger.storage,
            ledger.layout,
            run_id=ledger.run_id,
            identity=identity,
            nonce=nonce,
            sleep=ledger.ports.sleep,
        )
        ledger.log.belongs_to(run_file)
        commit = Commit(ledger=ledger, run_file=run_file, sink=self.sink)
        heartbeat: Heartbeat | None = None
        try:
            if self.prepared is None:
                is_new = run_file.nonce == nonce
                known = self.ready is None  # A commit does not know the transform.
                claim = claim_run(ledger, options, compare_code=known, is_new=is_new)
                book = Workbook(ledger)
            else:
                claim, book = claim_again(ledger, options), self.prepared.book
            heartbeat = Heartbeat(ledger, options.checkpoint_every_s)
            began_with = view.schema
            if ledger.ports.now() - began > _VIEW_S_MAX:
                view = commit.load()  # The claim waited: the table may have changed.
            return self._drive(commit, view, began_with, options, claim, book)
        except RunAbortedError:
            # The abort may have come while a post was under way. A user who sees "aborted" starts
            # over under another run id, so none of the rows may be in the table.
            refuse_doubt(ledger, lambda _identity: self.sink)
            log_step(ledger.run_id, "stopped: the run was aborted")
            raise
        except HoldfastError as error:
            ledger.stop(error)
            raise
        finally:
            if heartbeat is not None:  # Only now: the stop record may take long to write.
                heartbeat.stop()

    def _drive(  # noqa: PLR0913, PLR0917 - the parts of one start.
        self,
        commit: Commit,
        view: TableView,
        began_with: dict[str, Any],
        options: WriteOptions,
        claim: Claim,
        book: Workbook,
    ) -> Report:
        identity = commit.run_file.identity
        # A scan has no key: its files are pinned.
        by: Compared = (options.verify_input or None) if identity.key else "files"
        # Before any work: an earlier start may have landed and died before its receipt. If it
        # wrote an intent, only a view loaded after our claim counts.
        landed = commit.look(None if commit.log.intents else view)
        if landed is not None:
            return self._after_landing(commit, landed, by, options, book)
        if self.ready is not None:
            return self._commit_ready(commit, view, options, book, self.ready)
        self.input.settle(self.ledger, compare=True)
        writer = self._writer_spec(view, options)
        self.check_output(writer)
        if self.prepared is None:
            book.inherit()
        self._refresh(book)
        number = len(starts_of(commit.log.records))
        log_step(commit.run_id, f"claimed: start {number}, {book.work.sums.rows:,} rows kept")
        # The output is made for the columns that this start saw first: names may have moved since.
        self.sink.check(view, [began_with, *book.schemas], book.work.adds)
        passes = Passes(
            Start(
                ledger=self.ledger,
                book=book,
                identity=identity,
                claim=claim,
                options=options,
                sink=self.sink,
                view=view,
                writer=writer,
                submitter=self.input.submitter,
                source=self.prepared.source if self.prepared else None,
            )
        )
        passes.withdraw_lost()
        commit.replaced.settle(view, options, book.work.adds)
        kept = book.work
        if book.is_complete and options.verify_input and self._has_changed(book, options):
            book.reopen()  # The next pass takes the new rows, or raises.
        done = self._publish(commit, passes, book, options)
        if isinstance(done, Ready):
            return self._whole_report(self._ready_report(done, by), book, kept, options)
        if options.verify_input and done.receipt.staged.name != book.seal().name:
            # An earlier start's post landed in the meantime, without the rows added since.
            self._compare(book, done.receipt.staged, options)
        return self._whole_report(self._report(done, "committed", by), book, kept, options)

    def _commit_ready(
        self, commit: Commit, view: TableView, options: WriteOptions, book: Workbook, ready: Ready
    ) -> Report:
        """Commit what an earlier start has staged, and nothing else.

        Raises:
            RunNotReadyError: It is not all that is staged now.
            StagedFileMissingError: A staged file is gone.
            TableChangedError: The staged files no longer fit the table.
        """
        book.inherit()
        if commit.log.ready != ready or book.seal().name != ready.work.name:
            reason = "a later start has changed what is staged"
            raise RunNotReadyError(run_id=commit.run_id, reason=reason)
        self.sink.check(view, book.schemas, book.work.adds)
        commit.replaced.settle(view, options, book.work.adds)
        landed = self._publish_once(commit, book, options)
        assert isinstance(landed, Landed)  # noqa: S101 - the options say to commit.
        report = self._report(landed, "committed", None)
        return self._whole_report(report, book, book.work, options)

    def _whole_report(
        self, report: Report, book: Workbook, kept: Work, options: WriteOptions
    ) -> Report:
        """Return the report of a start that has landed, given the work that it began with."""
        kept, tally, spent = kept.only(book.work), book.tally, book.spent
        return replace(
            report,
            tasks=tally.tasks,
            passes=tally.passes,
            kept_rows=kept.sums.rows - kept.quarantined_rows,
            kept_seconds=kept.seconds,
            dropped_rows=tally.dropped_rows,
            withdrawn_rows=tally.withdrawn_rows,
            io=dict(tally.io),
            copied_files=tally.copied_files,
            not_copied_files=tally.not_copied_files,
            searched_files=tally.searched_files,
            searched_again=tally.searched_again,
            rows_by_code=_rows_by_code(self.ledger.log, book.work),
            quarantined_rows=book.work.quarantined_rows,
            cost_by_epoch=_cost_by_epoch(book.work),
            kept_cost=kept.cost,
            lost_cost=spent.lost,
            held_cost=spent.held,
            budget=options.budget,
        )

    def _refresh(self, book: Workbook) -> bool:
        """Find out where rows of the table are that are left to do; return whether they moved."""
        return self.moving is not None and self.moving.refresh(self.ledger, book.finished)

    def _after_landing(
        self,
        commit: Commit,
        landed: Landed,
        by: Compared,
        options: WriteOptions,
        book: Workbook,
    ) -> Report:
        """Return the report of a start that found the run in the table, and compare the input."""
        receipt = landed.receipt
        log_step(self.ledger.run_id, f"already landed as snapshot {receipt.snapshot_id}")
        compared = options.if_committed == "compare" and bool(options.verify_input)
        if compared:
            # A scan of the table itself finds it changed, by this run.
            is_own = commit.replaced.snapshot_read() is not None
            self.input.settle(self.ledger, compare=not is_own)
            compared = self._compare(book, receipt.staged, options)
        seal = self._seal_of(receipt.staged)
        return replace(
            self._report(landed, "already_committed", by if compared else None),
            quarantined_rows=seal.quarantined_rows if seal is not None else 0,
        )

    def _report(self, landed: Landed, outcome: Outcome, compared: Compared) -> Report:
        """Return the part of the report that every successful start has."""
        receipt = landed.receipt
        return Report(
            run_id=self.ledger.run_id,
            table=self.sink.name,
            outcome=outcome,
            snapshot_id=receipt.snapshot_id,
            rows=receipt.rows,
            files=receipt.files,
            size_bytes=receipt.size_bytes,
            posts=landed.posts,
            landed_at=self._landed_at(receipt),
            replaced_files=receipt.removed_files,
            replaced_rows=receipt.removed_rows,
            replaced_partitions=receipt.removed_partitions,
            delete_files=receipt.delete_files,
            carried_rows=receipt.carried_rows,
            deleted_keys=receipt.deleted_keys,
            upserts=receipt.upserts,
            input_compared=compared,
            still_in_table="yes" if landed.present else "unknown",
        )

    def _landed_at(self, receipt: Receipt) -> str:
        """Return when the post that landed was made; its receipt may be a later start's."""
        numbered = {record.number: record.written_at for record in self.ledger.log.records}
        return numbered.get(receipt.intent_number, "")

    def _ready_report(self, ready: Ready, compared: Compared) -> Report:
        """Return the part of the report that a start has which stops before the commit."""
        return Report(
            run_id=self.ledger.run_id,
            table=self.sink.name,
            outcome="ready",
            snapshot_id=None,
            rows=ready.rows,
            files=ready.files,
            size_bytes=ready.size_bytes,
            posts=0,
            replaced_files=ready.removed_files,
            replaced_rows=ready.removed_rows,
            replaced_partitions=ready.removed_partitions,
            deleted_keys=ready.deleted_keys,
            input_compared=compared,
        )

    def _refuse_misfit(self, view: TableView, options: WriteOptions) -> None:
        """Refuse a new run whose output cannot fit, before it leaves anything in the store.

        An existing run goes on: it may have landed, or its own check says more.

        Raises:
            SchemaMismatchError: The output does not fit the table.
        """
        try:
            self.check_output(self._writer_spec(view, options))
        except SchemaMismatchError:
            if self.ledger.run_file() is None:
                raise

    def _writer_spec(self, view: TableView, options: WriteOptions) -> WriterSpec:
        return self.sink.writer_spec(
            view,
            self._may_lack(view, options),
            options.where,
            options.on_columns,
            options.delete_column or "",
        )

    def _may_lack(self, view: TableView, options: WriteOptions) -> MayLack:
        """Return the columns that the output may lack: those added since the run began.

        Raises:
            LedgerDamagedError: The run's first plan does not hold a table schema.
        """
        if options.missing_columns == "null":
            return None
        first = next(iter(self.ledger.log.plans.values()), None)
        return frozenset() if first is None else self.sink.columns_since(view, first.schema)

    def _publish(
        self, commit: Commit, passes: Passes, book: Workbook, options: WriteOptions
    ) -> Landed | Ready:
        stagings = moves = 0
        while True:
            try:
                passes.run()
                return self._publish_once(commit, book, options)
            except StagedFileMissingError:  # noqa: PERF203 - few attempts, each of a whole job.
                # A clean-up deleted a staged file. Computing its rows again costs time and money;
                # publishing without them would lose rows.
                stagings += 1
                if stagings == _STAGINGS_MAX:
                    raise
                passes.withdraw_lost()
            except RowsMovedError as moved:
                moves += 1
                if self.moving is None or moves == _MOVES_MAX:
                    raise CommitConflictError(table=self.sink.name, attempts=moves) from moved
                self.moving.extend(self.ledger, moved)
                passes.take_more_rows(self._writer_spec(commit.load(), options))
            except InputChangedError:
                # A clean-up deleted a version that was being read.
                moves += 1
                if moves == _MOVES_MAX or not self._refresh(book):
                    raise
                passes.take_more_rows(self._writer_spec(commit.load(), options))

    def _publish_once(
        self, commit: Commit, book: Workbook, options: WriteOptions
    ) -> Landed | Ready:
        renew(self.ledger, commit, book)
        removes = removes_of(commit.run_file.identity)
        reference = book.seal()
        adds = merge(self.ledger, commit, book)
        commit = replace(commit, merged=adds.merged)
        change = Change(
            adds=adds.groups,
            removes=removes,
            base=commit.replaced.only(options),
            where=options.where,
            on=options.on_columns,
            write_mode=options.write_mode,
            deleted_keys=book.work.deleted_keys,
        )
        is_whole = removes in {"all", "where"}
        if is_whole and not options.allow_empty and not StagedTotals.of(change.adds).rows:
            raise EmptyOutputError(table=self.sink.name)
        if removes == "keys":
            indexes = Indexes(
                ledger=self.ledger,
                sink=self.sink,
                submitter=self.input.submitter,
                options=options,
            )
            view = commit.load()
            # Names must mean the columns that rows were staged for, not only at the post.
            self.sink.check(view, book.schemas, [])
            keys = indexes.of(view, book.work.groups, reference)
            change = replace(change, keys=keys)
        if removes == "columns":
            change = replace(change, failed=_spans(book.work.quarantined))
        if change.is_by_row or removes == "columns":
            rewrites = Rewrites(
                ledger=self.ledger,
                sink=self.sink,
                submitter=self.input.submitter,
                options=options,
                tally=book.tally,
            )
            commit = replace(commit, rewrites=rewrites)
        if options.commit:
            return commit.publish(change, reference, book.schemas)
        found = commit.rehearse(change, book.schemas)
        return found if isinstance(found, Landed) else self._leave_ready(found, reference, options)

    def _leave_ready(
        self, change: Change, reference: PartReference, options: WriteOptions
    ) -> Ready:
        """Record that all work is staged and checked, and what a commit needs to know."""
        totals = StagedTotals.of(change.adds)
        ready = Ready(
            work=reference,
            rows=totals.rows,
            files=totals.files,
            size_bytes=totals.size_bytes,
            removed_files=change.loss.files,
            removed_rows=change.loss.rows,
            removed_partitions=change.loss.partitions,
            deleted_keys=change.deleted_keys,
            allow_empty=options.allow_empty,
            isolation_level=options.isolation_level,
            write_mode=options.write_mode,
        )
        self.ledger.log.append(ready)
        log_step(self.ledger.run_id, f"ready: {totals.rows:,} rows are staged, and not committed")
        return ready

    def _has_changed(self, book: Workbook, options: WriteOptions) -> bool:
        """Whether the input differs from what the run has covered, or cannot be compared."""
        if book.input_sums is None:
            nothing, whole_rows = KeyFiles(storage=self.ledger.storage), options.compares_rows
            book.input_sums = self.input.submitter.measure(nothing, whole_rows=whole_rows)
        if options.compares_rows and book.work.rows_without_sums:
            return True
        return bool(book.work.sums.difference(book.input_sums))

    def _compare(self, book: Workbook, reference: PartReference, options: WriteOptions) -> bool:
        """Compare the input with what the run has covered.

        Raises:
            RunMismatchError: The input differs, and its rows would be dropped silently; or whole
                rows are to be compared, and cannot be.
        """
        seal = self._seal_of(reference)
        if seal is None:
            return False
        covered, now = seal.covered, book.input_sums
        if options.compares_rows and not covered.has_row_sums:
            raise RunMismatchError(
                run_id=self.ledger.run_id, differences=without_row_sums(covered.rows)
            )
        if now is None:
            nothing = KeyFiles(storage=self.ledger.storage)
            now = self.input.submitter.measure(nothing, whole_rows=options.compares_rows)
        if difference := covered.difference(now):
            if covered.has_keys_of(now):
                difference = changed_columns(book.planned_columns, now.columns) or difference
            raise RunMismatchError(run_id=self.ledger.run_id, differences=difference)
        return True

    def _seal_of(self, reference: PartReference) -> Seal | None:
        """Return the seal that accepted the work, if it is in the log."""
        seals = self.ledger.log.seals.values()
        return next((seal for seal in seals if seal.work.name == reference.name), None)


def _spans(records: Iterable[TaskRecord]) -> list[Span]:
    """Return the numbers of the rows that records of a scan cover."""
    return [span for record in records for span in record.coverage.ranges or ()]


def _rows_by_code(log: RunLog, work: Work) -> dict[str, int]:
    rows: Counter[str] = Counter()
    for record in work.records:
        if record.coverage.rows and record.quarantine is None:
            rows[log.claims[record.claim].code] += record.coverage.rows
    return dict(rows)


def _cost_by_epoch(work: Work) -> dict[int, float]:
    costs: dict[int, float] = defaultdict(float)
    for record in work.records:
        if record.cost:
            costs[record.claim] += record.cost
    return dict(costs)


def warn_of_doubts(report: Report) -> None:
    """Warn about what a start could not find out."""
    if not report.input_compared:
        warn_caller(
            f"run {report.run_id!r}: the input was not compared with what an earlier start "
            "of this run may have read"
        )
    if report.still_in_table == "unknown":
        warn_caller(
            f"run {report.run_id!r} has landed; the table's history does not show whether its "
            "rows are still there"
        )
